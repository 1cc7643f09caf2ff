"""Private search: 10,000 sentences on a server, a question that nobody but the client reads.

The sentences are utterances to a voice assistant (SNIPS), as embeddings of all-MiniLM-L6-v2. The client's question is the
embedding of another utterance; what the hits are about answers it.
"""

import os
from collections import Counter
from pathlib import Path

import heliograph as hg
import numpy as np

path = Path(os.environ.get("HELIOGRAPH_DATA", "data")) / "snips_minilm_l6_features.npz"
if not path.exists():
    raise SystemExit(f"{path} is not there: get it with benchmarks/fetch.py, or set HELIOGRAPH_DATA to its folder")
with np.load(path) as file:
    sentences, about = file["x_train"][:10_000].astype(float), file["y_train"]
    questions, meant, intents = file["x_test"].astype(float), file["y_test"], file["label_names"]

index = hg.search_index(sentences)
print(index.report)

client = hg.Client(index.public())
with hg.Server(index, client.evaluation_keys()) as server:
    for number in (1, 3, 32):
        hits = hg.search(server, client, questions[number], k=10)
        clear = np.argsort(-(sentences @ questions[number]))[:10]
        (intent, votes), *_ = Counter(str(intents[about[hit.place]]) for hit in hits).most_common()
        print(
            f"question {number}: {votes} of 10 hits are about {intent} ({intents[meant[number]]} was meant); "
            f"{len({hit.place for hit in hits} & set(clear))} of them are the ten nearest in the clear"
        )
