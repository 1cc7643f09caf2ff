"""MLIR of a recording, in the generic form that every reader of MLIR takes.

Operations are those of the dialect `heliograph`, one for each primitive (execution/protocol.py). The dialect is not
registered anywhere: `mlir-opt --allow-unregistered-dialect` reads the text. Vectors are named by `vector`; they are in the
file of arrays beside it.
"""

from __future__ import annotations

from heliograph.tools.exports.recording import Number, Plain, Recording, Value


def mlir(found: Recording) -> str:
    """The module: one function, from the encrypted inputs to the encrypted outputs."""
    ring = found.ring
    primes = ", ".join(str(prime) for prime in ring.primes)
    attributes = ", ".join(
        (
            f"heliograph.artifact = {_text(found.fingerprint)}",
            f"heliograph.ring_dim = {_number(ring.ring_dim)}",
            f"heliograph.primes = [{primes}]",
            f"heliograph.digits = {_number(ring.digits)}",
        )
    )
    lines = [f"module attributes {{{attributes}}} {{"]
    arguments = ", ".join(
        f"%v{entry.value.number}: {_type(entry.value)} "
        f"{{heliograph.name = {_text(entry.name)}, heliograph.log_scale = {_number(entry.log_scale)}}}"
        for entry in found.inputs
    )
    results = ", ".join(map(_type, found.outputs))
    lines.append(f"  func.func @main({arguments}) -> ({results}) {{")
    for place, step in enumerate(found.steps):
        operands = [(f"%v{value.number}", _type(value)) for value in step.operands]
        if step.plain is not None:
            lines.append(f"    %p{place} = {_encoding(step.plain)}")
            operands.append((f"%p{place}", "!heliograph.plaintext"))
        names, types = (", ".join(part) for part in zip(*operands, strict=True))
        attrs = ", ".join(f"{name} = {_number(value)}" for name, value in step.attrs.items())
        lines.append(
            f'    %v{step.result.number} = "heliograph.{step.primitive}"({names}) '
            f"{f'{{{attrs}}} ' if attrs else ''}: ({types}) -> {_type(step.result)}"
        )
    names = ", ".join(f"%v{value.number}" for value in found.outputs)
    lines += [f"    func.return {names} : {results}", "  }", "}", ""]
    return "\n".join(lines)


def _encoding(plain: Plain) -> str:
    value = f"vector = {_text(plain.value)}" if isinstance(plain.value, str) else f"value = {_number(plain.value)}"
    return (
        f'"heliograph.encode"() {{{value}, log_scale = {_number(float(plain.log_scale))}, level = {plain.level} : i64}} '
        ": () -> !heliograph.plaintext"
    )


def _type(value: Value) -> str:
    return f'!heliograph.ciphertext<"level {value.level}, parts {value.parts}">'


def _number(value: Number) -> str:
    # MLIR's floats need a point even where they have an exponent.
    return f"{value} : i64" if isinstance(value, int) else f"{value:.17e} : f64"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
