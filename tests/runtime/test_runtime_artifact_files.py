"""Untrusted artifacts: altered fields, texts, constants and flipped bits give WireErrors and nothing else."""

from __future__ import annotations

import hashlib
import itertools
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.records import rewritten
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import VERSION as PUBLIC_VERSION
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import ProgramError, WireError
from heliograph.report.depth import artifact_depth, depth_report

_FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def good() -> Container:
    return unpack(toy_artifact().to_bytes(), "artifact", VERSION, 1 << 30)


def forged(good: Container, text: Callable[[str], str] | None = None, **changes: Any) -> bytes:
    """The artifact with its program's text and its fields altered, intact as a file."""
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    if text is not None:
        before = bytes(good.bytes("text/program")).decode()
        after = text(before)
        assert after != before, "the change did not apply"
        blobs["text/program"] = after.encode()
    blobs.update(changes.pop("blobs", {}))
    return pack(Container(good.kind, good.version, {**good.fields, **changes}, blobs))


def with_records(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """A change of the records of a program's text."""
    return lambda text: rewritten(text, change)


def replaced(pattern: str, by: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text, count=1)


def test_round_trip(good: Container) -> None:
    artifact = Artifact.from_bytes(forged(good))
    assert artifact.to_bytes() == toy_artifact().to_bytes()
    assert artifact.fingerprint == toy_artifact().fingerprint
    assert np.array_equal(
        hg.simulate(artifact, sample(), noisy=False), hg.simulate(toy_artifact(), sample(), noisy=False)
    )


def test_the_public_part_has_no_weights(good: Container) -> None:
    public = toy_artifact().public()
    data = public.to_bytes()
    assert PublicArtifact.from_bytes(data).to_bytes() == data
    assert len(data) < 2000
    for name, blob in good.blobs.items():
        if name.startswith("constant/"):
            assert isinstance(blob, np.ndarray)
            assert blob.dtype != np.float64 or blob.tobytes()[:16] not in data
    assert b"linear_transform" not in data


_RECORDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no ring": lambda m: m.update(chains=[]),
    "ring of text": lambda m: m["chains"][0].update(ring="x"),
    "huge ring": lambda m: m["chains"][0]["ring"].update(log_ring=60),
    "ring of a float": lambda m: m["chains"][0]["ring"].update(log_ring=10.0),
    "ring of true": lambda m: m["chains"][0]["ring"].update(levels=True),
    "many levels": lambda m: m["chains"][0]["ring"].update(levels=10**9),
    "no digits": lambda m: m["chains"][0]["ring"].update(digits=0),
    "false security": lambda m: m["chains"][0]["ring"].update(security_bits=128),
    "security of 64 bits": lambda m: m["chains"][0]["ring"].update(security_bits=64),
    "more in the ring": lambda m: m["chains"][0]["ring"].update(more=1),
    "no inputs": lambda m: m.update(inputs=[]),
    "inputs of text": lambda m: m.update(inputs="xy"),
    "input of text": lambda m: m.update(inputs=["x"]),
    "huge shape": lambda m: m["inputs"][0].update(shape=[1 << 60]),
    "huge product": lambda m: m["inputs"][0]["layout"].update(shape=[4096, 4096, 4096]),
    "negative shape": lambda m: m["inputs"][0].update(shape=[-8]),
    "other shape": lambda m: m["inputs"][0].update(shape=[9]),
    "period 0": lambda m: m["inputs"][0]["layout"].update(period=0),
    "period 3": lambda m: m["inputs"][0]["layout"].update(period=3),
    "huge gap": lambda m: m["inputs"][0]["layout"].update(gap=1 << 62),
    "negative shift": lambda m: m["inputs"][0]["layout"].update(shift=-1),
    "huge block": lambda m: m["inputs"][0]["layout"].update(block=1 << 62),
    "wide rows": lambda m: m["inputs"][0]["layout"].update(shape=[2, 2, 2], width=1 << 21, block=1 << 22),
    "layout of other slots": lambda m: m["inputs"][0]["layout"].update(slots=1 << 40),
    "empty range": lambda m: m["inputs"][0].update(low=2.0),
    "range of text": lambda m: m["inputs"][0].update(high="x"),
    "another input": lambda m: m["inputs"][0].update(name="z"),
    "two inputs of one name": lambda m: m["inputs"].append(m["inputs"][0]),
    "shifted output": lambda m: m["outputs"][0]["layout"].update(shift=1),
    "two outputs": lambda m: m["outputs"].append({**m["outputs"][0], "name": "z"}),
    "rotation key 0": lambda m: m["chains"][0].update(rotation_keys=[0, *m["chains"][0]["rotation_keys"]]),
    "rotation key too large": lambda m: m["chains"][0].update(
        rotation_keys=[*m["chains"][0]["rotation_keys"], 1 << 40]
    ),
    "rotation key twice": lambda m: m["chains"][0].update(rotation_keys=m["chains"][0]["rotation_keys"] * 2),
    "rotation key missing": lambda m: m["chains"][0].update(rotation_keys=m["chains"][0]["rotation_keys"][1:]),
    "rotation keys of text": lambda m: m["chains"][0].update(rotation_keys="12"),
    "rotation keys null": lambda m: m["chains"][0].update(rotation_keys=None),
    "relinearization key of text": lambda m: m["chains"][0].update(relinearization_key="yes"),
    "relinearization key missing": lambda m: m["chains"][0].update(relinearization_key=False),
    "paths of a list": lambda m: m.update(paths=[1]),
    "paths of text": lambda m: m.update(paths={"x": [1]}),
    "long path": lambda m: m.update(paths={"1": [1] * 1000}),
    "a lower chain above": lambda m: m["chains"].append(
        {"level": 99, "digits": 1, "rotation_keys": [], "relinearization_key": False}
    ),
    "a lower chain of no digits": lambda m: m["chains"].append(
        {"level": 1, "digits": 0, "rotation_keys": [], "relinearization_key": False}
    ),
    "noise of text": lambda m: m["server"].update(flood="x"),
    "endless noise": lambda m: m["server"].update(flood=float("inf")),
    "negative room for keys": lambda m: m["server"].update(resident_key_bytes=-1),
    "a range of nothing": lambda m: m["ranges"].append({}),
    "a range without a layout": lambda m: m["ranges"][0].pop("layout"),
    "a range to infinity": lambda m: m["ranges"][0].update(high=float("inf")),
    "a range with an escape": lambda m: m["ranges"][0].update(layer="\x1b[2J"),
    "a range with sizes of units": lambda m: m["ranges"][0].update(unit_sizes=[1.0]),
}


