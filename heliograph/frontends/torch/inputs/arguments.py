"""The arguments of an exported graph: inputs of the program, with ranges and samples, and named tensors of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from heliograph.errors import ProgramError, UnsupportedError, said
from heliograph.execution.interface import one_hot_rows
from heliograph.frontends.torch.inputs.checks import calibration_arrays, ranges
from heliograph.frontends.torch.inputs.examples import Example, samples_of
from heliograph.frontends.torch.inputs.survey import Allowed, check_bags, surveyed
from heliograph.frontends.torch.inputs.tokens import Sources
from heliograph.frontends.torch.refusals import complex_values, dynamic_shape, random_values
from heliograph.frontends.torch.source import short_name
from heliograph.frontends.torch.values import TensorNames, Value
from heliograph.ir import Builder, Location
from heliograph.ir.node import Array

# Kinds of torch.export for known arguments.
_TENSORS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments with which a graph is called.

    arguments: in the order of the graph.
    count: the number of samples for which the graph was made.
    calibration: the samples of each input of the program, with a leading sample axis.
    samples: the same in the form that the model takes: class numbers are not yet one-hot vectors.
    allowed: for each input of whole numbers that are looked up, by its name: the numbers that each of its elements may
        be, (elements, classes).
    flags: the names of the inputs of zeros and ones.
    """

    arguments: list[Any]
    count: int
    calibration: tuple[Array, ...]
    samples: tuple[Array, ...]
    allowed: Mapping[str, Array]
    flags: frozenset[str]


