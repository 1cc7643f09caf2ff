"""Programs from estimators of scikit-learn."""
