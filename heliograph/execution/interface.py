"""Inputs and outputs of a program: checks of names and shapes, packing of tensors into slots, and unpacking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError, RangeError, said
from heliograph.ir import Node, Program, TensorType
from heliograph.ir.interface import TensorSpec
from heliograph.ir.node import Array


def plain_values(value: Any) -> Any:
    """A tensor of torch in a form for numpy, without gradient, device and bfloat16; any other value unchanged."""
    if not hasattr(value, "requires_grad"):
        return value
    if getattr(value, "is_meta", False):
        raise ProgramError("that is a tensor of torch without data, on the device 'meta'", hint="give its numbers")
    value = value.detach().cpu()
    return value.float() if str(value.dtype) == "torch.bfloat16" else value


def real_numbers(value: Any) -> Array:
    """The value as float64; a ValueError that describes it if it does not hold real numbers.

    numpy would convert more: it drops imaginary parts and masks, reads numbers from texts, and counts days from dates.
    """
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        raise ValueError("got a masked array with values that are missing")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(
            isinstance(each, complex | np.complexfloating | str) for each in array.flat
        ):
            array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"got {type(value).__name__}") from None
    if array.dtype.kind not in "biuf":
        held = {"c": "complex numbers", "O": "other objects", "U": "texts", "S": "texts"}
        found = held.get(array.dtype.kind, f"elements of {array.dtype}")
        raise ValueError(f"got {type(value).__name__} with {found}")
    return np.asarray(array, dtype=np.float64)


def columns_of(frame: Any) -> tuple[str, ...] | None:
    """The columns of a data frame, or of its row (a Series); None if it has no columns named by texts."""
    labels = getattr(frame, "columns", None)
    if labels is None and hasattr(frame, "to_numpy"):
        labels = getattr(frame, "index", None)
    columns = () if labels is None or callable(labels) else tuple(labels)
    return columns if columns and all(isinstance(column, str) for column in columns) else None


def given_as(spec: TensorSpec, value: Any) -> Any:
    """A client's value in the form of the input: data frames by their columns, whole numbers as one-hot vectors, rows of
    tables by the input's encoding.
    """
    labels = columns_of(value) if spec.columns is not None else None
    if labels is None or spec.columns is None:
        return _encoded(spec, one_hot(spec, value))
    missing = [column for column in spec.columns if column not in labels]
    if missing or len(set(labels)) != len(labels):
        raise ProgramError(
            f"input {spec.name!r} has no column {missing[0]!r}"
            if missing
            else f"input {spec.name!r} has a column twice",
            why=f"it is read by the columns {', '.join(map(repr, spec.columns[:20]))}",
            hint="give a data frame or a row of one with these columns, or an array with values in that order",
        )
    return _encoded(spec, one_hot(spec, value[list(spec.columns)]))


def sample_count(specs: Sequence[TensorSpec], values: Sequence[Any]) -> int | None:
    """The number of samples in the values of encrypted inputs, which have an axis of samples in front; 0 for a single
    sample without that axis; None for values of other shapes, which the checks of shapes refuse.
    """
    axes = {_leading_axes(spec, value) for spec, value in zip(specs, values, strict=True)}
    if axes == {0}:
        return 0
    return max(len(plain_values(value)) for value in values) or None if axes == {1} else None


def _leading_axes(spec: TensorSpec, value: Any) -> int | None:
    """The number of axes in front of a sample's own; None if the value is no array."""
    value = plain_values(value)
    try:
        axes, own = np.ndim(value), len(spec.shape)
        if spec.classes is not None:
            array = np.asarray(value)
            # Whole numbers stand for one-hot vectors, also where a file holds them as floats.
            own -= array.dtype.kind in "iu" or array.shape[max(0, axes - own) :] != tuple(spec.shape)
    except (TypeError, ValueError):
        return None
    return axes - own


def rows_of(value: Any, rows: int | slice) -> Any:
    """One sample, or some, of a value with an axis of samples in front; of a data frame its rows."""
    return value.iloc[rows] if hasattr(value, "iloc") else plain_values(value)[rows]


def one_row(value: Any) -> Any:
    """A sample with an axis of samples in front; of a row of a data frame a frame of one row."""
    return value.to_frame().T if hasattr(value, "to_frame") else np.asarray(plain_values(value))[np.newaxis]


