"""From a program back to a PyTorch module that can be trained, and traced again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.training.polynomial import held_polynomial, polynomial, sparse_map
from heliograph.frontends.torch.ways.pointwise import RUNS
from heliograph.ir import Builder, ConstantName, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.ops.table import OPS

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
# The constants that are trained; every other constant is a buffer.
_TRAINED = {"linear": ("weight", "bias"), "conv": ("weight", "bias"), "batch_norm": ("weight", "bias"),
            "layer_norm": ("weight", "bias"), "affine": ("bias",)}  # fmt: skip
_NAMES = {("batch_norm", "mean"): "running_mean", ("batch_norm", "variance"): "running_var"}
# Training keeps a polynomial's inputs within this share of its interval: other samples reach further.
INNER = 0.9

Tensor = torch.Tensor


def to_torch(
    program: Program, *, dtype: torch.dtype = torch.float32, train_coefficients: bool = False
) -> ProgramModule:
    """A module in eval mode that computes what a tensor or polynomial program computes, batch axis in front.

    Weights of linear, convolution and norm layers and entries of sparse maps are parameters of that `dtype`; maps that
    only take elements are not. The
    polynomials' coefficients are parameters with `train_coefficients` (separate for each polynomial), otherwise
    buffers. Any other constant that several ops read stays one tensor.

    Submodules have the names of the program's layers, and parameters have torch's names (`layer1.0.conv1.weight`), so
    that tracing the trained module gives a program with the same names. Sparse maps stay sparse.

    A polynomial is accurate only on its interval, and training may move its inputs out of it: add a multiple of the
    module's `range_penalty()` to the loss. When the module is traced again, the program keeps the intervals, and
    `compile` refuses calibration samples that leave them. Raises UnsupportedError if torch has no counterpart of an op.
    """
    if program.stage.order > Stage.POLYNOMIAL.order:
        raise UnsupportedError(
            f"a program of stage {program.stage.value} has no torch module",
            why="its values are slots of ciphertexts",
            hint="take what hg.trace, hg.parse or hg.approximate gave",
        )
    return ProgramModule(program, dtype, train_coefficients).eval()


class _Step(nn.Module):
    """One op; its constants are parameters and buffers."""

    def __init__(self, node: Node, run: Callable[[_Step, Any], Tensor]) -> None:
        super().__init__()
        self.op, self.layer, self.attrs, self.run = node.op, node.loc.layer, dict(node.attrs), run
        # For a polynomial in training mode: each sample's sum of squared excesses.
        self.excess: Tensor | None = None
        # For a function of `ranged` in training mode: the bits of its operand's range on the batch (`_BITS`).
        self.bits: Tensor | None = None
        # Training clamps a polynomial's argument to `outer` times its interval, and penalises it beyond `inner` times.
        self.inner, self.outer = INNER, 1.0
        # Added to a polynomial's coefficients, (degree + 1,) for any higher degree; training fades it out.
        self.fading: Tensor | None = None
        assert isinstance(node.type, TensorType)
        self.shape = node.type.shape
        self.ranks = [len(operand.type.shape) for operand in node.inputs if isinstance(operand.type, TensorType)]

    def forward(self, *operands: Tensor) -> Tensor:
        if self.training and self.op in _BITS:
            self.bits = _BITS[self.op](self, operands)
        return self.run(self, operands)

    def constant(self, name: str) -> Tensor | None:
        """The constant of that attribute."""
        return getattr(self, _NAMES.get((self.op, name), name), None)


class ProgramModule(nn.Module):
    """A program as a module: runs its steps in program order.

    With `folds_norms` a batch norm in eval mode that alone reads a linear layer or a convolution is computed with it, as one
    map with other weights: less work, gradients of the same parameters. It is for training, and off when a module is traced.
    """

    folds_norms = False

    def __init__(self, program: Program, dtype: torch.dtype, train_coefficients: bool) -> None:
        super().__init__()
        self._number = {node: place for place, node in enumerate(program.nodes)}
        self._inputs = [self._number[node] for node in program.inputs]
        self._outputs = [self._number[node] for node in program.outputs]
        self._names = program.output_names
        self._plan: list[tuple[int, str, tuple[int, ...]]] = []
        shared: dict[Any, Tensor] = {}
        for node in program.nodes:
            if node.op == "input":
                continue
            rule = _rule_of(node.op)
            if rule is None:
                raise UnsupportedError(
                    f"{node.op} has no counterpart in torch",
                    where=node.loc,
                    hint="write this part of the module by hand",
                )
            step = _Step(node, rule)
            _hold(step, node, program, dtype, train_coefficients, shared)
            path = self._place(step, node.loc.layer or f"{node.op}{self._number[node]}")
            self._plan.append((self._number[node], path, tuple(self._number[operand] for operand in node.inputs)))
        paths = {place: path for place, path, _ in self._plan}
        users = program.users()
        # The place of a linear map -> the path of the batch norm that can be computed together with it.
        self._norms = {
            self._number[node.inputs[0]]: paths[self._number[node]]
            for node in program.nodes
            if node.op == "batch_norm"
            and node.inputs[0].op in ("linear", "conv")
            and len(users[node.inputs[0]]) == 1
            and node.inputs[0] not in program.outputs
        }
        # Places of the values that another program also has, by layer and op, and the subset that activations read.
        counts = Counter((node.loc.layer, node.op) for node in program.nodes)
        self.places = {
            (node.loc.layer, node.op): self._number[node]
            for node in program.nodes
            if node.loc.layer and counts[node.loc.layer, node.op] == 1
        }
        read = [node.inputs[0] for node in program.nodes if OPS[node.op].activation is not None]
        self.features = tuple(dict.fromkeys((node.loc.layer, node.op) for node in read))
        del self._number

    def _place(self, step: _Step, path: str) -> str:
        """Put the step at that path of submodules, or at the next free one beside it; returns the path."""
        *outer, last = path.split(".")
        holder: nn.Module = self
        taken = []
        for part in outer:
            while not isinstance(getattr(holder, part, holder), nn.Module):
                part += "_"
            if not hasattr(holder, part):
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
            taken.append(part)
        name, count = last, 0
        while hasattr(holder, name):
            count += 1
            name = f"{last}_{count}"
        holder.add_module(name, step)
        return ".".join((*taken, name))

    def step(self, place: int) -> nn.Module:
        """The submodule that computes the node at that place of the program's nodes."""
        return self.get_submodule(next(path for number, path, _ in self._plan if number == place))

    def train(self, mode: bool = True) -> ProgramModule:
        """Training or eval mode; resets the sum of `range_penalty`."""
        for step in self.modules():
            if isinstance(step, _Step):
                step.excess = step.bits = None
        return super().train(mode)

    def range_penalty(self) -> Tensor:
        """The sum of the squared excesses of all inputs of polynomials in the last forward pass in training mode.

        The excess of an input is how far it lies outside the inner nine tenths of the interval, in units of half its width;
        the sum is divided by the number of samples.
        """
        excesses = self.range_excesses()
        return torch.stack([each.mean() for each in excesses]).sum() if excesses else torch.zeros(())

    def range_excesses(self) -> list[Tensor]:
        """The parts of `range_penalty` by polynomial, in program order, and by sample: vectors."""
        return [step.excess for step in self.polynomials if step.excess is not None]

    @property
    def polynomials(self) -> list[_Step]:
        """The polynomials in program order."""
        return [step for step in self._steps() if step.op == "poly"]

    @property
    def ranged(self) -> list[_Step]:
        """The functions that take more levels on a wider range (softmax, exp, roots, quotients, layer norms), in program
        order. After a forward pass in training mode each has `bits`, the logarithm of its operand's range on the batch:
        of half the width for softmax and exp, of the largest number over the smallest for the others.
        """
        return [step for step in self._steps() if step.op in _BITS]

    def _steps(self) -> list[_Step]:
        steps = [self.get_submodule(path) for _, path, _ in self._plan]
        return [step for step in steps if isinstance(step, _Step)]

    @property
    def norms(self) -> list[_Step]:
        """The batch norms."""
        return [step for step in self.modules() if isinstance(step, _Step) and step.op == "batch_norm"]

    def written(self, program: Program) -> Program:
        """The program from which this module was made, with the module's parameters and buffers as its constants.

        Names, places, ranges and calibration samples stay, which tracing the module would lose.
        """
        paths = {place: path for place, path, _ in self._plan}
        # Start without the old constants, so that the new ones take their names.
        builder = Builder(program.name, program.stage, replace(program, constants={}))
        new: dict[Node, Node] = {}
        for place, node in enumerate(program.nodes):
            if node.op == "input":
                new[node] = builder.copy(node, ())
                continue
            step: Any = self.get_submodule(paths[place])
            attrs = dict(node.attrs)
            for name, value in node.attrs.items():
                if name == "matrices":
                    attrs[name] = tuple(
                        builder.constant(_matrix_of(step, number, program.linear_map(each).sparse()), str(each))
                        for number, each in enumerate(value)
                    )
                elif _is_constant(program, value):
                    attrs[name] = builder.constant(step.constant(name).detach().cpu().numpy(), str(value))
            new[node] = builder.op(node.op, [new[operand] for operand in node.inputs], node.loc, **attrs)
        return builder.finish_as(program, new)

    def forward(self, *inputs: Tensor) -> Any:
        return self.kept(inputs, ())[0]

    def kept(self, inputs: Sequence[Tensor], places: Sequence[int]) -> tuple[Any, list[Tensor]]:
        """The result of `forward`, and the values at these places of the program."""
        values: dict[int, Tensor] = dict(zip(self._inputs, inputs, strict=True))
        folded = set()
        for place, path, operands in self._plan:
            norm = self.get_submodule(self._norms[place]) if self.folds_norms and place in self._norms else None
            if path in folded:
                values[place] = values[operands[0]]
            elif norm is not None and not norm.training:
                folded.add(self._norms[place])
                values[place] = _with_norm(self.get_submodule(path), norm, values[operands[0]])
            else:
                values[place] = self.get_submodule(path)(*(values[operand] for operand in operands))
        outputs = [values[place] for place in self._outputs]
        result = outputs[0] if len(outputs) == 1 else dict(zip(self._names, outputs, strict=True))
        return result, [values[place] for place in places]


