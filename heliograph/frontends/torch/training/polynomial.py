"""Two ops of programs that torch lacks: a polynomial by Chebyshev coefficients, and a sparse map.

Both have gradients for everything that can be trained, and rules, so that a module that uses them can be traced.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.values import Call, Value, rule
from heliograph.ir import SparseMatrix

# The most numbers held at once while the gradient of a sparse map's entries is summed over the samples.
_PRODUCTS = 1 << 24
# A polynomial is evaluated on this many numbers at a time, or on fewer if its degree needs many rows, so that intermediate
# results stay in the cache. Below 32,768 numbers torch uses one thread.
_PART, _LEAST_PART, _ROWS_AND_COLUMNS = 1 << 16, 1 << 12, 1 << 19


def _parts(degree: int, *flat: torch.Tensor, whole: int = 1) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same parts of all these vectors, one after the other, each a multiple of `whole` numbers."""
    step = max(_LEAST_PART, min(_PART, _ROWS_AND_COLUMNS // (degree + 1)))
    step = max(1, step // whole) * whole
    for start in range(0, flat[0].numel(), step):
        yield tuple(each[start : start + step] for each in flat)


def _position(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """x in the interval's own coordinate: -1 at `low`, 1 at `high`."""
    return (2.0 * x).sub_(high + low).div_(high - low)


def _clenshaw(t: torch.Tensor, coefficients: list[float], out: torch.Tensor) -> None:
    """Write sum c_k T_k(t) into `out`, by Clenshaw's recurrence."""
    if len(coefficients) == 1:
        out.fill_(coefficients[0])
        return
    twice = 2.0 * t
    # The second of the two values is kept negated, so that each step works entirely in place.
    first, minus_second = torch.full_like(t, coefficients[-1]), torch.zeros_like(t)
    for coefficient in reversed(coefficients[1:-1]):
        minus_second.addcmul_(twice, first).add_(coefficient)
        first, minus_second = minus_second, first.neg_()
    torch.addcmul(minus_second, t, first, out=out).add_(coefficients[0])


def _basis(t: torch.Tensor, degree: int) -> torch.Tensor:
    """(degree + 1, n): T_0 to T_degree at the n numbers of t."""
    rows = t.new_empty((degree + 1, t.numel()))
    rows[0] = 1.0
    if degree:
        rows[1] = t
        twice = 2.0 * t
    for k in range(2, degree + 1):
        torch.mul(twice, rows[k - 1], out=rows[k])
        rows[k] -= rows[k - 2]
    return rows


def _slope(coefficients: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """(degree + 1,): coefficients of the derivative by x."""
    series = coefficients.detach().cpu().double().numpy()
    slope = np.polynomial.chebyshev.chebder(series) * (2.0 / (high - low)) if len(series) > 1 else np.zeros(1)
    return torch.from_numpy(np.append(slope, 0.0)[: len(series)]).to(coefficients)


@torch.library.custom_op("heliograph::polynomial", mutates_args=())
def polynomial(x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """sum c_k T_k(t) with t = (2x - (high + low)) / (high - low), elementwise; `coefficients` is (degree + 1,)."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    series: list[float] = coefficients.tolist()
    for part, out in _parts(len(series), x.reshape(-1), result.view(-1)):
        _clenshaw(_position(part, low, high), series, out)
    return result


@polynomial.register_fake
def _(x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_polynomial(ctx: Any, inputs: Any, output: Any) -> None:
    x, coefficients, ctx.low, ctx.high = inputs
    ctx.save_for_backward(x, coefficients)


def _polynomial_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, coefficients = ctx.saved_tensors
    by_x, by_coefficients = _gradients(x, coefficients, ctx.low, ctx.high, gradient)
    return by_x, by_coefficients, None, None


def _gradients(
    x: torch.Tensor,
    coefficients: torch.Tensor,
    low: float,
    high: float,
    gradient: torch.Tensor,
    held: tuple[float, float, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients with respect to x and to the coefficients, of a polynomial whose values have this gradient.

    `held`, for a polynomial whose argument is clamped: the inner and the outer bound as multiples of the interval, and
    the gradient of each sample's sum of squared excesses.
    """
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    sums = torch.zeros(coefficients.numel(), dtype=torch.float64, device=x.device)
    degree, slope = coefficients.numel() - 1, _slope(coefficients, low, high)
    row, first = 1 if held is None else x.numel() // max(1, held[2].numel()), 0
    for part, above, out in _parts(degree, x.reshape(-1), gradient.reshape(-1), by_x.view(-1), whole=max(1, row)):
        t = _position(part, low, high)
        inside = t if held is None else t.clamp(-held[1], held[1])
        rows = _basis(inside, degree)
        torch.mv(rows.t(), slope, out=out)
        out *= above
        if held is not None:
            inner, _, weights = held
            out *= inside == t
            excess = t.sub_(t.clamp(-inner, inner)).view(-1, row)
            weight = weights[first : first + len(excess), None] * (4.0 / (high - low))
            out.view(-1, row).addcmul_(excess, weight)
            first += len(excess)
        sums += torch.mv(rows, above)
    return by_x, sums.to(coefficients.dtype)


polynomial.register_autograd(_polynomial_gradient, setup_context=_keep_polynomial)


class _HeldPolynomial(torch.autograd.Function):
    """`held_polynomial`, with its gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float, inner: float, outer: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.low, ctx.high, ctx.bounds = low, high, (inner, outer)
        ctx.save_for_backward(x, coefficients)
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        series: list[float] = coefficients.tolist()
        row, excesses = max(1, x.numel() // max(1, len(x))), []
        for part, out in _parts(len(series), x.reshape(-1), result.view(-1), whole=row):
            t = _position(part, low, high)
            excesses.append((t - t.clamp(-inner, inner)).square_().view(-1, row).sum(1))
            _clenshaw(t.clamp_(-outer, outer), series, out)
        return result, torch.cat(excesses) if excesses else x.new_zeros(len(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, by_penalty: torch.Tensor) -> tuple[Any, ...]:
        x, coefficients = ctx.saved_tensors
        held = *ctx.bounds, by_penalty
        by_x, by_coefficients = _gradients(x, coefficients, ctx.low, ctx.high, gradient, held)
        return by_x, by_coefficients, None, None, None, None


def held_polynomial(
    x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float, inner: float, outer: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The polynomial of x, clamped to the interval times `outer`, and the sums of the squared excesses of x by sample,
    which is the first axis.

    Distances are from the middle of [low, high], in units of half its width: x is clamped to `outer`, and its excess is
    the distance beyond `inner`. Where x is clamped the polynomial is constant, and only the sums have a gradient by x.
    """
    return _HeldPolynomial.apply(x, coefficients, low, high, inner, outer)  # type: ignore[no-any-return]


@rule("heliograph.polynomial")
def _polynomial(call: Call, x: Any, coefficients: Any, low: float, high: float) -> Value:
    if not isinstance(x, Value) or isinstance(coefficients, Value):
        raise call.refuse("its coefficients depend on an input", "use coefficients that are parameters or constants")
    made = call.emit("poly", x.node, coefficients=call.constant(coefficients), low=float(low), high=float(high))
    return Value(made)


# ---------------------------------------------------------------------------------------------- sparse maps


def _matrix(values: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            starts, columns, values, size=(rows, width), dtype=values.dtype, check_invariants=False
        )


@torch.library.custom_op("heliograph::sparse_map", mutates_args=())
def sparse_map(x: torch.Tensor, values: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """(samples, rows) from x (samples, width): the product with a matrix in compressed rows, never made dense."""
    rows, width = starts.numel() - 1, x.shape[1]
    return (_matrix(values, starts, columns, rows, width) @ x.t()).t().contiguous()


@sparse_map.register_fake
def _(x: torch.Tensor, values: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], starts.shape[0] - 1))


def _keep_map(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _map_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, values, starts, columns = ctx.saved_tensors
    by_x = by_values = None
    if ctx.needs_input_grad[0]:
        matrix = _matrix(values, starts, columns, starts.numel() - 1, x.shape[1])
        by_x = (matrix.t() @ gradient.t()).t()
    if ctx.needs_input_grad[1]:
        rows = torch.repeat_interleave(torch.arange(starts.numel() - 1), starts.diff())
        by_values = torch.zeros_like(values)
        step = max(1, _PRODUCTS // max(1, values.numel()))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            by_values += (x[part][:, columns] * gradient[part][:, rows]).sum(0)
    return by_x, by_values, None, None


sparse_map.register_autograd(_map_gradient, setup_context=_keep_map)


@rule("heliograph.sparse_map")
def _sparse_map(call: Call, x: Any, values: Any, starts: Any, columns: Any) -> Value:
    if not isinstance(x, Value) or any(isinstance(part, Value) for part in (values, starts, columns)):
        raise call.refuse("its entries depend on an input", "use a matrix that is a parameter or a constant")
    data, indptr, indices = (part.detach().cpu().numpy() for part in (values, starts, columns))
    matrix = SparseMatrix(
        (len(indptr) - 1, x.shape[1]), data.astype(np.float64), indices.astype(np.int32), indptr.astype(np.int32)
    )
    name = call.builder.constant(matrix, call.names.get(values, f"{call.loc.layer}.matrix"))
    return call.by_entry(x, lambda node: call.emit("affine", node, matrices=(name,), shape=(len(indptr) - 1,)))
