"""A private model: one object from the trained model to predictions on encrypted data."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.public import PublicArtifact
from heliograph.compiler.arguments import is_estimator, program_of
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import linear_passes
from heliograph.errors import HeliographError, ProgramError, SecurityError, said
from heliograph.execution.interface import (
    check_spec_range,
    clipped,
    given_as,
    one_row,
    plain_values,
    sample_count,
    shape_hint,
)
from heliograph.execution.loop import Progress
from heliograph.files import write_file
from heliograph.functions import known
from heliograph.interpret import interpret_many
from heliograph.ir import Program, Stage, shape_of
from heliograph.ir.interface import TensorSpec
from heliograph.ir.labels import with_labels
from heliograph.ir.node import Array
from heliograph.private.places import FIRST_S, PUBLIC, Here, Place, There
from heliograph.private.readings import classes_of, decisions, predicted, probabilities, score_of
from heliograph.report.text import Report, bytes_text
from heliograph.serving.remote.server import RemoteServer
from heliograph.tools.progress import progress_bar
from heliograph.tools.run import evaluated
from heliograph.tools.simulate import simulate

Mode = Literal["encrypted", "simulate", "clear"]
_MODES = ("encrypted", "simulate", "clear")
# The margin of affine models.
_AFFINE_MARGIN = 0.25
_SERVER, _CLIENT = "server/model.helio", f"client/{PUBLIC}"
_PAGE = """# {name}: a server and its clients

* `{server}` is the program with its weights: it belongs on the server.
* `{client}` is what clients need: {inputs}. It holds no weights and no keys.
  Its fingerprint is `{fingerprint}`.

On the server:

    heliograph token alice --data data
    heliograph serve {server} --data data

On the client, with the folder `client` and the token that the first command printed:

    import heliograph as hg

    with hg.load_client("client").connect("http://127.0.0.1:8100", token) as model:
        print(model.predict(x))

