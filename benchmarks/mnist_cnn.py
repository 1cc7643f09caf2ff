"""A network of LeNet's size (two convolutions, average pooling, two linear layers) on MNIST, encrypted at 128 bits."""

from __future__ import annotations

from common import arguments, benchmark_classifier, hg, mnist, show, train  # first: it imports heliograph

import torch
from torch import nn


# Room for all of its encoded plaintexts; with the default of 1 GiB a third are encoded anew for every image.
CACHE_BYTES = 4 << 30


class LeNet(nn.Module):
    """Two convolutions with ReLU and average pooling, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.AvgPool2d(2)
        self.fc1 = nn.Linear(400, 84)
        self.fc2 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def main() -> None:
    options = arguments(__doc__ or "")
    x_train, y_train, x_test, y_test = mnist()
    x_train, x_test = x_train[:, None], x_test[:, None]
    torch.manual_seed(1)
    module = LeNet()
    train(module, x_train, y_train, options.epochs)
    chosen = hg.Options(degree=options.degree, batch=options.batch)
    result = benchmark_classifier(
        "mnist_cnn", module, x_train, x_test, y_test, chosen, options.images, CACHE_BYTES, options.backend
    )
    show(result, options.json)


if __name__ == "__main__":
    main()
