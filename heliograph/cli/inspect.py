"""`heliograph inspect`: the bill, the program at any stage, and where the levels go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from heliograph.cli.output import emit, output_options, remark
from heliograph.errors import ProgramError

if TYPE_CHECKING:
    from heliograph.artifact.artifact import Artifact

_STAGES = ("tensor", "polynomial", "packed", "managed", "executable")


@click.command("inspect")
@click.argument("artifact", required=False)
@click.option(
    "--ops", is_flag=True, help="List the operations of PyTorch that are taken; no ARTIFACT then (needs torch)."
)
@click.option("--stage", type=click.Choice(_STAGES), default=None, help="Print the program at this stage.")
@click.option("--depth", is_flag=True, help="Print depth, level, scale and line of every node, and the critical path.")
@click.option("--layers", is_flag=True, help="Print rotations, key switches, products and bootstraps of each layer.")
@click.option(
    "--degrees", is_flag=True, help="Print degree, error, levels and time by layer, and how degrees were chosen."
)
@click.option("--html", default=None, metavar="FILE", help="Write the whole report as one page that needs no network.")
@click.option("--png", default=None, metavar="DIR", help="Write plots for papers into this folder (needs matplotlib).")
@click.option("--dot", default=None, metavar="FILE", help="Write the graph for graphviz.")
@output_options
def inspect_command(
    artifact: str | None,
    ops: bool,
    stage: str | None,
    depth: bool,
    layers: bool,
    degrees: bool,
    html: str | None,
    png: str | None,
    dot: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print what ARTIFACT costs and how wrong it can be; with --ops, which operations of PyTorch are taken."""
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

    if file_kind(artifact) == "public artifact":
        if stage or depth or layers or degrees or html or png or dot:
            raise ProgramError(f"{artifact} is the public part of an artifact; it holds no program")
        public = PublicArtifact.load(artifact)
        emit(_public_text(public), _public_values(public), as_json=as_json, quiet=quiet)
        return
    loaded = Artifact.load(artifact)
    values: dict[str, Any] = inspection(loaded)
    _write_drawings(loaded, html, png, dot, quiet)
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
    emit("\n".join(texts) or str(loaded.report), values, as_json=as_json, quiet=quiet)


def _emit_operations(as_json: bool, quiet: bool) -> None:
    from dataclasses import asdict

    from heliograph.frontends.coverage import coverage

    found = coverage()
    emit(str(found), asdict(found), as_json=as_json, quiet=quiet)


def _write_drawings(loaded: Artifact, html: str | None, png: str | None, dot: str | None, quiet: bool) -> None:
    from heliograph.report.plots import dot_text, save_plots, write_text

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


def _public_text(public: Any) -> str:
    values = _public_values(public)
    security = "INSECURE: for tests only" if public.ring.security_bits is None else f"{public.ring.security_bits} bits"
    tensors = [f"{kind} {spec['name']} {spec['shape']}" for kind in ("inputs", "outputs") for spec in values[kind]]
    return "\n".join(
        [
            f"{public.name}: the public part of artifact {public.fingerprint}",
            f"  security  {security}, log PQ {public.ring.log_pq:.1f}",
            f"  ring      N = {public.ring.ring_dim}, {public.ring.levels} levels",
            f"  keys      {values['rotation_keys']} rotations",
            *(f"  {tensor}" for tensor in tensors),
        ]
    )
