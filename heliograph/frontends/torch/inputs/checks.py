"""Checks of the user's arguments to `trace` other than the model: the example, the ranges, the calibration samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heliograph.errors import ProgramError, RangeError, said
from heliograph.execution.interface import real_numbers
from heliograph.ir import Location
from heliograph.ir.node import Array


def _per_input(value: Any, count: int) -> list[Any]:
    """One entry per input, from a single value or one per input."""
    if value is None:
        return [None] * count
    if count == 1 and not (isinstance(value, tuple) and len(value) == 1):
        return [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def calibration_arrays(
    calibration: Any, names: Sequence[str], shapes: Sequence[tuple[int, ...]], where: Location
) -> tuple[Array, ...]:
    """Samples as float64 arrays with a leading sample axis, one per input; empty where there are none."""
    if calibration is None:
        return ()
    items = _per_input(calibration, len(names))
    if len(items) != len(names):
        raise ProgramError(
            f"calibration has {len(items)} entries, the model {len(names)} inputs ({', '.join(names)})",
            where=where,
            hint="give a tuple with one array of samples per input, in argument order",
        )
    arrays = []
    for name, shape, item in zip(names, shapes, items, strict=True):
        array = _samples(name, shape, item, where)
        arrays.append(array)
    counts = {array.shape[0] for array in arrays}
    if len(counts) > 1:
        raise ProgramError(
            f"calibration has {' and '.join(str(a.shape[0]) for a in arrays)} samples for {', '.join(names)}",
            where=where,
            why="sample i of every input is one call of the model",
        )
    return tuple(arrays)


def _samples(name: str, shape: tuple[int, ...], item: Any, where: Location) -> Array:
    if isinstance(item, torch.Tensor):
        item = item.detach().cpu().double().numpy() if item.is_floating_point() else item.detach().cpu().numpy()
    elif isinstance(item, list):
        item = [part.detach().cpu().double().numpy() if isinstance(part, torch.Tensor) else part for part in item]
    try:
        array = np.array(real_numbers(item))
    except ValueError as error:
        raise ProgramError(
            f"calibration of input {name!r} is not an array of real numbers",
            where=where,
            why=str(error),
            hint="give an array or tensor of numbers with a leading sample axis",
        ) from None
    if array.ndim == 0 or array.shape[1:] != shape:
        raise ProgramError(
            f"calibration of input {name!r} has shape {array.shape}, expected ({', '.join(['samples', *map(str, shape)])})",
            where=where,
            hint=_missing_axis(array.shape, shape),
        )
    if not array.shape[0]:
        raise ProgramError(f"calibration of input {name!r} holds no sample", where=where)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        sample, *element = (int(i) for i in bad[0])
        raise ProgramError(
            f"calibration of input {name!r} holds {array[tuple(bad[0])]} in sample {sample}, element {tuple(element)}",
            where=where,
            why="encrypted values are finite numbers: a program cannot see which are missing",
            hint="fill in missing values on the client, before encryption, or leave these samples out"
            if np.isnan(array[tuple(bad[0])])
            else "remove infinity",
        )
    return array


def _missing_axis(samples: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """The hint for samples or an example that lack an axis; empty where they do not fit for another reason."""
    if samples == shape:
        return "add a leading sample axis: samples[np.newaxis]"
    if samples[2:] == shape:
        # The first axis of one sample was mistaken for the example's batch axis.
        return said("{example_input} needs a batch axis in front, also for one sample: {example_input[None]|x[None]}")
    return ""


def ranges(
    input_range: Any,
    calibration: Sequence[Array],
    names: Sequence[str],
    where: Location,
    truths: Sequence[bool] = (),
) -> list[tuple[float, float] | None]:
    """The interval of each input: declared, or seen in the samples, or None; samples must lie in a declared one.

    `truths` says of each input whether it holds truth values, whose interval is known.
    """
    single = len(names) == 1
    declared: list[Any]
    if single and isinstance(input_range, list | tuple | np.ndarray) and len(input_range) == 2:
        declared = [input_range]
    else:
        declared = _per_input(input_range, len(names))
    if len(declared) != len(names) or (not single and any(isinstance(item, int | float) for item in declared)):
        raise ProgramError(
            said("{input_range}", f" {input_range!r} does not give one (low, high) per input ({', '.join(names)})"),
            where=where,
            hint="give a tuple of pairs in argument order: ((low, high), (low, high)), None where there is none",
        )
    result: list[tuple[float, float] | None] = []
    for position, (name, item) in enumerate(zip(names, declared, strict=True)):
        samples = calibration[position] if calibration else None
        if item is not None:
            bounds = _interval(name, item, where)
            if samples is not None:
                _check_inside(name, samples, bounds, where)
            result.append(bounds)
        elif position < len(truths) and truths[position]:
            result.append((0.0, 1.0))
        elif samples is not None:
            low, high = float(samples.min()), float(samples.max())
            if low == high:
                raise ProgramError(
                    f"all calibration samples of input {name!r} hold the one number {low:g}",
                    where=where,
                    why="the range of the input cannot be told from them",
                    hint=said("give {input_range=(low, high)}"),
                )
            result.append((low, high))
        else:
            result.append(None)
    return result


def _interval(name: str, item: Any, where: Location) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in item)
    except (TypeError, ValueError):
        raise ProgramError(f"the range of input {name!r} is {item!r}, not a pair (low, high)", where=where) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ProgramError(
            f"the range of input {name!r} is ({low:g}, {high:g})",
            where=where,
            why="low must be below high, both finite",
        )
    return low, high


def _check_inside(name: str, samples: Array, bounds: tuple[float, float], where: Location) -> None:
    outside = np.argwhere((samples < bounds[0]) | (samples > bounds[1]))
    if len(outside):
        sample, *element = (int(i) for i in outside[0])
        raise RangeError(
            said(
                f"calibration of input {name!r} has {samples[tuple(outside[0])]:g} in sample {sample}, element "
                f"{tuple(element)}, outside of {{input_range}} ({bounds[0]:g}, {bounds[1]:g})"
            ),
            where=where,
            why=f"{len(outside)} of {samples.size} elements lie outside; the polynomials are fitted to the range",
            hint=f"normalize the samples, or declare ({samples.min():g}, {samples.max():g})",
        )