@pytest.mark.parametrize("case", _RECORDS)
def test_records_out_of_bounds(good: Container, case: str) -> None:
    data = forged(good, with_records(lambda m: (_RECORDS[case](m), None)[1]))
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            Artifact.from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024**2
    finally:
        tracemalloc.stop()


_TEXTS: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "no program": lambda text: "heliograph-ir 2\n",
    "other version": replaced("heliograph-ir 2", "heliograph-ir 1"),
    "other stage": replaced('"mlp" executable', '"mlp" managed'),
    "unknown stage": replaced('"mlp" executable', '"mlp" nonsense'),
    "unknown op": replaced(r"relinearize\(", "frobnicate("),
    "NaN scalar": replaced(r"constant = [0-9.e-]+", "constant = nan"),
    "huge scalar": replaced(r"constant = [0-9.e-]+", "constant = 1e300"),
    "a text for a number": replaced(r"constant = [0-9.e-]+", 'constant = "1"'),
    "factor zero": replaced(r"factor = -?[0-9]+", "factor = 0"),
    "factor huge": replaced(r"factor = -?[0-9]+", f"factor = {10**30}"),
    "factor of a million digits": replaced(r"factor = -?[0-9]+", "factor = " + "9" * 10**6),
    "infinite scale": replaced(r"plain_log_scales = \[[0-9.]+", "plain_log_scales = [inf"),
    "negative scale": replaced(r"plain_log_scales = \[[0-9.]+", "plain_log_scales = [-5.0"),
    "period 0": replaced("in_period = 8", "in_period = 0"),
    "negative period": replaced("in_period = 8", "in_period = -8"),
    "shift": replaced("in_period = 8", "shift = 400, in_copies = 2, in_period = 8"),
    "a shift of one copy": replaced("in_period = 8", "shift = 2, in_period = 8"),
    "copies on both sides": replaced("in_period = 8", "in_copies = 2, shift = 4, in_period = 8, out_copies = 2"),
    "three copies": replaced("in_period = 8", "in_period = 8, out_copies = 3"),
    "more copies than slots": replaced("in_period = 8", "in_period = 8, out_copies = 65536"),
    "samples that do not fit": replaced("in_period = 8", "in_period = 8, samples = 1024"),
    "a map on other slots": replaced(r"geometry = \{slots = 512", "geometry = {slots = 256"),
    "no geometry": replaced(r"geometry = \{[^}]*\}", "geometry = 3"),
    "a field that no geometry has": replaced("in_period = 8", "in_period = 8, gap = 1"),
    "absent steps": replaced(r"baby_steps = \[[0-9, ]*\]", "baby_steps = [0, 9]"),
    "steps of text": replaced(r"baby_steps = \[[0-9, ]*\]", 'baby_steps = ["0"]'),
    "other slots": replaced("slots = 512", "slots = 1024"),
    "input at a high level": replaced("level = 5, log_scale", "level = 400, log_scale"),
    "use before definition": replaced(r"%2 = (\w+)\(%1", r"%2 = \1(%9"),
    "itself": replaced(r"%2 = (\w+)\(%1", r"%2 = \1(%2"),
    "another constant": replaced(r'matrices = \[@"[^"]*"\]', 'matrices = [@"nothing"]'),
    "a vector for a matrix": lambda text: re.sub(
        r'matrices = \[@"[^"]*"',
        f'matrices = [@"{re.findall(chr(10) + "const @.([^ ]*). = f64", text)[0]}"',
        text,
        count=1,
    ),
    "other digest": replaced(r'sparse\[8x8\] "[0-9a-f]*"', 'sparse[8x8] "' + "0" * 32 + '"'),
    "other values": replaced(r'(const @"[^"]*" = f64[^\n]*" \[-?)[0-9]', r"\g<1>7"),
    "parentheses": lambda text: text + "(" * 10**5,
    "nested attributes": replaced(r"baby_steps = \[[0-9, ]*\]", "baby_steps = " + "[" * 10**5 + "]" * 10**5),
    "nested record": replaced("chain {", "chain {deep = " + "[" * 10**5 + "]" * 10**5 + ", "),
    "strange characters": lambda text: text.replace("rescale", "résc\0ale"),
    "half a surrogate": replaced('"mlp"', r'"\\ud800"'),
    "huge line number": replaced(r'loc\("model.py", 3', 'loc("model.py", ' + "9" * 10**5),
    "a name of a page": replaced('"mlp"', '"' + "a" * 10**4 + '"'),
}


