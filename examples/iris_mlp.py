"""A network in the language, served encrypted: which of three kinds of iris five flowers are."""

from pathlib import Path

import heliograph as hg
import numpy as np
from sklearn.datasets import load_iris

program = hg.parse(Path(__file__).with_name("iris_mlp.hg"))
artifact = hg.compile(program)
iris = load_iris()

client = hg.Client(artifact.public())
with hg.Server(artifact, client.evaluation_keys()) as server:
    for number in (0, 60, 75, 110, 149):
        logits = client.decrypt(server.run(client.encrypt(iris.data[number])))
        kind = iris.target_names[np.argmax(logits)]
        print(f"flower {number}: {kind}, labelled {iris.target_names[iris.target[number]]}")
