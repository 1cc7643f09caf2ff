"""The file that a compilation makes: container, artifact and its public part, checks of a stranger's bytes, figures."""
