"""First steps of pipelines that clients compute in the clear, for each column of a table, before encryption.

Imputers, encoders and discretizers are read as sums of what an `Encoding` can hold of a column: its number, comparisons,
categories, and whether its value is missing. What comes behind them is read as for any other samples.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.pipeline import Pipeline

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends.sklearn.affine import affine_map
from heliograph.frontends.sklearn.layer import Layer, unsupported
from heliograph.frontends.sklearn.reading import check_fitted, steps_of
from heliograph.frontends.sklearn.samples import applied, as_given
from heliograph.frontends.trees.nodes import Table
from heliograph.ir import Array, Location, Node
from heliograph.ir.encoding import Encoding, is_missing

# So that no sample lies beyond its range by a rounding error.
_MARGIN = 1.0 + 1e-9


class _Unknown(enum.Enum):
    """The fill of a missing value that counts as an unknown category."""

    UNKNOWN = 0


_Value = float | str
_Fill = _Value | _Unknown | None


class Atom(NamedTuple):
    """What a client can tell of a column.

    kind: "number", "above" (whether the number is larger than `value`), "is" (whether it is the category `value`), or
        "missing".
    fill: what a missing value stands for; None if it stands for nothing, and all but "missing" are 0.
    """

    kind: str
    column: int
    value: _Value | None = None
    fill: _Fill = None


@dataclass(frozen=True, slots=True)
class Column:
    """A sum of atoms, each times its weight, and a constant. NaN as the weight of "missing" says that there is no number
    then.
    """

    terms: tuple[tuple[Atom, float], ...]
    constant: float = 0.0

    @property
    def raw(self) -> Atom | None:
        """The column of the table that this one is; None if it is none."""
        plain = len(self.terms) == 1 and self.terms[0][1] == 1.0 and self.constant == 0.0
        return self.terms[0][0] if plain and self.terms[0][0].kind == "number" else None

    def times(self, factor: float) -> Column:
        return Column(tuple((atom, weight * factor) for atom, weight in self.terms), self.constant * factor)


@dataclass(frozen=True, slots=True)
class Part:
    """Columns, or parts one behind the other; then what `steps` make of them, times a factor."""

    name: str
    columns: tuple[Column, ...] = ()
    parts: tuple[Part, ...] = ()
    steps: tuple[tuple[str, Any], ...] = ()
    factor: float = 1.0

    @property
    def pure(self) -> bool:
        """Whether it is columns and nothing else."""
        return not (self.parts or self.steps)

    def leaves(self) -> Iterator[Part]:
        """The parts that have columns, with the name of what reads them."""
        for part in self.parts:
            yield from part.leaves()
        if self.columns:
            yield self


@dataclass(frozen=True, slots=True)
class _Walk:
    """What is found in the first steps.

    names: of the table's columns, in their order; None without names.
    required: the columns that must have a value.
    allowed: the columns whose values must be known, and the known ones.
    """

    names: tuple[Any, ...] | None
    required: set[int] = field(default_factory=set)
    allowed: dict[int, set[_Value]] = field(default_factory=dict)

    def part(self, name: str, step: Any, part: Part, first: bool = False) -> Part:
        """What a step makes of a part; `first` where the step reads the table itself."""
        if step is None or (isinstance(step, str) and step == "passthrough"):
            return part
        if isinstance(step, Pipeline):
            for place, (called, inner) in enumerate(step.steps):
                part = self.part(f"{name}.{called}", inner, part, first and place == 0)
            return part
        reader = _READERS.get(_kind(step)) if part.pure else None
        made = reader(self, name, step, part.columns, first) if reader is not None else None
        return made if made is not None else replace(part, steps=(*part.steps, (name, step)))


_Reader = Callable[[_Walk, str, Any, tuple[Column, ...], bool], Part | None]


def _kind(step: Any) -> str:
    """The class of scikit-learn that a step has, or is derived from, if clients compute it."""
    for kind in type(step).__mro__:
        if kind.__module__.startswith("sklearn.") and kind.__name__ in _READERS:
            return kind.__name__
    return ""


def _value(step: Any, value: Any) -> _Value:
    """A category or a fill as a text or a number."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float | np.bool_ | np.number) and math.isfinite(value):
        return float(value)
    raise unsupported(
        step,
        Location(f"{type(step).__name__}()"),
        f"it knows a value of {type(value).__name__}, which is no text and no number",
        "give texts or numbers",
    )


