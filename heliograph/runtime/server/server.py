"""The server: a compiled artifact and one client's evaluation keys. It cannot hold a secret key."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.validate import check_transforms
from heliograph.errors import ProgramError, WireError, said
from heliograph.execution.interface import plain_input
from heliograph.execution.key_use import key_use
from heliograph.execution.loop import Progress, Trace, execute
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES, memory_bytes
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.ir.analysis.carried import carried_on, only, released
from heliograph.machine import available_bytes
from heliograph.runtime.backend import ServerEvaluator
from heliograph.runtime.keyloader import KeyLoader
from heliograph.runtime.memory import check_memory as require_memory
from heliograph.runtime.noise import secure_draw, secure_normal
from heliograph.runtime.process import require_own_process
from heliograph.runtime.security import require_security
from heliograph.runtime.server.backends import loads_keys, make_backend
from heliograph.runtime.server.floor import Floor
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import (
    CarriedValues,
    EncryptedInput,
    EncryptedOutput,
    EvaluationKeys,
    is_name,
    object_name,
)

# The bound on the encoded plaintexts that are kept for a part of a program (Server.look).
_PART_CACHE_BYTES = 1 << 28
_LOG = logging.getLogger(__name__)


class Server:
    """Evaluates one artifact on the ciphertexts of one client.

    `run` may be called from several threads; each run has its own state. `trace` describes the last run that ended:
    seconds, seconds by layer, and the homomorphic calls. `cache_bytes` bounds the encoded plaintexts that are kept
    between runs. They are part of the plan that is compared with the free memory; `check_memory=False` skips that
    check.

    `backend` is "native" (runtime/native; the default if numba is installed) or "openfhe". Clients see no difference,
    except a smaller error of bootstraps.

    `key_bytes` bounds the keys of a folder that are in memory at once. The default is what the artifact was planned
    for, else all of them, or, if they do not fit, what memory the machine has left. Keys of bootstraps stay in memory;
    the others are loaded before the node that reads them. Such a server runs one sample at a time, and threads wait for
    each other. `keys` is then its loader, which counts what it reads. OpenFHE keeps all keys in memory.

    With `mapped=True` the keys of a folder are expanded once, into a file next to them, and mapped: processes that
    serve the same folder share one copy in memory, and the system may drop it if memory is short. This needs the native
    backend; `key_bytes` has no meaning then.

    `plaintexts` names a folder in which the native backend keeps the program's encoded plaintexts, in a file named by
    the artifact's fingerprint (gigabytes for a deep network). The next server maps it and encodes nothing. It contains
    the weights, as the artifact does.

    `kept` has encrypted inputs that stay with the server, such as the vectors of an encrypted index
    (`Client.encrypt_some`): the inputs of a run then leave these out.

    Use it as a context manager, or call `close`, to remove its keys from the process; the garbage collector does this
    too.

    Raises WireError for keys that belong to another artifact, are missing, superfluous or malformed; SecurityError for
    an artifact without 128 bits of security unless `allow_insecure` is given.
    """

    def __init__(
        self,
        artifact: Artifact,
        keys: EvaluationKeys | KeyFolder,
        *,
        backend: str | None = None,
        key_bytes: int | None = None,
        cache_bytes: int = PLAINTEXT_CACHE_BYTES,
        allow_insecure: bool = False,
        check_memory: bool = True,
        mapped: bool = False,
        plaintexts: str | Path | None = None,
        kept: EncryptedInput | None = None,
    ) -> None:
        if not isinstance(keys, (EvaluationKeys, KeyFolder)):
            raise WireError(f"a server takes evaluation keys, not {type(keys).__name__}")
        if kept is not None and not isinstance(kept, EncryptedInput):
            raise WireError(
                f"a server keeps encrypted inputs, not {type(kept).__name__}",
                hint="EncryptedInput.load(path) reads a file",
            )
        keys.check(artifact.fingerprint)
        require_own_process("a server")
        require_security(artifact, allow_insecure=allow_insecure, for_whom="Server")
        expected = artifact.evaluation_keys
        keys.check_names([key.name for key in expected])
        if not is_name(keys.client):
            raise WireError("the evaluation keys have no valid client name")
        check_transforms(artifact.program, artifact.ring)
        if kept is not None:
            kept.check(artifact.fingerprint, keys.client)
            kept.check_names([name for name in _given_names(artifact) if name in set(kept.names())])
        if key_bytes is not None and not isinstance(keys, KeyFolder):
            raise ProgramError(
                "keys that are in one file or in memory cannot be loaded by need",
                where="Server(key_bytes=...)",
                hint="write them into a folder: client.write_evaluation_keys(path), and give KeyFolder(path)",
            )
        if mapped and (not isinstance(keys, KeyFolder) or key_bytes is not None):
            raise ProgramError(
                "only keys in a folder can be mapped, and only all of them",
                where="Server(mapped=True)",
                hint="write them into a folder: client.write_evaluation_keys(path), and give KeyFolder(path), no key_bytes",
            )
        planned = memory_bytes(artifact.program, artifact.ring, cache_bytes)
        bound = None
        if isinstance(keys, KeyFolder) and not mapped and loads_keys(backend, key_bytes):
            bound = _key_bound(artifact, planned, key_bytes, available_bytes() if check_memory else None)
        if check_memory:
            # The memory needed beyond this process and the key bytes that it already holds.
            held = (0 if mapped else _held_bytes(planned, bound)) + planned["loading"]
            hint = said(f"{_hint(isinstance(keys, KeyFolder))}, or pass {{check_memory=False}}")
            require_memory(planned["working"] + held, f"the server of {artifact.name!r}", hint)
        self.artifact = artifact
        self.client = keys.client
        self._fingerprint = artifact.fingerprint
        self.trace = Trace()
        self._cache_bytes = cache_bytes
        self._parts: dict[frozenset[str], ServerEvaluator] = {}
        self._backend = make_backend(backend, artifact, keys, bound, mapped, plaintexts)
        self._close = weakref.finalize(self, self._backend.release)
        self._close.atexit = False
        self.evaluator = self._backend.evaluator(artifact.program, cache_bytes)
        if self.keys is not None:
            self.evaluator.before = self.keys.require
        # Unpacked once, not for every question.
        self._kept: dict[str, Any] = {}
        if kept is not None:
            known = {_object_name(node): node for node in artifact.program.inputs}
            self._kept = {name: self._backend.read(kept, known[name], name) for name in kept.names()}

    @property
    def backend(self) -> str:
        """The backend in use: "native" or "openfhe"."""
        return self._backend.name

    @property
    def keys(self) -> KeyLoader | None:
        """The loader of the keys, or None if all of them stay in memory."""
        return self._backend.loader

    def __repr__(self) -> str:
        return f"<Server of {self.artifact.name!r} for client {self.client[:12]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a server is not pickled; make one from the artifact and the evaluation keys")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the evaluation keys and the encoded plaintexts; the server cannot run afterwards."""
        self._close()
        for evaluator in (self.evaluator, *self._parts.values()):
            evaluator.close()

    def run(
        self,
        encrypted: EncryptedInput,
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
    ) -> EncryptedOutput:
        """The encrypted outputs for one encrypted sample.

        `plain` has the arrays of the program's plain inputs, by name: the server's own values. Noise that the program
        draws is drawn here unless it is given (to repeat a run, in tests). `progress(stage, done, total)` is called
        after every operation. Raises WireError for inputs that are malformed or belong to another artifact or client,
        and ProgramError or RangeError for plain values that do not fit the program's declaration.
        """
        refuse_carried(self.artifact)
        return self._evaluated(encrypted, None, progress, plain)[0]

    def step(
        self,
        encrypted: EncryptedInput,
        carried: CarriedValues,
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
        outputs: Collection[str] | None = None,
    ) -> tuple[EncryptedOutput, CarriedValues]:
        """Like `run`, for a program that carries values from run to run: the outputs, and the input of the next run.

        With `outputs`, only these are returned, and nothing that only the others need is evaluated or has to be given
        (`Client.encrypt_some`).
        """
        if not isinstance(carried, CarriedValues):
            raise WireError(f"a step takes carried values, not {type(carried).__name__}")
        asked = None
        if outputs is not None:
            asked = frozenset(outputs) | {output for output, _ in self.artifact.program.interface.carried}
        return self._evaluated(encrypted, carried, progress, plain, asked)

    def look(
        self,
        encrypted: EncryptedInput,
        carried: CarriedValues,
        outputs: Collection[str],
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
    ) -> EncryptedOutput:
        """Some outputs of a program that carries values, from what a run left; nothing is carried on.

        Only what these outputs need is evaluated, and only their inputs are given (`Client.encrypt_some`).
        """
        if not isinstance(carried, CarriedValues):
            raise WireError(f"a look is at carried values, not at {type(carried).__name__}")
        return self._evaluated(encrypted, carried, progress, plain, frozenset(outputs))[0]

    def _part(self, outputs: frozenset[str]) -> ServerEvaluator:
        """The evaluator of some outputs alone. One that carries values on runs repeatedly, and has a larger cache."""
        if outputs not in self._parts:
            self._parts[outputs] = self._evaluator_of(outputs)
        return self._parts[outputs]

    def _evaluator_of(self, outputs: frozenset[str]) -> ServerEvaluator:
        part = only(self.artifact.program, outputs)
        made = self._backend.evaluator(part, self._cache_bytes if part.interface.carried else _PART_CACHE_BYTES)
        if self.keys is not None:
            require, places = self.keys.require, self.evaluator.index
            made.before = lambda number: require(places[part.nodes[number]])
        return made

    def _evaluated(
        self,
        encrypted: EncryptedInput,
        carried: CarriedValues | None,
        progress: Progress | None,
        plain: Mapping[str, Any] | None,
        outputs_asked: frozenset[str] | None = None,
    ) -> tuple[EncryptedOutput, CarriedValues]:
        self._check_open()
        require_own_process("evaluation")
        evaluator = self.evaluator if outputs_asked is None else self._part(outputs_asked)
        program = evaluator.program
        inputs = self._inputs(program, encrypted, plain or {}, carried)
        numbers = released(self.artifact.program)
        with self.evaluating(evaluator):
            outputs, self.trace = execute(program, evaluator, inputs, progress)
            left = {
                _object_name(source): (output, int(source.attrs["level"]))
                for source, output in carried_on(program, outputs).items()
            }
            answers: dict[str, tuple[Any, int]] = {}
            std = program.planned.flood
            for name, node, output in zip(program.output_names, program.outputs, outputs, strict=True):
                if name in numbers:
                    output = output if std is None else self._flooded(output, node, std)
                    answers[str(numbers[name])] = output, 0
            sent, kept = self._backend.written(answers), self._backend.written(left)
        _LOG.info("%s: a run ended after %.2f s", self.artifact.name, self.trace.seconds)
        answer = EncryptedOutput(self._fingerprint, self.client, sent, request=encrypted.request)
        return answer, CarriedValues(self._fingerprint, self.client, kept)

    @contextlib.contextmanager
    def evaluating(self, evaluator: ServerEvaluator | None = None) -> Iterator[None]:
        """A context for direct use of the evaluator: its bootstraps are set up, and its keys stay in place."""
        (evaluator or self.evaluator).prepare()
        with self.keys.lock if self.keys else contextlib.nullcontext(), self._backend.using():
            # Another thread may have closed the server meanwhile. From here on its keys stay until the evaluation is
            # over.
            self._check_open()
            yield

    def floor(self) -> Floor:
        """The floor of the last run: the time of its homomorphic calls alone. Call `sample` on it first."""
        return Floor(self.evaluator, self.trace.calls, self.keys)

    def _check_open(self) -> None:
        if not self._close.alive:
            raise ProgramError("this server is closed", hint="make another from the artifact and the evaluation keys")

    def _flooded(self, output: Any, node: Node, std: float) -> Any:
        """The output with fresh noise in every slot."""
        assert isinstance(node.type, CipherType)
        noise = std * secure_normal(self.artifact.ring.slots)
        return self.evaluator.add_vector(output, noise, node.type)

    def inputs(
        self, encrypted: EncryptedInput, plain: Mapping[str, Any], carried: CarriedValues | None = None
    ) -> dict[Node, Any]:
        """The ciphertexts of the messages and the plain arrays, by input node, checked: the arguments of `execute`."""
        return self._inputs(self.artifact.program, encrypted, plain, carried)

    def _inputs(
        self,
        program: Program,
        encrypted: EncryptedInput,
        plain: Mapping[str, Any],
        carried: CarriedValues | None,
    ) -> dict[Node, Any]:
        """The inputs of a part of the program; `carried` holds all carried values all the same."""
        if not isinstance(encrypted, EncryptedInput):
            raise WireError(f"a server runs on encrypted inputs, not on {type(encrypted).__name__}")
        from_before = self.artifact.program.interface.carried_inputs
        secret = [node for node in program.inputs if node.type.secret]
        given = [node for node in secret if node.attrs["name"] not in from_before]
        own = [node for node in given if _object_name(node) not in self._kept]
        found = self._read(encrypted, own, own)
        found |= {node: self._kept[_object_name(node)] for node in given if _object_name(node) in self._kept}
        if carried is not None:
            every = [node for node in self.artifact.program.inputs if node.attrs["name"] in from_before]
            found |= self._read(carried, every, [node for node in secret if node.attrs["name"] in from_before])
        return found | self.plain_inputs(plain, program)

    def _read(
        self, message: EncryptedInput | CarriedValues, held: Sequence[Node], wanted: Sequence[Node]
    ) -> dict[Node, Any]:
        """The ciphertexts of the `wanted` nodes in a message; a WireError unless it holds exactly the `held` nodes."""
        message.check(self._fingerprint, self.client)
        message.check_names([_object_name(node) for node in held])
        return {node: self._backend.read(message, node, _object_name(node)) for node in wanted}

    def plain_inputs(self, plain: Mapping[str, Any], program: Program | None = None) -> dict[Node, Array]:
        """The server's own inputs by node, checked, with a leading axis of one sample.

        With `program`, the inputs of this part of the artifact's program. Inputs that are drawn need not be given: they
        come from the system's secure generator, anew for each call.
        """
        taken = {node.attrs["name"] for node in (program or self.artifact.program).inputs} - set(plain)
        drawn = {name: secure_draw(*kind) for name, kind in self.artifact.drawn_inputs.items() if name in taken}
        return given_inputs(program or self.artifact.program, {**drawn, **plain})