The first call makes a secret key, `client/client.key`, which never leaves the client, and sends {keys} of evaluation
keys. Servers on other machines need TLS (`heliograph serve --help`).
"""


class Private:
    """A model that predicts on encrypted data, in the conventions of scikit-learn.

        private = hg.Private(model, calibration=x)
        print(private.report)                              # ten lines: the costs and the accuracy
        private.score(x_test, y_test, mode="simulate")     # nothing is encrypted
        private.predict(x_test[:3])                        # encrypted, client and server in this process
        private.save("deploy")                             # what a server and what its clients need

    model: a fitted estimator of scikit-learn, XGBoost or LightGBM, or the file of the latter two; a PyTorch module in
        evaluation mode; a program; or an artifact, which is compiled already.
    calibration, input_range, example_input: as for `hg.trace` and `hg.from_sklearn`.
    margin: widens the range of the samples at each end by this share of it, for inputs a little outside; in place of
        `input_range`, for one input of numbers. By default a quarter for affine models, where it costs nothing, and else
        0.
    classes: the labels of a network's classes, or their number. Those of an estimator are known.
    unit: what a network's output is, such as "EUR": it travels with the public part.
    allow_insecure: for tests without secrets: take an artifact without 128 bits of security.
    progress: a function `(stage, done, total)`; by default a bar on stderr, on a terminal. False shows nothing.
    options: the fields of `hg.Options`, by name.

    Samples are given as to the model: one without an axis in front, or many with one; data frames and their rows where
    the model was fitted to these. `mode` says how they are computed: "encrypted"; "simulate", with the levels, scales and
    errors of encryption but without keys; "clear", by the original model's exact functions. With `clip`, values outside
    the declared range become the nearer end instead of an error.

    Keys are made when first needed and kept until `close`; use it as a context manager. Loggers are named heliograph.*.

    Raises the errors of `hg.trace`, `hg.from_sklearn` and `hg.compile`.
    """

    def __init__(
        self,
        model: Any,
        *,
        calibration: Any = None,
        input_range: Any = None,
        example_input: Any = None,
        margin: float | None = None,
        classes: Iterable[Any] | int | None = None,
        unit: str | None = None,
        allow_insecure: bool = False,
        progress: Progress | bool | None = None,
        **options: Any,
    ) -> None:
        self._insecure, self._progress = allow_insecure, progress
        self._place: Place | None = None
        self._folder: Path | None = None
        self._connected = False
        self.program: Program | None = None
        self.artifact: Artifact | None
        if isinstance(model, Artifact):
            given = {"calibration": calibration, "input_range": input_range, "example_input": example_input}
            given |= {"margin": margin or None, "classes": classes, "unit": unit, **options}
            useless = [name for name, value in given.items() if value is not None]
            if useless:
                raise ProgramError(f"{useless[0]} cannot be used here", why="the artifact is compiled already")
            self.artifact = model
        else:
            _check_names(options)
            with self._watched() as update:
                update("reading the model", 0, 0)
                wide = input_range if not margin else _widened(calibration, input_range, margin)
                program = program_of(model, "Private", example_input, calibration, wide)
                if margin is None and input_range is None and not isinstance(model, Program) and _affine(program):
                    with contextlib.suppress(ProgramError):
                        wide = _widened(calibration, None, _AFFINE_MARGIN)
                        program = program_of(model, "Private", example_input, calibration, wide)
                self.program = _described(program, classes, unit)
                _require_labels(model, self.program)
                self.artifact = compile(self.program, Options(**options), progress=update)
        self._public = self.artifact.public()
        if self.artifact.plain_inputs:
            raise ProgramError(
                f"{self.name} has the input {self.artifact.plain_inputs[0]!r}, which the server supplies in the clear",
                hint="use hg.Client and hg.Server",
            )

    @staticmethod
    def _of(public: PublicArtifact, folder: Path, *, allow_insecure: bool, progress: Progress | bool | None) -> Private:
        """The client's side, without the program."""
        made = Private.__new__(Private)
        made._insecure, made._progress = allow_insecure, progress
        made._place, made._folder, made._connected = None, folder, False
        made._public, made.program, made.artifact = public, None, None
        return made

    def __repr__(self) -> str:
        where = "client's side" if self.artifact is None else repr(self.artifact.report).partition(": ")[2].rstrip(">")
        return f"<Private {self.name!r}, {self.public.fingerprint[:12]}: {where}>"

    def _repr_html_(self) -> str:
        return self.public._repr_html_() if self.artifact is None else self.artifact._repr_html_()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise SecurityError("a private model may hold a secret key and is not pickled or copied", hint="use save")

    def __enter__(self) -> Private:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop keys and connections. What was not connected makes new keys for the next encrypted prediction."""
        if self._place is not None:
            self._place.close()
        self._place = None

    @property
    def public(self) -> PublicArtifact:
        """What clients need."""
        return self._public

    @property
    def name(self) -> str:
        return self.public.name

    @property
    def report(self) -> Report:
        """The bill: ten lines as a text, all of it by `.full()`."""
        return self._compiled("the report").report

    @property
    def classes_(self) -> Array:
        """The class labels, in the order of the scores; an AttributeError if there are none."""
        try:
            return classes_of(self._output)
        except ProgramError as error:
            raise AttributeError(str(error)) from None

    def __call__(self, *inputs: Any, mode: Mode = "encrypted", clip: bool = False) -> Any:
        """The output of the model, as the client decrypts it: one array, or a tuple for several outputs.

        It has an axis of samples in front if the inputs have one.
        """
        return self._values(inputs, mode, clip, False)

    def predict(self, *inputs: Any, mode: Mode = "encrypted", clip: bool = False) -> Any:
        """The class label of each sample; for models that do not classify, the values (of detectors of outliers 1 or
        -1). A single sample has a single answer.
        """
        return self._read(predicted, inputs, mode, clip)

    def predict_proba(self, *inputs: Any, mode: Mode = "encrypted", clip: bool = False) -> Any:
        """The probability of each class: (samples, classes), or (classes,) for a single sample."""
        return self._read(probabilities, inputs, mode, clip)

    def decision_function(self, *inputs: Any, mode: Mode = "encrypted", clip: bool = False) -> Any:
        """The score of each class, (samples, classes); of two classes the second's less the first's, (samples,)."""
        return self._read(decisions, inputs, mode, clip, scores=True)

    def score(self, *inputs: Any, mode: Mode = "simulate", clip: bool = False) -> float:
        """The accuracy on samples and their true classes; for amounts the coefficient of determination.

        `inputs` are the model's inputs, with an axis of samples, and last what it should answer.
        """
        *samples, wanted = inputs
        found = np.asarray(self.predict(*samples, mode=mode, clip=clip))
        return score_of(self._output, np.atleast_1d(found), np.atleast_1d(np.asarray(plain_values(wanted))))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder with what a server needs, what its clients need, and a page of the commands to start them."""
        artifact, root = self._compiled("save"), Path(folder)
        paths = {name: root / name for name in (_SERVER, _CLIENT, "README.md")}
        for path in paths.values():
            if path.exists() and not overwrite:
                raise ProgramError(f"{path} already exists", hint=said("choose another folder, or {overwrite=True}"))
            path.parent.mkdir(parents=True, exist_ok=True)
        artifact.save(paths[_SERVER])
        self.public.save(paths[_CLIENT])
        inputs = ", ".join(f"{spec.name!r} of shape {spec.shape}" for spec in self.public.given)
        size = bytes_text(self.public.predicted_bytes["sent_key_bytes"])
        page = _PAGE.format(
            name=self.name, server=_SERVER, client=_CLIENT, fingerprint=self.public.fingerprint, keys=size,
            inputs=f"it encrypts {inputs}",
        )  # fmt: skip
        write_file(paths["README.md"], page.encode())

    def connect(self, url: str, token: str, *, passphrase: str | None = None, **options: Any) -> Private:
        """The same model, which predicts on a server at this address.

        The server must serve this artifact. Its evaluation keys are sent if they are not there yet. For a model of
        `load_client`, keys are kept in its folder, the secret one under `passphrase` if there is one; otherwise they
        last until `close`. `options` are those of `hg.RemoteServer`; without `patience_s`, an address where nothing has
        answered yet is tried for 10 seconds.

        Raises ProgramError if the server does not serve this artifact, and the errors of `hg.RemoteServer`.
        """
        made = Private.__new__(Private)
        made.__dict__.update(self.__dict__)
        made._place, made._connected = None, True
        with self._watched() as update:
            remote = RemoteServer(url, token, allow_insecure=self._insecure, **options)
            made._place = There(
                self.public,
                remote,
                update,
                folder=self._folder,
                passphrase=passphrase,
                allow_insecure=self._insecure,
                first_s=options.get("patience_s", FIRST_S),
            )
        return made

    def _compiled(self, what: str) -> Artifact:
        if self.artifact is None:
            raise ProgramError(
                f"{what} needs the compiled program, and this is the client's side of {self.name!r}",
                hint='ask the server with mode="encrypted"; whoever compiled the model has its report and the simulator',
            )
        return self.artifact

    @property
    def _output(self) -> TensorSpec:
        outputs = self.public.outputs
        if len(outputs) != 1:
            raise ProgramError(
                f"{self.name} has {len(outputs)} outputs: {', '.join(repr(spec.name) for spec in outputs)}",
                hint="call the model itself: private(x) gives a tuple",
            )
        return outputs[0]

    def _read(
        self,
        reading: Callable[[TensorSpec, Array], Array],
        inputs: tuple[Any, ...],
        mode: Mode,
        clip: bool,
        scores: bool = False,
    ) -> Any:
        spec = self._output
        # What cannot be read is refused before the expensive work.
        reading(spec, np.zeros((1, *spec.shape)))
        values = np.asarray(self._values(inputs, mode, clip, scores))
        if values.ndim > len(spec.shape):
            return reading(spec, values)
        return reading(spec, values[np.newaxis])[0]

    def _values(self, inputs: tuple[Any, ...], mode: Mode, clip: bool, scores: bool) -> Any:
        if mode not in _MODES:
            raise ProgramError(f"mode is {mode!r}", hint=f"one of {', '.join(map(repr, _MODES))}")
        if len(inputs) != len(self.public.given):
            raise ProgramError(f"{self.name} takes {len(self.public.given)} inputs, not {len(inputs)}")
        if mode == "clear":
            return self._clear(inputs, clip, scores)
        with self._watched() as update:
            if mode == "simulate":
                artifact = self._compiled("the simulator")
                return simulate(artifact, *inputs, clip=clip, scores=scores, progress=update)
            return self._encrypted(inputs, clip, scores, update)

    def _encrypted(self, inputs: tuple[Any, ...], clip: bool, scores: bool, update: Progress) -> Any:
        if self._place is None:
            if self._connected or self.artifact is None:
                raise ProgramError(
                    f"the connection of {self.name!r} is closed" if self._connected else f"{self.name!r} has no server",
                    hint="with private.connect(url, token) as model: model.predict(x)",
                )
            self._place = Here(self.artifact, update, allow_insecure=self._insecure)
        place = self._place
        return evaluated(place.client, place.run, inputs, clip=clip, scores=scores, progress=update)

    def _clear(self, inputs: tuple[Any, ...], clip: bool, scores: bool) -> Any:
        program = self.program
        if program is None or program.stage is not Stage.TENSOR:
            raise ProgramError(
                "the original model is not here",
                why="an artifact has only what runs encrypted",
                hint='mode="encrypted"' if self.artifact is None else 'mode="simulate"',
            )
        known = {spec.name: spec for spec in program.interface.inputs}
        specs = [
            replace(
                known.get(a["name"], TensorSpec(a["name"], shape_of(node))),
                low=a.get("low"), high=a.get("high"), classes=a.get("classes"),
            )
            for node, a in ((node, node.attrs) for node in program.inputs)
        ]  # fmt: skip
        count, arrays = sample_count(specs, inputs), []
        for spec, value in zip(specs, inputs, strict=True):
            given = np.asarray(plain_values(given_as(spec, one_row(value) if count == 0 else value)), dtype=np.float64)
            if given.shape[1:] != spec.shape:
                raise ProgramError(
                    f"input {spec.name!r} has samples of shape {given.shape[1:]}, expected {spec.shape}",
                    hint=shape_hint(given.shape[1:], spec.shape),
                )
            given = clipped(spec, given) if clip else given
            check_spec_range(spec, given)
            arrays.append(given)
        outputs = [
            spec.finished(out, scores=scores)
            for spec, out in zip(self.public.outputs, interpret_many(program, arrays), strict=True)
        ]
        outputs = [out[0] for out in outputs] if count == 0 else outputs
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Progress]:
        """The function that is told of progress."""
        if callable(self._progress):
            yield self._progress
            return
        with progress_bar(quiet=self._progress is False) as update:
            yield update


