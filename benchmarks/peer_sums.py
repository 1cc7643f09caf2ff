"""Noisy sums of clipped gradients as other libraries release them, for benchmarks/mechanism_audit.py.

    PYTHON benchmarks/peer_sums.py opacus|jax_privacy SETTINGS.json OUT.npz

PYTHON is an interpreter with that library; nothing of Heliograph is imported. The records are crowds of canaries alone:
each gradient is one entry. Sampling, clipping and noise are the library's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def opacus(job: dict[str, Any], entries: Any, lengths: Any) -> Iterator[Any]:
    """DPOptimizer on the batches of Opacus' Poisson sampler."""
    import torch
    from opacus.optimizers import DPOptimizer
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(job["seed"])
    parameter = torch.nn.Parameter(torch.zeros(job["parameters"]))
    optimizer = DPOptimizer(
        torch.optim.SGD([parameter], lr=0.0),
        noise_multiplier=job["noise_multiplier"],
        max_grad_norm=job["max_grad_norm"],
        expected_batch_size=1,
        generator=generator,
    )
    sampler = UniformWithReplacementSampler(
        num_samples=len(entries), sample_rate=job["p"], generator=generator, steps=job["steps"]
    )
    for batch in sampler:
        parameter.grad_sample = torch.zeros(len(batch), job["parameters"])
        parameter.grad_sample[torch.arange(len(batch)), torch.from_numpy(entries[batch])] = torch.from_numpy(
            lengths[batch]
        )
        optimizer.step()
        yield parameter.grad.numpy().copy()
        optimizer.zero_grad()


def jax_privacy(job: dict[str, Any], entries: Any, lengths: Any) -> Iterator[Any]:
    """`clipped_grad` and `gaussian_privatizer` on the batches of CyclicPoissonSampling."""
    import jax
    import jax_privacy
    from jax_privacy import batch_selection, noise_addition

    gradients = jax_privacy.clipping.clipped_grad(
        lambda parameters, entry, length: parameters[entry] * length,
        l2_clip_norm=job["max_grad_norm"],
        batch_argnums=(1, 2),
        keep_batch_dim=False,
    )
    std = job["noise_multiplier"] * gradients.sensitivity()
    privatizer = noise_addition.gaussian_privatizer(stddev=std, prng_key=jax.random.key(job["seed"]))
    parameters = jax.numpy.zeros(job["parameters"])
    state, step = privatizer.init(parameters), jax.jit(gradients)
    sampling = batch_selection.CyclicPoissonSampling(sampling_prob=job["p"], iterations=job["steps"])
    for batch in sampling.batch_iterator(len(entries), rng=job["seed"]):
        # One shape for all batches, filled up with records of no gradient.
        places, values = np.zeros(job["most"], dtype=np.int32), np.zeros(job["most"], dtype=np.float32)
        places[: len(batch)], values[: len(batch)] = entries[batch], lengths[batch]
        noisy, state = privatizer.update(step(parameters, places, values), state)
        yield np.asarray(noisy)


LIBRARIES: dict[str, Callable[[dict[str, Any], Any, Any], Iterator[Any]]] = {
    "opacus": opacus,
    "jax_privacy": jax_privacy,
}


def main(library: str, settings: str, out: str) -> None:
    """Write the sums at the entries of crowds, [steps, crowds], and at all others, [steps, parameters - crowds]."""
    with open(settings) as file:
        job = json.load(file)
    crowds = len(job["lengths"])
    entries = np.repeat(np.arange(crowds), job["crowd"])
    lengths = np.repeat(np.array(job["lengths"], dtype=np.float32), job["crowd"])
    sums = np.stack(list(LIBRARIES[library](job, entries, lengths)))
    np.savez(out, crowds=sums[:, :crowds], absent=sums[:, crowds:])


if __name__ == "__main__":
    main(*sys.argv[1:])
