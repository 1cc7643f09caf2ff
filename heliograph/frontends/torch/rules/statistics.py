"""Rules for nonlinear functions over an axis: variances, lengths, distances, products, log-sum-exp."""

from __future__ import annotations

import math
from typing import Any

from heliograph.frontends.torch.values import Call, NoRule, Value, axes_of, elementwise, rule
from heliograph.ir import Node, shape_of

# Exponentials of scores within this of zero are summed directly.
_SMALL = 4.0
# A minimum length that only prevents a division by zero.
_SHORT = 1e-4


def _sizes(x: Value, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _deviations(call: Call, x: Value, dims: Any, correction: float, keepdim: bool) -> tuple[Value, Value]:
    """The variance and the mean over the axes that torch calls `dims`."""
    axes = axes_of(x, dims)
    count = _sizes(x, axes)
    if count <= correction:
        raise call.refuse(
            f"it divides by {count} - {correction:g} numbers", "take the variance of more, or correction=0"
        )
    mean = call.emit("mean", x.node, axes=axes, keepdims=True)
    centred = call.emit("sub", x.node, mean)
    squares = call.emit("mul", centred, centred)
    variance = call.emit("mean", squares, axes=axes, keepdims=bool(keepdim))
    if correction:
        variance = call.emit("mul", variance, call.constant_node(count / (count - correction)))
    if not keepdim:
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        mean = call.emit("reshape", mean, shape=shape)
    return Value(variance), Value(mean)


def _correction(named: dict[str, Any]) -> float:
    given = named.get("correction")
    if given is None:
        return 1.0 if named.get("unbiased", True) else 0.0
    return float(given)


@rule("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
def variance(call: Call, *args: Any, **kwargs: Any) -> Any:
    named = call.named(args, kwargs)
    made, mean = _deviations(
        call, named["self"], named.get("dim"), _correction(named), bool(named.get("keepdim", False))
    )
    if "std" in call.op:
        made = Value(call.emit("sqrt", made.node))
    return [made, mean] if call.op.endswith("_mean") else made


# ---------------------------------------------------------------------------------------------- lengths


@rule("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
def vector_norm(call: Call, *args: Any, **kwargs: Any) -> Value:
    named = call.named(args, kwargs)
    order = named.get("ord", named.get("p", 2))
    order = 2.0 if order is None else float(order)
    return length(call, named["self"], order, named.get("dim"), bool(named.get("keepdim", False)))


def length(call: Call, x: Value, order: float, dims: Any, keepdim: bool) -> Value:
    """The norm of that order over the axes that torch calls `dims`."""
    axes = axes_of(x, dims)
    attrs = {"axes": axes, "keepdims": bool(keepdim)}
    if order == 2:
        return Value(call.emit("sqrt", call.emit("sum", call.emit("mul", x.node, x.node), **attrs)))
    if order == 1:
        return Value(call.emit("sum", call.emit("abs", x.node), **attrs))
    if order == math.inf and len(axes) == 1:
        largest = call.emit("max", call.emit("abs", x.node), axis=axes[0], keepdims=True if keepdim else None)
        return Value(largest)
    raise call.refuse(
        f"the norm of order {order:g} over {len(axes)} axes has no rule",
        "use order 2 or 1, or infinity over one axis",
    )


@rule("aten.cdist", "aten._cdist_forward")
def cdist(call: Call, x: Any, y: Any, p: float = 2.0, compute_mode: Any = None) -> Value:
    def spread(operand: Any, axis: int) -> Any:
        if not isinstance(operand, Value):
            return operand.unsqueeze(axis)
        place = axis % (operand.rank + 1)
        shape = (*operand.shape[:place], 1, *operand.shape[place:])
        return Value(call.emit("reshape", operand.node, shape=shape))

    return length(call, elementwise(call, "sub", spread(x, -2), spread(y, -3)), float(p), -1, False)


# ---------------------------------------------------------------------------------------------- products


def _slices(call: Call, x: Value, dim: int) -> tuple[list[Node], int]:
    """The elements of one axis, each with the axis at length one."""
    axis = x.axis(dim)
    found = []
    for place in range(x.shape[axis]):
        starts, stops = [0] * len(x.shape), list(x.shape)
        starts[axis], stops[axis] = place, place + 1
        steps = (1,) * len(x.shape)
        found.append(call.emit("slice", x.node, starts=tuple(starts), stops=tuple(stops), steps=steps))
    return found, axis


@rule("aten.prod")
def product(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    if dim is None:
        x, dim = Value(call.reshaped(x.node, (math.prod(x.shape),))), 0
    nodes, axis = _slices(call, x, dim)
    while len(nodes) > 1:
        pairs = [call.emit("mul", *nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
        nodes = [*pairs, *nodes[2 * len(pairs) :]]
    (node,) = nodes
    if keepdim:
        return Value(node)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return Value(call.emit("reshape", node, shape=shape))


@rule("aten.cumprod")
def cumulative_product(call: Call, x: Any, dim: int, dtype: Any = None) -> Value:
    nodes, axis = _slices(call, x, dim)
    # Each result is combined from two halves, to keep the depth small.
    made: dict[tuple[int, int], Node] = {(place, place + 1): node for place, node in enumerate(nodes)}

    def span(start: int, stop: int) -> Node:
        if (start, stop) not in made:
            middle = start + (1 << (stop - start - 1).bit_length() - 1)
            made[start, stop] = call.emit("mul", span(start, middle), span(middle, stop))
        return made[start, stop]

    return Value(call.emit("concat", *(span(0, stop + 1) for stop in range(len(nodes))), axis=axis))


# ---------------------------------------------------------------------------------------------- exponentials


@rule("aten.logsumexp", "aten.special_logsumexp")
def logsumexp(call: Call, x: Any, dim: Any, keepdim: bool = False) -> Value:
    axes = axes_of(x, dim)
    node = x.node
    for axis in axes:
        node = log_of_exponentials(call, node, axis)
    if not keepdim:
        node = call.emit("reshape", node, shape=tuple(size for i, size in enumerate(x.shape) if i not in axes))
    return Value(node)


def log_of_exponentials(call: Call, node: Node, axis: int, *, dropped: bool = False) -> Node:
    """log(sum(exp(x))) over an axis, which stays with length one; `dropped` where nothing will read it.

    For two values it is b + softplus(a - b); for more, that function of pairs in a tree of log2(count) steps. No value
    exceeds the largest score by more than log(count), whereas exponentials soon outgrow every ciphertext, and a
    logarithm would have to tell the sum of small ones from zero. Known small scores take the shorter way.
    """
    if dropped or 0.0 < call.reach.size(node) <= _SMALL:
        total = call.emit("sum", call.emit("exp", node), axes=(axis,), keepdims=True)
        return call.emit("log", total)

    def part(start: int, stop: int) -> Node:
        shape = shape_of(node)
        starts, stops = [0] * len(shape), list(shape)
        starts[axis], stops[axis] = start, stop
        return call.emit("slice", node, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(shape))

    while (length := shape_of(node)[axis]) > 1:
        half = length // 2
        first, second = part(0, half), part(half, 2 * half)
        joined = call.emit("add", second, call.emit("softplus", call.emit("sub", first, second)))
        node = call.emit("concat", joined, part(2 * half, length), axis=axis) if length % 2 else joined
    return node


# ---------------------------------------------------------------------------------------------- losses of each sample


@rule("aten.mse_loss")
def squared_error(call: Call, x: Any, target: Any, reduction: int = 1) -> Value:
    if reduction:
        raise NoRule  # it runs over the samples of the batch
    difference = elementwise(call, "sub", x, target)
    return Value(call.emit("mul", difference.node, difference.node))


@rule("aten.cross_entropy_loss")
def cross_entropy(
    call: Call,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    """The negative sum of log-softmax times the probability of each class, with classes on axis 1."""
    if reduction or isinstance(weight, Value) or not isinstance(x, Value):
        raise NoRule
    if not isinstance(target, Value) and not target.is_floating_point():
        raise call.refuse(
            "its classes are whole numbers", "give probabilities: torch.nn.functional.one_hot(target, classes).float()"
        )
    axis = x.axis(1 if x.rank > 1 else 0)
    total = call.emit("sum", call.emit("exp", x.node), axes=(axis,), keepdims=True)
    log = Value(call.emit("sub", x.node, call.emit("log", total)))
    classes = x.shape[axis]
    shares: Any = target
    if label_smoothing:
        shares = (
            elementwise(call, "mul", target, 1 - label_smoothing)
            if isinstance(target, Value)
            else target * (1 - label_smoothing)
        )
        smooth = label_smoothing / classes
        shares = elementwise(call, "add", shares, smooth) if isinstance(shares, Value) else shares + smooth
    terms = elementwise(call, "mul", log, shares)
    if weight is not None:
        terms = elementwise(call, "mul", terms, weight.reshape(-1, *(1,) * (x.rank - 2)))
    made = call.emit("neg", call.emit("sum", terms.node, axes=(axis,), keepdims=False))
    return Value(made)


@rule("aten.bilinear")
def bilinear(call: Call, left: Any, right: Any, weight: Any, bias: Any = None) -> Value:
    if isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("its weights depend on an input", "use weights that are parameters or constants of the model")
    if not isinstance(left, Value):
        left, right, weight = right, left, weight.transpose(1, 2)
    # (outs, left, right) becomes (outs * right, left); then take the inner product with the right operand.
    outs, width, other = weight.shape
    matrix = weight.detach().transpose(1, 2).reshape(outs * other, width).contiguous()
    call.names.set(matrix, call.names.get(weight, f"{call.loc.layer}.weight"))
    node = call.emit("linear", left.node, weight=call.constant(matrix))
    grown = Value(call.emit("reshape", node, shape=(*left.shape[:-1], outs, other)))
    if isinstance(right, Value):
        factor: Any = Value(call.emit("reshape", right.node, shape=(*right.shape[:-1], 1, other)))
    else:
        factor = right.unsqueeze(-2)
    product = elementwise(call, "mul", grown, factor)
    total = call.emit("sum", product.node, axes=(len(product.shape) - 1,), keepdims=False)
    made = Value(total)
    return made if bias is None else elementwise(call, "add", made, bias.detach())


def inverse_length(call: Call, divisor: Value) -> Value | None:
    """1 / divisor by one function, where the divisor is a square root, or its maximum with a least length; else None.

    max(sqrt(s), least) is replaced by sqrt(s + least^2), which differs from it by at most 0.42 least.
    """
    chain, node = [], divisor.node
    while node.op in ("reshape", "broadcast"):
        chain.append(node)
        node = node.inputs[0]
    least = 0.0
    if node.op == "clamp" and "max" not in node.attrs and node.attrs.get("min", 1.0) <= _SHORT:
        least, node = float(node.attrs["min"]), node.inputs[0]
    if node.op != "sqrt":
        return None
    (squares,) = node.inputs
    if least:
        squares = call.emit("add", squares, call.constant_node(least * least))
    made = call.emit("rsqrt", squares)
    for step in reversed(chain):
        made = call.emit(step.op, made, **step.attrs)
    return Value(made)