def _joined(name: str, parts: Sequence[Part]) -> Part:
    """Parts one behind the other: columns where all are columns."""
    if all(part.pure for part in parts):
        return Part(name, tuple(column for part in parts for column in part.columns))
    return Part(name, parts=tuple(part for part in parts if part.columns or part.parts))


def _weighted(part: Part, factor: float) -> Part:
    if factor == 1.0 or not part.pure:
        return replace(part, factor=factor)
    return replace(part, columns=tuple(column.times(factor) for column in part.columns))


def _read_columns(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part:
    """A transformer for some columns each."""
    fitted: Any = getattr(step, "feature_names_in_", None)
    # Rows may have their columns in another order than those of the training.
    places = {label: place for place, label in enumerate(walk.names or ())} if first and fitted is not None else {}
    parts: list[tuple[int, Part]] = []
    for called, inner, _ in step.transformers_:
        place = step.output_indices_[called]
        if (isinstance(inner, str) and inner == "drop") or place.start == place.stop:
            continue
        own = [places[fitted[i]] if places else int(i) for i in step._transformer_to_input_indices[called]]
        full = f"{name}.{called}"
        part = walk.part(full, inner, Part(full, tuple(columns[i] for i in own)))
        parts.append((place.start, _weighted(part, float((step.transformer_weights or {}).get(called, 1.0)))))
    return _joined(name, [part for _, part in sorted(parts, key=lambda pair: pair[0])])


def _read_union(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part:
    """Several transformers of the same columns."""
    parts = []
    for called, inner in step.transformer_list:
        if not (isinstance(inner, str) and inner == "drop"):
            full = f"{name}.{called}"
            part = walk.part(full, inner, Part(full, columns), first)
            parts.append(_weighted(part, float((step.transformer_weights or {}).get(called, 1.0))))
    return _joined(name, parts)


def _check_mark(step: Any, name: str, why: str) -> None:
    """Raise an UnsupportedError where a step takes another value than NaN and None for a missing one."""
    if not is_missing(step.missing_values):
        loc = Location(f"{type(step).__name__}()", layer=name)
        raise unsupported(step, loc, why, "mark missing values by NaN or None")


def _read_imputer(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part:
    """Columns whose missing values are replaced, and where they were."""
    _check_mark(step, name, f"it replaces {step.missing_values!r} by other values")
    kept = step.strategy == "constant" or step.keep_empty_features
    made = []
    for column, fill in zip(columns, step.statistics_, strict=True):
        if not is_missing(fill):
            made.append(_filled(column, _value(step, fill)))
        elif kept:
            made.append(column)
    if step.add_indicator:
        made += [_missing(columns[place]) for place in step.indicator_.features_]
    return Part(name, tuple(made))


def _filled(column: Column, fill: _Value) -> Column:
    """A column with a number in place of each missing one."""
    atom = column.raw
    if atom is not None:
        return column if atom.fill is not None else Column(((atom._replace(fill=fill), 1.0),))
    # Where a value is missing, all other atoms are 0.
    terms = tuple(
        (atom, float(fill) - column.constant if math.isnan(weight) else weight) for atom, weight in column.terms
    )
    return Column(terms, column.constant)


def _missing(column: Column) -> Column:
    """1 where a column has no number, else 0."""
    atom = column.raw
    if atom is not None:
        return Column(((Atom("missing", atom.column), 1.0),) if atom.fill is None else ())
    return Column(tuple((atom, 1.0) for atom, weight in column.terms if math.isnan(weight)))


def _read_indicator(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part:
    """Whether values are missing; in columns that missed none, they must not."""
    _check_mark(step, name, f"it looks for {step.missing_values!r}")
    if step.features == "missing-only" and step.error_on_new:
        others = {*range(len(columns))} - {*step.features_.tolist()}
        for atom in (columns[place].raw for place in others):
            if atom is not None and atom.fill is None:
                walk.required.add(atom.column)
    return Part(name, tuple(_missing(columns[place]) for place in step.features_))


def _read_codes(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part | None:
    """Columns of categories as the numbers that an encoder gives to each: bits, codes, or means of targets."""
    atoms = [column.raw for column in columns]
    if None in atoms:
        return None
    loc = Location(f"{type(step).__name__}()", layer=name)
    categories = [list(each) for each in step.categories_]
    holes = [[place for place, own in enumerate(each) if is_missing(own)] for each in categories]
    if any(len(own) > 1 for own in holes):
        raise unsupported(step, loc, "NaN and None are two categories of it", "mark missing values by NaN alone")
    widths = [1] * len(columns)
    if _kind(step) == "OneHotEncoder":
        widths = [int(width) for width in step._n_features_outs]
    elif _kind(step) == "TargetEncoder":
        widths = [len(step.encodings_) // len(columns)] * len(columns)
    starts = np.concatenate([[0], np.cumsum(widths)])
    made: list[Column] = []
    for place, (atom, known) in enumerate(zip(atoms, categories, strict=True)):
        assert atom is not None
        block = slice(int(starts[place]), int(starts[place + 1]))
        given = np.empty((len(known), len(columns)), dtype=object)
        given[:] = [each[0] for each in categories]
        given[:, place] = known
        found = _transformed(step, given, loc)[:, block]
        unknown = _of_unknown(step, categories, place, loc)
        tolerant = unknown is not None and not np.isnan(unknown[block]).any()
        base = unknown[block] if unknown is not None and tolerant else np.zeros(widths[place])
        values = [None if is_missing(own) else _value(step, own) for own in known]
        if not tolerant:
            named = {value for value in values if value is not None}
            walk.allowed[atom.column] = walk.allowed.get(atom.column, named) & named
        fill = atom.fill
        if fill is None and not holes[place] and tolerant:
            fill = _Unknown.UNKNOWN
        if not tolerant and (fill not in values if fill is not None else not holes[place]):
            walk.required.add(atom.column)
        terms: list[list[tuple[Atom, float]]] = [[] for _ in range(widths[place])]
        changes = (scipy.sparse.csr_array(found - base) if base.any() else found).tocoo()
        for row, output, weight in zip(*changes.coords, changes.data, strict=True):
            value = values[row]
            if value is not None:
                terms[output].append((Atom("is", atom.column, value, fill), float(weight)))
            elif fill is None:
                terms[output].append((Atom("missing", atom.column), float(weight)))
        made += [Column(tuple(sums), float(constant)) for sums, constant in zip(terms, base, strict=True)]
    return Part(name, tuple(made))


def _transformed(step: Any, rows: Array, loc: Location) -> Any:
    """What an encoder makes of rows of categories, as a sparse matrix."""
    return scipy.sparse.csr_array(applied(step.transform, loc, as_given)(rows))


def _of_unknown(step: Any, categories: Sequence[Sequence[Any]], place: int, loc: Location) -> Array | None:
    """What an encoder makes of an unknown category in one column, and the first one in the others; None if it refuses."""
    row = np.empty((1, len(categories)), dtype=object)
    row[0] = [each[0] for each in categories]
    known = {own for own in categories[place] if not is_missing(own)}
    if any(isinstance(own, str) for own in known):
        row[0, place] = next(text for text in map("unknown{}".format, itertools.count()) if text not in known)
    else:
        row[0, place] = next(float(number) for number in itertools.count() if number not in known)
    try:
        return np.asarray(_transformed(step, row, loc).toarray()[0])
    except ProgramError:
        return None


def _read_bins(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part | None:
    """The number of each column's bin, or a bit for each bin."""
    made: list[Column] = []
    for column, edges in zip(columns, step.bin_edges_, strict=True):
        atom = column.raw
        if atom is None:
            return None
        if atom.fill is None:
            walk.required.add(atom.column)
        # A number at an edge is in the bin above it.
        inner = [float(np.nextafter(edge, -np.inf)) for edge in edges[1:-1]]
        above = [Atom("above", atom.column, edge, atom.fill) for edge in inner]
        if step.encode == "ordinal":
            made.append(Column(tuple((own, 1.0) for own in above)))
            continue
        for place in range(len(above) + 1):
            terms = [(above[place - 1], 1.0)] if place else []
            terms += [(above[place], -1.0)] if place < len(above) else []
            made.append(Column(tuple(terms), 0.0 if place else 1.0))
    return Part(name, tuple(made))


def _read_identity(walk: _Walk, name: str, step: Any, columns: tuple[Column, ...], first: bool) -> Part | None:
    """The columns themselves, as ColumnTransformer passes them through."""
    return Part(name, columns) if step.func is None else None


_READERS: Mapping[str, _Reader] = {
    "ColumnTransformer": _read_columns,
    "FeatureUnion": _read_union,
    "FunctionTransformer": _read_identity,
    "KBinsDiscretizer": _read_bins,
    "MissingIndicator": _read_indicator,
    "OneHotEncoder": _read_codes,
    "OrdinalEncoder": _read_codes,
    "SimpleImputer": _read_imputer,
    "TargetEncoder": _read_codes,
}
_NOT_ALONE = ("ColumnTransformer", "FeatureUnion", "FunctionTransformer")


def _encodes(step: Any) -> bool:
    """Whether a step is one that clients compute, or has one inside."""
    if isinstance(step, Pipeline):
        return any(_encodes(inner) for _, inner in step.steps)
    kind = _kind(step)
    if kind in ("ColumnTransformer", "FeatureUnion"):
        inside = getattr(step, "transformers_", ()) if kind == "ColumnTransformer" else step.transformer_list
        return any(_encodes(inner) for _, inner, *_ in inside)
    return kind not in ("", *_NOT_ALONE)


def for_clients(estimator: Any, numeric: bool) -> bool:
    """Whether clients compute first steps of an estimator; `numeric` says whether the samples are numbers, none missing."""
    steps = [step for _, step, _ in steps_of(estimator, "", True)]
    if numeric:
        return bool(steps) and _encodes(steps[0])
    return any(_encodes(step) for step in steps) or bool(steps and _kind(steps[0]) in _NOT_ALONE)


@dataclass(frozen=True, slots=True)
class _Made:
    """The program's input, and what its elements stand for.

    node: the input.
    rows: the samples as numbers.
    encoding: of the input.
    fills: what the input has in place of missing values, by column.
    required: the columns that always have a value.
    numbers: the numbers for which texts and unknown values stand.
    elements: of atoms without their fill.
    """

    node: Node
    rows: Array
    encoding: Encoding
    fills: Mapping[int, float]
    required: frozenset[int]
    number: Callable[[int, Any], float | None]
    elements: Mapping[Atom, int]

    def linear(self, columns: Sequence[Column]) -> tuple[Array, Array]:
        """Weight and bias that make columns of the elements."""
        weight = np.zeros((len(columns), self.encoding.elements))
        bias = np.array([column.constant for column in columns])
        for row, column in enumerate(columns):
            for atom, factor in column.terms:
                own = atom._replace(fill=None)
                if atom.kind == "missing":
                    if atom.column not in self.required:
                        weight[row, self.elements[own]] += factor
                    continue
                element = self.elements[own]
                scaled = atom.kind == "number"
                weight[row, element] += factor * (self.encoding.scales[element] if scaled else 1.0)
                bias[row] += factor * self.encoding.centres[element] if scaled else 0.0
                change = _change(atom, self.fills, self.required, self.number)
                if change:
                    weight[row, self.elements[Atom("missing", atom.column)]] += factor * change
        return weight, bias

    def seen(self, columns: Sequence[Column]) -> Array:
        """Columns of the samples, without the rounding errors of the elements."""
        found = np.empty((len(self.rows), len(columns)))
        for place, column in enumerate(columns):
            total = np.full(len(self.rows), column.constant)
            for atom, weight in column.terms:
                own = self.rows[:, atom.column]
                holes = np.isnan(own)
                if atom.kind == "missing":
                    if atom.column not in self.required:
                        total += weight * holes
                    continue
                fill = self.number(atom.column, atom.fill)
                if fill is not None:
                    own = np.where(holes, fill, own)
                total += weight * _told(atom, own, self.number)
            found[:, place] = total
        return found


def _told(atom: Atom, values: Any, number: Callable[[int, Any], float | None]) -> Array:
    """What an atom tells of values."""
    if atom.kind == "number":
        return np.asarray(values, dtype=np.float64)
    value = number(atom.column, atom.value)
    assert value is not None
    with np.errstate(invalid="ignore"):
        return np.asarray(values > value if atom.kind == "above" else values == value, dtype=np.float64)


def _change(atom: Atom, fills: Mapping[int, float], required: Any, number: Callable[[int, Any], float | None]) -> float:
    """What an atom of a missing value is more than the input's element of it, which has the fill of its column."""
    if atom.column in required or atom.kind == "missing":
        return 0.0
    wanted, given = (
        0.0 if fill is None else float(_told(atom, fill, number))
        for fill in (number(atom.column, atom.fill), fills.get(atom.column))
    )
    return wanted - given


def read_table(layer: Layer, samples: Array, names: tuple[Any, ...] | None, columns: tuple[str, ...] | None) -> Node:
    """The value of an estimator whose first steps clients compute, on rows of texts and numbers.

    `names` are those of the data frame's columns, `columns` the same if they are all texts.
    """
    walk = _Walk(names)
    own = tuple(Column(((Atom("number", place), 1.0),)) for place in range(samples.shape[1]))
    part = Part("table", own)
    for place, (name, step, _) in enumerate(steps_of(layer.step, "", True)):
        check_fitted(step, Location(f"{type(step).__name__}()", layer=name))
        part = walk.part(name, step, part, place == 0)
    made = _input(layer, samples, names, columns, walk, part)
    rest = part.steps
    folded = _folded(layer, made, replace(part, steps=()))
    value, seen = _node(layer, made, folded)
    if not rest:
        return value
    step = rest[0][1] if len(rest) == 1 else Pipeline(list(rest))
    inner = replace(layer, source=value, seen=seen, step=step, named=layer.reading.named(step, False), first=False)
    return layer.reading.read(inner)


def _folded(layer: Layer, made: _Made, part: Part) -> Part:
    """A part as columns, where its steps are affine."""
    if part.parts:
        parts = [_folded(layer, made, own) for own in part.parts]
        part = replace(part, columns=(), parts=tuple(parts))
        if all(own.pure for own in parts):
            part = replace(part, columns=_joined(part.name, parts).columns, parts=())
    if part.parts or not part.steps:
        return part
    inner = _inner(layer, part, made.node, made.seen(part.columns))
    try:
        weight, bias = affine_map(inner, inner.method("transform"), "transform")
    except (ProgramError, UnsupportedError):
        return part
    columns = tuple(
        Column(
            tuple(
                (atom, factor * own)
                for column, factor in ((part.columns[place], row[place]) for place in np.flatnonzero(row))
                for atom, own in column.terms
            ),
            float(constant + row @ np.array([column.constant for column in part.columns])),
        ).times(part.factor)
        for row, constant in zip(weight, bias, strict=True)
    )
    return Part(part.name, columns)


def _inner(layer: Layer, part: Part, value: Node, seen: Array) -> Layer:
    """The layer of a part's steps."""
    step = part.steps[0][1] if len(part.steps) == 1 else Pipeline(list(part.steps))
    made = layer.inner(step, part.name, value, seen)
    return replace(made, loc=replace(made.loc, layer=part.name))


def _node(layer: Layer, made: _Made, part: Part) -> tuple[Node, Array]:
    """The node of a part, and the samples there."""
    here = replace(layer, loc=Location(layer.loc.file, layer=part.name))
    if part.parts:
        pairs = [_node(layer, made, own) for own in part.parts]
        value, seen = here.joined([node for node, _ in pairs]), np.concatenate([own for _, own in pairs], axis=1)
    else:
        value, seen = here.linear(made.node, *made.linear(part.columns), "columns"), made.seen(part.columns)
    if part.steps:
        inner = _inner(layer, part, value, seen)
        value, seen = layer.reading.read(inner), inner.method("transform")(seen)
    if part.factor != 1.0:
        value, seen = here.op("mul", value, here.constant(part.factor, "weight")), seen * part.factor
    return value, seen


def _input(
    layer: Layer,
    samples: Array,
    names: tuple[Any, ...] | None,
    columns: tuple[str, ...] | None,
    walk: _Walk,
    part: Part,
) -> _Made:
    """The input that holds all atoms of a part's columns."""
    atoms = {atom: None for leaf in part.leaves() for column in leaf.columns for atom, _ in column.terms}
    if not atoms:
        raise layer.unsupported("it reads no column", "give it columns")
    labels = _labels(samples, atoms, walk)
    required = {*walk.required}
    for leaf in part.leaves():
        taker = type((leaf.steps or part.steps or ((None, layer.step),))[0][1]).__name__
        required |= _without_holes(samples, names, leaf.columns, labels, taker)
    by_column: dict[int, list[Atom]] = {}
    for atom in atoms:
        by_column.setdefault(atom.column, []).append(atom)
    spare = {
        column: next(n for n in itertools.count() if n not in {atom.value for atom in own})
        for column, own in by_column.items()
    }
    places = {column: {text: float(place) for place, text in enumerate(own)} for column, own in labels.items()}

    def number(column: int, value: Any) -> float | None:
        if value is None:
            return None
        if column in places:
            return places[column].get(value, -1.0)
        return float(spare[column] if value is _Unknown.UNKNOWN else value)

    fills: dict[int, float] = {}
    for column, own in by_column.items():
        # Numbers come first: they need a fill. An unknown category is any number that no category has.
        given = sorted(
            (atom for atom in own if atom.fill is not None),
            key=lambda atom: (atom.kind != "number", atom.fill is _Unknown.UNKNOWN),
        )
        fill = number(column, given[0].fill) if given else None
        if fill is not None and column not in required:
            fills[column] = fill
    bare = list(dict.fromkeys(atom._replace(fill=None) for atom in atoms))
    holes = {atom.column for atom in atoms if atom.kind == "missing"} - required
    holes |= {atom.column for atom in atoms if _change(atom, fills, required, number)}
    kinds = {kind: [atom for atom in bare if atom.kind == kind] for kind in ("number", "above", "is")}
    kinds["missing"] = [Atom("missing", column) for column in sorted(holes)]
    missed = [column for column in required if any(is_missing(value) for value in samples[:, column])]
    if missed:
        raise ProgramError(
            f"the samples have missing values in column {_called(names, missed[0])}, and the estimator refuses them",
            hint="begin with a SimpleImputer for it, or leave these samples out",
        )
    used = {atom.column for atom in atoms} | {*walk.allowed}
    encoding = Encoding(
        samples.shape[1],
        compared=tuple(atom.column for atom in kinds["above"]),
        edges=tuple(number(atom.column, atom.value) or 0.0 for atom in kinds["above"]),
        coded=tuple(atom.column for atom in kinds["is"]),
        codes=tuple(number(atom.column, atom.value) or 0.0 for atom in kinds["is"]),
        missing=tuple(atom.column for atom in kinds["missing"]),
        filled=tuple(fills),
        fills=tuple(fills.values()),
        texts=tuple(column for column in labels if column in used),
        labels=tuple(own for column, own in labels.items() if column in used),
        known=tuple(walk.allowed),
        allowed=tuple(
            tuple(sorted(number(column, value) or 0.0 for value in own)) for column, own in walk.allowed.items()
        ),
    )
    encoding = replace(encoding, numbers=tuple(atom.column for atom in kinds["number"]))
    rows = encoding.values(samples, columns)
    encoding = _scaled(encoding, rows, names)
    elements = {
        atom: place
        for place, atom in enumerate(itertools.chain(*(kinds[k] for k in ("number", "above", "is", "missing"))))
    }
    node = Table(layer.builder, rows, columns, False).encoded(encoding)
    return _Made(node, rows, encoding, fills, frozenset(required), number, elements)


def _labels(samples: Array, atoms: Mapping[Atom, None], walk: _Walk) -> dict[int, tuple[str, ...]]:
    """The columns of texts, and the texts that matter."""
    found: dict[int, dict[str, None]] = {}
    for column in {atom.column for atom in atoms}:
        if any(isinstance(value, str) for value in samples[:, column]):
            found[column] = {}
    values = [(atom.column, atom.value) for atom in atoms if atom.kind == "is"]
    values += [(column, value) for column, own in walk.allowed.items() for value in sorted(own, key=str)]
    for column, value in values:
        if isinstance(value, str):
            found.setdefault(column, {})[value] = None
    return {column: tuple(own) for column, own in sorted(found.items())}


def _without_holes(
    samples: Array,
    names: tuple[Any, ...] | None,
    columns: Sequence[Column],
    labels: Mapping[int, tuple[str, ...]],
    taker: str,
) -> set[int]:
    """The columns that must have values: their numbers are sent, or an encoder has no number for a missing one.

    Raises ProgramError for texts where numbers are sent, and where the samples miss such values.
    """
    required = set()
    for atom, weight in (term for column in columns for term in column.terms):
        called = _called(names, atom.column)
        if atom.kind in ("number", "above") and atom.column in labels:
            raise ProgramError(
                f"column {called} of the samples holds texts, and {taker} takes numbers",
                hint="encode it on the client: begin with a ColumnTransformer that has a OneHotEncoder for it",
            )
        if (atom.kind == "number" and atom.fill is None) or math.isnan(weight):
            required.add(atom.column)
            if any(is_missing(value) for value in samples[:, atom.column]):
                raise ProgramError(
                    f"column {called} of the samples has NaN or missing values, and {taker} takes numbers",
                    hint="fill them in on the client: put a SimpleImputer for it first, before scalers and others",
                )
    return required


def _scaled(encoding: Encoding, rows: Array, names: tuple[Any, ...] | None) -> Encoding:
    """The encoding with its numbers scaled from their ranges in the samples."""
    fills = dict(zip(encoding.filled, encoding.fills, strict=True))
    centres, scales = [], []
    for column in encoding.numbers:
        own = np.where(np.isnan(rows[:, column]), fills.get(column, np.nan), rows[:, column])
        own = np.append(own, fills[column]) if column in fills else own
        if not np.isfinite(own).all():
            raise ProgramError(f"the samples hold NaN or infinity in column {_called(names, column)}")
        low, high = float(own.min()), float(own.max())
        centres.append(low / 2 + high / 2)
        scales.append((high - low) / 2 * _MARGIN or 1.0)
    return replace(encoding, centres=tuple(centres), scales=tuple(scales))


def _called(names: tuple[Any, ...] | None, column: int) -> str:
    return f"number {column}" if names is None else repr(names[column])
