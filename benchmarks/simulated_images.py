"""Simulate images with a compiled artifact, in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

import heliograph as hg

_loaded: hg.Artifact


def simulated(
    artifact: Path, images: Sequence[Any], numbers: Iterable[int]
) -> Generator[tuple[int, list[float]], None, None]:
    """The number and the scores of each of the images with these numbers, as they are finished; an image is an array, or a
    tuple of them for several inputs.

    Closed before its end, it waits for the images that are being simulated, and begins no other.
    """
    # A forked process would share the threads of OpenMP, which it does not have.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context, _load, (artifact,)) as pool:
        running = {pool.submit(_scores, number, images[number]): number for number in numbers}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _load(path: Path) -> None:
    global _loaded
    _loaded = hg.Artifact.load(path)


def _scores(number: int, image: Any) -> list[float]:
    inputs = image if isinstance(image, tuple) else (image,)
    scores: list[float] = np.asarray(hg.simulate(_loaded, *inputs, seed=number)).tolist()
    return scores
