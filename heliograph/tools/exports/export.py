"""Writes an artifact's program for another system."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError
from heliograph.files import write_file
from heliograph.tools.exports.mlir import mlir
from heliograph.tools.exports.openfhe_python import openfhe_python
from heliograph.tools.exports.recording import Recording, recorded

# The name of a form -> its text, and the ending of its file.
FORMS: dict[str, tuple[Callable[[Recording], str], str]] = {
    "openfhe-python": (openfhe_python, ".py"),
    "mlir": (mlir, ".mlir"),
}


def export(artifact: Artifact, path: str | Path, to: str, sample: Sequence[Any] | None = None) -> tuple[Path, Path]:
    """Write the executable program of an artifact as text, and its arrays beside it (.npz); returns both paths.

    path: where the text goes; the ending is that of the form.
    to: "openfhe-python", a program of OpenFHE's Python interface that also makes keys and runs the example; or "mlir",
        one function in the generic form, with an operation of the dialect `heliograph` for each primitive call.
    sample: one array per input for the example, by default random values in the declared ranges.

    Raises ProgramError for an unknown form, and for programs that bootstrap or have plain inputs.
    """
    if to not in FORMS:
        raise ProgramError(f"there is no form {to!r}", hint=f"one of {', '.join(FORMS)}")
    written, ending = FORMS[to]
    found = recorded(artifact, sample)
    text, arrays = Path(path).with_suffix(ending), Path(path).with_suffix(".npz")
    buffer = io.BytesIO()
    np.savez(buffer, **found.vectors, **found.example)  # type: ignore[arg-type]
    write_file(arrays, buffer.getvalue())
    write_file(text, written(found).encode())
    return text, arrays
