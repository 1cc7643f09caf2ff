"""`heliograph evaluate`: the server's side, over files."""

from __future__ import annotations

from pathlib import Path

import click

from heliograph.cli.arrays import one_per_name, read_arrays
from heliograph.cli.output import emit, output_options, progress_bar


@click.command("evaluate")
@click.argument("artifact")
@click.argument("data", metavar="INPUT.ct")
@click.option("--keys", default="eval.keys", show_default=True, help="The client's evaluation keys.")
@click.option("--plain", default=None, help="The program's plain inputs: .npy, or .npz with one array per input.")
@click.option("-o", "--output", default="output.ct", show_default=True, help="The encrypted outputs' file.")
@click.option("--no-memory-check", is_flag=True, help="Go on even where memory seems too little.")
@output_options
def evaluate_command(
    artifact: str,
    data: str,
    keys: str,
    plain: str | None,
    output: str,
    no_memory_check: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate ARTIFACT on encrypted inputs. No secret key is needed or accepted."""
    from heliograph.compiler.artifact import Artifact
    from heliograph.runtime.keyfolder import load_keys
    from heliograph.runtime.messages import EncryptedInput
    from heliograph.runtime.server import Server

    with progress_bar(quiet) as progress:
        progress("loading", 0, 0)
        loaded = Artifact.load(artifact)
        encrypted = EncryptedInput.load(data)
        names = loaded.plain_inputs
        own = {} if plain is None else dict(zip(names, one_per_name(read_arrays(plain), names, plain), strict=True))
        with Server(loaded, load_keys(keys), check_memory=not no_memory_check) as server:
            result = server.run(encrypted, progress, own)
            trace = server.trace
        result.save(output)
    values = {
        "encrypted": output,
        "bytes": Path(output).stat().st_size,
        "seconds": trace.seconds,
        "seconds_by_layer": dict(trace.by_layer),
        "predicted_ms": loaded.report.values["predicted_ms"],
    }
    emit(f"{output}: evaluated in {trace.seconds:.3f} s", values, as_json=as_json, quiet=quiet)
