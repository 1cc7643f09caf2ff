"""`heliograph evaluate`: the server's side, over files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from heliograph.array_files import one_per_name, read_arrays
from heliograph.cli.output import (
    emit,
    force_option,
    insecure_option,
    output_options,
    progress_bar,
    refuse_overwriting,
)


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
    no_memory_check: bool,
    force: bool,
    insecure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate ARTIFACT on encrypted inputs. No secret key is needed or accepted.

    With several inputs, outputs are written to a folder as they finish, each under its input's name. Run the same command
    again after an interruption: outputs that are complete are kept, and those whose input has changed are made again.
    (Beside each output, .NAME.made holds a digest of what it was made from; clients do not need it.)
    """
    from heliograph.artifact.artifact import Artifact
    from heliograph.runtime.batch import evaluate_files
    from heliograph.runtime.keyfolder import load_keys
    from heliograph.runtime.messages import EncryptedInput
    from heliograph.runtime.server import Server

    if len(data) == 1:
        refuse_overwriting(output or "output.ct", force=force)
    done: list[dict[str, Any]] = []
    with progress_bar(quiet) as progress:
        progress("loading", 0, 0)
        loaded = Artifact.load(artifact)
        first = EncryptedInput.load(data[0]) if len(data) == 1 else None
        names = loaded.plain_inputs
        own = {} if plain is None else dict(zip(names, one_per_name(read_arrays(plain), names, plain), strict=True))
        with Server(
            loaded,
            load_keys(keys),
            backend=backend,
            key_bytes=key_bytes,
            check_memory=not no_memory_check,
            allow_insecure=insecure,
        ) as server:
            if first is not None:
                output = output or "output.ct"
                server.run(first, progress, own).save(output)
            else:
                output = output or "outputs"
                evaluate_files(
                    server,
                    data,
                    output,
                    plain=own,
                    progress=progress,
                    finished=lambda path, seconds: done.append({"encrypted": str(path), "seconds": seconds}),
                )
            trace, used = server.trace, server.backend
    values = {
        "encrypted": output,
        "bytes": sum(Path(path).stat().st_size for path in ([entry["encrypted"] for entry in done] or [output])),
        "backend": used,
        "seconds": trace.seconds,
        "seconds_by_layer": dict(trace.by_layer),
        "predicted_ms": loaded.report.figures.predicted.evaluate_ms,
    }
    if first is not None:
        text = f"{output}: evaluated in {trace.seconds:.3f} s"
    else:
        values["outputs"] = done
        kept = sum(entry["seconds"] is None for entry in done)
        text = f"{output}: {len(done) - kept} of {len(done)} evaluated" + (
            f", {kept} were there already" if kept else ""
        )
    emit(text, values, as_json=as_json, quiet=quiet)
