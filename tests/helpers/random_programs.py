"""Random tensor programs: small, with every kind of op, and inputs that fit them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heliograph.execution.interface import input_shape
from heliograph.ir import Array, Builder, Location, Node, Program, Stage, TensorType
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout

# Values before functions that are composed are at most this large.
REACH = 1.5
ACTIVATIONS = ("sigmoid", "tanh", "gelu", "silu", "softplus", "relu", "leaky_relu")


class RandomProgram:
    """Adds random ops to a program; every choice comes from one generator."""

    def __init__(self, random: np.random.Generator, depth_left: int = 12) -> None:
        self.random = random
        self.depth_left = depth_left
        self.builder = Builder("random", Stage.TENSOR)
        self.values: list[Node] = []
        self.count = 0

    def loc(self) -> Location:
        self.count += 1
        return Location("model.py", self.count, 1, f"layer{self.count}")

    def op(self, name: str, *operands: Node, **attrs: object) -> Node:
        node = self.builder.op(name, operands, self.loc(), **attrs)  # type: ignore[arg-type]
        self.values.append(node)
        return node

    def weight(self, *shape: int) -> object:
        fan = max(1, int(np.prod(shape[1:])))
        return self.builder.constant(self.random.normal(size=shape) / np.sqrt(fan), "w")

    def constant(self, shape: tuple[int, ...]) -> Node:
        value = self.builder.constant(self.random.uniform(-1, 1, size=shape), "k")
        return self.builder.op("constant", (), self.loc(), value=value)

    def pick(self) -> Node:
        # Later values are more likely: programs grow deep as well as wide.
        weights = np.arange(1, len(self.values) + 1, dtype=float)
        return self.values[int(self.random.choice(len(self.values), p=weights / weights.sum()))]

    def shape(self, node: Node) -> tuple[int, ...]:
        assert isinstance(node.type, TensorType)
        return node.type.shape

    def step(self) -> None:
        x = self.pick()
        shape = self.shape(x)
        choices: list[Callable[[], object]] = [
            lambda: self.linear(x),
            lambda: self.op("add", x, self.constant(shape)),
            lambda: self.op("sub", self.constant(shape[-1:]), x),
            lambda: self.op("mul", x, self.constant(shape[-1:] if shape else ())),
            lambda: self.op("neg", x),
            lambda: self.same_shape("add", x),
            lambda: self.same_shape("sub", x),
            lambda: self.structure(x),
        ]
        if self.depth_left >= 8:
            choices += [lambda: self.decision(x), lambda: self.function(x), lambda: self.along(x)]
        if self.depth_left > 0:
            choices += [lambda: self.activation(x), lambda: self.product(x), lambda: self.power(x)]
        if len(shape) == 3:
            choices += [lambda: self.conv(x), lambda: self.pool(x), lambda: self.batch_norm(x)]
        choices[int(self.random.integers(len(choices)))]()

    def linear(self, x: Node) -> None:
        shape = self.shape(x)
        if not shape:
            return
        out = int(self.random.integers(1, 9))
        bias = self.builder.constant(self.random.uniform(-1, 1, size=out), "b") if self.random.random() < 0.5 else None
        self.op("linear", x, weight=self.weight(out, shape[-1]), bias=bias)

    def same_shape(self, name: str, x: Node) -> None:
        others = [v for v in self.values if self.shape(v) == self.shape(x)]
        self.op(name, x, others[int(self.random.integers(len(others)))])

    def activation(self, x: Node) -> None:
        self.depth_left -= 3
        name = ACTIVATIONS[int(self.random.integers(len(ACTIVATIONS)))]
        self.op(name, x, degree=int(self.random.integers(1, 8)))

    def bounded(self, x: Node) -> Node:
        """A value within REACH: constructions for the same range and gap are searched for once."""
        return self.op("tanh", x, degree=3)

    def decision(self, x: Node) -> None:
        """Sign, abs, comparison, maximum: gaps are coarse, so that few levels do."""
        self.depth_left -= 8
        kinds = ("sign", "abs", "gt", "ge", "lt", "le", "maximum", "minimum")
        kind = kinds[int(self.random.integers(len(kinds)))]
        limits = {"gap": 0.25, "low": -REACH, "high": REACH, **({} if kind == "abs" else {"bits": 4.0})}
        x = self.bounded(x)
        if kind in ("sign", "abs"):
            self.op(kind, x, **limits)
        else:
            self.op(kind, x, self.constant(self.shape(x)[-1:]), **limits)

    def function(self, x: Node) -> None:
        """Exp, division and roots, of values that are kept away from zero."""
        self.depth_left -= 8
        bounded = self.bounded(x)
        square = self.op("mul", bounded, bounded)
        positive = self.op("add", square, self.builder.op("constant", value=self.builder.constant(np.array(1.5))))
        kind = ("exp", "reciprocal", "sqrt", "rsqrt", "div", "where")[int(self.random.integers(6))]
        if kind == "div":
            self.op("div", bounded, positive, low=1.0, high=4.0)
        elif kind == "where":
            self.op("where", square, bounded, positive)
        elif kind == "exp":
            self.op("exp", bounded, low=-REACH, high=REACH)
        else:
            self.op(kind, positive, low=1.0, high=4.0)

    def along(self, x: Node) -> None:
        """Maximum, argmax, softmax along an axis, max pooling, layer norm."""
        shape = self.shape(x)
        axes = [axis for axis, size in enumerate(shape) if 1 < size <= 8]
        if not axes or np.prod(shape) > 40:
            return
        self.depth_left -= 8
        axis = axes[int(self.random.integers(len(axes)))]
        bounded = self.bounded(x)
        limits = {"low": -REACH, "high": REACH}
        kind = int(self.random.integers(6))
        if kind == 0:
            self.op("max" if self.random.random() < 0.5 else "min", bounded, axis=axis, gap=0.3, **limits)
        elif kind == 1:
            index = bool(self.random.integers(2)) or None
            self.op("argmax", bounded, axis=axis, gap=0.6, bits=2.0, index=index, **limits)
        elif kind == 2:
            self.op("softmax", bounded, axis=axis - len(shape), **limits)
        elif kind == 3 and len(shape) == 3 and min(shape[1:]) >= 2:
            self.op("max_pool", bounded, kernel=(2, 2), stride=(2, 1), padding=(1, 0), gap=0.3, **limits)
        elif kind == 4:
            self.op("layer_norm", bounded, rank=1, eps=0.5, low=0.0, high=2.0)
        else:
            name, attrs = ("relu6", {}) if self.random.random() < 0.5 else ("clamp", {"min": -0.5, "max": 0.75})
            self.op(name, bounded, degree=5, **attrs)

    def product(self, x: Node) -> None:
        self.depth_left -= 1
        self.same_shape("mul", x)

    def power(self, x: Node) -> None:
        self.depth_left -= 2
        self.op("power", x, exponent=int(self.random.integers(1, 5)))

    def structure(self, x: Node) -> None:
        shape = self.shape(x)
        if not shape:
            self.op("reshape", x, shape=(1,))
            return
        kind = int(self.random.integers(6))
        if kind == 0:
            self.op("reshape", x, shape=(int(np.prod(shape)),))
        elif kind == 1:
            self.op("permute", x, axes=tuple(int(i) for i in self.random.permutation(len(shape))))
        elif kind == 2:
            starts = tuple(int(self.random.integers(0, size)) for size in shape)
            self.op("slice", x, starts=starts, stops=shape, steps=tuple(int(self.random.integers(1, 3)) for _ in shape))
        elif kind == 3 and np.prod(shape) < 100:
            self.op("concat", x, x, axis=int(self.random.integers(len(shape))))
        elif kind == 4:
            axes = (int(self.random.integers(len(shape))),)
            self.op(
                "mean" if self.random.random() < 0.5 else "sum", x, axes=axes, keepdims=bool(self.random.integers(2))
            )
        elif np.prod(shape) < 60:
            self.op("pad", x, before=(1,) * len(shape), after=(0,) * len(shape))

    def conv(self, x: Node) -> None:
        channels, height, width = self.shape(x)
        kernel = int(self.random.integers(1, min(3, height, width) + 1))
        stride, padding = int(self.random.integers(1, 3)), int(self.random.integers(0, kernel))
        self.op(
            "conv",
            x,
            weight=self.weight(int(self.random.integers(1, 4)), channels, kernel, kernel),
            stride=(stride, stride),
            padding=(padding, padding),
            dilation=(1, 1),
            groups=1,
        )

    def pool(self, x: Node) -> None:
        _, height, width = self.shape(x)
        if min(height, width) >= 2:
            self.op("avg_pool", x, kernel=(2, 2), stride=(2, 2), padding=(0, 0), count_include_pad=True)

    def batch_norm(self, x: Node) -> None:
        channels = self.shape(x)[0]
        self.op(
            "batch_norm",
            x,
            mean=self.builder.constant(self.random.normal(size=channels), "mean"),
            variance=self.builder.constant(self.random.uniform(0.5, 2, size=channels), "variance"),
            eps=1e-5,
        )


def random_program(seed: int, steps: int = 8) -> Program:
    """A program of about that many ops on one or two inputs in [-1, 1], with one to three outputs."""
    random = np.random.default_rng(seed)
    made = RandomProgram(random)
    shapes: list[tuple[int, ...]] = [(), (1,), (5,), (8,), (3, 4), (2, 4, 4), (1, 6, 6), (4, 1, 3)]
    for i in range(int(random.integers(1, 3))):
        shape = shapes[int(random.integers(len(shapes)))]
        # Every fourth program has an input that only the server knows.
        secret = None if i == 0 or random.random() < 0.5 else False
        made.values.append(made.builder.input(f"x{i}", made.loc(), shape=shape, low=-1.0, high=1.0, secret=secret))
    for _ in range(steps):
        made.step()
    candidates = [v for v in made.values if v.type.secret]
    count = int(random.integers(1, 4))
    picked = [candidates[int(random.integers(len(candidates)))] for _ in range(count - 1)]
    outputs = dict.fromkeys([candidates[-1], *picked])
    return made.builder.finish({f"y{i}": node for i, node in enumerate(outputs)})


SLOTS = 8


def random_slot_program(seed: int, steps: int = 10) -> Program:
    """A program on 8 slots as the language makes it, of about that many ops, with one or two encrypted inputs."""
    random = np.random.default_rng(seed)
    layout = Layout((SLOTS,), SLOTS, SLOTS)
    builder = Builder("slots", Stage.PACKED)
    values, left, specs = [], {}, []
    for i in range(int(random.integers(1, 3))):
        node = builder.input(f"x{i}", Location("filter.hg", i + 1), slots=SLOTS, chunk=0, low=-1.0, high=1.0)
        specs.append(TensorSpec(f"x{i}", (SLOTS,), layout, -1.0, 1.0))
        values.append(node)
        left[node] = 6
    tensor = builder.input("p", Location("filter.hg", 3), shape=(SLOTS,), low=-1.0, high=1.0, secret=False)
    plain = builder.op("pack", (tensor,), layout=layout)
    for step in range(steps):
        x, y = (values[int(random.integers(len(values)))] for _ in range(2))
        vector = builder.constant(random.uniform(-1, 1, size=SLOTS), "v")
        choices: list[tuple[str, tuple[Node, ...], dict[str, object]]] = [
            ("conjugate", (x,), {}),
            ("rotate", (x,), {"amount": int(random.integers(-8, 9))}),
            ("add_ct", (x, y), {}),
            ("sub_ct", (x, y), {}),
            ("add_plain", (x,), {"value": vector}),
            ("add_scalar", (x,), {"value": 0.25}),
            ("negate", (x,), {}),
            ("add_pt", (x, plain), {}),
            ("mul_ct", (x, y), {}),
            ("mul_plain", (x,), {"value": vector}),
            ("mul_int", (x,), {"factor": int(random.choice([-2, 3]))}),
            ("mul_pt", (x, plain), {}),
            (
                "poly",
                (x,),
                {"coefficients": builder.constant(random.uniform(-1, 1, size=4), "c"), "low": -8.0, "high": 8.0},
            ),
        ]
        op, operands, attrs = choices[int(random.integers(len(choices)))]
        spent = 3 if op == "poly" else int(op.startswith("mul_") and op != "mul_int")
        if min(left.get(o, 9) for o in operands) < spent:
            continue
        node = builder.op(op, operands, Location("filter.hg", step + 4), **attrs)  # type: ignore[arg-type]
        left[node] = min(left.get(o, 9) for o in operands) - spent
        if spent == 1 and random.random() < 0.3:
            node = builder.op("rescale", (node,), Location("filter.hg", step + 4))
            left[node] = left[node.inputs[0]]
        values.append(node)
    outputs = dict.fromkeys([values[-1], values[int(random.integers(len(values)))]])
    names = [f"y{i}" for i in range(len(outputs))]
    builder.interface = Interface(tuple(specs), tuple(TensorSpec(name, (SLOTS,), layout) for name in names))
    return builder.finish(dict(zip(names, outputs, strict=True)))


def random_inputs(program: Program, seed: int = 0) -> list[Array]:
    """One sample per input, uniform in its range."""
    random = np.random.default_rng(seed)
    return [
        np.asarray(
            random.uniform(node.attrs.get("low", -1.0), node.attrs.get("high", 1.0), size=input_shape(program, node))
        )
        for node in program.inputs
    ]
