"""A small convolutional network on scikit-learn's digits: trained, compiled, simulated, and run once encrypted."""

import heliograph as hg  # before torch

import numpy as np
import torch
from sklearn.datasets import load_digits


class SmallCNN(torch.nn.Module):
    """One convolution with batch norm and pooling, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.pool = torch.nn.AvgPool2d(2)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(torch.relu(self.norm(self.conv(x)))).flatten(1))


digits = load_digits()
images = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
labels = torch.from_numpy(digits.target)
torch.manual_seed(0)
model = SmallCNN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(40):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[:1400]), labels[:1400]).backward()
    optimizer.step()
model.eval()

program = hg.trace(model, images[:1], input_range=(0, 1), calibration=images[:400], name="small_cnn")
artifact = hg.compile(program, hg.Options(degree=7))
print(artifact.report)

test = images[1400:1420]
clear = model(test).detach().numpy()
simulated = np.stack([hg.simulate(artifact, image) for image in test])
print("same class as in the clear, simulated:", float((clear.argmax(1) == simulated.argmax(1)).mean()))

client = hg.Client(artifact.public())
server = hg.Server(artifact, client.evaluation_keys())
answer = client.decrypt(server.run(client.encrypt(test[0])))
print("same class, encrypted:", bool(answer.argmax() == clear[0].argmax()))