@pytest.mark.parametrize("case", _TEXTS)
def test_texts_out_of_order(good: Container, case: str) -> None:
    data = forged(good, _TEXTS[case])

    def serve() -> None:
        # What only shows when the matrices are opened is refused by the server, not by the reader.
        artifact = Artifact.from_bytes(data)
        hg.Server(artifact, hg.Client(artifact, allow_insecure=True).evaluation_keys(), allow_insecure=True)

    with pytest.raises(WireError) as raised:
        serve()
    assert len(str(raised.value)) < 4000


_FIELDS: dict[str, dict[str, Any]] = {
    "report of a list": {"report": []},
    "empty report": {"report": {}},
    "constants of a list": {"constants": [1]},
    "no constants": {"constants": {}},
    "constant of text": {"constants": {"c": "88"}},
    "constant of nothing": {"constants": {"c": {}}},
    "sparse of text": {"constants": {"c": {"sparse": "88"}}},
    "map of none": {"constants": {"c": {"map": 0}}},
    "maps of numbers": {"maps": [1]},
    "map without places": {"maps": [{"weights": 0, "places": []}]},
    "unknown stage": {"stages": ["nonsense"]},
    "stages of numbers": {"stages": [1]},
    "predicted figures of a list": {"predicted": [1.0]},
    "one predicted figure": {"predicted": {"predicted_ms": 1.0}},
    "another predicted figure": {"predicted": {"predicted_ms": 1.0, "client_peak_bytes": 1, "more": 1}},
    "a predicted figure of text": {"predicted": {"predicted_ms": "1", "client_peak_bytes": 1}},
    "a predicted figure that is true": {"predicted": {"predicted_ms": 1.0, "client_peak_bytes": True}},
    "a negative predicted figure": {"predicted": {"predicted_ms": -1.0, "client_peak_bytes": 1}},
    "more": {"more": 1},
}


@pytest.mark.parametrize("case", _FIELDS)
def test_fields_out_of_order(good: Container, case: str) -> None:
    with pytest.raises(WireError):
        Artifact.from_bytes(forged(good, **_FIELDS[case]))