def refuse_carried(artifact: Artifact) -> None:
    """Raise a ProgramError if the program needs values carried from a previous run, which are not kept here."""
    if artifact.program.interface.carried:
        names = ", ".join(map(repr, artifact.program.interface.carried_inputs))
        raise ProgramError(
            f"{artifact.name} takes {names} from the run before",
            where="Server.run",
            hint="run it in a hg.Session, which keeps them, or call Server.step",
        )


def given_inputs(program: Program, plain: Mapping[str, Any]) -> dict[Node, Array]:
    """The given plain inputs, by node, checked, with a leading axis of one sample; nothing is drawn."""
    nodes = [node for node in program.inputs if not node.type.secret]
    names = [node.attrs["name"] for node in nodes]
    needed = {node.attrs["name"] for node in nodes if "drawn" not in node.attrs}
    if not needed <= set(plain) <= set(names):
        raise ProgramError(
            f"the program's plain inputs are {', '.join(map(repr, names)) or 'none'}",
            where="Server.run",
            why=f"given were {', '.join(map(repr, plain)) or 'none'}",
            hint="pass them by name: server.run(encrypted, plain={'name': array})",
        )
    given = {node: plain[node.attrs["name"]] for node in nodes if node.attrs["name"] in plain}
    return {node: plain_input(node, value)[np.newaxis] for node, value in given.items()}