def _hold(
    step: _Step, node: Node, program: Program, dtype: torch.dtype, coefficients: bool, shared: dict[Any, Tensor]
) -> None:
    """Give the step the constants that its node names."""
    trained = _TRAINED.get(node.op, ())
    for name, value in node.attrs.items():
        if name == "matrices":
            for place, matrix in enumerate(value):
                _hold_matrix(step, place, program, matrix, dtype, shared)
        elif _is_constant(program, value):
            array = np.array(program.array(value))
            own = name == "coefficients" and coefficients
            is_trained = name in trained or own
            # Polynomials that start with the same coefficients are trained separately.
            key = (str(value), name in trained, id(step) if own else None)
            if key not in shared:
                tensor = torch.from_numpy(array).to(dtype)
                shared[key] = nn.Parameter(tensor) if is_trained else tensor
            label = _NAMES.get((node.op, name), name)
            if isinstance(shared[key], nn.Parameter):
                step.register_parameter(label, shared[key])  # type: ignore[arg-type]
            else:
                step.register_buffer(label, shared[key])


def _is_constant(program: Program, value: Any) -> bool:
    return isinstance(value, ConstantName) and str(value) in program.constants


def _matrix_of(step: Any, place: int, old: SparseMatrix) -> SparseMatrix:
    """The matrix with the step's entries."""
    data = getattr(step, f"values{place}").detach().cpu().double().numpy()
    return SparseMatrix(old.shape, data, old.indices, old.indptr)


