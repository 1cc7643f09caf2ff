"""Write every linear op as a matrix and merge neighbours, so that each run of them costs one level.

Matrices of convolutions and the like stay in Kronecker form (ir/maps/kronecker.py) as long as products and sums have
one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from heliograph.errors import UnsupportedError
from heliograph.ir import Array, Builder, Location, Matrix, Node, Program, SparseMatrix, Stage, shape_of, size_of
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.location import joined
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.maps.kronecker import KroneckerMatrix, gather_map, identity_places, of_channels
from heliograph.ir.ops.table import OPS

# A product of two maps with more entries than this is kept as two maps: one level more, but it fits in memory.
_MAX_ENTRIES = 60_000_000
# Smaller maps are kept entry by entry.
_FEW_ENTRIES = 1 << 12
# The most dense numbers held at once while a product with a constant is written as a matrix.
_MATMUL_ENTRIES = 4_000_000
# A matrix product of two run-time values with more elementwise products than this stays one op, with its own packing.
_FEW_PRODUCTS = 1 << 12
# A way with this many times as many turns as the other one is not taken (`_stack_of_products`).
_MANY_TURNS = 4
# The most elementwise products for a matrix product of a plain and an encrypted value, or of stacks of matrices.
_MAX_PRODUCTS = 1 << 16
# Ops that give their names to the merged map (conv1+bn1), in preference to ops that only move elements.
_NAMING = ("linear", "conv", "matmul", "batch_norm")
_FEW_NAMES = 2


@dataclass(slots=True)
class _Form:
    """A tensor as a sum of matrices times flattened bases, plus a flat offset.

    `named`: the locations of the ops that name the map, in order; if there are none, `at` names it.
    `taken`: for each element the index of the sum's element that it is, in row-major order; None where all are in order, and
    for a constant.
    Several moves of the elements of a map in Kronecker form are put together before the map is moved: together they may
    move channels and places independently, so that it keeps this form.
    """

    shape: tuple[int, ...]
    terms: dict[Node, Any]
    offset: Array | None
    at: Location
    named: tuple[Location, ...] = ()
    taken: Array | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def loc(self) -> Location:
        return joined(self.named) if self.named else self.at


def _general(matrix: Any) -> Any:
    """The matrix entry by entry, as a `csr_array`."""
    return matrix.csr() if isinstance(matrix, Matrix) else scipy.sparse.csr_array(matrix)


def _identity_sign(matrix: Any) -> int:
    """1 or -1 if the matrix is plus or minus the identity, else 0."""
    if isinstance(matrix, KroneckerMatrix):
        return matrix.sign
    rows, cols = matrix.shape
    if rows != cols or matrix.nnz != rows:
        return 0
    if not _is_diagonal(matrix):
        return 0
    first = matrix.data[0] if rows else 1.0
    return int(first) if first in (1.0, -1.0) and (matrix.data == first).all() else 0


def _kept(matrix: Any) -> Any:
    """A Kronecker form unchanged, any other matrix entry by entry."""
    return matrix if isinstance(matrix, KroneckerMatrix) else _general(matrix)


def _product(matrix: Any, inner: Any) -> Any:
    """matrix @ inner; a diagonal matrix only scales rows or columns."""
    if _identity_sign(inner) == 1:
        return matrix
    if isinstance(inner, KroneckerMatrix) and inner.places[0].shape[0] == 1 and matrix.nnz == math.prod(matrix.shape):
        # Each channel has a single place, as after global pooling, so a full matrix is a matrix over channels.
        matrix = KroneckerMatrix(_general(matrix).toarray()[np.newaxis], (identity_places(1),))
    if isinstance(matrix, KroneckerMatrix) and isinstance(inner, KroneckerMatrix):
        found = matrix.after(inner)
        if found is not None:
            return _kept(found)
    if isinstance(matrix, KroneckerMatrix) and not isinstance(inner, KroneckerMatrix):
        size = inner.shape[0]
        if inner.shape == (size, size) and size == inner.nnz and _is_diagonal(inner):
            return _kept(matrix.scaled(columns=inner.data))
        index = _index(inner) if inner.shape == (size, size) else None
        if index is not None and np.unique(index).size == size:
            found = matrix.columns_taken(np.argsort(index))
            if found is not None:
                return found
    matrix = _general(matrix)
    rows, cols = matrix.shape
    if rows == cols == matrix.nnz and _is_diagonal(matrix):
        if isinstance(inner, KroneckerMatrix):
            return _kept(inner.scaled(rows=matrix.data))
        factors = np.repeat(matrix.data, np.diff(inner.indptr))
        # Copied, because SparseMatrix.of sorts the indices of a matrix in place.
        places = (inner.indices.copy(), inner.indptr.copy())
        return scipy.sparse.csr_array((inner.data * factors, *places), shape=inner.shape)
    return scipy.sparse.csr_array(matrix @ _general(inner))


def _sum(left: Any, right: Any) -> Any:
    left, right = (_like(own, other) for own, other in ((left, right), (right, left)))
    if isinstance(left, KroneckerMatrix) and isinstance(right, KroneckerMatrix):
        found = left.plus(right)
        if found is not None:
            return _kept(found)
    return _general(left) + _general(right)


def _like(matrix: Any, other: Any) -> Any:
    """An identity in the Kronecker form of the other matrix, any other matrix unchanged."""
    sign = _identity_sign(matrix) if isinstance(other, KroneckerMatrix) else 0
    if not sign or isinstance(matrix, KroneckerMatrix):
        return matrix
    channels, places = other.weights.shape[1], other.places[0].shape[0]
    return KroneckerMatrix(sign * np.eye(channels)[np.newaxis], (identity_places(places),))


def _is_diagonal(matrix: Any) -> bool:
    """Whether a square matrix has one entry in each row, on the diagonal."""
    size = matrix.shape[0]
    return np.array_equal(matrix.indices, np.arange(size)) and np.array_equal(matrix.indptr, np.arange(size + 1))


def _scales(matrix: Any, channels: int) -> bool:
    """Whether a map multiplies each of so many channels by a number, as batch norms do."""
    if isinstance(matrix, KroneckerMatrix):
        (terms, out, own), place = matrix.weights.shape, matrix.places[0]
        rows, columns = place.shape
        if terms > 1 or not out == own == channels or rows != columns or matrix.nnz != out * rows:
            return False
        diagonal = bool(np.diagonal(matrix.weights[0]).all()) and _is_diagonal(place)
        return diagonal and bool((place.data == place.data[0]).all())
    rows, columns = matrix.shape
    if rows != columns or matrix.nnz != rows or rows % channels or not _is_diagonal(matrix):
        return False
    factors = matrix.data.reshape(channels, -1)
    return bool((factors == factors[:, :1]).all())


def _work(matrix: Any, operand: _Form) -> float:
    """The expected number of entries in a map's products with a form's matrices; for Kronecker forms that the map only
    scales, the count of their numbers.
    """
    work = 0.0
    for inner in operand.terms.values():
        if isinstance(inner, KroneckerMatrix) and _scales(matrix, inner.weights.shape[1]):
            work += sum(part.size for part in inner.numbers)
        else:
            work += matrix.nnz * inner.nnz / max(1, operand.size)
    return work


def _expanded(form: _Form, shape: tuple[int, ...]) -> _Form:
    """The form with another shape of the same size."""
    return _Form(shape, form.terms, form.offset, form.at, form.named, form.taken)


def _index(matrix: Any) -> Array | None:
    """The index of the operand's element that each element of the result is; None if the map does more than that."""
    if matrix.nnz != matrix.shape[0]:
        return None
    general = _general(matrix)
    copies = (np.diff(general.indptr) == 1).all() and (general.data == 1.0).all()
    return general.indices.astype(np.int64) if copies else None


