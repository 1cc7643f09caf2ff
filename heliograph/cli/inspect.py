"""`heliograph inspect`: the bill, the program at any stage, and where the levels go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli.output import emit, force_option, full_option, output_options, refuse_overwriting, remark
from heliograph.cli.sections import SectionedCommand
from heliograph.errors import ProgramError
from heliograph.texts import number_of

if TYPE_CHECKING:
    from heliograph.artifact.artifact import Artifact
    from heliograph.ckks.chains import Chain

_STAGES = ("tensor", "polynomial", "packed", "managed", "executable")


@click.command(
    "inspect",
    cls=SectionedCommand,
    sections={
        "Print": ("full", "parameters", "stage", "depth", "layers", "degrees", "ops"),
        "Draw": ("html", "png", "dot", "force"),
    },
)
@click.argument("artifact", required=False)
@click.option(
    "--ops", is_flag=True, help="Instead of an artifact: list the PyTorch operations that are supported (needs torch)."
)
@click.option(
    "--stage", type=click.Choice(_STAGES), default=None, help="Print the program at this stage of compilation."
)
@click.option(
    "--depth", is_flag=True, help="Print depth, level, scale and source line of every node, and the critical path."
)
@click.option("--layers", is_flag=True, help="Print rotations, key switches, products and bootstraps by layer.")
@click.option(
    "--degrees",
    is_flag=True,
    help="Print degree, error, levels and time of each polynomial, and how the degrees were chosen.",
)
@click.option(
    "--parameters", is_flag=True, help="Print all primes, digits and special primes, and each key's level and bytes."
)
@click.option("--html", default=None, metavar="FILE", help="Write the whole report as one self-contained page.")
@click.option("--png", default=None, metavar="DIR", help="Write plots to this folder (needs matplotlib).")
@click.option("--dot", default=None, metavar="FILE", help="Write the graph for graphviz.")
@full_option
@force_option
@output_options
def inspect_command(
    artifact: str | None,
    ops: bool,
    stage: str | None,
    depth: bool,
    layers: bool,
    degrees: bool,
    parameters: bool,
    html: str | None,
    png: str | None,
    dot: str | None,
    full: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the bill of ARTIFACT: what it costs and how accurate it is, in ten lines or with --full in all.

    The options print other views of the artifact, or draw it instead. Of the public part of an
    artifact, only the parameters can be shown.
    """
    if ops:
        if artifact is not None:
            raise ProgramError("--ops lists operations of PyTorch, and takes no artifact", hint="leave one of them out")
        _emit_operations(as_json, quiet)
        return
    if artifact is None:
        raise ProgramError(
            "inspect needs an artifact", hint="heliograph inspect model.helio, or heliograph inspect --ops"
        )
    from heliograph.artifact.artifact import Artifact
    from heliograph.artifact.container import file_kind
    from heliograph.artifact.public import PublicArtifact
    from heliograph.report.depth import artifact_depth
    from heliograph.report.inspection import inspection
    from heliograph.report.parameters import ProgramParameters

    if file_kind(artifact) == "public artifact":
        if stage or depth or layers or degrees or html or png or dot:
            raise ProgramError(f"{artifact} is the public part of an artifact; it holds no program")
        public = PublicArtifact.load(artifact)
        shown, values = _public_text(public), _public_values(public)
        if parameters:
            found = ProgramParameters.of(public.chains, public.evaluation_keys)
            shown, values["parameters"] = str(found), found.to_dict()
        emit(shown, values, as_json=as_json, quiet=quiet)
        return
    loaded = Artifact.load(artifact)
    values = inspection(loaded)
    _write_drawings(loaded, html, png, dot, force, quiet)
    texts = []
    if stage is not None:
        text = str(loaded.program) if stage == "executable" else loaded.stages.get(stage)
        if text is None:
            raise ProgramError(
                f"{artifact} does not hold the {stage} stage", hint=f"it has {', '.join(loaded.stages)}, executable"
            )
        values["stage"], values["program"] = stage, text
        texts.append(text.rstrip("\n"))
    if depth:
        texts.append(str(artifact_depth(loaded)))
    if layers:
        texts.append("\n".join(loaded.report.work_lines()))
    if degrees:
        texts.append("\n".join(loaded.report.degree_lines()))
    if parameters:
        found = ProgramParameters.of(loaded.program.planned.chains, loaded.evaluation_keys)
        values["parameters"] = found.to_dict()
        texts.append(str(found))
    if (html or png or dot) and not texts and not full and not as_json:
        return
    emit(
        "\n".join(texts) or (loaded.report.full() if full else str(loaded.report)), values, as_json=as_json, quiet=quiet
    )


def _emit_operations(as_json: bool, quiet: bool) -> None:
    from dataclasses import asdict

    from heliograph.frontends.torch.coverage import coverage

    found = coverage()
    emit(str(found), asdict(found), as_json=as_json, quiet=quiet)


def _write_drawings(
    loaded: Artifact, html: str | None, png: str | None, dot: str | None, force: bool, quiet: bool
) -> None:
    from heliograph.report.plots import PLOTS, dot_text, save_plots, write_text

    drawn = () if png is None else (Path(png) / f"{name}.png" for name in PLOTS)
    refuse_overwriting(html, dot, *drawn, force=force)

    written = []
    if html is not None:
        from heliograph.report.html import html_report

        write_text(html, html_report(loaded))
        written.append(html)
    if png is not None:
        written += [str(path) for path in save_plots(loaded, png)]
    if dot is not None:
        write_text(dot, dot_text(loaded))
        written.append(dot)
    for path in written:
        remark(f"wrote {path}", quiet)


def _public_values(public: Any) -> dict[str, Any]:
    return {
        "name": public.name,
        "fingerprint": public.fingerprint,
        "security_bits": public.ring.security_bits,
        "ring_dim": public.ring.ring_dim,
        "log_pq": public.ring.log_pq,
        "levels": public.ring.levels,
        "inputs": [{"name": spec.name, "shape": list(spec.shape)} for spec in public.inputs],
        "outputs": [{"name": spec.name, "shape": list(spec.shape)} for spec in public.outputs],
        "rotation_keys": len(public.rotation_keys),
        "predicted": {**public.predicted, **public.predicted_bytes},
    }


def _keys_text(chains: Sequence[Chain]) -> str:
    """How many rotation keys there are, in each part of the chain that has some."""
    whole, *lower = (len(chain.rotation_keys) for chain in chains)
    parts = [f"{count} for levels up to {chain.ring.levels}" for count, chain in zip(lower, chains[1:], strict=True)]
    return ", ".join([number_of(whole, "rotation key"), *parts])


def _public_text(public: Any) -> str:
    values = _public_values(public)
    security = "INSECURE: for tests only" if public.ring.security_bits is None else f"{public.ring.security_bits} bits"
    rows = [
        ("security", f"{security}, log PQ {public.ring.log_pq:.1f}"),
        ("ring", f"N = {public.ring.ring_dim}, {public.ring.levels} levels"),
        ("keys", _keys_text(public.chains)),
    ]
    for kind in ("input", "output"):
        rows += [(kind, f"{spec['name']} {spec['shape']}") for spec in values[f"{kind}s"]]
    width = max(len(name) for name, _ in rows)
    title = f"{public.name}: the public part of artifact {public.fingerprint}"
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows)])