def _encoded(spec: TensorSpec, value: Any) -> Any:
    """Rows of a table, with or without leading sample axes, as elements of its encoding; any other value unchanged."""
    encoding = spec.encoding
    if encoding is None or np.shape(value)[-1:] == spec.shape:
        return value
    given = plain_values(value)
    if isinstance(given, np.ma.MaskedArray):
        given = np.where(given.mask, np.nan, given.data)
    if np.shape(given)[-1:] != (encoding.width,):
        raise ProgramError(
            f"input {spec.name!r} has shape {np.shape(given)}, expected ({encoding.width},): a row of the table",
            hint=shape_hint(np.shape(given), (encoding.width,)),
        )
    rows = encoding.values(given, spec.columns)
    unknown = encoding.unknown(rows)
    if unknown:
        raise ProgramError(
            f"input {spec.name!r} has an unknown value in column {_called(spec, unknown[0])}",
            why="the model refuses categories other than those of its training",
            hint="give one of these, or train with an encoder that ignores unknown categories",
        )
    needed = encoding.needed()
    bad = [column for *_, column in np.argwhere(np.isnan(rows)).tolist() if column in needed]
    if bad:
        raise ProgramError(
            f"input {spec.name!r} has no value in column {_called(spec, bad[0])}",
            why="the program was made with samples that have one",
            hint="fill it in, or make the program with samples that miss some there",
        )
    return encoding.encoded(rows)


def _called(spec: TensorSpec, column: int) -> str:
    """A column of a table, for an error."""
    return f"number {column}" if spec.columns is None else repr(spec.columns[column])


