"""One object for a private model: compiled, evaluated, saved and connected, in the conventions of scikit-learn."""
