"""The arguments of an exported graph: inputs of the program, with ranges and samples, and named tensors of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.execution.interface import one_hot_rows
from heliograph.frontends.torch_examples import samples_of
from heliograph.frontends.torch_inputs import calibration_arrays, ranges
from heliograph.frontends.torch_refusals import complex_values, dynamic_shape
from heliograph.frontends.torch_source import short_name
from heliograph.frontends.torch_tokens import check_size, classes_of, tokens_of
from heliograph.frontends.torch_values import TensorNames, Value
from heliograph.ir import Builder, Location
from heliograph.ir.node import Array


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a graph is called with.

    arguments: in the order of the graph.
    batch_size: how many samples the example holds.
    calibration: the samples of each input of the program, with a leading sample axis.
    samples: the same as the model takes them: numbers of classes are not yet one-hot vectors.
    """

    arguments: list[Any]
    batch_size: int
    calibration: tuple[Array, ...]
    samples: tuple[Array, ...]


@dataclass(slots=True)
class Arguments:
    """Turns the placeholders of an exported program into inputs of `builder` and tensors with names.

    `plain` names inputs that the server gives; `caller` is the user's call of `trace`, `start` the line of the model;
    `module` is the model where there is one.
    """

    exported: ExportedProgram
    builder: Builder
    names: TensorNames
    plain: frozenset[str]
    caller: Location
    start: Location
    module: torch.nn.Module | None
    # How many classes inputs have that choose rows of tables, as far as it is known by their names.
    known_classes: Mapping[str, int] = field(default_factory=dict)
    # Shared weights have several paths; the first one that the module lists is the name.
    paths: dict[Any, str] = field(default_factory=dict, init=False)
    # The same by their placeholders.
    classes: dict[Any, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for path, tensor in self.exported.state_dict.items():
            self.paths.setdefault(_storage(tensor), path)

    def read(self, example_input: Any, input_range: Any, calibration: Any) -> Inputs:
        """The arguments; inputs of the program are made as they are met."""
        placeholders = [node for node in self.exported.graph.nodes if node.op == "placeholder"]
        specs = self.exported.graph_signature.input_specs
        users = []
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind.name == "USER_INPUT" and isinstance(node.meta.get("val"), torch.Tensor):
                users.append(node)
        for node in users:
            if not node.meta["val"].is_floating_point():
                found = classes_of(node, self._tensors(placeholders, specs))
                if found is not None:
                    self.classes[node] = self.known_classes.get(str(node.name), found)
        shapes = [self._input_shape(node) for node in users]
        if not shapes:
            raise ProgramError("the model takes no tensor", where=self.caller, hint="give it an input to encrypt")
        if example_input is not None:
            given = tuple(example_input) if isinstance(example_input, list | tuple) else (example_input,)
            if [tuple(item.shape) for item in given] != shapes:
                raise ProgramError(
                    f"example_input has shapes {[tuple(item.shape) for item in given]}, the exported program {shapes}",
                    where=self.caller,
                )
        batches = {shape[0] for shape in shapes}
        if len(batches) > 1:
            raise ProgramError(
                f"the inputs have different batch sizes: shapes {' and '.join(map(str, shapes))}",
                where=self.caller,
                why="axis 0 of every input is the batch axis",
                hint="give every example_input the same batch axis, for example x.unsqueeze(0)",
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
        for position, node in enumerate(users):
            if node in self.classes:
                check_size(names[position], bare[position], self.classes[node], self.caller)
                bare[position] = (*bare[position], self.classes[node])
        arrays = self._one_hot(users, samples)
        bounds = ranges(input_range, arrays, names, self.caller)
        arguments = [
            self._argument(node, spec, users, bare, bounds) for node, spec in zip(placeholders, specs, strict=True)
        ]
        return Inputs(arguments, batches.pop(), arrays, samples)

    def _tensors(self, placeholders: list[Any], specs: Any) -> dict[Any, torch.Tensor]:
        """The tensors of the placeholders that are the model's."""
        known = {**self.exported.constants, **self.exported.state_dict}
        return {
            node: known[spec.target]
            for node, spec in zip(placeholders, specs, strict=True)
            if spec.kind.name != "USER_INPUT" and isinstance(known.get(spec.target), torch.Tensor)
        }

    def _one_hot(self, users: list[Any], calibration: tuple[Array, ...]) -> tuple[Array, ...]:
        """The calibration samples, whole numbers that are looked up as one-hot vectors."""
        made = []
        for node, samples in zip(users, calibration, strict=False):
            count = self.classes.get(node)
            if count is not None and samples.size and (samples.min() < 0 or samples.max() >= count):
                raise ProgramError(
                    f"calibration of input {str(node.name)!r} holds a number outside of 0 to {count - 1}",
                    where=self.caller,
                    why=f"it chooses one of {count} rows of a table",
                )
            # Truth values take an eighth of the memory; they become numbers where they are computed with.
            made.append(samples if count is None else one_hot_rows(samples.astype(np.int64), count, np.bool_))
        return tuple(made)

    def _input_shape(self, node: Any) -> tuple[int, ...]:
        value = node.meta["val"]
        if any(not isinstance(size, int) for size in value.shape):
            raise dynamic_shape(node.name, tuple(map(str, value.shape)))
        if value.is_complex():
            raise complex_values(self.caller, f"input {node.name!r}")
        if not value.is_floating_point() and node not in self.classes and not _becomes_floating(node):
            raise UnsupportedError(
                f"input {node.name!r} holds {str(value.dtype).removeprefix('torch.')} values",
                where=self.caller,
                why="encrypted values are real numbers; whole numbers, as indices of an embedding, look nothing up",
                hint="give floating-point values: example_input.float(); what chooses rows of a table is looked up on the "
                "client, and the model is given the vectors",
            )
        if value.ndim == 0:
            raise ProgramError(
                f"input {node.name!r} has no axes",
                where=self.caller,
                hint="give example_input a batch axis: x.reshape(1, ...)",
            )
        return tuple(value.shape)

    def _argument(
        self, node: Any, spec: Any, users: list[Any], shapes: list[tuple[int, ...]], bounds: list[Any]
    ) -> Any:
        if node in users:
            position = users.index(node)
            low, high = bounds[position] or (None, None)
            loc = replace(self.start, layer=str(node.name))
            secret = False if str(node.name) in self.plain else None
            attrs = {"shape": shapes[position], "low": low, "high": high, "secret": secret}
            if node in self.classes:
                attrs |= {"low": 0.0, "high": 1.0, "classes": self.classes[node]}
                return tokens_of(self.builder.input(str(node.name), loc, **attrs), self.classes[node])
            made = self.builder.input(str(node.name), loc, **attrs)
            return Value(made, 0, node.meta["val"].dtype)
        if spec.kind.name == "USER_INPUT":
            return getattr(spec.arg, "value", None)
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            state = self.exported.state_dict
            tensor = state[spec.target] if spec.target in state else self.exported.constants[spec.target]
            name = self.paths.get(_storage(tensor), str(spec.target))
            tensor = tensor.detach()
            # torch's sparse storage does not matter: our matrices make use of their zeros in any case.
            tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
            self.names.set(tensor, name)
            return tensor
        raise UnsupportedError(
            f"the exported program has an argument of kind {spec.kind.name.lower()}",
            where=self.caller,
            why=f"{spec}; torch gives one to models that check values at run time, as torch.linalg.solve does",
            hint="leave the check out (torch.linalg.solve_ex), or do that part on the client",
        )


def _becomes_floating(node: Any) -> bool:
    """Whether an input of whole numbers is turned into floating-point numbers wherever it is read."""
    users = [user for user in node.users if isinstance(user.meta.get("val"), torch.Tensor)]
    return bool(users) and all(
        user.meta["val"].is_floating_point() and short_name(user.target) in ("to", "type_as", "div", "true_divide")
        for user in users
    )


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are one array in memory, read the same way; a sparse one is equal to itself only."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
