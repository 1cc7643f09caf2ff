"""The file that a compilation makes: container, artifact and its public part, checks of untrusted bytes, figures."""