def _hold_matrix(
    step: _Step, place: int, program: Program, name: Any, dtype: torch.dtype, shared: dict[Any, Tensor]
) -> None:
    matrix = program.linear_map(name).sparse()
    # A map that only takes elements is structure, not weights.
    takes = bool((matrix.data == 1.0).all() and (np.diff(matrix.indptr) <= 1).all())
    if str(name) not in shared:
        values = torch.from_numpy(matrix.data.copy()).to(dtype)
        shared[str(name)] = values if takes else nn.Parameter(values)
    if takes:
        step.register_buffer(f"values{place}", shared[str(name)])
    else:
        step.register_parameter(f"values{place}", shared[str(name)])  # type: ignore[arg-type]
    step.register_buffer(f"starts{place}", torch.from_numpy(matrix.indptr.astype(np.int64)))
    step.register_buffer(f"columns{place}", torch.from_numpy(matrix.indices.astype(np.int64)))


# ---------------------------------------------------------------------------------------------- one rule for each op

_RULES: dict[str, Callable[[_Step, Any], Tensor]] = {}


def _rule_of(op: str) -> Callable[[_Step, Any], Tensor] | None:
    """The rule of an op, or torch's own function for an activation."""
    family = OPS[op].activation
    if family is not None and family.torch_ops:
        space, name = family.torch_ops[0].rsplit(".", 1)
        own = getattr(getattr(torch.ops, space), name).default
        return lambda step, operands: own(operands[0])
    if op in RUNS:
        return lambda step, operands: RUNS[op](operands[0])
    return _RULES.get(op)


def _rule(*names: str) -> Callable[[Callable[[_Step, Any], Tensor]], Callable[[_Step, Any], Tensor]]:
    def register(function: Callable[[_Step, Any], Tensor]) -> Callable[[_Step, Any], Tensor]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _aligned(step: _Step, operands: Any) -> list[Tensor]:
    """The operands with axes of length one behind the batch axis, so that axes align from the right as without it."""
    rank = max(step.ranks)
    return [
        x if own == rank else x.reshape(x.shape[0], *(1,) * (rank - own), *x.shape[1:])
        for x, own in zip(operands, step.ranks, strict=True)
    ]


_BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
_UNARY: Mapping[str, Callable[[Tensor, Mapping[str, Any]], Tensor]] = {
    "neg": lambda x, a: -x,
    "power": lambda x, a: x ** a["exponent"],
    "leaky_relu": lambda x, a: F.leaky_relu(x, a.get("negative_slope", 0.01)),
    "gelu": lambda x, a: F.gelu(x, approximate=a.get("approximate", "none")),
    "softplus": lambda x, a: F.softplus(x, a.get("beta", 1.0), a.get("threshold", 20.0)),
    "hardtanh": lambda x, a: F.hardtanh(x),
    "clamp": lambda x, a: torch.clamp(x, a.get("min"), a.get("max")),
    "softmax": lambda x, a: torch.softmax(x, a["axis"] + 1 if a["axis"] >= 0 else a["axis"]),
    "softmax_rows": lambda x, a: torch.softmax(x, 1),
    "max_rows": lambda x, a: x.amax(1),
    "sum": lambda x, a: x.sum(_axes(a), keepdim=a["keepdims"]),
    "mean": lambda x, a: x.mean(_axes(a), keepdim=a["keepdims"]),
    "reshape": lambda x, a: x.reshape(x.shape[0], *a["shape"]),
    "permute": lambda x, a: x.permute(0, *(axis + 1 for axis in a["axes"])),
    "avg_pool": lambda x, a: _AVG_POOL[len(a["kernel"])](
        x, a["kernel"], a["stride"], a["padding"], count_include_pad=a["count_include_pad"]
    ),
    "adaptive_avg_pool": lambda x, a: _ADAPTIVE[len(a["output_size"])](x, a["output_size"]),
    "max_pool": lambda x, a: _MAX_POOL[len(a["kernel"])](
        x, a["kernel"], a["stride"], a["padding"], a.get("dilation", 1)
    ),
}


def _axes(a: Mapping[str, Any]) -> list[int]:
    return [axis + 1 if axis >= 0 else axis for axis in a["axes"]]


for _name, _binary in _BINARY.items():
    _RULES[_name] = lambda step, operands, f=_binary: f(*_aligned(step, operands))  # type: ignore[misc]
for _name, _unary in _UNARY.items():
    _RULES[_name] = lambda step, operands, f=_unary: f(operands[0], step.attrs)  # type: ignore[misc]


@_rule("constant")
def _constant(step: _Step, operands: Any) -> Tensor:
    value: Any = step.constant("value")
    return value.unsqueeze(0)  # type: ignore[no-any-return]


@_rule("linear", "conv")
def _map(step: _Step, operands: Any) -> Tensor:
    weight: Any = step.constant("weight")
    return _mapped(step, operands[0], weight, step.constant("bias"))


