"""The entries of the table of operations: name, operands, attributes, type, meaning, and facts for analyses.

An op is one `OpSpec`, defined in one of the files that `table.py` names; import the complete table from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np

from heliograph.errors import InternalError, ProgramError
from heliograph.functions import Family
from heliograph.ir.maps.diagonals import MapGeometry
from heliograph.ir.maps.layout import MOST_STACKED, Layout
from heliograph.ir.node import Array, Attr, Constant, ConstantName, Matrix, Node, OpaqueConstant, Stage
from heliograph.ir.types import CipherType, TensorType, Type


@dataclass(frozen=True, slots=True)
class Context:
    """An op's context beside its operands: the program's constants and its modulus chain, if planned."""

    constants: Mapping[str, Constant]
    # log2 of the primes of the chain; a rescale at level l divides by the prime of entry l.
    log_primes: tuple[float, ...] = ()

    def array(self, name: Attr) -> Array:
        """The dense constant of that name."""
        value = self.constants[str(name)]
        if isinstance(value, Matrix | OpaqueConstant):
            raise ProgramError(f"constant @{name} is not an array that can be computed with")
        return value

    def linear_map(self, name: Attr) -> Matrix:
        """The matrix of that name, in any form."""
        value = self.constants[str(name)]
        if not isinstance(value, Matrix):
            raise ProgramError(f"constant @{name} is not a matrix")
        return value

    def shape(self, name: Attr) -> tuple[int, ...]:
        """The shape of the constant of that name; known even if its contents are not."""
        return tuple(self.constants[str(name)].shape)


Attrs: TypeAlias = Mapping[str, Any]
InferType: TypeAlias = "Callable[[Sequence[Any], Attrs, Context], Type]"
# Every array has a leading axis of samples (length 1 broadcasts).
Evaluate: TypeAlias = "Callable[[Sequence[Array], Attrs, Context], Array]"
# Sparse matrices, one per operand, from the flattened operand to the flattened result, and the flat bias.
LinearMap: TypeAlias = "Callable[[Sequence[Any], Attrs, Context], tuple[list[Any], Array | None]]"

TENSOR = frozenset({Stage.TENSOR})
ARITHMETIC = frozenset({Stage.TENSOR, Stage.POLYNOMIAL})
SLOTS = frozenset({Stage.PACKED, Stage.MANAGED, Stage.EXECUTABLE})
LEVELED = frozenset({Stage.MANAGED, Stage.EXECUTABLE})
EVERYWHERE = frozenset(Stage)


class Role(Enum):
    """The kind of an op from the point of view of passes: they ask for the role instead of listing names."""

    # An elementwise sum or difference. Ciphertext operands have the same level and scale.
    SUM = "sum"
    # An elementwise product. For two ciphertexts the log scales add up; the result has three parts and is rescaled later.
    PRODUCT = "product"
    # A sum of products with plaintexts, whose scale the level planner chooses; it is rescaled later.
    PLAIN_PRODUCT = "plain product"
    # Acts on each slot alike, and leaves level, scale and parts unchanged.
    TRANSPARENT = "transparent"
    # A key switch that keeps level and scale and needs two parts: slots are rotated or conjugated.
    ROTATION = "rotation"
    # The real or the imaginary part of complex slots, at twice the scale; it needs two parts.
    PART = "part"
    BOOTSTRAP = "bootstrap"
    # Ciphertexts of the same level and scale side by side, for sums that read all of them.
    STACK = "stack"
    # Ops that the level planner inserts between the others: rescale, level_drop, relinearize.
    LEVEL = "level"
    # A polynomial. On slots, other ops replace it before levels are planned.
    POLYNOMIAL = "polynomial"
    # The slot vector of a plain tensor.
    PACKING = "packing"
    # A function of several values, or along any axis: `passes/tensors/expand.py` has a rule that rewrites it in terms of
    # others.
    JOINT = "joint"
    # A function along axis 0 of (rows, columns): `passes/polynomials/approximate.py` turns it into a composition of
    # polynomials.
    ALONG_ROWS = "along rows"
    # Moves, repeats or adds up rows of a tensor (rows, columns): rotations, but no level.
    ROWS = "rows"
    # Moves or copies elements of tensors, or adds them up with equal weights, by position alone.
    MOVE = "move"


# Lower and upper bounds of each slot, as two arrays.
Bounds: TypeAlias = "tuple[Array, Array]"


def _none(a: Attrs) -> Iterable[int]:
    return ()


@dataclass(frozen=True, slots=True)
class Keys:
    """The evaluation keys for evaluating a node, other than those of bootstraps, which come with their slots.

    rotations: the amounts of its rotations, from its attributes (0: no rotation).
    composed: whether several rotations may replace an amount without a key of its own; other ops are split up if that
        is wanted.
    relinearization: whether it relinearizes.
    conjugation: whether it conjugates.
    """

    rotations: Callable[[Attrs], Iterable[int]] = _none
    composed: bool = False
    relinearization: bool = False
    conjugation: bool = False


NO_KEYS = Keys()


@dataclass(frozen=True, slots=True)
class Dependence:
    """The dependence of an operand, as arrays of booleans: the slots that depend on an encrypted input, and the slots
    that are zero for every input (None if not known).
    """

    depends: Array
    zero: Array | None = None


@dataclass(frozen=True, slots=True)
class SlotRules:
    """Facts about an op on slots for analyses. Nothing has a default: an analysis never reads a rule that nobody wrote.

    Each rule takes the node, one entry per operand, and the constants.

    bounds: bounds of each slot of the result from the bounds of the operands (proved, and so widened against rounding);
        None where slots would be complex. There is no rule for a polynomial, whose image needs `approx`.
    period: the period of the result's slots, from the periods of the operands; a plain operand counts as one that
        does not repeat, with all slots.
    depends: the slots of the result that depend on an encrypted input; a plain operand does not.
    """

    bounds: Callable[[Node, Sequence[Bounds], Context], Bounds | None] | None
    period: Callable[[Node, Sequence[int], Context], int]
    depends: Callable[[Node, Sequence[Dependence], Context], Array]
    keys: Keys


class Runs(Protocol):
    """The services of a run (execution/evaluation.py) for evaluating an op."""

    shared: Any

    def at(self, kind: CipherType) -> Any:
        """The primitives on ciphertexts of that level and chain, each call counted."""

    def divides(self, node: Node) -> bool:
        """Whether the value of a key switch is divided by the special primes before it is read."""

    def constant(self, node: Node, level: int, make: Callable[[], Any]) -> Any:
        """The plaintext that a node adds or multiplies by, kept between runs."""

    def conjugation(self, node: Node, x: Any) -> Any:
        """The conjugate of the operand of a `real_part` or `imaginary_part`."""

    def rotation(self, node: Node, x: Any) -> Any:
        """The value of a `rotate`, which may share its decomposition with others."""

    def transform(self, node: Node, operands: Sequence[Any]) -> Any:
        """The value of a `linear_transform`."""

    def fourier_factor(self, node: Node, x: Any) -> Any:
        """The value of a `fourier_factor`."""

    def weighted_sum(self, node: Node, values: Sequence[Any]) -> Any:
        """The value of a `weighted_sum` of a stack, computed together with the others of its matrix."""


# Evaluates a node on ciphertexts: (run, node, operands) -> its value.
Run: TypeAlias = "Callable[[Runs, Node, Sequence[Any]], Any]"
# Bounds of each element of a node's value from the bounds of its operands, proved; None if there are none.
ElementBounds: TypeAlias = "Callable[[Node, Sequence[Bounds], Context], Bounds | None]"
# numpy's effort for a node beside its operands and result: (numbers held, operations).
Effort: TypeAlias = "Callable[[Node, Context], tuple[int, int]]"
# The cost of one numpy call, in operations.
NUMPY_CALL = 1 << 12
# The number of arrays of its operands' and result's size that an op holds at once, temporary ones included.
FEW_ARRAYS = 4


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation.

    attrs: kinds by name: `int`, `float`, `bool`, `str`, `ints`, `floats`, `strs`, `constant`, `constants`, and the records
        `layout` and `geometry`, whose attributes have these names too; a trailing `?` makes the attribute optional.
    depth: multiplicative levels between operands and result (for `poly`, depending on its degree).
    linear: gives the sparse matrix of a linear op.
    activation: the family of functions of one variable (functions.py) that the op means, until a pass replaces it.
    role: None if no pass asks for it.
    rules: for ops on slots, which all have rules and a role.
    word: the op's word in reports, if its name is less clear.
    run: evaluates the op on ciphertexts, from primitives that every backend has.
    stacks: whether the op reads stacks of ciphertexts.
    steps: whether its value is constant except where it jumps, so that no derivative goes through it.
    plaintext: whether a run keeps an encoded plaintext for it.
    bounds: of the elements of a tensor op's value, None if not known.
    effort: of its evaluation in the clear, None if that is a few arrays of the operands' and the result's size.
    """

    name: str
    stages: frozenset[Stage]
    arity: tuple[int, int | None]
    attrs: Mapping[str, str]
    infer_type: InferType
    evaluate: Evaluate
    doc: str
    depth: int = 0
    linear: LinearMap | None = None
    activation: Family | None = None
    role: Role | None = None
    rules: SlotRules | None = None
    word: str = ""
    run: Run | None = None
    stacks: bool = False
    steps: bool = False
    plaintext: bool = False
    bounds: ElementBounds | None = None
    effort: Effort | None = None


