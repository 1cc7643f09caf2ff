"""Comparison of the traced program with the module on the same samples; a trace that differs is refused.

Rules can read a model wrongly, and a model can depend on something that one sample does not show: the size of its
batch, or the other samples in it. To detect both, the module runs on batches of several sizes and orders, the program
on each sample. Only after a difference does difference.py look for the first operation that differs.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils import _pytree as pytree

from heliograph.errors import ProgramError, UnsupportedError, said
from heliograph.frontends.torch.difference import Difference, Reading, fed, first_difference
from heliograph.frontends.torch.graph import export, unchanged
from heliograph.frontends.torch.inputs.covers import DEEP, DEPTH
from heliograph.frontends.torch.inputs.examples import Example
from heliograph.frontends.torch.refusals import APART, keeps_state
from heliograph.frontends.torch.rules.attention import fast_path_hint
from heliograph.frontends.torch.values import Mixes
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Location, Node, Program, shape_of
from heliograph.ir.program import Comparison

# The largest and smallest number of samples compared; between them, as many as take about this many products.
_MOST, _FEWEST, _WORK = 64, 2, 4e7
# With fewer than this many samples, others are invented: half far from the known ones, half within this share.
_INVENTED, _NEAR = 6, 0.05
# The allowed difference of outputs, as a share of the same element's largest value: some hundred roundings.
_SHARES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# The tolerance against a double-precision copy of the module; the factor by which the module itself may exceed it.
_DOUBLE_SHARE, _ROUNDED = 1e-6, 100.0
# An element's scale is at least this share of the output's largest: it may be a difference of large numbers.
_SMALLEST = 1e-2
# A difference beyond this share that rounding explains means an answer that rounding decides.
_DECIDED = 1e-2
# How far, as a share, and how often a sample is moved to see whether its answer is a tie.
_MOVED, _MOVES = 1e-4, 4
# What encrypted masks leave of hidden places may change outputs by this many times their weight, and by this at most.
_LEFT, _MOST_LEFT = 10.0, 1e-2


def compared(reading: Reading, samples: Sequence[Array]) -> Comparison:
    """Compare the program with the module on `samples`, one array for each input, or on invented ones where there are few.

    Raises an UnsupportedError where they differ, with the output, how far, on which sample, and the first operation that
    differs; a ProgramError where the module gives no number, or does not run.
    """
    if not reading.softened:
        return _Comparing(reading, samples).done()
    # Whether the model was read rightly is seen without what finite numbers leave of hidden places.
    deep = replace(reading, program=_deepened(reading.program, reading), wide=_deepened(reading.wide, reading))
    comparing = _Comparing(deep, samples)
    found = comparing.done()
    left = comparing.left_of_hidden(reading)
    return Comparison.seen(found.samples, found.difference + left, found.ties)


def _deepened(program: Program, reading: Reading) -> Program:
    """The program with lower numbers in the places that encrypted masks hide."""
    held = {name: program.constants.get(name) for name in reading.softened}
    lower = {name: number - (DEEP - DEPTH) for name, number in held.items() if isinstance(number, np.ndarray)}
    return replace(program, constants={**program.constants, **lower})


def compared_with(program: Program, module: torch.nn.Module, samples: Sequence[torch.Tensor]) -> Comparison:
    """Like `compared`, for a module from which the program was not traced: a refined network, for example."""
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    arrays = [np.asarray(each) for each in samples]
    example = Example(tuple(torch.as_tensor(array[:2]).to(dtype) for array in arrays), {})
    reading = Reading(
        module=module,
        example=example,
        program=program,
        wide=program,
        exported=None,
        values={},
        caller=Location(),
        start=Location(),
        any_batch=True,
        allowed={},
    )
    return compared(reading, arrays)


def _work(program: Program) -> float:
    """The approximate work for one sample: products computed plus numbers held."""
    total = 0.0
    for node in program.nodes:
        size = math.prod(node.type.shape)  # type: ignore[union-attr]
        held = [] if node.op == "constant" else [program.constants.get(str(value)) for value in node.attrs.values()]
        matrices = [array for array in held if isinstance(array, np.ndarray) and array.ndim > 1]
        inner = max((array.size / array.shape[0] for array in matrices if array.size), default=1.0)
        if node.op == "matmul" and len(node.inputs) > 1:
            inner = max(inner, float(node.inputs[0].type.shape[-1]))  # type: ignore[union-attr]
        total += size * inner + sum(matrix.nnz for matrix in held if matrix is not None and hasattr(matrix, "nnz"))
    return total


def _chosen(program: Program, samples: Sequence[Array]) -> list[int]:
    """The indices of distinct samples, with the outermost ones among them."""
    count = int(samples[0].shape[0])
    most = int(min(_MOST, max(_FEWEST, _WORK / max(1.0, _work(program)))))
    places = [int(place) for place in np.linspace(0, count - 1, min(count, 2 * most)).round()]
    for array in samples:
        flat = array.reshape(count, -1)
        if flat.shape[1]:
            places[:0] = [int(flat.max(axis=1).argmax()), int(flat.min(axis=1).argmin())]
    kept: dict[bytes, int] = {}
    for place in places:
        kept.setdefault(b"".join(np.ascontiguousarray(array[place]).tobytes() for array in samples), place)
        if len(kept) == most:
            break
    return sorted(kept.values())


def mixes(reading: Reading) -> Mixes | None:
    """The refusal of a model whose outputs for a sample depend on the samples beside it; None for other models."""
    size, share = reading.batch, max(_SHARES.values())
    if size == 1 and not reading.any_batch:
        return None
    try:
        samples = _invented(
            reading.program.inputs,
            [tensor.detach().cpu() for tensor in reading.example.tensors],
            reading.allowed,
            reading.flags,
        )
        places = [place % _INVENTED for place in range(_INVENTED if size == 1 else size)]
        part = [tensor[places] for tensor in samples]
        together = rows_of(reading.module, reading.example, part)
        alone = [
            rows_of(reading.module, reading.example, [tensor[[place] * size] for tensor in samples]) for place in (0, 1)
        ]
    except Exception:
        # The model takes one sample at a time.
        return one_by_one(reading)
    for place, rows in enumerate(alone):
        found = None if together is None else [row[place : place + 1] for row in together]
        if rows is None or found is None or _off(found, [row[:1] for row in rows], share).any():
            refused = refusal(first_difference(reading, part, place, share), "")
            return refused if isinstance(refused, Mixes) else None
    return None


def one_by_one(reading: Reading) -> Mixes | None:
    """The refusal of a model that accepts one sample alone and whose outputs have no sample axis; else None."""
    size = reading.batch
    shapes = [shape_of(output) for output in reading.wide.outputs if output.op != "input"]
    if all(shape[:1] == (size,) for shape in shapes):
        return None
    where: object = reading.start
    why = ""
    try:
        export(reading.module, reading.example.map(lambda tensor: torch.cat([tensor] * 2)), reading.caller)
    except ProgramError as error:
        where, why = error.where, f": {error.why}"
    return Mixes(
        "the model mixes samples of the batch",
        where=where,
        why=f"it runs on {size} alone, with outputs of shape {' and '.join(map(str, shapes))}, and not on {2 * size}{why}",
        hint=APART,
    )


def refusal(found: Difference, why: str) -> UnsupportedError:
    """The error for a traced program that differs from its model."""
    if found.mixes:
        return Mixes(found.what, where=found.where, why=found.why, hint=found.hint)
    return UnsupportedError(
        f"the traced program is not what the model computes: {found.what}",
        where=found.where,
        why=f"{why}; {found.why}",
        hint=found.hint,
    )


def rows_of(module: torch.nn.Module, example: Example, samples: Sequence[torch.Tensor]) -> list[Array] | None:
    """The module's outputs, one row for each sample; None where an output cannot be divided among them."""
    with unchanged(module):
        return _called(module, example, samples)