def _mapped(step: _Step, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear layer or convolution of that step, with this weight and bias."""
    a = step.attrs
    if step.op == "linear":
        return F.linear(x, weight, bias)
    return _CONV[len(a["stride"])](x, weight, bias, a["stride"], a["padding"], a["dilation"], a["groups"])


def _with_norm(step: Any, norm: Any, x: Tensor) -> Tensor:
    """The map of that step and the batch norm behind it, by its fixed statistics, as one map."""
    weight, bias, mean = step.constant("weight"), step.constant("bias"), norm.constant("mean")
    scale = (norm.constant("variance") + norm.attrs["eps"]).rsqrt()
    if norm.constant("weight") is not None:
        scale = scale * norm.constant("weight")
    shift = -mean * scale if bias is None else (bias - mean) * scale
    if norm.constant("bias") is not None:
        shift = shift + norm.constant("bias")
    return _mapped(step, x, weight * scale.reshape(-1, *(1,) * (weight.ndim - 1)), shift)


@_rule("batch_norm")
def _batch_norm(step: _Step, operands: Any) -> Tensor:
    mean: Any = step.constant("mean")
    variance: Any = step.constant("variance")
    weight, bias = step.constant("weight"), step.constant("bias")
    return F.batch_norm(operands[0], mean, variance, weight, bias, step.training, 0.1, step.attrs["eps"])


@_rule("layer_norm")
def _layer_norm(step: _Step, operands: Any) -> Tensor:
    shape = list(step.shape[len(step.shape) - step.attrs["rank"] :])
    return F.layer_norm(operands[0], shape, step.constant("weight"), step.constant("bias"), step.attrs["eps"])


# ---------------------------------------------------------------------------------------------- ranges


def _ends(x: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a range: the means of the lowest and of the highest eighth of the samples' own ends, so that more than
    one sample has a gradient.
    """
    flat, few = x.flatten(1), max(1, len(x) // 8)
    lows, highs = flat.amin(1), flat.amax(1)
    return lows.topk(few, largest=False).values.mean(), highs.topk(few).values.mean()


def _width_bits(x: Tensor) -> Tensor:
    low, high = _ends(x)
    return torch.log2(((high - low) / 2).clamp_min(_LEAST))


def _ratio_bits(x: Tensor, by_row: bool = False) -> Tensor:
    logarithms = torch.log2(x.abs().clamp_min(_LEAST))
    if by_row:
        # Rows are divided by their own sizes (passes/ranges/norm_rows.py).
        logarithms = logarithms - logarithms.mean(0, keepdim=True)
    low, high = _ends(logarithms)
    return high - low


def _norm_bits(step: _Step, operands: Any) -> Tensor:
    axes = list(range(-step.attrs["rank"], 0))
    return _ratio_bits(operands[0].var(axes, correction=0) + step.attrs["eps"], by_row=True)


_LEAST = 1e-30
_BITS: Mapping[str, Callable[[_Step, Any], Tensor]] = {
    **dict.fromkeys(("softmax", "softmax_rows", "exp"), lambda step, operands: _width_bits(operands[0])),
    **dict.fromkeys(("reciprocal", "sqrt", "rsqrt"), lambda step, operands: _ratio_bits(operands[0])),
    "div": lambda step, operands: _ratio_bits(operands[1]),
    "layer_norm": _norm_bits,
}


@_rule("poly")
def _poly(step: _Step, operands: Any) -> Tensor:
    a = step.attrs
    coefficients: Any = step.constant("coefficients")
    if step.fading is not None:
        coefficients = F.pad(coefficients, (0, len(step.fading) - len(coefficients))) + step.fading
    if not step.training:
        return polynomial(operands[0], coefficients, a["low"], a["high"])  # type: ignore[no-any-return]
    values, excess = held_polynomial(operands[0], coefficients, a["low"], a["high"], step.inner, step.outer)
    step.excess = excess
    return values


@_rule("affine")
def _affine(step: _Step, operands: Any) -> Tensor:
    total: Any = None
    for place, x in enumerate(operands):
        parts = (getattr(step, f"{part}{place}") for part in ("values", "starts", "columns"))
        mapped = sparse_map(x.reshape(x.shape[0], -1), *parts)
        total = mapped if total is None else total + mapped
    bias = step.constant("bias")
    if bias is not None:
        total = total + bias.reshape(1, -1)
    return total.reshape(total.shape[0], *step.shape)  # type: ignore[no-any-return]


@_rule("slice")
def _slice(step: _Step, operands: Any) -> Tensor:
    bounds = zip(step.attrs["starts"], step.attrs["stops"], step.attrs["steps"], strict=True)
    index = (slice(None), *(slice(*each) for each in bounds))
    return operands[0][index]  # type: ignore[no-any-return]


@_rule("broadcast")
def _broadcast(step: _Step, operands: Any) -> Tensor:
    (x,) = operands
    wide = x.reshape(x.shape[0], *(1,) * (len(step.shape) - step.ranks[0]), *x.shape[1:])
    return wide.expand(x.shape[0], *step.shape)  # type: ignore[no-any-return]


@_rule("pad")
def _pad(step: _Step, operands: Any) -> Tensor:
    sides = zip(reversed(step.attrs["before"]), reversed(step.attrs["after"]), strict=True)
    return F.pad(operands[0], [width for pair in sides for width in pair])


@_rule("concat")
def _concat(step: _Step, operands: Any) -> Tensor:
    samples = max(x.shape[0] for x in operands)
    axis = step.attrs["axis"]
    return torch.cat([x.expand(samples, *x.shape[1:]) for x in operands], axis + 1 if axis >= 0 else axis)


@_rule("matmul")
def _matmul(step: _Step, operands: Any) -> Tensor:
    left, right = operands
    left = left.unsqueeze(-2) if step.ranks[0] == 1 else left
    right = right.unsqueeze(-1) if step.ranks[1] == 1 else right
    rank = max(left.ndim, right.ndim)
    left, right = (x.reshape(x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:]) for x in (left, right))
    return torch.matmul(left, right).reshape(max(left.shape[0], right.shape[0]), *step.shape)
