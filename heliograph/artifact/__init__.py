"""The compiler's output file: container, artifact and its public part, checks of untrusted bytes, figures."""