def test_report_values_of_wrong_types(good: Container) -> None:
    report = good.fields["report"]
    for name in ("approximation_error", "error_samples", "output_magnitude", "scheme_error"):
        for wrong in ("x", None, [1], -1, 1e300, True):
            with pytest.raises(WireError):
                Artifact.from_bytes(forged(good, report={**report, name: wrong}))
    for table in ({}, {**report["cost_table"], "ntt_ns": -1.0}, {**report["cost_table"], "more": 1.0}, None):
        with pytest.raises(WireError):
            Artifact.from_bytes(forged(good, report={**report, "cost_table": table}))


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_sparse_constants_out_of_order(good: Container, part: str) -> None:
    made_of = next(made for key, made in sorted(good.fields["constants"].items()) if key.startswith("fc1"))["sparse"]
    name = f"constant/{made_of[2 + ['data', 'indices', 'indptr'].index(part)]}"
    array = good.array(name)
    wrong = [array[:-1], np.concatenate([array, array]), array.astype(np.float32), array.reshape(1, -1), array[:0]]
    wrong.append(np.full_like(array, np.nan if part == "data" else 1 << 20))
    if part != "data":
        wrong.append(-array - 1)
    for bad in wrong:
        with pytest.raises(WireError):
            Artifact.from_bytes(forged(good, blobs={name: bad}))


def test_public_artifacts_out_of_bounds() -> None:
    container = unpack(toy_artifact().public().to_bytes(), "public artifact", PUBLIC_VERSION, 1 << 30)
    fields = dict(container.fields)

    def attempt(**changes: Any) -> None:
        PublicArtifact.from_bytes(pack(Container("public artifact", PUBLIC_VERSION, {**fields, **changes})))

    attempt()
    spec = fields["inputs"][0]
    for changes in (
        {"name": 3},
        {"name": "a\nb"},
        {"server_part": "xyz"},
        {"fingerprint": "0" * 32},
        {"ring": None},
        {"ring": {**fields["ring"], "log_ring": 17, "levels": 10**9}},
        {"inputs": [{**spec, "levels": []}]},
        {"inputs": [{**spec, "levels": [99]}]},
        {"inputs": [{**spec, "levels": ["4"]}]},
        {"inputs": [{**spec, "log_scales": [1e9]}]},
        {"inputs": [{k: v for k, v in spec.items() if k != "levels"}]},
        {"inputs": [spec] * 2000},
        {"rotation_keys": list(range(1, 10**5))},
        {"relinearization_key": 1},
        {"predicted": {}},
        {"predicted": None},
        {"weights": [1.0]},
    ):
        with pytest.raises(WireError):
            attempt(**changes)


@_FUZZ
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_flipped_bits_with_a_fitting_digest(position: int, bit: int) -> None:
    data = bytearray(toy_artifact().to_bytes()[:-32])
    data[position % len(data)] ^= 1 << bit
    forged_bytes = bytes(data) + hashlib.sha256(data).digest()
    try:
        artifact = Artifact.from_bytes(forged_bytes)
    except WireError:
        return
    # What still loads differs in something that is only for reading: texts of earlier stages, the report, locations.
    artifact.public()


@_FUZZ
@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_json_in_the_fields(good: Container, header: Any) -> None:
    for field in ("constants", "stages", "report"):
        if header != good.fields[field] and not (field == "stages" and header in ([], {}, "")):
            try:
                Artifact.from_bytes(forged(good, **{field: header}))
            except WireError:
                continue
            pytest.fail(f"{field} = {header!r} was accepted")


# ---------------------------------------------------------------------------------------------- depth


def test_depth_report_finds_who_spends_the_levels() -> None:
    report = artifact_depth(toy_artifact())
    assert report.depth == toy_artifact().report.values["depth"] == sum(levels for *_, levels in report.spent)
    assert {layer for _, layer, _ in report.spent} == {"fc1", "act", "fc2"}
    assert {place for place, *_ in report.spent} == {"model.py:4", "model.py:5", "model.py:6"}
    rows = {row.name: row for row in report.rows}
    path = [rows[name] for name in report.critical_path]
    assert path[0].op == "input"
    assert path[0].depth == 0
    assert path[-1].depth == report.depth
    assert path[-1].level == 0
    for before, after in itertools.pairwise(path):
        assert before.name in after.inputs
        assert after.depth - before.depth == (after.op == "rescale")
    for row in report.rows:
        # What is spent and what is left never exceed the chain; drops may leave less.
        assert row.depth + row.level <= toy_artifact().ring.levels
        assert row.stage == "executable"
    assert all(row.critical == (row.name in report.critical_path) for row in report.rows)
    assert "depth 5; the critical path" in str(report)


def test_depth_is_of_planned_programs_only() -> None:
    from runtime.support import mlp

    with pytest.raises(ProgramError, match="managed stage"):
        depth_report(mlp())