def check_input(name: str, shape: Sequence[int], value: Any, *, many: bool = False) -> Array:
    """The value as finite float64 of exactly that shape; a ProgramError with the fault and its place otherwise.

    `many` says that many samples would do as well, for the error.
    """
    try:
        array = real_numbers(plain_values(value))
    except ValueError as error:
        raise ProgramError(f"input {name!r} is not an array of real numbers", why=str(error)) from None
    if array.shape != tuple(shape):
        raise ProgramError(
            f"input {name!r} has shape {array.shape}, expected {tuple(shape)}",
            hint=shape_hint(array.shape, tuple(shape), many),
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        index = tuple(int(i) for i in np.unravel_index(bad[0], array.shape)) if array.shape else ()
        raise ProgramError(f"input {name!r} holds {array[index]} at index {index}", hint="remove NaN and infinity")
    return array


def shape_hint(got: tuple[int, ...], expected: tuple[int, ...], many: bool = True) -> str:
    """What to write for an array of a wrong shape, where one sample is expected, or also many with an axis in front."""
    if got[1:] == expected:
        return "pass one sample, without a batch axis"
    if [size for size in got if size != 1] == [size for size in expected if size != 1]:
        return f"x.reshape({', '.join(map(str, expected))})"
    wide = ", ".join(["samples", *map(str, expected)])
    return f"give one sample of shape {expected}" + f", or many as one array of shape ({wide})" * many


def one_hot_rows(numbers: Array, classes: int, dtype: Any = np.float64) -> Array:
    """A one-hot vector for each number in an array of whole numbers from 0 to classes - 1, on a new last axis."""
    made = np.zeros((*numbers.shape, classes), dtype=dtype)
    np.put_along_axis(made, numbers[..., np.newaxis], 1, axis=-1)
    return made


def one_hot(spec: TensorSpec, value: Any) -> Any:
    """Whole numbers as one-hot vectors, for an input with `classes`; any other value unchanged.

    The numbers may be of a floating-point type, as in a table read from a file; an array of the input's whole shape is
    already one-hot. There may be leading sample axes. Raises ProgramError for a number that is not a class, and for a
    shape that fits neither numbers nor one-hot vectors.
    """
    if spec.classes is None:
        return value
    array, shape = np.asarray(plain_values(value)), tuple(spec.shape)
    whole = array.dtype.kind in "iu"
    if not (whole or array.dtype.kind == "f") or (not whole and array.shape[array.ndim - len(shape) :] == shape):
        return value
    own = shape[:-1]
    if array.ndim < len(own) or array.shape[array.ndim - len(own) :] != own:
        expected = f"{own} (or {shape} with one-hot vectors)"
        raise ProgramError(
            f"input {spec.name!r} has shape {array.shape}, expected {expected}",
            why="it takes whole numbers that choose rows of a table",
        )
    # Values are left out, as in check_range.
    bad = np.argwhere(~((array >= 0) & (array < spec.classes) & (array == np.floor(array))))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        outside = whole or bool(np.isfinite(array[place]) and array[place] == np.floor(array[place]))
        what = f"a number outside of 0 to {spec.classes - 1}" if outside else "something else than a whole number"
        raise ProgramError(
            f"input {spec.name!r} holds {what}" + (f" at index {place}" if place else ""),
            why=f"it chooses one of {spec.classes} rows of a table",
        )
    return one_hot_rows(array.astype(np.int64), spec.classes)


def check_samples(name: str, shape: Sequence[int], value: Any, batch: int) -> Array:
    """The samples of one ciphertext, (batch, *shape), from an array with a leading axis of at most `batch`.

    The last sample fills missing places: any sample in range would do.
    """
    value = plain_values(value)
    array = np.asarray(value) if np.ndim(value) else None
    if array is None or array.shape[1:] != tuple(shape) or not 0 < array.shape[0] <= batch:
        got = "a number" if array is None else f"shape {array.shape}"
        raise ProgramError(
            f"input {name!r} has {got}, expected up to {batch} samples of shape {tuple(shape)}",
            hint="the program was compiled for several samples at once: pass them with a leading batch axis",
        )
    samples = check_input(name, array.shape, value)
    return np.concatenate([samples, np.repeat(samples[-1:], batch - samples.shape[0], axis=0)])


def plain_input(node: Node, value: Any) -> Array:
    """The value of a plain input; an error if it does not fit or is outside its range."""
    a = node.attrs
    spec = TensorSpec(a["name"], tuple(a["shape"]), classes=a.get("classes"))
    tensor = check_input(spec.name, spec.shape, given_as(spec, value))
    check_range(spec.name, a.get("low"), a.get("high"), tensor)
    return tensor


def batch_of(program: Program) -> int:
    """The number of samples that a packed program takes at once."""
    return program.interface.batch


def check_spec_range(spec: TensorSpec, tensor: Array) -> None:
    """`check_range` of an input; the error names the column of a table."""
    check_range(spec.name, spec.low, spec.high, tensor, spec)


def check_range(
    name: str, low: float | None, high: float | None, tensor: Array, spec: TensorSpec | None = None
) -> None:
    """Raise a RangeError with the place of the first element outside the declared range: its column, if `spec` has an
    encoding of a table.

    Its value is left out: errors end up in logs, and inputs are secret.
    """
    if low is None or high is None:
        return
    # Values computed in float32 may exceed the range by their rounding error.
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    bad = np.flatnonzero((tensor < low - slack) | (tensor > high + slack))
    if bad.size:
        index = tuple(int(i) for i in np.unravel_index(bad[0], tensor.shape))
        encoding = None if spec is None else spec.encoding
        column = None if encoding is None else encoding.column(index[-1])
        if spec is not None and encoding is not None and column is not None:
            centre, scale = encoding.centres[index[-1]], encoding.scales[index[-1]]
            least, most = centre + low * scale, centre + high * scale
            raise RangeError(
                f"input {name!r} is outside its range [{least:g}, {most:g}] in column {_called(spec, column)}",
                why="that is the range of the samples with which the program was made",
                hint="make the program with samples that hold such numbers",
            )
        raise RangeError(
            f"input {name!r} is outside its range [{low:g}, {high:g}] at index {index}",
            why="levels, errors and any polynomials were planned for the range that was declared, or that the samples had",
            hint=said(
                "scale the input, or make the program again with an {input_range} that holds it, or with margin=0.5 "
                "(hg.Private); or encrypt with clip=True, which moves it to the nearer end"
            ),
        )


def input_shape(program: Program, node: Node) -> tuple[int, ...]:
    """The shape of one sample of an input, also where the node is a ciphertext of a packed program."""
    if isinstance(node.type, TensorType):
        return node.type.shape
    return next(spec.shape for spec in program.interface.inputs if spec.name == node.attrs["name"])


def clipped(spec: TensorSpec, tensor: Array) -> Array:
    """The values of an input, those outside its declared range replaced by the nearer end."""
    return tensor if spec.low is None or spec.high is None else np.clip(tensor, spec.low, spec.high)


def encrypted_input(spec: TensorSpec, value: Any, *, declared: bool = True, clip: bool = False) -> Array:
    """The value of an encrypted input, in the shape that its layout packs; an error if it does not fit.

    With `declared`, raises RangeError for an element outside the input's range; with `clip` it is replaced by the nearer
    end.
    """
    layout, value = spec.placed, given_as(spec, value)
    if layout.batch == 1:
        tensor = check_input(spec.name, spec.shape, value, many=True)
    else:
        tensor = check_samples(spec.name, spec.shape, value, layout.batch)
    if clip:
        tensor = clipped(spec, tensor)
    elif declared:
        check_spec_range(spec, tensor)
    return tensor.reshape(layout.shape if layout.batch == 1 else (layout.batch, *layout.shape))


def pack_inputs(
    program: Program, samples: Sequence[Any], *, declared: bool = False, clip: bool = False
) -> dict[Node, Array]:
    """The values of a packed program's input nodes for one sample per named input, with a leading axis of one.

    Secret inputs become slot vectors; plain ones keep their shape. A program for several samples at once takes secret
    inputs with a leading axis of at most that many. With `declared`, as on clients, they have to be within their
    ranges (or are clipped to these, with `clip`), except for values from the previous run, which `check_carried` checks.
    """
    specs = {spec.name: spec for spec in program.interface.inputs}
    names = list(dict.fromkeys(node.attrs["name"] for node in program.inputs))
    if len(samples) != len(names):
        raise ProgramError(f"program {program.name} takes {len(names)} inputs, not {len(samples)}")
    given = dict(zip(names, samples, strict=True))
    vectors: dict[Node, Array] = {}
    packed: dict[str, list[Array]] = {}
    for node in program.inputs:
        name = node.attrs["name"]
        if not node.type.secret:
            vectors[node] = plain_input(node, given[name])[np.newaxis]
            continue
        if name not in packed:
            spec, within = specs[name], declared and name not in program.interface.carried_inputs
            tensor = encrypted_input(spec, given[name], declared=within, clip=clip and within)
            packed[name] = spec.placed.pack(tensor)
        vectors[node] = packed[name][node.attrs["chunk"]][np.newaxis]
    return vectors


def draw(distribution: str, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """A server's draw for a plain input (`drawn`), from an insecure generator: for trials and tests."""
    if distribution == "normal":
        return np.asarray(rng.standard_normal(shape))
    return np.asarray(rng.uniform(-1.0, 1.0, shape))


def with_drawn(program: Program, samples: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    """The samples, completed by draws for plain inputs that a server draws (`drawn`), if all others are given."""
    first = {node.attrs["name"]: node for node in reversed(program.inputs)}
    names = list(dict.fromkeys(node.attrs["name"] for node in program.inputs))
    drawn = [name for name in names if "drawn" in first[name].attrs]
    if not drawn or len(samples) != len(names) - len(drawn):
        return list(samples)
    given, made = iter(samples), []
    for name in names:
        a = first[name].attrs
        made.append(draw(a["drawn"], a["shape"], rng) if name in drawn else next(given))
    return made


def unpack_outputs(program: Program, vectors: Sequence[Array]) -> list[Array]:
    """The output tensors from a packed program's output vectors (each (slots,)), in order.

    For a program for several samples at once, they have a leading sample axis.
    """
    outputs, position, batch = [], 0, batch_of(program)
    for spec in program.interface.outputs:
        layout = spec.placed
        count = layout.ciphertexts
        tensor = layout.unpack([np.real(v) for v in vectors[position : position + count]])
        outputs.append(tensor.reshape(spec.shape if batch == 1 else (batch, *spec.shape)))
        position += count
    return outputs


def given_rows(program: Program, samples: Sequence[Any], outputs: list[Array]) -> list[Array]:
    """The outputs of the given samples only, if a program for several samples at once got fewer."""
    if batch_of(program) == 1:
        return outputs
    names = list(dict.fromkeys(node.attrs["name"] for node in program.inputs))
    secret = {node.attrs["name"] for node in program.inputs if node.type.secret}
    count = next(len(sample) for name, sample in zip(names, samples, strict=True) if name in secret)
    return [out[:count] for out in outputs]
