"""A bill says what its program takes: what a file could lie about is computed anew, the rest is in the fingerprint."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runtime.support import mlp, toy_artifact

import heliograph as hg
from heliograph import rounding
from heliograph.artifact import artifact as artifact_module
from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.figures import OPTIONAL, STORED
from heliograph.artifact.public import VERSION as PUBLIC_VERSION
from heliograph.artifact.public import PublicArtifact
from heliograph.compiler.reporting.held_out import Unseen
from heliograph.errors import WireError
from heliograph.execution.interface import batch_of, input_shape, pack_inputs
from heliograph.execution.loop import execute
from heliograph.execution.memory import memory_bytes
from heliograph.execution.simulator import Simulator
from heliograph.records import to_json
from heliograph.report.depth import artifact_depth
from heliograph.report.diff import diff
from heliograph.report.figures import Allocation, Certified
from heliograph.report.html import html_report
from heliograph.report.inspection import inspection
from heliograph.report.plots import dot_text
from heliograph.tools.simulate import simulate

TOY = hg.Options(security_bits=None, degree=5)
DEEP = """program deep
input x: secret tensor[8] in [-1, 1]
a = relu(x * x)
b = relu(a * x)
c = relu(b * a)
output y = relu(c * b) + c
"""
WINDOWS = """program image
input x: secret tensor[1, 8, 8] in [0, 1]
input p: plain tensor[1, 8, 8] in [0, 1]
output y = relu(x * p)
"""
COMPILED: dict[str, Callable[[], Artifact]] = {
    "mlp": toy_artifact,
    "samples at once": lambda: hg.compile(mlp(), dataclasses.replace(TOY, batch=4)),
    "noise": lambda: hg.compile(mlp(), dataclasses.replace(TOY, flood=1e-6)),
    "few keys": lambda: hg.compile(mlp(), dataclasses.replace(TOY, key_bytes=800_000)),
    "keys read again": lambda: hg.compile(mlp(), dataclasses.replace(TOY, memory_bytes=_less_memory())),
    "plain inputs": lambda: hg.compile(hg.parse(WINDOWS), TOY),
    "bootstraps": lambda: hg.compile(
        hg.parse(DEEP), hg.Options(security_bits=None, log_ring=11, bootstrap=True, precision_bits=6, degree=3)
    ),
    "128 bits": lambda: hg.compile(mlp(), hg.Options(degree=3)),
}


def _less_memory() -> int:
    """So much that the keys of the network do not all stay."""
    return memory_bytes(toy_artifact().program, toy_artifact().ring)["server_folder"] - 500_000


@functools.cache
def compiled(name: str) -> Artifact:
    return COMPILED[name]()


def opened(artifact: Artifact) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields and blobs of an artifact's file, to be altered."""
    found = unpack(artifact.to_bytes(), "artifact", VERSION, 1 << 30)
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in found.blobs.items()}
    return copy.deepcopy(dict(found.fields)), blobs


def closed(fields: dict[str, Any], blobs: dict[str, Any]) -> bytes:
    return pack(Container("artifact", VERSION, fields, blobs))


# ------------------------------------------------------------------------------------------- what follows


@pytest.mark.parametrize("name", COMPILED)
def test_the_report_of_a_file_is_that_of_the_compiler(name: str) -> None:
    """All figures, to the last bit and in the same order, though the file holds few of them."""
    made = compiled(name)
    read = Artifact.from_bytes(made.to_bytes())
    assert read.report == made.report
    assert read.report.full() == made.report.full()
    assert list(read.report.values["predicted_ms_by_layer"]) == list(made.report.values["predicted_ms_by_layer"])
    assert set(opened(made)[0]["report"]) == STORED - OPTIONAL | {"output_points"} < set(made.report.values)
    assert read.fingerprint == made.fingerprint
    if name == "keys read again":
        assert made.report.values["key_loading"]["loads"] > 0


