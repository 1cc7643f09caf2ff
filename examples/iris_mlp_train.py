"""Train the network of iris_mlp.hg on the iris data of scikit-learn and write its parameters, iris_mlp.npz."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPClassifier

if __name__ == "__main__":
    x, y = load_iris(return_X_y=True)
    model = MLPClassifier((8,), activation="relu", solver="lbfgs", alpha=1e-3, max_iter=2000, random_state=1)
    model.fit(x, y)
    (weight1, weight2), (bias1, bias2) = model.coefs_, model.intercepts_
    folder = Path(__file__).resolve().parent
    np.savez(folder / "iris_mlp.npz", weight1=weight1.T, bias1=bias1, weight2=weight2.T, bias2=bias2)
    print(f"accuracy on the training data: {model.score(x, y):.3f}")