@dataclass(slots=True)
class Arguments:
    """Turns the placeholders of an exported program into inputs of `builder` and tensors with names.

    `plain` names inputs that the server supplies; `caller` is the user's call of `trace`, `start` the line of the
    model; `module` is the model, if there is one; `whole` has the places of inputs that were given as whole numbers or
    truth values, although the graph may have been made with real numbers.
    """

    exported: ExportedProgram
    builder: Builder
    names: TensorNames
    plain: frozenset[str]
    caller: Location
    start: Location
    module: torch.nn.Module | None
    whole: frozenset[int]
    # Shared weights have several paths; the first one that the module lists is the name.
    paths: dict[Any, str] = field(default_factory=dict, init=False)
    # Inputs of whole numbers that index rows of tables, with the numbers that they may hold.
    allowed: dict[Any, Allowed] = field(default_factory=dict, init=False)
    # Inputs of zeros and ones alone.
    flags: set[Any] = field(default_factory=set, init=False)
    sources: Sources = field(default_factory=lambda: Sources((), ()), init=False)

    def __post_init__(self) -> None:
        for path, tensor in self.exported.state_dict.items():
            self.paths.setdefault(_storage(tensor), path)

    def read(self, example_input: Any, whole: Example, input_range: Any, calibration: Any) -> Inputs:
        """The arguments; creates the inputs of the program on the way. `whole` is the example with all samples."""
        placeholders = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        specs = self.exported.graph_signature.input_specs
        users = []
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind.name == "USER_INPUT" and isinstance(node.meta.get("val"), torch.Tensor):
                users.append(node)
        shapes = [self._input_shape(node) for node in users]
        if not shapes:
            raise ProgramError("the model takes no tensor", where=self.caller, hint="give it an input to encrypt")
        if example_input is not None:
            given = tuple(example_input) if isinstance(example_input, list | tuple) else (example_input,)
            if [tuple(item.shape) for item in given] != shapes:
                raise ProgramError(
                    said(
                        f"{{example_input}} has shapes {[tuple(item.shape) for item in given]}, the exported program "
                        f"{shapes}"
                    ),
                    where=self.caller,
                )
        check_bags(self.exported.graph_module, users, self.caller)
        theirs = [tuple(tensor.shape) for tensor in whole.tensors]
        if len({shape[0] for shape in theirs}) > 1:
            raise ProgramError(
                f"the inputs have different batch sizes: shapes {' and '.join(map(str, theirs))}",
                where=self.caller,
                why="axis 0 of every input is the batch axis",
                hint=said("give every {example_input} the same batch axis, for example x.unsqueeze(0)"),
            )
        names = [str(node.name) for node in users]
        unknown = sorted(self.plain - set(names))
        if unknown or self.plain == set(names):
            raise ProgramError(
                f"plain names {unknown[0]!r}, which is not an input" if unknown else "plain names every input",
                where=self.caller,
                hint=f"the inputs are {', '.join(names)}; at least one of them is to be encrypted",
            )
        bare = [shape[1:] for shape in shapes]
        calibration = samples_of(self.module, self.exported, calibration, names, self.caller)
        samples = calibration_arrays(calibration, names, bare, self.caller)
        self._survey(placeholders, specs, users, samples, shapes[0][0])
        arrays = self._one_hot(users, samples)
        for position, node in enumerate(users):
            if node in self.allowed:
                bare[position] = (*bare[position], self.allowed[node].classes)
        truths = [node.meta["val"].dtype == torch.bool and node not in self.allowed for node in users]
        bounds = ranges(input_range, arrays, names, self.caller, truths)
        self._find_flags(users, samples, bounds)
        for node in users:
            self._check_whole_numbers(node)
        arguments = [
            self._argument(node, spec, users, bare, bounds) for node, spec in zip(placeholders, specs, strict=True)
        ]
        allowed = {str(node.name): one.places for node, one in self.allowed.items()}
        flags = frozenset(str(node.name) for node in self.flags)
        return Inputs(arguments, shapes[0][0], arrays, samples, allowed, flags)

    def _find_flags(self, users: Sequence[Any], samples: Sequence[Array], bounds: Sequence[Any]) -> None:
        """Find the inputs of zeros and ones: by their type, their samples, or the range of whole numbers."""
        for position, node in enumerate(users):
            dtype = node.meta["val"].dtype
            if node in self.allowed or bounds[position] not in (None, (0.0, 1.0)):
                continue
            seen = bool(samples) and bool(np.isin(samples[position], (0, 1)).all())
            whole = not samples and bounds[position] is not None and not dtype.is_floating_point
            if dtype == torch.bool or seen or whole:
                self.flags.add(node)

    def _survey(
        self, placeholders: list[Any], specs: Any, users: list[Any], samples: Sequence[Array], batch: int
    ) -> None:
        """Find the inputs of whole numbers that are looked up, and the numbers that they may hold."""
        whole = {node: str(node.name) for node in users if _holds_whole_numbers(node)}
        if not whole:
            return
        tensors = {
            node: self._tensor(spec)
            for node, spec in zip(placeholders, specs, strict=True)
            if spec.kind.name in _TENSORS
        }
        given = {node: array for node, array in zip(users, samples, strict=False) if node in whole}
        self.allowed = surveyed(self.exported.graph_module, whole, tensors, batch, given, self.caller)
        self.sources = Sources(
            [tuple(node.meta["val"].shape[1:]) for node in self.allowed],
            [allowed.classes for allowed in self.allowed.values()],
        )

    def _one_hot(self, users: list[Any], calibration: tuple[Array, ...]) -> tuple[Array, ...]:
        """The calibration samples, with looked-up whole numbers as one-hot vectors."""
        made = []
        for node, samples in zip(users, calibration, strict=False):
            if node not in self.allowed:
                made.append(samples)
                continue
            allowed = self.allowed[node]
            bad = np.argwhere(~allowed.holds(samples))
            if len(bad):
                sample, *element = (int(i) for i in bad[0])
                raise ProgramError(
                    f"calibration of input {str(node.name)!r} holds {samples[tuple(bad[0])]:g} in sample {sample}, element "
                    f"{tuple(element)}: not a whole number, or outside of 0 to {allowed.classes - 1}, or no row of a table "
                    "there",
                    where=self.caller,
                    why=f"it chooses rows of tables: one of {allowed.classes} for the places that allow most",
                )
            # Truth values take an eighth of the memory; they become numbers where they are used in arithmetic.
            made.append(one_hot_rows(samples.astype(np.int64), allowed.classes, np.bool_))
        return tuple(made)

    def _input_shape(self, node: Any) -> tuple[int, ...]:
        value = node.meta["val"]
        if any(not isinstance(size, int) for size in value.shape):
            raise dynamic_shape(node.name, tuple(map(str, value.shape)))
        if value.is_complex():
            raise complex_values(self.caller, f"input {node.name!r}")
        if value.ndim == 0:
            raise ProgramError(
                f"input {node.name!r} has no axes",
                where=self.caller,
                hint=said("give {example_input} a batch axis: x.reshape(1, ...)"),
            )
        return tuple(value.shape)

    def _check_whole_numbers(self, node: Any) -> None:
        """Refuse whole numbers that are neither looked up, nor truth values, nor converted to floating point."""
        value = node.meta["val"]
        if (
            not value.is_floating_point()
            and value.dtype is not torch.bool
            and node not in self.allowed
            and node not in self.flags
            and not _becomes_floating(node)
        ):
            raise UnsupportedError(
                f"input {node.name!r} holds {str(value.dtype).removeprefix('torch.')} values",
                where=self.caller,
                why="programs compute with real numbers, and no table is looked up at these whole numbers",
                hint=said(
                    "give floating-point values: {example_input}.float(); what chooses rows of a table is looked up on the "
                    "client, and the model is given the vectors; a mask of zeros and ones needs {calibration} samples, or "
                    "its {input_range=(0, 1)}"
                ),
            )

    def _argument(
        self, node: Any, spec: Any, users: list[Any], shapes: list[tuple[int, ...]], bounds: list[Any]
    ) -> Any:
        if node in users:
            position = users.index(node)
            low, high = bounds[position] or (None, None)
            loc = replace(self.start, layer=str(node.name))
            secret = False if str(node.name) in self.plain else None
            attrs = {"shape": shapes[position], "low": low, "high": high, "secret": secret}
            if node in self.allowed:
                attrs |= {"low": 0.0, "high": 1.0, "classes": self.allowed[node].classes}
                number = list(self.allowed).index(node)
                self.sources.nodes[number] = self.builder.input(str(node.name), loc, **attrs)
                return self.sources.tokens(number, int(node.meta["val"].shape[0]), node.meta["val"].dtype)
            made = self.builder.input(str(node.name), loc, **attrs)
            # One sample, repeated to the number for which the graph is made.
            shape = tuple(node.meta["val"].shape)
            op = "reshape" if shape[0] == 1 else "broadcast"
            repeated = self.builder.op(op, (made,), loc, shape=shape)
            dtype = node.meta["val"].dtype
            soft = dtype.is_floating_point and position not in self.whole
            return Value(repeated, dtype, flag=node in self.flags, soft=soft)
        if spec.kind.name == "USER_INPUT":
            return getattr(spec.arg, "value", None)
        if spec.kind.name in _TENSORS:
            return self._tensor(spec)
        if str(getattr(spec.arg, "class_fqn", "")).endswith("Generator"):
            raise random_values(None, self.caller)
        raise UnsupportedError(
            f"the exported program has an argument of kind {spec.kind.name.lower()}",
            where=self.caller,
            why=f"{spec}; torch gives one to models that check values at run time, as torch.linalg.solve does",
            hint="leave the check out (torch.linalg.solve_ex), or do that part on the client",
        )

    def _tensor(self, spec: Any) -> torch.Tensor:
        """A parameter, buffer or constant, named by its path."""
        state = self.exported.state_dict
        tensor: torch.Tensor = state[spec.target] if spec.target in state else self.exported.constants[spec.target]
        name = self.paths.get(_storage(tensor), str(spec.target))
        tensor = tensor.detach()
        # torch's sparse storage does not matter: our matrices exploit their zeros in any case.
        tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
        self.names.set(tensor, name)
        return tensor


def _holds_whole_numbers(node: Any) -> bool:
    value = node.meta["val"]
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _becomes_floating(node: Any) -> bool:
    """Whether an input of whole numbers is converted to floating-point numbers wherever it is read."""
    users = [user for user in node.users if isinstance(user.meta.get("val"), torch.Tensor)]
    return bool(users) and all(
        user.meta["val"].is_floating_point() and short_name(user.target) in ("to", "type_as", "div", "true_divide")
        for user in users
    )


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key, equal for two tensors that read one array in memory in the same way; a sparse one equals only itself."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