def _called(module: torch.nn.Module, example: Example, samples: Sequence[torch.Tensor]) -> list[Array] | None:
    """Like `rows_of`, but the module keeps whatever state the call leaves in it."""
    # Models may write to their inputs.
    tensors = iter([tensor.clone() for tensor in samples])
    called, silent = example.map(lambda _: next(tensors)), io.StringIO()
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        outputs = module(*called.args, **called.kwargs)
    count = int(samples[0].shape[0])
    rows: list[Array] = []
    for leaf in pytree.tree_leaves(outputs):
        if leaf is None:
            continue
        array = leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf)
        if array.numel() % count:
            return None
        rows.append(array.resolve_conj().resolve_neg().double().numpy().reshape(count, -1))
    return rows


def _invented(
    inputs: Sequence[Node], known: Sequence[torch.Tensor], allowed: Mapping[str, Array], flags: frozenset[str]
) -> list[torch.Tensor]:
    """Samples like the known ones, within the ranges of the inputs; random class numbers; masks as they are, and of ones."""
    random = torch.Generator().manual_seed(0)
    made = []
    for node, tensor in zip(inputs, known, strict=True):
        first = tensor[torch.arange(_INVENTED) % tensor.shape[0]]
        classes, low, high = (node.attrs.get(name) for name in ("classes", "low", "high"))
        if node.attrs["name"] in flags:
            found = first.clone()
            found[: _INVENTED // 2] = 1
        elif classes:
            rows = torch.from_numpy(allowed[node.attrs["name"]]).double()
            drawn = torch.multinomial(rows, _INVENTED, replacement=True, generator=random)
            found = drawn.t().reshape(first.shape)
        elif not first.is_floating_point():
            flat = tensor.reshape(-1)
            found = (
                flat[torch.randint(0, max(1, flat.numel()), first.shape, generator=random)] if flat.numel() else first
            )
        else:
            size = float(first.double().abs().mean()) if first.numel() else 0.0
            far = torch.arange(_INVENTED).reshape(-1, *(1,) * (first.ndim - 1)) < _INVENTED // 2
            spread = torch.where(far, 1.0 + size, _NEAR * (size or 1.0)).double()
            found = first.double() + spread * torch.randn(first.shape, generator=random, dtype=torch.float64)
            if low is not None and high is not None:
                drawn = low + (high - low) * torch.rand(first.shape, generator=random, dtype=torch.float64)
                found = torch.where(far, drawn, found).clamp(float(low), float(high))
        made.append(found.to(tensor.dtype))
    return made


def _off(ours: Sequence[Array], theirs: Sequence[Array] | None, share: float) -> Array:
    """For each sample, whether it has no row or an element differs by more than the share of its largest value."""
    if theirs is None or [rows.shape for rows in ours] != [rows.shape for rows in theirs]:
        return np.ones(len(ours[0]), dtype=bool)
    found = np.zeros(len(ours[0]), dtype=bool)
    for mine, other in zip(ours, theirs, strict=True):
        size = np.abs(np.where(np.isfinite(other), other, 0.0)).max(axis=0, initial=0.0)
        bound = share * np.maximum(size, _SMALLEST * size.max(initial=0.0)) + 1e-300
        with np.errstate(invalid="ignore"):
            found |= ~((np.abs(mine - other) <= bound) | ~np.isfinite(other)).all(axis=1)
    return found


def _difference(ours: Sequence[Array], theirs: Sequence[Array], rows: Array) -> float:
    """The largest difference in these rows, as a share of the largest value of its output."""
    largest = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        told = np.isfinite(other) & rows[:, np.newaxis]
        size = float(np.abs(other[told]).max(initial=0.0))
        off = float(np.abs(mine[told] - other[told]).max(initial=0.0))
        largest = max(largest, off / size if size else off)
    return largest


class _Comparing:
    """One comparison: the samples, the program's outputs for them, and the runs of the module."""

    def __init__(self, reading: Reading, samples: Sequence[Array]) -> None:
        self.reading = reading
        self.example = [tensor.detach().cpu() for tensor in reading.example.tensors]
        # The indices of the calibration samples; invented samples follow them.
        self.numbers = _chosen(reading.program, samples) if samples else []
        known = [
            torch.tensor(np.ascontiguousarray(array[self.numbers])).to(tensor.dtype)
            for array, tensor in zip(samples, self.example, strict=False)
        ]
        if len(self.numbers) < _FEWEST:
            known = known or [tensor[:1] for tensor in self.example]
            more = _invented(reading.program.inputs, known, reading.allowed, reading.flags)
            known = [torch.cat(pair) for pair in zip(known, more, strict=True)]
        self.samples = known
        self.count = int(known[0].shape[0])
        tensors = [*reading.module.parameters(), *reading.module.buffers(), *known]
        dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        # The same for intermediate results in another precision.
        nodes = reading.exported.graph.nodes if reading.exported is not None else ()
        made = [node.meta.get("val") for node in nodes if node.op == "call_function"]
        dtypes |= {one.dtype for one in made if isinstance(one, torch.Tensor) and one.is_floating_point()}
        self.share = max(
            (_SHARES.get(dtype, _SHARES[torch.bfloat16]) for dtype in dtypes), default=_SHARES[torch.float32]
        )

    def done(self) -> Comparison:
        """Run both, and return the comparison."""
        found = self._program_rows(self.samples)
        largest, seen, ties, together, failed = 0.0, set[int](), set[int](), False, None
        answered: dict[tuple[int, ...], list[Array]] = {}
        runs = list(self._runs())
        while runs:
            places = runs.pop(0)
            part = [tensor[list(places)] for tensor in self.samples]
            try:
                expected = rows_of(self.reading.module, self.reading.example, part)
            except Exception as error:
                # A module may take batches of one size only; any exception of its own code arrives here.
                failed = error
                if not runs and not seen and len(places) != self.reading.batch:
                    runs.append(tuple(place % self.count for place in range(self.reading.batch)))
                continue
            ours = [rows[list(places)] for rows in found]
            counted = self._finite(expected, places)
            seen |= {places[row] for row in np.flatnonzero(counted)}
            off = _off(ours, expected, self.share) & counted
            if off.any():
                self._explain(places, part, ours, expected, off)
                tied = off & _off(ours, expected, _DECIDED)
                ties |= {places[row] for row in np.flatnonzero(tied)}
                counted &= ~tied
            assert expected is not None
            answered[places] = expected
            together = together or len(set(places)) > 1
            largest = max(largest, _difference(ours, expected, counted))
        if not seen:
            raise self._not_run(failed)
        refused = None if together else one_by_one(self.reading)
        if refused is not None:
            raise refused
        self._require_no_state(answered)
        return Comparison.seen(len(seen), largest, len(ties))

    def _require_no_state(self, answered: Mapping[tuple[int, ...], list[Array]]) -> None:
        """Raise an UnsupportedError where an answer depends on the calls before it.

        `answered` are the answers of the module in its initial state, by their samples. The two smallest of these calls
        are repeated here one after the other.
        """
        reading, calls = self.reading, sorted(answered, key=len)[:2]
        with unchanged(reading.module) as changed:
            for places in (*calls, calls[0]):
                part = [tensor[list(places)] for tensor in self.samples]
                try:
                    again = _called(reading.module, reading.example, part)
                except Exception:
                    # The state that it kept does not fit these samples.
                    again = None
                if _off(answered[places], again, self.share).any():
                    raise keeps_state(reading.module, changed(), reading.start)

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """The samples of each run: all of them, some in another order, and the first and last alone."""
        if not self.reading.any_batch:
            size = self.reading.batch
            for start in range(0, self.count, size):
                yield tuple(place % self.count for place in range(start, start + size))
            return
        yield tuple(range(self.count))
        yield tuple(reversed(range(1, max(2, self.count // 2 + 1))))
        yield (0,)
        yield (self.count - 1,)

    def left_of_hidden(self, reading: Reading) -> float:
        """The largest difference that hidden places make in the outputs of the program itself, as a share.

        In a row of n places they have at most n exp(-DEPTH) of the weight of the visible ones. An UnsupportedError is
        raised where an output differs by more than _LEFT times the sum over all rows' lengths, or by _MOST_LEFT.
        """
        deep = self._program_rows(self.samples)
        ours = self._program_rows(self.samples, reading.program)
        share = min(_LEFT * math.exp(-DEPTH) * sum(reading.softened.values()), _MOST_LEFT)
        largest = _difference(ours, deep, np.ones(self.count, dtype=bool))
        if _off(ours, deep, max(share, self.share)).any():
            raise UnsupportedError(
                "places that an encrypted mask hides change the outputs",
                where=reading.start,
                why=f"a finite number leaves them up to exp(-{DEPTH:g}) of the weight of a visible place, and outputs "
                f"differ by {largest:.2g} of the largest; {share:.2g} is allowed",
                hint="use a number of your own in place of the huge one, for example scores - 30.0 * (1 - mask), which is "
                "kept as it is",
            )
        return largest

    # ------------------------------------------------------------------ running both

    def _program_rows(self, samples: Sequence[torch.Tensor], program: Program | None = None) -> list[Array]:
        """The program's outputs, a row of numbers for each sample and output, finished as on the client."""
        program = program or self.reading.program
        found = interpret_batch(program, *fed(program, samples))
        specs = program.interface.outputs or (None,) * len(found)
        done = [out if spec is None else spec.finished(out) for out, spec in zip(found, specs, strict=True)]
        return [np.asarray(out, dtype=np.float64).reshape(len(out), -1) for out in done]

    def _double_rows(self, samples: Sequence[torch.Tensor]) -> list[Array] | None:
        """The outputs of a copy of the module in double precision; None if it cannot be copied or run."""
        precision = torch.get_default_dtype()
        try:
            module = copy.deepcopy(self.reading.module).double()
            torch.set_default_dtype(torch.float64)
            doubles = [tensor.double() if tensor.is_floating_point() else tensor for tensor in samples]
            return rows_of(module, self.reading.example, doubles)
        except Exception:
            # Some models cannot be copied, or hold tensors and conversions of one precision.
            return None
        finally:
            torch.set_default_dtype(precision)

    # ------------------------------------------------------------------ where they differ

    def _finite(self, expected: Sequence[Array] | None, places: Sequence[int]) -> Array:
        """The rows in which the module gives finite numbers; for calibration samples all must be finite."""
        finite = [np.isfinite(rows) for rows in expected or () if rows.size]
        if not finite:
            return np.ones(len(places), dtype=bool)
        whole = np.logical_and.reduce([each.all(axis=1) for each in finite])
        for row in np.flatnonzero(~whole):
            if places[row] < len(self.numbers):
                raise ProgramError(
                    f"the model does not give finite numbers for calibration sample {self.numbers[places[row]]}",
                    where=self.reading.start,
                    why="encrypted values are finite numbers: torch computes NaN or infinity there",
                    hint=fast_path_hint(self.reading.module, self.reading.example)
                    or "leave the sample out, or mend the model: a logarithm of zero, a division by zero, a softmax over "
                    "places that are all minus infinity",
                )
        return np.asarray(np.logical_or.reduce([each.any(axis=1) for each in finite]))

    def _explain(
        self,
        places: tuple[int, ...],
        part: Sequence[torch.Tensor],
        ours: Sequence[Array],
        expected: Sequence[Array] | None,
        off: Array,
    ) -> None:
        """Raise an UnsupportedError where neither rounding nor a tie explains the difference of a row."""
        left = off & self._beyond_rounding(part, ours, expected)
        for row in (int(row) for row in np.flatnonzero(left)):
            if not self._is_tie(part, row):
                raise self._refused(places, part, ours, expected, row)

    def _beyond_rounding(
        self, part: Sequence[torch.Tensor], ours: Sequence[Array], theirs: Sequence[Array] | None
    ) -> Array:
        """The rows in which the program differs from a copy of the module in double precision, or is far off."""
        far = _off(ours, theirs, min(_ROUNDED * self.share, 0.25))
        return far | _off(ours, self._double_rows(part), _DOUBLE_SHARE)

    def _is_tie(self, part: Sequence[torch.Tensor], row: int) -> bool:
        """Whether both agree on samples near this one, so that rounding decides the answer for the sample itself."""
        random = torch.Generator().manual_seed(0)
        if not any(tensor.is_floating_point() for tensor in part):
            return False
        for _ in range(_MOVES):
            moved = [tensor.clone() for tensor in part]
            for tensor, node in zip(moved, self.reading.program.inputs, strict=True):
                if tensor.is_floating_point() and node.attrs["name"] not in self.reading.flags:
                    noise = torch.randn(tensor[row].shape, generator=random, dtype=torch.float64)
                    size = float(tensor[row].double().abs().max()) if tensor[row].numel() else 0.0
                    share = max(_MOVED, 4.0 * torch.finfo(tensor.dtype).eps)
                    tensor[row] += (share * (size or 1.0) * noise).to(tensor.dtype)
            found, theirs = self._program_rows(moved), rows_of(self.reading.module, self.reading.example, moved)
            if _off(found, theirs, self.share)[row] and self._beyond_rounding(moved, found, theirs)[row]:
                return False
        return True

    def _refused(
        self,
        places: tuple[int, ...],
        part: Sequence[torch.Tensor],
        ours: Sequence[Array],
        expected: Sequence[Array] | None,
        row: int,
    ) -> UnsupportedError:
        """The error: the output, the size of the difference, the sample, and the first operation that differs."""
        reading = self.reading
        number = places[row]
        sample = (
            f"calibration sample {self.numbers[number]}" if number < len(self.numbers) else "a sample near the example"
        )
        if len(places) > 1:
            sample += f", in a batch of {len(places)}"
        names, why = reading.program.output_names, ""
        if expected is None or len(expected) != len(ours):
            why = f"the model's outputs cannot be divided among the {len(places)} samples of a batch"
        else:
            for name, mine, other in zip(names, ours, expected, strict=True):
                if mine.shape != other.shape:
                    why = f"{name!r} has {other.shape[1]} elements a sample for {sample}, and {mine.shape[1]} in the program"
                    break
                if _off([mine], [other], self.share)[row]:
                    distance = float(np.abs(mine - other)[row].max())
                    why = f"{name!r} differs by {distance:.3g} of at most {np.abs(other).max():.3g}, for {sample}"
                    break
            else:
                why = f"they differ for {sample}"
        return refusal(first_difference(reading, part, row, self.share), why)

    def _not_run(self, failed: BaseException | None) -> ProgramError:
        first = next((line.strip() for line in str(failed).splitlines() if line.strip()), "") if failed else ""
        return ProgramError(
            "the model was traced, but cannot be run to compare it with its program",
            where=self.reading.start,
            why=f"{type(failed).__name__}: {first}"[:300] if failed else "it gives finite numbers for no sample",
            hint=said(
                "see whether model(samples) runs; {check=False} leaves the comparison out, and the report says so"
            ),
        )