OPS: dict[str, OpSpec] = {}


def define(spec: OpSpec) -> OpSpec:
    """Put an op into the table; a name can be defined once."""
    assert spec.name not in OPS, f"op {spec.name} is defined twice"
    on_slots = bool(spec.stages & SLOTS) and spec.arity != (0, 0)
    assert not on_slots or (spec.role is not None and spec.rules is not None), f"{spec.name} has no role, or no rules"
    OPS[spec.name] = spec
    return spec


def spec_of(name: str) -> OpSpec:
    """The table's entry; a ProgramError with the nearest names if there is no such op."""
    try:
        return OPS[name]
    except KeyError:
        import difflib

        near = difflib.get_close_matches(name, OPS, n=3)
        raise ProgramError(
            f"there is no op called {name!r}", hint=f"did you mean {' or '.join(near)}?" if near else ""
        ) from None


def role_of(node: Node) -> Role | None:
    """The role of a node's op."""
    return OPS[node.op].role


def rules_of(node: Node) -> SlotRules:
    """The rules of a node's op, which must be an op on slots."""
    rules = OPS[node.op].rules
    if rules is None:
        raise InternalError(f"{node.op} is not an op on slots: it has no rules")
    return rules


# The frozen records that are attributes.
RECORDS: Mapping[str, type] = {"layout": Layout, "geometry": MapGeometry}
_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}


