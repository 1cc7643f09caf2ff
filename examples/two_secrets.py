"""Two encrypted vectors and weights that only the server knows: how near the vectors are to each other."""

from pathlib import Path

import heliograph as hg
import numpy as np

artifact = hg.compile(hg.parse(Path(__file__).with_name("two_secrets.hg")), hg.Options(precision_bits=16))
mine, yours = np.array([0.5, -0.25, 1.0, 0.0]), np.array([0.25, -0.5, 0.75, -1.0])
weights = np.array([1.0, 2.0, 0.5, 0.25])

client = hg.Client(artifact.public())  # the key holder; it sends the server ciphertexts only
with hg.Server(artifact, client.evaluation_keys()) as server:
    answer = server.run(client.encrypt(mine, yours), plain={"weights": weights})
distance, similarity = client.decrypt(answer)
print(f"distance {distance:.3f}, in the clear {np.sum(weights * (mine - yours) ** 2):.3f}")
print(f"similarity {similarity:.3f}, in the clear {np.sum(weights * mine * yours):.3f}")
