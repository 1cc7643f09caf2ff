"""The texts of the reports, word for word; their JSON; what would save a level; what a pass did; two artifacts compared."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from reports_support import Branches, Net, SmallConv, TwoOutputs, artifact, program

import heliograph as hg
from heliograph.artifact.artifact import VERSION
from heliograph.artifact.container import Container, pack, unpack
from heliograph.errors import ProgramError, WireError
from heliograph.report.diff import diff
from heliograph.report.explain import Recorder
from heliograph.report.inspection import inspection
from heliograph.report.text import bytes_text, error_text, seconds_text

MEASURED = {
    "keygen_s": 0.021,
    "evaluate_ms": 61.25,
    "server_peak_bytes": 168_000_000,
    "max_abs_error": 0.0021,
    "load_average": 0.12,
}


def test_the_bill(golden):
    golden("bill.txt", artifact().report.full() + "\n")


def test_the_bill_at_128_bits(golden):
    golden("bill_secure.txt", hg.compile(program(), hg.Options(degree=3)).report.full() + "\n")


def test_the_bill_with_a_measured_column(golden):
    golden("bill_measured.txt", artifact().report.with_measured(MEASURED).full() + "\n")


def test_a_bill_without_polynomials(golden):
    from reports_support import samples, torch, weighted

    linear = hg.trace(weighted(torch.nn.Linear(8, 3)), torch.zeros((1, 8)), calibration=samples((8,)), name="linear")
    made = hg.compile(linear, hg.Options(security_bits=None, log_ring=11))
    golden("bill_linear.txt", made.report.full() + "\n")
    assert made.report.values["proved_share"] == 1.0
    assert made.report.values["output_ranges"]["y"]["range_source"] == "proved"


def test_the_json_has_what_it_promises():
    made = artifact()
    found = json.loads(json.dumps(inspection(made, made.report.with_measured(MEASURED)), allow_nan=False))
    for key in (
        "security_bits", "ring_dim", "log_pq", "depth", "levels", "operations", "rotation_keys", "evaluation_key_bytes",
        "predicted", "measured", "ranges", "critical_path", "nodes",
    ):  # fmt: skip
        assert key in found
    names = {node["name"] for node in found["nodes"]}
    for node in found["nodes"]:
        assert set(node) >= {"name", "op", "inputs", "stage", "depth", "level", "scale_bits", "location"}
        assert node["stage"] == "executable"
        assert set(node["inputs"]) <= names
        file, line = node["location"].rsplit(":", 1)
        assert file.endswith(".py") or node["op"] == "input"
        assert int(line) > 0
    assert set(found["critical_path"]) <= names
    assert max(node["depth"] for node in found["nodes"]) == found["levels"]
    assert found["measured"] == MEASURED
    assert {"keygen_s", "evaluate_ms", "server_peak_bytes", "client_peak_bytes", "relative_error"} <= set(
        found["predicted"]
    )
    assert sum(found["operations_by_kind"].values()) == sum(found["operations"].values())
    assert found["predicted_ms"] == pytest.approx(sum(row["ms"] for row in found["predicted_ms_by_layer"]), rel=0.05)
    assert "do not share them with people you do not trust" in found["warning"]


def test_objects_show_themselves_in_a_line():
    made = artifact()
    values = made.report.values
    error = error_text(values["predicted_max_abs_error"], values["output_magnitude"])
    figures = f"INSECURE, N = 2048, 9 levels, evaluation 19 ms, keys 10.5 MB, error {error}>"
    assert repr(made) == f"<Artifact 'net', {len(made.program.nodes)} nodes; {figures}"
    assert repr(made.report) == f"<Report of 'net': {figures}"
    public = f"<PublicArtifact 'net', {made.fingerprint[:12]}: INSECURE, N = 2048, 9 levels, 10 evaluation keys>"
    assert repr(made.public()) == public
    assert repr(program()) == "<Program 'net', tensor, 6 nodes: (x: tensor<16>) -> (y: tensor<4>)>"
    many = hg.parse(
        "program many\n"
        + "".join(f"input x{i}: secret tensor[2] in [-1, 1]\n" for i in range(9))
        + "output y = x0 * x8\n"
    )
    assert len(repr(many)) < 300
    assert repr(many).endswith("-> (y: tensor<2>)>")


def test_a_notebook_shows_the_first_half_of_the_page():
    made = artifact()
    text = made.report.with_measured(MEASURED)._repr_html_()
    for words in ("net: the bill", "INSECURE", "<b>2^11</b>", "load average", "what the compiler chose", "61 ms"):
        assert words in text
    # A few kilobytes of them are what its words mean.
    assert len(text) < 10_000
    assert made._repr_html_() == made.report._repr_html_()
    hostile = dataclasses.replace(made.report.figures, name="<script>", costs="<b>")
    assert "<script>" not in dataclasses.replace(made.report, figures=hostile)._repr_html_()


def test_an_artifact_keeps_its_report(tmp_path):
    made = artifact()
    made.save(tmp_path / "a.helio")
    assert hg.Artifact.load(tmp_path / "a.helio").report.full() == made.report.full()


def test_a_report_that_cannot_be_printed_is_refused():
    good = unpack(artifact().to_bytes(), "artifact", VERSION, 1 << 30)
    blobs = {name: blob if isinstance(blob, np.ndarray) else bytes(blob) for name, blob in good.blobs.items()}
    report = good.fields["report"]
    for values in (
        {},
        {**report, "savings": 3},
        {**report, "depth_by_line": [{"levels": "x"}]},
        {**report, "costs": None},
    ):
        fields = {**good.fields, "report": values}
        with pytest.raises(WireError, match="its report"):
            hg.Artifact.from_bytes(pack(Container(good.kind, good.version, fields, blobs)))


def test_figures_in_words():
    assert [bytes_text(n) for n in (0, 999, 1000, 2_500_000, 7.2e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "7200.0 GB",
    ]
    assert [seconds_text(s) for s in (0.0004, 0.3, 4.0, 75)] == ["0.4 ms", "300 ms", "4.00 s", "75 s"]
    assert [error_text(e) for e in (0.0, 0.25)] == ["0", "0.25"]


# ------------------------------------------------------------------------------------------- what would save a level


@pytest.mark.parametrize("kind", [Net, Branches])
def test_savings_hold_when_they_are_compiled(kind):
    """The depth and error that a saving states are those of the artifact compiled with it."""
    made = artifact(kind)
    found = made.report.values["savings"]
    assert 1 <= len(found) <= 3
    for saving in found:
        assert saving["kinds"] == ["degree"] * len(saving["layers"])
        degrees = dict.fromkeys(saving["layers"], 3)
        again = hg.compile(program(kind), hg.Options(degree=7, degrees=degrees, security_bits=None, log_ring=11))
        # Two levels, where what remains of degree 3 is a square.
        assert again.report.values["depth"] == saving["depth"] <= made.report.values["depth"] - 1
        assert again.ring.levels == made.ring.levels - made.report.values["depth"] + saving["depth"]
        assert again.report.values["approximation_error"] == pytest.approx(saving["approximation_error"])
    assert [s["approximation_error"] for s in found] == sorted(s["approximation_error"] for s in found)


def test_two_paths_side_by_side_need_two_changes():
    assert all(len(saving["layers"]) == 2 for saving in artifact(Branches).report.values["savings"])


def test_a_fusion_that_saves_a_level_is_found_and_exact():
    import numpy as np
    from reports_support import samples

    from heliograph.compiler.pipeline import front_passes
    from heliograph.compiler.reporting.savings import fuse_into
    from heliograph.interpret import interpret_batch
    from heliograph.ir.analysis.depth import program_depth

    report = artifact(TwoOutputs).report.values
    fusions = [saving for saving in report["savings"] if saving["kinds"] == ["fusion"]]
    assert len(fusions) == 1
    assert fusions[0]["depth"] == report["depth"] - 1
    assert fusions[0]["approximation_error"] == pytest.approx(report["approximation_error"], rel=1e-6)
    polynomial = front_passes(program(TwoOutputs), hg.Options(degree=7))[-1].program
    node = next(n for n in polynomial.nodes if n.op == "affine" and n.inputs[0].op == "affine")
    fused = fuse_into(polynomial, node)
    assert program_depth(fused) == program_depth(polynomial) - 1
    for a, b in zip(interpret_batch(polynomial, samples()), interpret_batch(fused, samples()), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_levels_by_line_add_up_to_the_depth():
    for kind, shape in ((Net, (16,)), (SmallConv, (1, 8, 8)), (Branches, (16,))):
        values = artifact(kind, shape).report.values
        assert sum(entry["levels"] for entry in values["depth_by_line"]) == values["depth"]


# ------------------------------------------------------------------------------------------- explain, diff


def recorded():
    recorder = Recorder()
    hg.compile(program(), hg.Options(degree=7, security_bits=None, log_ring=11), watch=recorder)
    return recorder


def test_every_pass_is_explained(golden):
    recorder = recorded()
    names = [name for name, _ in recorder.steps]
    assert names == [
        "simplify", "expand", "fuse-linear", "approximate", "fold-scaling", "pack", "lower-polynomials", "plan-levels",
        "select-keys", "place-chains", "schedule",
    ]  # fmt: skip
    lines = []
    for name in names:
        explanation = recorder.explain(program(), name)
        assert explanation.improved
        lines += [name, *(f"  {improvement}" for improvement in explanation.improved)]
        assert json.loads(json.dumps(explanation.to_dict()))["pass"] == name
    golden("improvements.txt", "\n".join(lines) + "\n")


def test_what_a_pass_did_before_and_after(golden):
    golden("explain_lower.txt", str(recorded().explain(program(), "lower-polynomials")) + "\n")


def test_the_numbers_of_an_explanation_are_those_of_the_artifact():
    recorder, made = recorded(), artifact()
    numbers = {
        i.what.split(",")[0]: i for step, _ in recorder.steps for i in recorder.explain(program(), step).improved
    }
    assert numbers["rotation keys"].after == made.report.values["rotation_keys"]
    assert numbers["products of ciphertexts"].after == made.report.values["ciphertext_products"]
    kinds = made.report.values["operations_by_kind"]
    assert numbers["relinearizations"].after == kinds.get("relinearize", 0) + kinds["relinearize_wide"]
    assert numbers["rescales"].after == kinds["rescale"] + kinds["narrow_rescale"]
    assert numbers["polynomials"].before == 2
    assert numbers["functions that encryption cannot compute"].before == 2
    assert numbers["functions that encryption cannot compute"].after == 0


def test_an_unknown_pass_is_refused_with_the_nearest():
    with pytest.raises(ProgramError) as caught:
        recorded().explain(program(), "fuse-linaer")
    assert "did you mean fuse-linear" in caught.value.hint


def test_the_difference_of_two_artifacts(golden):
    golden("diff.txt", str(diff(artifact(), artifact(sigmoid=3))) + "\n")


def test_the_difference_says_where():
    found = diff(artifact(), artifact(sigmoid=3)).to_dict()
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert (figures["levels"]["before"], figures["levels"]["after"]) == ("9", "8")
    layers = {layer["layer"]: layer for layer in found["layers"]}
    assert (layers["sigmoid"]["degree_before"], layers["sigmoid"]["degree_after"]) == (7, 3)
    assert (layers["sigmoid"]["levels_before"], layers["sigmoid"]["levels_after"]) == (3, 2)
    assert layers["relu"]["levels_before"] == layers["relu"]["levels_after"] if "relu" in layers else True


def test_equal_artifacts_do_not_differ():
    assert str(diff(artifact(), artifact())) == "net and net cost the same"