@pytest.mark.parametrize("name", COMPILED)
def test_the_counts_are_those_of_a_run(name: str) -> None:
    made = compiled(name)
    program = made.program
    samples = {}
    for node in program.inputs:
        shape = input_shape(program, node) if node.type.secret else node.attrs["shape"]
        batch = (batch_of(program),) if node.type.secret and batch_of(program) > 1 else ()
        samples[node.attrs["name"]] = np.full((*batch, *shape), 0.25)
    simulator = Simulator(program)
    _, trace = execute(program, simulator, simulator.encrypt_inputs(pack_inputs(program, list(samples.values()))))
    counted = {
        f"{p}@{level}" + ("" if parts == 2 else f"/{parts}"): n for (p, level, parts, _), n in trace.calls.items()
    }
    assert made.report.values["operations"] == {key: number for key, number in counted.items() if number}
    assert simulate(made, *samples.values()) is not None


@pytest.mark.parametrize("key", sorted(set(toy_artifact().report.values) - STORED))
def test_a_file_cannot_say_what_follows(key: str) -> None:
    fields, blobs = opened(toy_artifact())
    fields["report"][key] = compiled("128 bits").report.values[key]
    with pytest.raises(WireError, match=f"'{key}', which follows from its program"):
        Artifact.from_bytes(closed(fields, blobs))


def test_a_ring_without_security_is_not_called_secure() -> None:
    """The lie that a public artifact and its bill used to tell together."""
    fields, blobs = opened(toy_artifact())
    fields["report"].update(security_bits=128, insecure=False, ring_dim=16384, log_pq=430.0, max_log_pq=430)
    with pytest.raises(WireError, match="follows from its program"):
        Artifact.from_bytes(closed(fields, blobs))
    read = Artifact.from_bytes(toy_artifact().to_bytes())
    assert "INSECURE" in read.report.full()
    assert read.report.values["ring_dim"] == read.ring.ring_dim


# ------------------------------------------------------------------------------------------- what is told


def _changes() -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    for key in ("approximation_error", "scheme_error", "output_magnitude", "error_samples"):
        yield key, lambda f, key=key: f["report"].update({key: 0})  # type: ignore[misc]
    yield "given_error", lambda f: f["report"].update(given_error=0.5)
    yield "given_samples", lambda f: f["report"].update(given_samples=9)
    yield "comparison", lambda f: f["report"].update(comparison={"samples": 9, "difference": 1e-6, "ties": 1})
    yield "calibrated", lambda f: f["report"].update(calibrated=not f["report"]["calibrated"])
    yield "costs", lambda f: f["report"].update(costs="another machine")
    yield "cost_table", lambda f: f["report"]["cost_table"].update(ntt_ns=0.01)
    yield "options", lambda f: f["report"]["options"].update(margin=9.0)
    yield "unbounded_ms", lambda f: f["report"].update(unbounded_ms=1.0)
    yield "depth_by_line", lambda f: f["report"]["depth_by_line"].pop()
    yield "errors_apart", lambda f: f["report"].update(errors_apart=not f["report"]["errors_apart"])
    yield "class_agreement", lambda f: f["report"].update(class_agreement={"samples": 9, "agree": 8})
    yield "unseen", lambda f: f["report"].update(unseen=to_json(Unseen(8, 8, 0).figures()))
    yield "largest_output", lambda f: f["report"].update(largest_output=9.0)
    yield "savings", lambda f: f["report"]["savings"].clear()
    yield "output_points", lambda f: f["report"]["output_points"].pop()
    allocation = Allocation("plan", 0.005, 0.0, 256, (), ())
    yield "allocation", lambda f: f["report"].update(allocation=to_json(allocation))
    certified = Certified(
        "l2", 0.3, 8, 4, 8, 0.7, 0.01, 0.1, "normal", 0.5, 9.0, 0.1, 0.05, 0.01, 0.1, 0.1, 0.3, 0.9, 50
    )
    yield "certificate", lambda f: f["report"].update(certificate=to_json(certified))


def test_what_is_stored_is_in_the_fingerprint() -> None:
    fields, blobs = opened(toy_artifact())
    seen = {toy_artifact().fingerprint}
    tried = set()
    for name, change in _changes():
        altered = copy.deepcopy(fields)
        change(altered)
        assert altered != fields, name
        seen.add(Artifact.from_bytes(closed(altered, blobs)).fingerprint)
        tried.add(name)
    assert tried == STORED
    assert len(seen) == 1 + len(tried)