def require_server(artifact: Artifact, *, folder: bool = False, cache_bytes: int = PLAINTEXT_CACHE_BYTES) -> None:
    """Raise a TooLittleMemoryError if a server of the artifact would not fit in memory beside this process.

    For a process that generates the keys and serves too, to call before key generation, which takes minutes; `Server`
    checks again. With `folder` the keys come in a folder, and the server may hold as few at once as the program needs.
    Without it the bytes of all keys are in this process too. `cache_bytes` is as for `Server`.
    """
    planned = memory_bytes(artifact.program, artifact.ring, cache_bytes)
    if folder:
        held = _held_bytes(planned, _key_bound(artifact, planned, None, available_bytes()))
    else:
        held = planned["evaluation_keys"] + planned["sent_keys"]
    require_memory(planned["working"] + held + planned["loading"], f"the server of {artifact.name!r}", _hint(folder))


def _given_names(artifact: Artifact) -> list[str]:
    """The names of the ciphertexts that a client sends."""
    from_before = artifact.program.interface.carried_inputs
    secret = [node for node in artifact.program.inputs if node.type.secret]
    return [_object_name(node) for node in secret if node.attrs["name"] not in from_before]


def _object_name(node: Node) -> str:
    """The name of an input ciphertext in a message."""
    return object_name(node.attrs["name"], node.attrs["chunk"])


