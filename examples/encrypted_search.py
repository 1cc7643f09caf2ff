"""Private search in encrypted vectors: their owner stores them on a server that reads neither them nor questions.

The vectors are embeddings of sentences (SNIPS utterances by all-MiniLM-L6-v2). The second index lets the server decide
which entries are near enough, so that whoever decrypts an answer learns these alone.
"""

import os
from pathlib import Path

import heliograph as hg
import numpy as np

path = Path(os.environ.get("HELIOGRAPH_DATA", "data")) / "snips_minilm_l6_features.npz"
if not path.exists():
    raise SystemExit(f"{path} is not there: get it with benchmarks/fetch.py, or set HELIOGRAPH_DATA to its folder")
with np.load(path) as file:
    sentences, question = file["x_train"][:300].astype(float), file["x_test"][1].astype(float)
exact = sentences @ question / np.linalg.norm(sentences, axis=1) / np.linalg.norm(question)

index = hg.search_index(sentences, encrypted=True)
owner = hg.Client(index.public())
kept = hg.encrypt_index(owner, sentences)
with hg.Server(index, owner.evaluation_keys(), kept=kept) as server:
    hits = hg.search(server, owner, question, k=3)
print(f"the nearest: {[hit.place for hit in hits]}, in the clear {np.argsort(-exact)[:3].tolist()}")

index = hg.search_index(sentences, encrypted=True, answer="matches", threshold=0.5, gap=0.02)
owner = hg.Client(index.public())
kept = hg.encrypt_index(owner, sentences)
with hg.Server(index, owner.evaluation_keys(), kept=kept) as server:
    hits = hg.search(server, owner, question)
print(f"above 0.5: {sorted(hit.place for hit in hits)}, in the clear {np.flatnonzero(exact > 0.5).tolist()}")
print(f"within 0.02 of it: {np.flatnonzero(np.abs(exact - 0.5) < 0.02).tolist()}")