def test_the_texts_of_the_stages_are_in_the_fingerprint() -> None:
    fields, blobs = opened(toy_artifact())
    for name in [name for name in blobs if name.startswith("text/stage/")]:
        altered = {**blobs, name: blobs[name].replace(b"model.py", b"other.py")}
        assert Artifact.from_bytes(closed(fields, altered)).fingerprint == toy_artifact().fingerprint
        altered = {**blobs, name: blobs[name].replace(b'"fc1"', b'"fc9"')}
        assert altered[name] != blobs[name]
        assert Artifact.from_bytes(closed(fields, altered)).fingerprint != toy_artifact().fingerprint


def test_places_are_not_in_the_fingerprint_and_layers_are() -> None:
    fields, blobs = opened(toy_artifact())

    def moved(old: str, new: str) -> Artifact:
        texts = {n: b.decode().replace(old, new).encode() if n.startswith("text/") else b for n, b in blobs.items()}
        return Artifact.from_bytes(closed(json.loads(json.dumps(fields).replace(old, new)), texts))

    for old, new in (
        ("model.py", "/home/somebody/x.py"),
        ('"model.py", 5', '"model.py", 77'),
        ("model.py:5", "m.py:7"),
    ):
        assert moved(old, new).fingerprint == toy_artifact().fingerprint
        assert moved(old, new).to_bytes() != toy_artifact().to_bytes()
    assert moved('"act"', '"other"').fingerprint != toy_artifact().fingerprint


def test_a_client_that_was_told_the_fingerprint_notices_any_change_of_the_public_part() -> None:
    public = compiled("128 bits").public()
    fields = dict(unpack(public.to_bytes(), "public artifact", PUBLIC_VERSION, 1 << 30).fields)
    ring = toy_artifact().public()
    spec, out = fields["inputs"][0], fields["outputs"][0]
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"server_part": "0" * 64},
        {"inputs": [{**spec, "high": 2.0}]},
        {"outputs": [{**out, "high": 1e9}]},
        {"rotation_keys": fields["rotation_keys"][1:]},
        {"relinearization_key": not fields["relinearization_key"]},
        {"predicted": {**fields["predicted"], "scheme_error": 0.0}},
        {"predicted": {**fields["predicted"], "output_magnitude": 1e9}},
        {"predicted": {**fields["predicted"], "client_peak_bytes": 1}},
        {"predicted": {**fields["predicted"], "predicted_ms": 1.0}},
        {"ring": {**fields["ring"], "security_bits": None}},
    ]
    seen = {public.fingerprint}
    for change in changes:
        data = pack(Container("public artifact", PUBLIC_VERSION, {**fields, **change}))
        seen.add(PublicArtifact.from_bytes(data).fingerprint)
    assert len(seen) == 1 + len(changes)
    assert public.fingerprint == compiled("128 bits").fingerprint != ring.fingerprint
    again = PublicArtifact.from_bytes(public.to_bytes())
    assert (again.fingerprint, again) == (public.fingerprint, public)


@pytest.mark.parametrize("name", COMPILED)
def test_the_bytes_that_a_client_is_told_are_those_of_the_bill(name: str) -> None:
    values = compiled(name).report.values
    for key, size in compiled(name).public().predicted_bytes.items():
        assert size == values[key]


def test_the_fingerprint_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Artifact.from_bytes(toy_artifact().to_bytes())
    first = made.fingerprint

    def again(program: object) -> str:
        raise AssertionError("the text is printed again")

    monkeypatch.setattr(artifact_module, "print_program", again)
    assert made.fingerprint == first == made.public().fingerprint


# ------------------------------------------------------------------------------------------- control characters

EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b1;1H\u202e"