def load_client(
    folder: str | Path,
    *,
    fingerprint: str | None = None,
    allow_insecure: bool = False,
    progress: Progress | bool | None = None,
) -> Private:
    """The client's side of a model, from the folder `client` that `Private.save` wrote; connect it to a server.

    The folder also keeps the client's keys, once it has been connected. With `fingerprint`, told by somebody you trust,
    any other artifact is refused (SecurityError). Raises WireError if the public part is missing or damaged.
    """
    root = Path(folder)
    public = PublicArtifact.load(root / PUBLIC)
    if fingerprint is not None and public.fingerprint != fingerprint:
        raise SecurityError(
            f"{root / PUBLIC} is another artifact than the one expected",
            why=f"its fingerprint is {public.fingerprint}",
            hint="take it from somebody you trust, or compare the fingerprint again",
        )
    return Private._of(public, root, allow_insecure=allow_insecure, progress=progress)


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse a misspelt argument of `Private` by its own name; misspelt options are refused by `Options`."""
    own = [name for name in inspect.signature(Private.__init__).parameters if name not in ("self", "options")]
    known = [entry.name for entry in fields(Options)]
    for name in options:
        if name in ("binned", "outputs"):
            raise ProgramError(
                f"Private takes no argument {name!r}",
                why="it belongs to the reading of a model",
                hint=f"read the model first: hg.Private(hg.from_sklearn(model, samples, {name}=...)), or from_trees",
            )
        near = () if name in known else difflib.get_close_matches(name, [*own, *known], n=1)
        if near and near[0] in own:
            raise ProgramError(f"Private takes no argument {name!r}", hint=f"perhaps {near[0]!r} was meant")


def _described(program: Program, classes: Iterable[Any] | int | None, unit: str | None) -> Program:
    """The program with the labels and the unit of its only output."""
    if classes is None and unit is None:
        if not any(spec.finish for spec in program.interface.outputs if spec.labels is None and len(spec.shape) == 1):
            return program
        # What ends in a softmax classifies: its classes are numbers, unless they have names.
        specs = [
            with_labels(spec, range(spec.shape[-1]))
            if spec.finish and spec.labels is None and len(spec.shape) == 1
            else spec
            for spec in program.interface.outputs
        ]
        return replace(program, interface=replace(program.interface, outputs=tuple(specs)))
    if len(program.outputs) != 1:
        raise ProgramError(f"{program.name} has {len(program.outputs)} outputs, and classes or a unit are for one")
    name = program.output_names[0]
    known: Mapping[str, TensorSpec] = {spec.name: spec for spec in program.interface.outputs}
    spec = known.get(name, TensorSpec(name, shape_of(program.outputs[0])))
    if classes is not None:
        spec = with_labels(spec, range(classes) if isinstance(classes, int) else classes)
    if unit is not None:
        spec = replace(spec, unit=unit)
    return replace(program, interface=replace(program.interface, outputs=(spec,)))


def _require_labels(model: Any, program: Program) -> None:
    """Raise a ProgramError if an estimator's labels are lost: its predictions would be places among them."""
    if (
        is_estimator(model)
        and hasattr(model, "classes_")
        and not any(spec.labels for spec in program.interface.outputs)
    ):
        raise ProgramError(
            "the class labels of the estimator cannot be written",
            why="labels are short texts, whole numbers, floats or booleans of one type",
            hint="fit it to such labels",
        )


