"""Gradients of single records: their norms, their weighted sums and, for tests, the gradients themselves.

One forward pass records the layers' inputs; one backward pass, to the layers' outputs only, gives the gradients of the
loss there. From these pairs `factors` computes norms and weighted sums. No second backward pass is run and the
gradients of single records are never held, but for small ones (biases, norms) and layers without a rule (Bu et al.
2022, "Differentially private optimization on large model at small cost").

The norms and the sum come from the same pairs, so that the summed gradients are the measured ones, whatever the module
does. `refuse.check_loss` checks that the pairs are the true gradients, and that no record enters another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from heliograph.dp.training import attention, recurrent
from heliograph.dp.training.factors import Factor, joined
from heliograph.dp.training.layers import Factors, Use, by_func, parts, rule_of, trained
from heliograph.errors import InternalError, ProgramError, UnsupportedError

HALF = (torch.float16, torch.bfloat16)

Inputs = Any
"""A tensor, or a tuple or dictionary of tensors: the arguments of the module, by position or by name."""
Losses = Callable[[Any, Tensor], Tensor]


def mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same tuples and dictionaries with the function's values of the tensors."""
    if isinstance(value, Mapping):
        return {name: mapped(each, function) for name, each in value.items()}
    return tuple(mapped(each, function) for each in value) if isinstance(value, tuple | list) else function(value)


