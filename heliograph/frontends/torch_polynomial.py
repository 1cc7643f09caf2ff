"""Two ops for torch that programs have and torch has not: a polynomial by Chebyshev coefficients, and a sparse map.

Both have gradients for all that can be trained, and rules, so that a module that uses them can be traced.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch_values import Call, Value, rule
from heliograph.ir import SparseMatrix

# Numbers held at once while the gradient of a sparse map's entries is summed over the samples.
_PRODUCTS = 1 << 24


def position(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """x in the interval's own coordinate: -1 at `low`, 1 at `high`."""
    return (2.0 * x - (high + low)) / (high - low)


def _clenshaw(t: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """sum c_k T_k(t), by Clenshaw's recurrence."""
    first, second = torch.zeros_like(t), torch.zeros_like(t)
    twice = 2.0 * t
    for coefficient in reversed(coefficients[1:].tolist()):
        first, second = twice * first - second + coefficient, first
    return t * first - second + float(coefficients[0])


@torch.library.custom_op("heliograph::polynomial", mutates_args=())
def polynomial(x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """sum c_k T_k(t) with t = (2x - (high + low)) / (high - low), elementwise; `coefficients` is (degree + 1,)."""
    return _clenshaw(position(x, low, high), coefficients)


@polynomial.register_fake
def _(x: torch.Tensor, coefficients: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_polynomial(ctx: Any, inputs: Any, output: Any) -> None:
    x, coefficients, ctx.low, ctx.high = inputs
    ctx.save_for_backward(x, coefficients)


def _polynomial_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, coefficients = ctx.saved_tensors
    t = position(x, ctx.low, ctx.high)
    by_x = by_coefficients = None
    if ctx.needs_input_grad[0]:
        series = coefficients.detach().cpu().double().numpy()
        slope = np.polynomial.chebyshev.chebder(series) if len(series) > 1 else np.zeros(1)
        by_x = gradient * _clenshaw(t, torch.from_numpy(slope)) * (2.0 / (ctx.high - ctx.low))
    if ctx.needs_input_grad[1]:
        # T_k is made again one after the other, so that memory does not grow with the degree.
        sums, before, now = [], t, torch.ones_like(t)
        for _ in range(len(coefficients)):
            sums.append((gradient * now).sum())
            before, now = now, 2.0 * t * now - before
        by_coefficients = torch.stack(sums).to(coefficients.dtype)
    return by_x, by_coefficients, None, None


polynomial.register_autograd(_polynomial_gradient, setup_context=_keep_polynomial)


@rule("heliograph.polynomial")
def _polynomial(call: Call, x: Any, coefficients: Any, low: float, high: float) -> Value:
    if not isinstance(x, Value) or isinstance(coefficients, Value):
        raise call.refuse("its coefficients depend on an input", "use coefficients that are parameters or constants")
    made = call.emit("poly", x.node, coefficients=call.constant(coefficients), low=float(low), high=float(high))
    return Value(made, x.batch)


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
    width = call.first_axis(x).type.shape[0]  # type: ignore[union-attr]
    matrix = SparseMatrix(
        (len(indptr) - 1, int(width)), data.astype(np.float64), indices.astype(np.int32), indptr.astype(np.int32)
    )
    name = call.builder.constant(matrix, call.names.get(values, f"{call.loc.layer}.matrix"))
    return Value(call.emit("affine", x.node, matrices=(name,), shape=(len(indptr) - 1,)), 0)