def _held_bytes(planned: Mapping[str, int], bound: int | None) -> int:
    """The bytes of keys that a server has in memory at once."""
    return planned["evaluation_keys"] if bound is None else bound


def _key_bound(artifact: Artifact, planned: Mapping[str, int], key_bytes: int | None, left: int | None) -> int | None:
    """The bound on a folder's keys in memory if `left` bytes are available; None if all of them stay."""
    total = planned["evaluation_keys"]
    if key_bytes is None:
        key_bytes = artifact.program.planned.resident_key_bytes
    if key_bytes is None and left is not None and planned["working"] + total + planned["loading"] > left:
        key_bytes = max(left - planned["working"] - planned["loading"], key_use(artifact.program).least_bytes)
    if key_bytes is None or key_bytes >= total:
        return None
    least = key_use(artifact.program).least_bytes
    if key_bytes < least:
        raise ProgramError(
            said(f"the program needs {least} bytes of its keys at once, {{key_bytes}} allows {key_bytes}"),
            where="Server(key_bytes=...)",
            why="keys that are not of rotations stay in memory, and all keys of one operation are needed at the same time",
            hint=said("allow more, or compile with a lower {Options.memory_bytes} or {key_bytes}"),
        )
    return key_bytes


def _hint(folder: bool) -> str:
    """The hint for a server that lacks memory."""
    compiled = "compile with {Options(memory_bytes=...)|--memory-bytes} or a lower {key_bytes}, use a larger machine"
    if folder:
        return compiled
    return (
        "keep the keys in a folder (Client.write_evaluation_keys, `heliograph keygen --keys keys/`): a server then holds no "
        f"more of them than there is room for; {compiled}"
    )