def called(module: nn.Module, inputs: Inputs) -> Any:
    """The module's outputs."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def losses_of(module: nn.Module, loss: Losses, inputs: Inputs, targets: Tensor) -> Tensor:
    """The loss of each record. Raises ProgramError if there is not one value for each."""
    found = loss(called(module, inputs), targets)
    if not isinstance(found, Tensor) or found.shape != (len(targets),):
        shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ProgramError(
            f"the loss gave {shape} for {len(targets)} records",
            where="loss",
            why="a private gradient needs the loss of each record by itself",
            hint="give a loss with reduction='none' and one value for each record",
        )
    return found


@contextmanager
def _full_products() -> Iterator[None]:
    """No TF32 and no bfloat16 inside float32 products: norms and sums must come from the same numbers."""
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


class GradientEngine:
    """Per-record gradients of `loss(module(inputs), targets)`, where `loss` gives one value for each record.

    Records are the first dimension of inputs, targets and of every layer's input (the second for recurrent modules that
    are not `batch_first`). Inputs may be a tuple, passed as several arguments, or a dictionary, passed by name. Positions
    that all records share ([T] or [1, T] into an embedding) are spread over the records: an embedding is known to be
    used so if its input keeps its shape when a batch of one becomes a batch of two. The module stays as it is:
    parameters, mode, hooks and `.grad` are not changed. Compiled forward passes run uncompiled here. A batch is held
    whole: split large ones.

    Products are computed in full precision, whatever torch may do elsewhere; modules in float16 or bfloat16 are
    refused. A record whose gradient is not finite has norm 0 and adds nothing to any sum: it must not affect its
    neighbours.

    `mixed_rows` turns on mixed precision: forward and backward passes under autocast to bfloat16, norms and sums in
    float32, every batch filled up to that many rows (`precision` has the reason, and a check to run first).
    """

    def __init__(self, module: nn.Module, loss: Losses, mixed_rows: int | None = None) -> None:
        self.module = module
        self.loss = loss
        self.mixed_rows = mixed_rows
        self._shared: frozenset[int] | None = None

    @_full_products()
    def norms(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """L2 norms [B] of the records' gradients over all trainable parameters, without making the gradients."""
        if len(targets) == 0:
            return self._empty()
        return self._measured(self._factors(inputs, targets))[0]

    @_full_products()
    def weighted_sum(
        self, inputs: Inputs, targets: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Sums over records of weight times gradient, one for each trainable parameter in order, and the norms [B].

        `weights_of` maps the norms to weights [B]: `(c / norms).clamp(max=1)` clips. Where a norm is 0 the weight counts
        as 0, whatever it is.
        """
        parameters = trained(self.module)
        if len(targets) == 0:
            return [torch.zeros_like(p) for p in parameters], self._empty()
        factors = self._factors(inputs, targets)
        norms, finite = self._measured(factors)
        weights = torch.where(norms > 0, weights_of(norms), torch.zeros_like(norms)).detach()
        if weights.shape != norms.shape or not bool(torch.isfinite(weights).all()):
            raise ProgramError(
                f"weights must be {len(norms)} finite numbers", where="weighted_sum", hint="check weights_of"
            )
        rows = weights.nonzero().flatten()
        # Leave out records of weight zero if there are many, or if some are not finite: 0 times infinity is not 0.
        if not bool(finite.all()) or 2 * len(rows) < len(weights):
            factors = {key: factor.of(rows) for key, factor in factors.items()}
            weights = weights[rows]
        sums = []
        for p in parameters:
            factor = factors.get(id(p))
            sums.append(torch.zeros_like(p) if factor is None else factor.weighted(weights.to(p.dtype)).view_as(p))
        return sums, norms

    def per_sample(self, inputs: Inputs, targets: Tensor) -> list[Tensor]:
        """The gradients [B, *shape] of all records, one tensor for each trainable parameter in order."""
        records = len(targets)
        factors = self._factors(inputs, targets) if records else {}
        return [
            factors[id(p)].per_sample().view(records, *p.shape) if id(p) in factors else p.new_zeros(records, *p.shape)
            for p in trained(self.module)
        ]

    def _empty(self) -> Tensor:
        return next(iter(trained(self.module))).new_empty(0)

    def _measured(self, factors: dict[int, Factor]) -> tuple[Tensor, Tensor]:
        """The norms, 0 where they are not finite, and a mask of the finite ones."""
        norms = torch.stack([factor.square_norms() for factor in factors.values()]).sum(0).sqrt()
        finite = torch.isfinite(norms)
        return torch.where(finite, norms, torch.zeros_like(norms)), finite

    @_full_products()
    def seen(self, inputs: Inputs, targets: Tensor) -> list[Tensor]:
        """The values behind the gradients, as computed: inputs of layers, gradients at their outputs, losses."""
        tape, losses = self._run(inputs, targets)
        return [*tape.seen, *(each for each in tape.gradients(losses) if each is not None), losses.detach()]

    def _factors(self, inputs: Inputs, targets: Tensor) -> dict[int, Factor]:
        """The factors of each trainable parameter that the loss depends on, by the parameter's id."""
        uses: dict[int, list[Factor]] = {}
        count = len(targets)
        tape, losses = self._run(*self._filled(inputs, targets))
        for parameter, factor in tape.factors(losses):
            uses.setdefault(id(parameter), []).append(factor)
        if not uses:
            raise ProgramError("the loss does not depend on any trainable parameter", where="GradientEngine")
        found = {key: joined(factors) for key, factors in uses.items()}
        if len(losses) == count:
            return found
        rows = torch.arange(count, device=losses.device)
        return {key: factor.of(rows) for key, factor in found.items()}

    def _filled(self, inputs: Inputs, targets: Tensor) -> tuple[Inputs, Tensor]:
        """The batch, in mixed precision filled up to its one size with copies of its first record."""
        if self.mixed_rows is None or self.mixed_rows == len(targets):
            return inputs, targets
        if len(targets) > self.mixed_rows:
            raise InternalError(f"a batch of {len(targets)} records, not of {self.mixed_rows}", where="GradientEngine")
        rows = torch.arange(self.mixed_rows, device=targets.device)
        rows = torch.where(rows < len(targets), rows, 0)
        return mapped(inputs, lambda each: each[rows]), targets[rows]

    def _run(self, inputs: Inputs, targets: Tensor) -> tuple[_Tape, Tensor]:
        """The forward pass with its tape, and the losses."""
        mixed = self.mixed_rows is not None
        # If mixed precision is not requested, autocast stays as the caller set it: a tape that meets it refuses.
        cast = torch.autocast(targets.device.type, torch.bfloat16) if mixed else nullcontext()
        if self._shared is None:
            with cast, _uncompiled(self.module):
                self._shared = _shared_lookups(self.module, inputs)
        with _Tape(self.module, len(targets), mixed, self._shared) as tape, torch.enable_grad(), cast:
            losses = losses_of(self.module, self.loss, inputs, targets)
        return tape, losses


class _Tape:
    """A recording of the layers' inputs in one forward pass, from which it gives their factors."""

    def __init__(self, module: nn.Module, records: int, mixed: bool, shared: frozenset[int]) -> None:
        self._records = records
        self._shared = shared
        self._lookups = 0
        self._module = module
        self._mixed = mixed
        self.seen: list[Tensor] = []
        self._edges: list[Any] = []
        self._makers: list[Callable[[Tensor], Factors]] = []
        self._stack = ExitStack()

    def __enter__(self) -> _Tape:
        with self._stack:
            self._stack.enter_context(_uncompiled(self._module))
            for part in parts(self._module):
                if isinstance(part, nn.RNNBase):
                    self._stack.enter_context(_replaced(part, "forward", recurrent.unrolled(part, self._note)))
                elif isinstance(part, nn.MultiheadAttention) and attention.unrolls(part):
                    self._stack.enter_context(_replaced(part, "forward", attention.unrolled(part, self._note)))
                else:
                    handle = part.register_forward_hook(self._hook, with_kwargs=True)
                    self._stack.callback(handle.remove)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _note(
        self, layer: nn.Module, output: Tensor, seen: Sequence[Tensor], make: Callable[[Tensor], Factors]
    ) -> None:
        """Remember an output of a layer that has seen some tensors; `make` gives factors from the gradient there."""
        versions = [each._version for each in seen]

        def factors(gradient: Tensor) -> Factors:
            if [each._version for each in seen] != versions:
                raise UnsupportedError(
                    "a layer's input was changed in place after the layer had seen it",
                    where=type(layer).__name__,
                    hint="use operations that are not in place between layers",
                )
            return make(gradient)

        if output.requires_grad:
            # Keep the edge, not the tensor: after a later change in place, the tensor would refer to a different value.
            self._edges.append(get_gradient_edge(output))
            self._makers.append(factors)

    def _hook(self, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        spread = False
        if isinstance(layer, nn.Embedding):
            spread, self._lookups = self._lookups in self._shared, self._lookups + 1
        outputs = output if isinstance(output, tuple) else (output,)
        differentiable = [n for n, o in enumerate(outputs) if isinstance(o, Tensor) and o.requires_grad]
        if not differentiable:
            return None
        name = type(layer).__name__
        tensors = [a for a in (*args, *named.values()) if isinstance(a, Tensor)]
        if len(differentiable) > 1 or not tensors:
            raise UnsupportedError(
                "a module with parameters does not map tensors to one tensor",
                where=name,
                hint="let modules with parameters of their own take tensors and return one",
            )
        at = differentiable[0]
        output = outputs[at]
        if output.dtype in HALF and not (self._mixed and output.dtype == torch.bfloat16):
            raise UnsupportedError(
                f"a layer computes in {str(output.dtype).removeprefix('torch.')}",
                where=name,
                why="rows of so few digits may move with the batch that they are computed in, which clipping does not bound",
                hint="leave autocast out, or ask for precision='bfloat16', which sees to that"
                if not self._mixed
                else "leave float16 out of the module: precision='bfloat16' is autocast to bfloat16 alone",
            )
        if spread and args and (args[0].dim() == 1 or len(args[0]) == 1):
            # All records look up the same rows. A row for each record has the same values, and a gradient for each.
            rows = args[0] if args[0].dim() > 1 else args[0].unsqueeze(0)
            args = tensors = (rows.expand(self._records, *rows.shape[1:]),)  # type: ignore[assignment]
            output = output.view(*rows.shape, -1).expand(*args[0].shape, -1)
        if len(output) != self._records or len(tensors[0]) != self._records:
            raise UnsupportedError(
                f"the input of a layer has {len(tensors[0])} rows where the batch has {self._records} records",
                where=name,
                why="records must stay the first dimension, or their gradients cannot be told apart",
                hint="keep a sequence as its own dimension ([records, positions, features]) instead of folding it in",
            )
        kept = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        self.seen += [a for a in kept if isinstance(a, Tensor)]

        def make(gradient: Tensor) -> Factors:
            rule = rule_of(layer) if kept else by_func
            return rule(layer, Use(tuple(map(_wide, kept)), named, at), _wide(gradient))

        self._note(layer, output, tensors, make)
        return output if spread else None

    def gradients(self, losses: Tensor) -> list[Tensor | None]:
        """Gradients at the outputs of layers."""
        if not self._edges or not losses.requires_grad:
            return [None] * len(self._edges)
        return list(torch.autograd.grad(losses.sum(), self._edges, allow_unused=True))

    def factors(self, losses: Tensor) -> Iterator[tuple[Tensor, Factor]]:
        """Every use of a trainable parameter. Run outside of the context: rules may call layers again."""
        gradients = self.gradients(losses)
        with torch.no_grad():
            for make, gradient in zip(self._makers, gradients, strict=True):
                for p, factor in [] if gradient is None else make(gradient):
                    if p is not None and p.requires_grad:
                        yield p, _wide_factor(factor)


def _shared_lookups(module: nn.Module, inputs: Inputs) -> frozenset[int]:
    """Which lookups in embeddings, by their order in a forward pass, are of the same rows for every record."""
    tables = [part for part in parts(module) if isinstance(part, nn.Embedding)]
    if not tables:
        return frozenset()
    shapes: list[list[Any]] = []

    def note(_: nn.Module, args: tuple[Any, ...], __: dict[str, Any]) -> None:
        shapes[-1].append(args[0].shape if args else None)

    with ExitStack() as stack:
        for table in tables:
            stack.callback(table.register_forward_pre_hook(note, with_kwargs=True).remove)
        for rows in ([0], [0, 0]):
            shapes.append([])
            with torch.no_grad(), torch.random.fork_rng():
                called(module, mapped(inputs, itemgetter(rows)))
    one, two = shapes
    return frozenset(n for n, shape in enumerate(one) if len(one) == len(two) and shape == two[n] is not None)


@contextmanager
def _uncompiled(module: nn.Module) -> Iterator[None]:
    """Let the layers' own forward functions run, which hooks see, where the module was compiled in place."""
    with ExitStack() as stack:
        for layer in module.modules():
            if getattr(layer, "_compiled_call_impl", None) is not None:
                stack.enter_context(_replaced(layer, "_compiled_call_impl", None))
        yield


def _wide(value: Any) -> Any:
    """A tensor of half precision as float32, any other value unchanged."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _wide_factor(factor: Any) -> Any:
    """A factor with tensors in at least float32: norms and sums then come from the same numbers, in float32."""
    given = {f.name: getattr(factor, f.name) for f in fields(factor)}
    changed = {name: wide for name, value in given.items() if (wide := _wide(value)) is not value}
    return replace(factor, **changed) if changed else factor


@contextmanager
def _replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Give a module an attribute of its own in place of what it has, or its class has."""
    before = module.__dict__.get(name)
    module.__dict__[name] = value
    try:
        yield
    finally:
        if before is None:
            del module.__dict__[name]
        else:
            module.__dict__[name] = before
