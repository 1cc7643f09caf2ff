"""A 784-512-10 ReLU network on MNIST, trained here, evaluated on encrypted test images at 128 bits."""

from __future__ import annotations

from common import arguments, benchmark_classifier, hg, mnist, show, train  # first: it imports heliograph

import torch


def main() -> None:
    options = arguments(__doc__ or "")
    x_train, y_train, x_test, y_test = mnist()
    x_train, x_test = x_train.reshape(-1, 784), x_test.reshape(-1, 784)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    train(module, x_train, y_train, options.epochs)
    result = benchmark_classifier(
        "mnist_mlp",
        module,
        x_train,
        x_test,
        y_test,
        hg.Options(degree=options.degree, batch=options.batch),
        options.images,
        backend=options.backend,
    )
    show(result, options.json)


if __name__ == "__main__":
    main()
