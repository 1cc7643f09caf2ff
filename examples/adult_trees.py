"""Boosted trees on the Adult census: does a person earn more than 50,000 dollars a year? The server never sees the person.

The client compares the person's row with the trees' thresholds before it encrypts (`binned=True`).
"""

import os
from pathlib import Path

import heliograph as hg
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

path = Path(os.environ.get("HELIOGRAPH_DATA", "data")) / "adult.npz"
if not path.exists():
    raise SystemExit(f"{path} is not there: get it with benchmarks/fetch.py, or set HELIOGRAPH_DATA to its folder")
with np.load(path) as file:
    columns = [str(name) for name in file["columns"] if name != "income"]
    # Texts are stored as numbers, which the trees take as categories.
    categories = [f"cats_{name}" in file for name in columns]
    train, test = (np.stack([file[f"{part}_{name}"] for name in columns], axis=1) for part in ("train", "test"))
    income, actual = file["train_income"], file["test_income"]

model = HistGradientBoostingClassifier(max_iter=50, max_depth=6, categorical_features=categories, random_state=0)
model.fit(train, income)

program = hg.from_sklearn(model, train[:1000], binned=True)
artifact = hg.compile(program)
print(artifact.report)
print(f"accuracy of {model.n_iter_} trees on {len(test):,} other people: {model.score(test, actual):.3f}")

client = hg.Client(artifact.public())
with hg.Server(artifact, client.evaluation_keys()) as server:
    for person in (1, 7, 57):
        row = test[person]
        probability = client.decrypt(server.run(client.encrypt(row)))[1]
        clear = model.predict_proba([row])[0, 1]
        age, hours = row[columns.index("age")], row[columns.index("hours_per_week")]
        print(f"age {age}, {hours} hours a week: {probability:.2f} encrypted, {clear:.2f} in the clear")