def _affine(program: Program) -> bool:
    """Whether a program of one input of numbers is a linear map with a bias: its range then plans nothing."""
    if program.stage is not Stage.TENSOR or len(program.inputs) != 1 or not program.calibration:
        return False
    if any(spec.encoding or spec.classes for spec in program.interface.inputs):
        return False
    if any(known(node.op) is not None for node in program.nodes):
        return False
    return all(node.op in ("input", "affine") for node in linear_passes(program)[-1].program.nodes)


def _widened(calibration: Any, input_range: Any, margin: float) -> tuple[float, float]:
    """The range of the calibration samples, wider at each end by a share of it."""
    if input_range is not None:
        raise ProgramError("margin widens the range of the samples, and input_range gives another one")
    if not (isinstance(margin, (int, float)) and 0 <= margin <= 1e6):
        raise ProgramError(f"margin is {margin!r}, not a share of the range")
    try:
        samples = np.asarray(plain_values(calibration), dtype=np.float64)
    except (TypeError, ValueError, HeliographError):
        samples = np.empty(0)
    if not samples.size or not np.isfinite(samples).all():
        raise ProgramError(
            "margin widens the range of samples of one input, all of them numbers",
            hint="give input_range, or predict with clip=True: columns of a table have ranges of their own",
        )
    low, high = float(samples.min()), float(samples.max())
    return low - margin * (high - low), high + margin * (high - low)
