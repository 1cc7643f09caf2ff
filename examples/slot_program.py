"""A program on slots, as a cryptography researcher writes one: a 3-tap filter and a dot product on one ciphertext."""

from pathlib import Path

import heliograph as hg
import numpy as np

artifact = hg.compile(hg.parse(Path(__file__).with_name("filter.hg")), hg.Options(precision_bits=16))
signal = np.array([0.48, -1.0, 0.24, 0.72, 0.0, -0.52, 1.0, 0.12])

client = hg.Client(artifact.public())
with hg.Server(artifact, client.evaluation_keys()) as server:
    smooth, dot = client.decrypt(server.run(client.encrypt(signal)))
values = artifact.report.values
print("smooth:", np.round(smooth, 3) + 0.0)
print("dot, in every slot:", np.round(dot, 3) + 0.0)
print(f"{values['levels']} levels, {values['rotations']} rotations with {values['rotation_keys']} keys")