def attr_matches(kind: str, value: Attr) -> bool:
    """Whether the value is of that kind (see `OpSpec.attrs`)."""
    kind = kind.removesuffix("?")
    if kind == "constant":
        return isinstance(value, ConstantName)
    if kind in RECORDS:
        return isinstance(value, RECORDS[kind])
    if kind in _SCALARS:
        if isinstance(value, bool) and kind != "bool":
            return False
        if isinstance(value, ConstantName):
            return False
        return isinstance(value, _SCALARS[kind])
    return isinstance(value, tuple) and all(attr_matches(kind[:-1], item) for item in value)


def check_call(spec: OpSpec, operands: int, attrs: Mapping[str, Attr], constants: Mapping[str, Constant]) -> None:
    """Raise a ProgramError unless operand count and attributes fit the op."""
    low, high = spec.arity
    if operands < low or (high is not None and operands > high):
        wanted = f"{low}" if low == high else f"{low} to {high}" if high is not None else f"at least {low}"
        raise ProgramError(f"{spec.name} takes {wanted} operands, not {operands}")
    for name, value in attrs.items():
        if name not in spec.attrs:
            raise ProgramError(
                f"{spec.name} has no attribute {name!r}",
                hint=f"its attributes: {', '.join(spec.attrs) or 'none'}",
            )
        if value is not None and not attr_matches(spec.attrs[name], value):
            raise ProgramError(f"{spec.name}: attribute {name} = {value!r} is not of kind {spec.attrs[name]}")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ConstantName) and item not in constants:
                raise ProgramError(f"{spec.name}: there is no constant @{item}")
    for name, kind in spec.attrs.items():
        if not kind.endswith("?") and attrs.get(name) is None:
            raise ProgramError(f"{spec.name} needs the attribute {name!r}")


def check_stacks(spec: OpSpec, operands: Sequence[Type]) -> None:
    """Raise a ProgramError if an op would read a stack of ciphertexts as if it were one."""
    if not spec.stacks and any(getattr(operand, "count", 1) != 1 for operand in operands):
        raise ProgramError(f"{spec.name} does not read stacks of ciphertexts")


def check_stage(spec: OpSpec, stage: Stage, inferred: Type) -> None:
    """Raise a ProgramError unless the op is allowed at that stage.

    Tensor ops on plain values are allowed at every stage: the server computes them in the clear, before they meet a
    ciphertext.
    """
    clear = isinstance(inferred, TensorType) and not inferred.secret and Stage.TENSOR in spec.stages
    if stage not in spec.stages and not clear:
        raise ProgramError(f"op {spec.name} does not exist at the {stage.value} stage")


def check_type(op: str, inferred: Type) -> None:
    """Raise a ProgramError for a type that has no room for a value."""
    if isinstance(inferred, TensorType):
        if min(inferred.shape, default=1) < 1:
            raise ProgramError(f"{op}: a tensor of shape {inferred.shape} has no elements")
    elif inferred.slots < 1 or inferred.slots & (inferred.slots - 1):
        raise ProgramError(f"{op}: {inferred.slots} slots are not a power of two")
    elif not 1 <= inferred.count <= MOST_STACKED:
        raise ProgramError(f"{op}: a stack of {inferred.count} ciphertexts; at most {MOST_STACKED} are supported")


def flat_indices(shape: tuple[int, ...]) -> Array:
    """The flat index of each element, with a leading axis of one sample."""
    return np.arange(math.prod(shape), dtype=np.int64).reshape((1, *shape))


def check_constant(op: str, a: Attrs, context: Context, name: str, shape: tuple[int, ...]) -> None:
    """Raise unless the optional constant of that attribute has the shape."""
    if name in a and context.shape(a[name]) != shape:
        raise ProgramError(f"{op}: {name} @{a[name]} has shape {context.shape(a[name])}, not {shape}")