def _copies_one(form: _Form) -> bool:
    """Whether each element of a form is an element of one base."""
    return (
        len(form.terms) == 1
        and form.offset is None
        and all(_index(matrix) is not None for matrix in form.terms.values())
    )


def _turns_by_column(rows: int, inner: int, columns: int, left: _Form) -> bool:
    """Whether a stack of products has a turn for each column, rather than for each inner index.

    In attention, turns are best over tokens, which all heads' features share: over the columns of the scores, and over the
    inner indices of the product with the values, whose left side is a softmax. Many more turns are never worth it.
    """
    if max(columns, inner) > _MANY_TURNS * min(columns, inner):
        return columns < inner
    if (rows == columns) != (rows == inner):
        return rows == columns
    return not _copies_one(left)


def _in_kronecker_form(form: _Form) -> bool:
    return any(isinstance(matrix, KroneckerMatrix) for matrix in form.terms.values())


def _settled(form: _Form) -> _Form:
    """The form with its elements in order."""
    if form.taken is None:
        return form
    size = next(iter(form.terms.values())).shape[0]
    if np.array_equal(form.taken, np.arange(size)):
        return _Form(form.shape, form.terms, form.offset, form.at, form.named)
    terms = {base: _rows_taken(matrix, form.taken, form.shape) for base, matrix in form.terms.items()}
    offset = None if form.offset is None else form.offset[form.taken]
    return _Form(form.shape, terms, offset, form.at, form.named)


