"""Real data and training, for the benchmarks that need torch."""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

from collections.abc import Callable
from pathlib import Path

import fetch
import numpy as np
import torch
from harness import Skip, absent


def data(name: str) -> Path:
    """The path of a data file (data.md); ends the benchmark with the reason where it is absent."""
    path = fetch.folder() / name
    if not path.exists():
        raise Skip(absent(name))
    return path


def mnist(name: str = "mnist") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """MNIST (or `fashion_mnist`) in [0, 1] as float32, training and test, official order."""
    with np.load(data(f"{name}.npz"), allow_pickle=False) as file:
        images = [file[part].astype(np.float32) / 255 for part in ("x_train", "x_test")]
        return images[0], file["y_train"].astype(np.int64), images[1], file["y_test"].astype(np.int64)


def train(
    module: torch.nn.Module, x: np.ndarray, y: np.ndarray, epochs: int, seed: int | None = 0, peak: float = 4e-3
) -> None:
    """Adam with a rate that rises to its peak and falls, in place; without a seed torch's generator is as it was."""
    if seed is not None:
        torch.manual_seed(seed)
    steps = epochs * (len(x) // 128)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    module.train()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - 127, 128):
            batch = order[start : start + 128]
            loss = torch.nn.functional.cross_entropy(module(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    module.eval()


def once(weights: Path, module: torch.nn.Module, train: Callable[[], None]) -> torch.nn.Module:
    """The module, in evaluation, with the weights of a file, or where there is none those that `train` finds, kept.

    Floating point adds up differently on another number of threads, and results belong to one network.
    """
    if weights.exists():
        with np.load(weights, allow_pickle=False) as state:
            module.load_state_dict({name: torch.from_numpy(state[name]) for name in state})
        return module.eval()
    train()
    weights.parent.mkdir(parents=True, exist_ok=True)
    beside = weights.with_suffix(".tmp.npz")
    np.savez(beside, **{name: tensor.numpy() for name, tensor in module.state_dict().items()})
    beside.replace(weights)
    return module.eval()


def mnist_mlp(hidden: int, epochs: int) -> torch.nn.Sequential:
    """784-hidden-10 with a ReLU, trained on MNIST."""
    x, y, _, _ = mnist()
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    train(module, x.reshape(-1, 784), y, epochs)
    return module


def polynomial_logits(program: hg.Program, options: hg.Options, x: np.ndarray) -> np.ndarray:
    """The compiled polynomials in the clear, on many samples."""
    from heliograph.compiler.pipeline import front_passes
    from heliograph.interpret import interpret_batch

    polynomial = front_passes(program, options)[-1].program
    return np.concatenate([interpret_batch(polynomial, part)[0] for part in np.array_split(x, max(1, len(x) // 500))])
