"""`heliograph evaluate`: the server's side, over files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.array_files import read_by_name
from heliograph.cli.output import (
    emit,
    force_option,
    insecure_option,
    output_options,
    plaintexts_option,
    refuse_overwriting,
)
from heliograph.errors import ProgramError
from heliograph.tools.progress import progress_bar

if TYPE_CHECKING:
    from heliograph.artifact.artifact import Artifact
    from heliograph.execution.loop import Progress, Trace


@click.command("evaluate")
@click.argument("artifact")
@click.argument("data", metavar="INPUT.ct...", nargs=-1, required=True)
@click.option(
    "--keys",
    default="eval.keys",
    show_default=True,
    metavar="FILE|DIR",
    help="The client's evaluation keys.",
)
@click.option(
    "--plain",
    default=None,
    metavar="FILE",
    help="Values of the unencrypted inputs: .npy, or .npz with one array per input.",
)
@click.option(
    "-o",
    "--output",
    default=None,
    metavar="FILE|DIR",
    help="Where to write the encrypted output (default: output.ct); for several inputs a folder (default: outputs).",
)
@click.option(
    "--key-bytes", type=int, default=None, help="Keep at most this many bytes of the keys in memory (keys in a folder)."
)
@click.option(
    "--backend",
    type=click.Choice(["native", "openfhe"]),
    default=None,
    help="Run on Heliograph's own kernels or on OpenFHE (default: native if numba is installed).",
)
@plaintexts_option
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default=None,
    help="Evaluate in separate processes, on this machine or on a Ray cluster (RAY_ADDRESS).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Number of inputs to evaluate at once (with --engine, which is local by default).",
)
@click.option("--no-memory-check", is_flag=True, help="Start even if memory seems too small.")
@force_option
@insecure_option
@output_options
def evaluate_command(
    artifact: str,
    data: tuple[str, ...],
    keys: str,
    plain: str | None,
    output: str | None,
    key_bytes: int | None,
    backend: str | None,
    plaintexts: str | None,
    engine: str | None,
    workers: int | None,
    no_memory_check: bool,
    force: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate ARTIFACT on encrypted inputs. No secret key is needed or accepted.

    With several inputs, outputs are written to a folder as they finish, each under its input's name. Run the same command
    again after an interruption: outputs that are complete are kept, and those whose input has changed are computed again.
    (Next to each output, .NAME.made holds a digest of what it was computed from; clients do not need it.)

    With --engine or --workers, worker processes evaluate the inputs; the input of one that dies goes to another. On the
    native backend they share one copy of the keys, a file mapped-*.keys that stays in the folder of the keys.
    """
    from heliograph.artifact.artifact import Artifact

    single = len(data) == 1
    if single:
        refuse_overwriting(output or "output.ct", force=force)
    output = output or ("output.ct" if single else "outputs")
    apart = engine is not None or workers is not None
    if apart and (key_bytes is not None or no_memory_check):
        raise ProgramError(
            "--key-bytes and --no-memory-check are for an evaluation in this process",
            why="workers divide the free memory, and keep as many keys as fit into their share",
            hint="leave them out, or --engine and --workers",
        )
    done: list[dict[str, Any]] = []

    def finished(path: Path, seconds: float | None) -> None:
        done.append({"encrypted": str(path), "seconds": seconds})

    with progress_bar(quiet) as progress:
        progress("loading", 0, 0)
        loaded = Artifact.load(artifact)
        if apart:
            from heliograph.runtime.server.backends import backend_name
            from heliograph.runtime.server.batch import output_files
            from heliograph.serving.work.spread import spread_files

            begun, engine, workers = time.monotonic(), engine or "local", workers or 1
            spread_files(
                artifact,
                keys,
                {Path(data[0]): Path(output)} if single else output_files(data, output),
                engine=engine,
                workers=workers,
                plain=plain,
                keep=not single,
                backend=backend,
                plaintexts=plaintexts,
                allow_insecure=insecure,
                progress=progress,
                finished=finished,
            )
            # Workers finish in a different order than the inputs are named.
            places = {Path(name).name: place for place, name in enumerate(data)}
            done.sort(key=lambda entry: places.get(Path(entry["encrypted"]).name, 0))
            used, seconds = backend_name(backend), time.monotonic() - begun
            more: dict[str, Any] = {"engine": engine, "workers": workers}
        else:
            trace, used = _in_this_process(
                loaded,
                keys,
                data,
                output,
                plain,
                progress,
                finished,
                backend=backend,
                key_bytes=key_bytes,
                check_memory=not no_memory_check,
                plaintexts=plaintexts,
                allow_insecure=insecure,
            )
            seconds, more = trace.seconds, {"seconds_by_layer": dict(trace.by_layer)}
    values = {
        "encrypted": output,
        "bytes": sum(Path(entry["encrypted"]).stat().st_size for entry in done),
        "backend": used,
        "seconds": seconds,
        **more,
        "predicted_ms": loaded.report.figures.predicted.evaluate_ms,
    }
    if single:
        text = f"{output}: evaluated in {seconds:.3f} s"
    else:
        values["outputs"] = done
        kept = sum(entry["seconds"] is None for entry in done)
        text = f"{output}: {len(done) - kept} of {len(done)} evaluated" + (
            f", {kept} were there already" if kept else ""
        )
    emit(text, values, as_json=as_json, quiet=quiet)


def _in_this_process(
    artifact: Artifact,
    keys: str,
    data: Sequence[str],
    output: str,
    plain: str | None,
    progress: Progress,
    finished: Callable[[Path, float | None], None],
    **options: Any,
) -> tuple[Trace, str]:
    """Evaluate one input into a file, or several into a folder; the trace of the last one, and the backend."""
    from heliograph.runtime.server.batch import evaluate_files
    from heliograph.runtime.server.server import Server
    from heliograph.runtime.wire.keyfolder import load_keys
    from heliograph.runtime.wire.messages import EncryptedInput

    first = EncryptedInput.load(data[0]) if len(data) == 1 else None
    own = {} if plain is None else read_by_name(plain, artifact.plain_inputs)
    with Server(artifact, load_keys(keys), **options) as server:
        if first is not None:
            server.run(first, progress, own).save(output)
            finished(Path(output), server.trace.seconds)
        else:
            evaluate_files(server, data, output, plain=own, progress=progress, finished=finished)
        return server.trace, server.backend
