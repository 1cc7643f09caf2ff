"""The bridge: a network trained with differential privacy (DPIS), compiled, and served on encrypted images.

The weights are private with respect to the training records; the answers are computed without the server seeing an image.
Nothing but the trained weights goes from one side to the other: what the compiler measures it measures on public images.
"""

import heliograph as hg  # before torch

import numpy as np
import torch
from sklearn.datasets import load_digits

from heliograph.dp.training import DPTrainer, ImportanceOptions

digits = load_digits()
images = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
labels = torch.from_numpy(digits.target)
# The first 1,400 play the private records; the rest is public, and all that anything is measured on.
private, public = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Flatten(),
    torch.nn.Linear(64, 32),
    torch.nn.ReLU(),
    torch.nn.Linear(32, 10),
)
trainer = DPTrainer(
    model,
    torch.nn.CrossEntropyLoss(reduction="none"),
    lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    private,
    method="dpis",
    epsilon=4.0,
    delta=1e-5,
    epochs=20,
    batch_size=200,
    max_grad_norm=0.5,
    dpis=ImportanceOptions(oversampling=3.0),
    secure_noise=True,
    public_set=public,
)
privacy = trainer.fit()

program = hg.trace(model, public[0][:1], input_range=(0, 1), calibration=public[0][:200], name="private_mlp")
artifact = hg.compile(program, hg.Options(degree=15))

client = hg.Client(artifact.public())
server = hg.Server(artifact, client.evaluation_keys())
# Encrypted scores carry an error (the report predicts it): taken are images whose two best scores are further apart.
scores = model(public[0]).detach()
best = scores.topk(2).values
sample = public[0][best[:, 0] - best[:, 1] > 2][:4]
clear = model(sample).detach().numpy()
encrypted = np.stack([client.decrypt(server.run(client.encrypt(image))) for image in sample])

print("== The training records ==")
print(privacy.words())
print()
print("== The images that are sent ==")
print(artifact.report)
print()
print(f"accuracy on public images: {privacy.accuracy:.3f}")
print("largest error of an encrypted score:", f"{np.abs(encrypted - clear).max():.2g}")
print("same class, encrypted:", bool((encrypted.argmax(1) == clear.argmax(1)).all()))