def _rows_taken(matrix: Any, index: Array, shape: tuple[int, ...]) -> Any:
    """The map to these elements of a map's result, as a tensor of that shape."""
    found = matrix.rows_taken(index, shape) if isinstance(matrix, KroneckerMatrix) else None
    return _product(gather_matrix(index, matrix.shape[0]), matrix) if found is None else found


def _few(names: tuple[Location, ...]) -> tuple[Location, ...]:
    """The distinct locations; if they are many, the first and the last ones only, for legible names."""
    once = tuple(dict.fromkeys(names))
    return once if len(once) <= 2 * _FEW_NAMES else once[:_FEW_NAMES] + once[-_FEW_NAMES:]


def _stored(matrix: Any) -> Matrix:
    """The matrix as a constant: a Kronecker form with few entries is stored entry by entry."""
    if isinstance(matrix, KroneckerMatrix):
        return matrix if matrix.nnz > _FEW_ENTRIES else matrix.sparse()
    return SparseMatrix.of(matrix)


@dataclass(frozen=True, slots=True)
class FuseLinear:
    """Turns linear ops into `affine`, and powers and products of secrets into `mul`; activations stay."""

    name: ClassVar[str] = "fuse-linear"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        return _Fuser(program).run()


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = Builder(program.name, Stage.TENSOR, program)
        self.forms: dict[Node, _Form] = {}
        users = self.users = program.users()
        # Outputs and the operands of nonlinear ops become nodes; the linear ops after one start from that node.
        self.anchored = set(program.outputs) | {
            node for node, readers in users.items() if any(self._nonlinear(reader) for reader in readers)
        }

    def _nonlinear(self, node: Node) -> bool:
        if self._by_constant(node) or (node.op == "matmul" and self._stacked(node)):
            # A stack of products reads its operands in an order of its own.
            return False
        return OPS[node.op].linear is None and node.op not in ("constant", "input")

    @staticmethod
    def _by_constant(node: Node) -> bool:
        return node.op in ("mul", "matmul") and any(operand.op == "constant" for operand in node.inputs)

    def run(self) -> Program:
        program = self.program
        # The maps of one attention can take a gigabyte: forms are dropped after their last use.
        for node, freed in zip(program.nodes, last_use_table(program.nodes, program.outputs), strict=True):
            form = self._form(node)
            if node in self.anchored:
                form = self._anchor(form)
            self.forms[node] = form
            for place in freed:
                del self.forms[program.nodes[place]]
        return self.builder.finish_as(program, {node: self._materialize(self.forms[node]) for node in program.outputs})

    def _base(self, node: Node) -> _Form:
        size = size_of(node)
        return _Form(shape_of(node), {node: scipy.sparse.eye_array(size, format="csr")}, None, node.loc)

    def _anchor(self, form: _Form) -> _Form:
        """The form as a node of its own, so that it is not expanded again."""
        if not form.terms:
            return form
        return self._base(self._materialize(form))

    def _form(self, node: Node) -> _Form:
        if node.op == "input":
            return self._base(self.builder.copy(node, ()))
        if node.op == "constant":
            value = self.builder.context.array(node.attrs["value"]).astype(np.float64)
            return _Form(shape_of(node), {}, value.ravel(), node.loc)
        operands = [self.forms[operand] for operand in node.inputs]
        if node.op == "matmul" and all(operand.terms for operand in operands) and self._stacked(node):
            return self._stack_of_products(node, operands)
        if OPS[node.op].linear is not None:
            return self._linear(node, operands)
        operands = [_settled(operand) for operand in operands]
        if node.op in ("mul", "matmul") and any(not operand.terms for operand in operands):
            return self._scaled(node, operands) if node.op == "mul" else self._matmul(node, operands)
        if node.op == "matmul":
            return self._product_of_values(node, operands)
        if node.op == "repeat":
            return self._repeated(node, operands[0])
        return self._nonlinear_node(node, operands)

    def _linear(self, node: Node, operands: list[_Form]) -> _Form:
        spec = OPS[node.op]
        assert spec.linear is not None
        matrices, bias = spec.linear([operand.type for operand in node.inputs], node.attrs, self.builder.context)
        if len(operands) == 1 and bias is None and (operands[0].taken is not None or _in_kronecker_form(operands[0])):
            (operand,), index = operands, _index(matrices[0])
            if index is not None:
                return self._moved(node, operand, index, shape_of(node))
        return self._combine(node, [_settled(operand) for operand in operands], matrices, bias)

    @staticmethod
    def _moved(node: Node, operand: _Form, index: Array, shape: tuple[int, ...]) -> _Form:
        """The elements of a form with these indices, as a tensor of that shape."""
        taken = index if operand.taken is None else operand.taken[index]
        return _Form(shape, operand.terms, operand.offset, node.loc, operand.named, taken)

    def _combine(self, node: Node, operands: list[_Form], matrices: list[Any], bias: Array | None) -> _Form:
        terms: dict[Node, Any] = {}
        offset = None if bias is None else np.asarray(bias, dtype=np.float64)
        names: tuple[Location, ...] = ()
        for operand, matrix in zip(operands, matrices, strict=True):
            matrix = _kept(matrix)
            if operand.terms and _work(matrix, operand) > _MAX_ENTRIES:
                operand = self._anchor(operand)
            names += operand.named
            # A long sum adds its many terms unchanged; a product with the identity for each of them would be slow.
            same = _identity_sign(matrix) == 1
            for base, inner in operand.terms.items():
                product = inner if same else _product(matrix, inner)
                terms[base] = _sum(terms[base], product) if base in terms else product
            if operand.offset is not None:
                small = isinstance(matrix, KroneckerMatrix)
                shift = matrix.apply_to_constant(operand.offset) if small else matrix @ operand.offset
                offset = shift if offset is None else offset + shift
        if node.op in _NAMING:
            names += (node.loc,)
        return _Form(shape_of(node), terms, offset, node.loc, _few(names))

    def _scaled(self, node: Node, operands: list[_Form]) -> _Form:
        """A product with a constant: a diagonal matrix, with broadcasting."""
        shape = shape_of(node)
        constant, value = (operands[0], operands[1]) if not operands[0].terms else (operands[1], operands[0])
        assert constant.offset is not None
        factor = np.broadcast_to(constant.offset.reshape(constant.shape), shape)
        source = node.inputs[0] if operands[0] is value else node.inputs[1]
        # A product with other readers would be computed twice.
        product = self._product_alone(value) if len(self.users[source]) == 1 else None
        if product is not None and (factor == factor.flat[0]).all():
            scale = product.attrs.get("scale", 1.0) * float(factor.flat[0])
            attrs = {**product.attrs, "scale": scale}
            return self._base(self.builder.op("matrix_product", product.inputs, product.loc, **attrs))
        if value.shape == shape and (by_channel := of_channels(factor)) is not None:
            return self._combine(node, [value], [by_channel], None)
        index = np.broadcast_to(np.arange(value.size).reshape(value.shape), shape)
        return self._combine(node, [value], [gather_matrix(index, value.size, factor)], None)

    @staticmethod
    def _product_alone(form: _Form) -> Node | None:
        """The product of matrices that the form equals, which absorbs any factor at no cost; None for other forms."""
        if len(form.terms) != 1 or form.offset is not None:
            return None
        ((base, matrix),) = form.terms.items()
        return base if base.op == "matrix_product" and _identity_sign(matrix) == 1 else None

    def _matmul(self, node: Node, operands: list[_Form]) -> _Form:
        """A product with a constant matrix on either side, as the matrix of its action on the flattened operand."""
        left, right = operands
        if not left.terms and not right.terms:
            raise UnsupportedError("a product of two constants was not folded", where=node.loc)
        constant, value = (left, right) if not left.terms else (right, left)
        assert constant.offset is not None
        array = constant.offset.reshape(constant.shape)
        # Column j of the matrix is the product with the j-th unit tensor; several are computed at once, as samples.
        step = max(1, _MATMUL_ENTRIES // max(value.size, size_of(node)))
        columns = []
        for start in range(0, value.size, step):
            count = min(step, value.size - start)
            units = np.eye(count, value.size, start).reshape((count, *value.shape))
            pair = [array[np.newaxis], units] if constant is left else [units, array[np.newaxis]]
            products = OPS["matmul"].evaluate(pair, {}, self.builder.context)
            columns.append(scipy.sparse.csr_array(products.reshape(count, -1)))
        matrix = scipy.sparse.csr_array(scipy.sparse.vstack(columns).T)
        return self._combine(node, [value], [matrix], None)

    def _repeated(self, node: Node, operand: _Form) -> _Form:
        """Copies of a value: a map by itself, so that the ops before it run once, not once for each copy."""
        shape, count = (operand.size, 1), node.attrs["count"]
        index = np.repeat(np.arange(operand.size), count)
        matrix = _stored(_kept(gather_map(index, shape, (operand.size, count))))
        name = self.builder.constant(matrix, f"{node.loc.layer or 'repeat'}.copies")
        source = self._materialize(operand)
        made = self.builder.op("affine", (source,), node.loc, matrices=(name,), shape=shape_of(node))
        return self._base(made)

    def _product_of_values(self, node: Node, operands: list[_Form]) -> _Form:
        """A matrix product of two sides unknown at compile time: all products of elements, then sums."""
        left, right = (np.arange(form.size).reshape(form.shape) for form in operands)
        left = left[np.newaxis, :] if left.ndim == 1 else left
        right = right[:, np.newaxis] if right.ndim == 1 else right
        inner = left.shape[-1]
        # Element (..., i, j, k) is the product of left (..., i, k) and right (..., k, j).
        left, right = left[..., :, np.newaxis, :], np.swapaxes(right, -1, -2)[..., np.newaxis, :, :]
        shape = np.broadcast_shapes(left.shape, right.shape)
        many = math.prod(shape) > _FEW_PRODUCTS
        if many and all(len(form.shape) == 2 and any(b.type.secret for b in form.terms) for form in operands):
            return self._whole_product(node, operands)
        if math.prod(shape) > _MAX_PRODUCTS:
            raise UnsupportedError(
                f"a matrix product of two run-time values takes {math.prod(shape)} products of elements",
                where=node.loc,
                why=f"at most {_MAX_PRODUCTS} are supported, unless it is a product of two encrypted matrices",
                hint="make one side a parameter or a constant",
            )
        factors = []
        for form, index in zip(operands, (left, right), strict=True):
            gather = gather_matrix(np.broadcast_to(index, shape), form.size)
            factors.append(self._materialize(_expanded(self._combine(node, [form], [gather], None), shape)))
        product = self.builder.op("mul", factors, node.loc)
        rows = np.repeat(np.arange(size_of(node)), inner)
        total = scipy.sparse.csr_array(
            (np.ones(rows.size), (rows, np.arange(rows.size))), shape=(size_of(node), rows.size)
        )
        return _Form(shape_of(node), {product: total}, None, node.loc, (node.loc,))

    @staticmethod
    def _stacked(node: Node) -> bool:
        """Whether the node is a large stack of matrix products."""
        shapes = [shape_of(operand) for operand in node.inputs]
        if not node.type.secret or min(map(len, shapes)) < 2:
            return False
        *stack, rows, columns = shape_of(node)
        return math.prod(stack) > 1 and math.prod(stack) * rows * shapes[0][-1] * columns > _FEW_PRODUCTS

    def _stack_of_products(self, node: Node, operands: list[_Form]) -> _Form:
        """A stack of matrix products by turns: in each, elements of all matrices meet those that are some places further.

        With a turn for each column, element (k, s, i) of turn r is left (s, i, k) times right (s, k, i + r), and its sum
        over k is element (s, i, i + r) of the result. With a turn for each inner index, element (j, s, i) is left
        (s, i, i + r) times right (s, i + r, j), and the sum of all turns is element (s, i, j). A turn is one product for all
        matrices (in attention, for all heads).
        """
        *stack, rows, columns = shape_of(node)
        inner, count = shape_of(node.inputs[0])[-1], math.prod(stack)
        left, right = (
            np.broadcast_to(np.arange(form.size).reshape(form.shape), (*stack, *form.shape[-2:])).reshape(
                count, *form.shape[-2:]
            )
            for form in operands
        )
        by_column = _turns_by_column(rows, inner, columns, operands[0])
        turns, lanes = (columns, inner) if by_column else (inner, columns)
        lane, matrix, row, turn = (
            np.arange(lanes)[:, None, None],
            np.arange(count)[:, None],
            np.arange(rows),
            np.arange(turns),
        )
        shape = (lanes, count, rows)
        # The operand that is moved in each turn is brought into this order by a map of its own.
        index = right[matrix, lane, turn] if by_column else right[matrix, turn, lane]
        moving = self._base(self._materialize(self._moved(node, operands[1], index.ravel(), index.shape)))
        if by_column:
            first = self._materialize(self._moved(node, operands[0], left[matrix, row, lane].ravel(), shape))
        else:
            source = operands[0] if _copies_one(operands[0]) else self._base(self._materialize(operands[0]))
        products = []
        for number in range(turns):
            other = (row + number) % turns
            index = np.broadcast_to((lane * count + matrix) * turns + other, shape).ravel()
            second = self._materialize(self._moved(node, moving, index, shape))
            if not by_column:
                index = np.broadcast_to(left[matrix, row, other], shape).ravel()
                first = self._materialize(self._moved(node, source, index, shape))
            products.append(self.builder.op("mul", (first, second), node.loc))
        elements = np.arange(math.prod(shape))
        if not by_column:
            total = functools.reduce(lambda a, b: self.builder.op("add", (a, b), node.loc), products)
            index = elements.reshape(shape).transpose(1, 2, 0).ravel()
            return self._moved(node, self._base(total), index, shape_of(node))
        terms: dict[Node, Any] = {}
        for number, product in enumerate(products):
            to = np.broadcast_to((matrix * rows + row) * columns + (row + number) % turns, shape).ravel()
            ones = np.ones(elements.size), (to, elements)
            terms[product] = scipy.sparse.csr_array(ones, shape=(size_of(node), elements.size))
        return _Form(shape_of(node), terms, None, node.loc, (node.loc,))

    def _whole_product(self, node: Node, operands: list[_Form]) -> _Form:
        """A product of two matrices as one op; a transposed operand is replaced by its original."""
        read = [self._untransposed(form) for form in operands]
        turned = tuple(transposed for _, transposed in read)
        if turned == (True, True):
            read[0] = operands[0], False
        kind = {(False, False): "ab", (False, True): "abt", (True, False): "atb"}[read[0][1], read[1][1]]
        nodes = [self._materialize(form) for form, _ in read]
        return self._base(self.builder.op("matrix_product", nodes, node.loc, kind=kind))

    def _untransposed(self, form: _Form) -> tuple[_Form, bool]:
        """The original of a transposed matrix and True; any other form itself and False."""
        if len(form.terms) != 1 or form.offset is not None or len(form.shape) != 2:
            return form, False
        ((base, matrix),) = form.terms.items()
        if _identity_sign(matrix) == 1 and shape_of(base) == form.shape and base.op == "affine":
            if len(base.inputs) > 1 or "bias" in base.attrs:
                return form, False
            base, matrix = base.inputs[0], self.builder.context.linear_map(base.attrs["matrices"][0])
        rows, columns = form.shape
        if shape_of(base) != (columns, rows) or matrix.nnz != form.size:
            return form, False
        general = _general(matrix)
        places = np.arange(form.size).reshape(columns, rows).T.ravel()
        if not np.array_equal(general.indices, places) or (general.data != 1.0).any():
            return form, False
        return self._base(base), True

    def _nonlinear_node(self, node: Node, operands: list[_Form]) -> _Form:
        nodes = []
        for operand in operands:
            if node.op == "mul" and operand.shape != shape_of(node):
                index = np.broadcast_to(np.arange(operand.size).reshape(operand.shape), shape_of(node))
                operand = self._combine(node, [operand], [gather_matrix(index, operand.size)], None)
            nodes.append(self._materialize(operand))
        if node.op == "power":
            return self._base(self._power(nodes[0], node.attrs["exponent"], node))
        return self._base(self.builder.op(node.op, nodes, node.loc, **node.attrs))

    def _power(self, base: Node, exponent: int, node: Node) -> Node:
        """x**n by halving: depth ceil(log2 n)."""
        if exponent < 1:
            raise UnsupportedError(f"power {exponent} is not a whole power of at least 1", where=node.loc)
        known = {1: base}

        def power(n: int) -> Node:
            if n not in known:
                known[n] = self.builder.op("mul", (power((n + 1) // 2), power(n // 2)), node.loc)
            return known[n]

        return power(exponent)

    def _reshaped(self, node: Node, shape: tuple[int, ...], loc: Location) -> Node:
        return node if shape_of(node) == shape else self.builder.op("reshape", (node,), loc, shape=shape)

    def _materialize(self, form: _Form) -> Node:
        """A node for the form: one `affine` for all proper matrices, plain sums for unchanged bases."""
        form = _settled(form)
        builder, loc = self.builder, form.loc
        plain = {base: m for base, m in form.terms.items() if not base.type.secret}
        if plain and len(plain) < len(form.terms):
            # The part that does not depend on an encrypted input is computed separately, in the clear, and then added.
            rest = {base: m for base, m in form.terms.items() if base not in plain}
            known = self._materialize(_Form(form.shape, plain, form.offset, loc))
            return builder.op("add", (self._materialize(_Form(form.shape, rest, None, loc)), known), loc)
        if not form.terms:
            assert form.offset is not None
            return builder.op("constant", (), loc, value=builder.constant(form.offset.reshape(form.shape), "constant"))
        unchanged = {base: sign for base, m in form.terms.items() if (sign := _identity_sign(m))}
        mapped = {base: m for base, m in form.terms.items() if base not in unchanged}
        if mapped and not all(unchanged[b] == 1 for b in unchanged):
            # A negated base beside a real map joins the map: the level is spent anyway.
            mapped.update({b: form.terms[b] for b, sign in unchanged.items() if sign == -1})
            unchanged = {b: sign for b, sign in unchanged.items() if sign == 1}
        offset = form.offset
        total: Node | None = None
        if mapped:
            label = loc.layer or "map"
            names = tuple(builder.constant(_stored(m), f"{label}.matrix") for m in mapped.values())
            bias = None if offset is None else builder.constant(offset, f"{label}.offset")
            total = builder.op("affine", tuple(mapped), loc, matrices=names, bias=bias, shape=form.shape)
            offset = None
        for base, sign in sorted(unchanged.items(), key=lambda item: -item[1]):
            term = self._reshaped(base, form.shape, loc)
            if total is None:
                if sign == 1:
                    total = term
                    continue
                zero = builder.constant(np.zeros(form.shape), "zero")
                total = builder.op("constant", (), loc, value=zero)
            total = builder.op("add" if sign == 1 else "sub", (total, term), loc)
        assert total is not None
        if offset is not None and offset.any():
            value = builder.constant(offset.reshape(form.shape), f"{loc.layer or 'sum'}.offset")
            total = builder.op("add", (total, builder.op("constant", (), loc, value=value)), loc)
        return total
