"""Checkpoints from which a killed run resumes with the same guarantee; they are secret, the model file is not.

A folder holds `checkpoint.npz`, the run's state (parameters, optimizer, budget, ledger, released values and, secret,
the kept norms and the state of a seeded generator), and `charges.jsonl`, the journal: every charge is written there,
and made durable, before its noise is drawn. A resumed run charges the journal's entries beyond the checkpoint: those
releases happened, or may have, and the replayed ones are charged again. Every line of the journal has a hash of all
lines up to it, and the checkpoint has the last one it knows: a journal with lines removed or changed is refused. (Lines
removed at the end, after the checkpoint, are not seen.) An unseeded run draws fresh noise when it resumes; its
generator's state is not written at all. Files are replaced atomically and have mode 0600; nothing is pickled. They
stay until the run has made all its steps, or `DPTrainer.finish` removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliograph.dp.accounting.ledger import Ledger, Release
from heliograph.errors import ProgramError, WireError
from heliograph.files import BINARY, exclusive, open_file, sync_folder

_VERSION = 5


class Checkpoint:
    """The checkpoint and the journal in a folder, which is created if it is missing."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "checkpoint.npz"
        self.journal = self.folder / "charges.jsonl"
        self._hashes = [""]
        """Of the journal: after no line, after the first, and so on."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this run alone. Raises ProgramError if another run has it.

        Two runs that resumed from one state would release twice and report one.
        """
        busy = ProgramError(
            "another run is using this checkpoint",
            where=self.folder,
            why="both would release values from one state, and report the releases of one",
            hint="let it end, or take another folder, and add up the epsilons",
        )
        with exclusive(self.folder, busy):
            yield

    def append(self, release: Release) -> None:
        """Enter a charge in the journal, durably."""
        new = not self.journal.exists()
        descriptor = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            entry = release.to_json()
            self._hashes.append(_hash(self._hashes[-1], entry))
            file.write(json.dumps(entry | {"hash": self._hashes[-1]}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            # The file's contents are durable, but its name is not yet: a power cut would lose the charges.
            sync_folder(self.folder)

    def charges(self) -> list[Release]:
        """All charges of the journal, without a truncated last line: its noise had not been drawn."""
        if not self.journal.exists():
            return []
        with open_file(self.journal) as file:
            lines = file.read().decode().split("\n")
        # Text after the last line break was truncated, or is empty. Remove it, so that the next charge starts a line.
        if lines[-1]:
            with open(self.journal, "r+b") as journal:
                journal.truncate(sum(len(line.encode()) + 1 for line in lines[:-1]))
        try:
            entries = [json.loads(line) for line in lines[:-1]]
        except ValueError as error:
            raise self._damaged(str(error)[:200]) from None
        self._hashes = [""]
        for number, entry in enumerate(entries, 1):
            found = entry.pop("hash", None) if isinstance(entry, dict) else None
            self._hashes.append(_hash(self._hashes[-1], entry))
            if found != self._hashes[-1]:
                raise self._damaged(f"line {number} does not follow from the lines before it")
        return [Ledger.from_json([entry]).releases[0] for entry in entries]

    def _damaged(self, why: str) -> WireError:
        return WireError(
            "the journal of charges is damaged",
            where=self.journal,
            why=f"{why}; releases that it no longer names would not be charged",
            hint="start again in another folder, and count this run's whole budget as spent",
        )

    def save(self, state: dict[str, Any]) -> None:
        """Write a state: JSON values, and tensors anywhere among them."""
        tensors: dict[str, Any] = {}
        head = {"version": _VERSION, "charges": len(self._hashes) - 1, "hash": self._hashes[-1]}
        text = json.dumps(head | {"state": _packed(state, tensors)})
        tensors["json"] = np.frombuffer(text.encode(), dtype=np.uint8)
        write_arrays(self.path, tensors, mode=0o600)

    def load(self) -> tuple[dict[str, Any], int] | None:
        """The state and the number of charges that it includes; None if there is no checkpoint."""
        if not self.path.exists():
            return None
        self.charges()
        try:
            with open_file(self.path) as opened, np.load(opened, allow_pickle=False) as file:
                head = json.loads(bytes(file["json"]))
                if head["version"] != _VERSION:
                    raise WireError(f"version {head['version']!r} of a checkpoint is not known", where=self.path)
                state, included, known = _unpacked(head["state"], file), int(head["charges"]), head["hash"]
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise WireError("the checkpoint cannot be read", where=self.path, why=str(error)[:200]) from None
        if included >= len(self._hashes) or self._hashes[included] != known:
            raise self._damaged(f"the checkpoint knows {included} charges, which are not the first of the journal")
        return state, included

    def finish(self) -> None:
        """Remove both files: the run is over, and they hold secrets."""
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)


def _hash(before: str, entry: object) -> str:
    return hashlib.sha256((before + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def write_arrays(path: Path, arrays: dict[str, Any], mode: int) -> None:
    """Write arrays as npz, atomically: a reader finds the old file or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    with os.fdopen(descriptor, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def save_model(module: torch.nn.Module, path: Path) -> None:
    """Write the parameters and buffers of a module as npz; nothing else of the run is in the file."""
    write_arrays(path, {name: _array(value) for name, value in module.state_dict().items()}, mode=0o644)


def load_model(module: torch.nn.Module, path: Path) -> None:
    """Load parameters and buffers into a module from a file of `save_model`."""
    with open_file(path) as opened, np.load(opened, allow_pickle=False) as file:
        module.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})


def _array(value: Tensor) -> Any:
    try:
        # A copy; a scalar stays without axes.
        return np.array(value.detach().cpu().numpy())
    except TypeError:
        raise ProgramError(f"tensors of type {value.dtype} cannot be saved", where="checkpoint") from None


def _packed(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, Tensor):
        name = f"tensor{len(tensors)}"
        tensors[name] = _array(value)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_packed(key, tensors), _packed(each, tensors)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_packed(each, tensors) for each in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ProgramError(f"a {type(value).__name__} cannot be written to a checkpoint", where="checkpoint")


def _unpacked(value: Any, tensors: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return torch.from_numpy(tensors[inner])
    if kind == "dict":
        return {_unpacked(key, tensors): _unpacked(each, tensors) for key, each in inner}
    found = [_unpacked(each, tensors) for each in inner]
    return tuple(found) if kind == "tuple" else found