def _printed(artifact: Artifact) -> Iterator[str]:
    report = artifact.report
    yield report.full()
    yield from (*report.range_lines(), *report.depth_lines(), *report.work_lines(), *report.saving_texts())
    yield str(artifact_depth(artifact))
    yield str(diff(artifact, compiled("128 bits")))
    yield str(diff(compiled("128 bits"), artifact))
    yield html_report(artifact)
    yield dot_text(artifact)
    yield json.dumps(inspection(artifact))
    yield str(artifact.program)
    yield from artifact.stages.values()


def _poisoned(good: Artifact) -> Iterator[tuple[str, bytes]]:
    """The artifact with EVIL in one of its texts, for each of them."""
    fields, blobs = opened(good)
    text = json.dumps(fields)
    leaves = sorted(set(re.findall(r'"(?:[^"\\]|\\.)*"', text)))
    for leaf in leaves:
        altered = text.replace(leaf, json.dumps(json.loads(leaf) + EVIL))
        yield f"field {leaf}", closed(json.loads(altered), blobs)
    program = blobs["text/program"].decode()
    words = sorted({found for found in re.findall(r'"(?:[^"\\]|\\.)*"', program) if not found.strip('"').isdecimal()})
    for word in words:
        evil = json.dumps(json.loads(word) + EVIL)
        yield f"program {word}", closed(fields, {**blobs, "text/program": program.replace(word, evil).encode()})
        both = {
            name: blob.replace(word.encode(), evil.encode()) if name.startswith("text/") else blob
            for name, blob in blobs.items()
        }
        yield f"everywhere {word}", closed(json.loads(text.replace(word, evil)), both)
    for name in blobs:
        if name.startswith("text/stage/"):
            stage = blobs[name].decode()
            for evil in (stage + EVIL, stage.replace('"fc1"', f'"fc1{EVIL}"'), EVIL):
                yield name, closed(fields, {**blobs, name: evil.encode()})


def _clean(text: str) -> bool:
    return all(line.isprintable() for line in text.replace("\t", " ").split("\n"))


def test_no_text_of_a_file_obeys_a_terminal() -> None:
    refused = 0
    for what, data in _poisoned(toy_artifact()):
        try:
            texts = list(_printed(Artifact.from_bytes(data)))
        except WireError as error:
            texts = [str(error)]
            refused += 1
        assert all(map(_clean, texts)), what
    assert refused > 50


def test_public_names_do_not_obey_a_terminal() -> None:
    fields = dict(unpack(toy_artifact().public().to_bytes(), "public artifact", PUBLIC_VERSION, 1 << 30).fields)
    text = json.dumps(fields)
    for leaf in sorted(set(re.findall(r'"(?:[^"\\]|\\.)*"', text))):
        altered = json.loads(text.replace(leaf, json.dumps(json.loads(leaf) + EVIL)))
        with pytest.raises(WireError) as caught:
            PublicArtifact.from_bytes(pack(Container("public artifact", PUBLIC_VERSION, altered)))
        assert _clean(str(caught.value))


def test_layers_with_odd_names_compile_to_a_file_that_loads() -> None:
    """What a user's own files and layers are called is shown the same way, and does not make the artifact unreadable."""
    program = mlp()
    new: dict[Any, Any] = {}
    for node in program.nodes:
        loc = dataclasses.replace(node.loc, layer=node.loc.layer + EVIL, file="models/a\x1b\nb.py")
        new[node] = replace(node, inputs=tuple(new[operand] for operand in node.inputs), loc=loc)
    odd = dataclasses.replace(
        program, nodes=tuple(new.values()), inputs=(new[program.inputs[0]],), outputs=(new[program.outputs[0]],)
    )
    read = Artifact.from_bytes(hg.compile(odd, TOY).to_bytes())
    assert all(_clean(text) for text in _printed(read))
    assert "a??b.py" in read.report.full()


def test_measured_figures_have_no_digits_that_processors_disagree_on() -> None:
    report = opened(compiled("128 bits"))[0]["report"]
    figures = [report[key] for key in ("approximation_error", "scheme_error", "output_magnitude")]
    figures += [saving["approximation_error"] for saving in report["savings"]]
    assert all(figure == rounding.nearest(figure) for figure in figures)
