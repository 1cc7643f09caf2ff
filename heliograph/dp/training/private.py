"""`make_private`: a trainer from the objects of a plain PyTorch program, for users of Opacus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler, default_collate

from heliograph.dp.training.trainer import DPTrainer
from heliograph.errors import ProgramError


def make_private(
    module: nn.Module,
    optimizer: Optimizer,
    loader: DataLoader[Any],
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    **options: Any,
) -> DPTrainer:
    """A `DPTrainer` on a loader's data set, with its batch size as the expected one, and the given optimizer.

    The loader itself is not used: the trainer draws batches, by Poisson sampling or with `sampler`. Loop over
    `trainer.steps()`, or call `fit`. `loss` returns one value for each record. `options` are the options of
    `DPTrainer`: delta, epochs, max_grad_norm, epsilon or noise_multiplier, public_size and the rest.

    Raises ProgramError for loaders whose meaning would be lost: with a sampler that weights or selects records, a
    batch sampler, or a seeded generator.
    """
    if not isinstance(loader, DataLoader):
        raise ProgramError(
            f"{type(loader).__name__} is not a DataLoader", where="make_private", hint="use DPTrainer for data"
        )
    options.setdefault("batch_size", None if "sampler" in options else loader.batch_size)
    if options["batch_size"] is None and "sampler" not in options:
        raise _lost(
            "a batch sampler of its own",
            "batches that it makes are not Poisson samples, and no number would hold for them",
            "give batch_size, or a sampler of heliograph.dp.samplers",
        )
    if not isinstance(loader.sampler, SequentialSampler | RandomSampler) or getattr(
        loader.sampler, "replacement", False
    ):
        if isinstance(loader.sampler, SubsetRandomSampler):
            raise _lost(
                "a SubsetRandomSampler",
                "the trainer draws from the whole data set",
                "give a loader of torch.utils.data.Subset(dataset, indices)",
            )
        raise _lost(
            f"a {type(loader.sampler).__name__}",
            "records that are drawn more often than others have a larger sampling probability than is accounted for",
            "leave the sampler out, and weigh losses if classes are unequal",
        )
    if loader.generator is not None:
        raise _lost(
            "a generator of its own",
            "a seed that is known gives away which records were drawn",
            "leave the generator out",
        )
    if loader.collate_fn is not default_collate:
        # It is given one item at a time, so that it cannot look at several records.
        options.setdefault("collate", loader.collate_fn)
    return DPTrainer(module, loss, optimizer, loader.dataset, **options)


def _lost(what: str, why: str, hint: str) -> ProgramError:
    return ProgramError(f"the loader has {what}", where="make_private", why=why, hint=hint)
