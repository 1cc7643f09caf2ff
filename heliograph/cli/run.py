"""`heliograph run`: client and server in one process, on one sample."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from heliograph.array_files import read_samples
from heliograph.cli.output import emit, insecure_option, output_options
from heliograph.tools.progress import progress_bar


@click.command("run")
@click.argument("artifact")
@click.option(
    "--input", "data", required=True, metavar="FILE", help="One sample: .npy, or .npz with one array per input."
)
@click.option(
    "--sample", type=int, default=None, help="Take this sample of the input, whose first axis counts samples."
)
@insecure_option
@output_options
def run_command(artifact: str, data: str, sample: int | None, insecure: bool, as_json: bool, quiet: bool) -> None:
    """Encrypt one sample, evaluate ARTIFACT on it, decrypt the answer, and compare it with the simulator.

    Client and server share this process: a way to try an artifact, not a way to deploy it.
    """
    import heliograph as hg
    from heliograph.runtime.noise import secure_draw
    from heliograph.tools.run import run_encrypted

    loaded = hg.Artifact.load(artifact)
    order = list(dict.fromkeys(node.attrs["name"] for node in loaded.program.inputs))
    names = [name for name in order if name not in loaded.drawn_inputs]
    given = dict(zip(names, read_samples(data, names, sample), strict=True))
    # Drawn here, so that the simulator sees the same noise.
    drawn = {name: secure_draw(*kind) for name, kind in loaded.drawn_inputs.items()}
    samples = [{**given, **drawn}[name] for name in order]
    plain = {**{name: given.pop(name) for name in loaded.plain_inputs}, **drawn}
    with progress_bar(quiet) as progress:
        done = run_encrypted(loaded, tuple(given.values()), plain, allow_insecure=insecure, progress=progress)
    result, seconds = done.result, done.seconds
    simulated = hg.simulate(loaded, *samples, noisy=False)
    results, expected = (value if isinstance(value, tuple) else (value,) for value in (result, simulated))
    error = max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(results, expected, strict=True))
    names = [spec.name for spec in loaded.public().outputs]
    values: dict[str, Any] = {
        "outputs": dict(zip(names, results, strict=True)),
        "max_abs_error_against_simulation": error,
        "predicted_scheme_error": loaded.report.figures.predicted.scheme_error,
        "security_bits": loaded.ring.security_bits,
        "seconds": dict(seconds),
        "predicted_ms": loaded.report.figures.predicted.evaluate_ms,
    }
    lines = [f"{name}: {value}" for name, value in zip(names, results, strict=True)]
    if loaded.ring.security_bits is None:
        lines.insert(0, "INSECURE: this artifact was compiled without security")
    lines.append(f"error against the simulation without noise: {error:.2g}")
    lines.append("  ".join(f"{name} {value:.3f} s" for name, value in seconds.items()))
    emit("\n".join(lines), values, as_json=as_json, quiet=quiet)
