"""The cost table: where it comes from, how it is kept, how it is fitted."""

from __future__ import annotations

import dataclasses
import json

import pytest

import heliograph as hg
from heliograph.artifact.costs import costs_path, default_costs, load_costs, save_costs
from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, ProgramError, WireError
from heliograph.tools.measuring import calibrate

OTHER = CostTable("another machine", 0.5, 1.5, 0.3, 0.9, 2.0, 40.0, 300.0, 20.0)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.delenv("HELIOGRAPH_COSTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_measured_table_the_built_in_one_is_used(cache):
    assert default_costs() == BUILT_IN
    assert hg.Options().costs == BUILT_IN


def test_a_measured_table_is_used_and_named(cache):
    path = save_costs(OTHER)
    assert path == costs_path() == cache / "heliograph" / "costs.json"
    assert hg.Options().costs == OTHER
    assert [p.name for p in path.parent.iterdir()] == ["costs.json"]
    from reports_support import program

    report = hg.compile(program(), hg.Options(degree=3, security_bits=None, log_ring=11)).report
    assert report.values["costs"] == "another machine"
    assert "costs: another machine" in report.full()


def test_the_variable_decides(cache, monkeypatch, tmp_path):
    save_costs(OTHER)
    monkeypatch.setenv("HELIOGRAPH_COSTS", "built-in")
    assert default_costs() == BUILT_IN
    mine = save_costs(dataclasses.replace(OTHER, machine="mine"), tmp_path / "mine.json")
    monkeypatch.setenv("HELIOGRAPH_COSTS", str(mine))
    assert default_costs().machine == "mine"
    monkeypatch.setenv("HELIOGRAPH_COSTS", str(tmp_path / "nowhere.json"))
    with pytest.raises(ProgramError, match="cannot be read"):
        default_costs()


def _text(**changes):
    fields = {"heliograph_costs": 1, **dataclasses.asdict(OTHER), **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "{}", "[" * 5000, _text(heliograph_costs=2), _text(ntt_ns=-1), _text(ntt_ns="1"), _text(mul_ns=True),
        _text(ntt_ns=...), _text(extra=1), _text(ntt_ns=1e9), _text(machine=7), _text(machine="x" * 300),
        _text().replace("0.5", "NaN"), _text().replace("0.5", "1e999"), " " * 70_000 + _text(),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(WireError, match="is not a cost table"):
        load_costs(path)


def test_an_interrupted_save_leaves_the_old_table(cache, monkeypatch):
    save_costs(OTHER)

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("heliograph.artifact.costs.os.replace", fail)
    with pytest.raises((OSError, HeliographError)):
        save_costs(BUILT_IN)
    assert load_costs(costs_path()) == OTHER
    assert [p.name for p in costs_path().parent.iterdir()] == ["costs.json"]


def test_the_fit_recovers_a_known_table():
    rings = [Ring(12, 45, 35, 3, 2, None), Ring(14, 50, 40, 7, 4, None), Ring(15, 50, 40, 9, 3, None)]
    names = [*calibrate._PRIMITIVES, *calibrate._OTHERS]
    samples = []
    for ring in rings:
        for level in (1, 2, ring.levels):
            for name in names:
                exact = calibrate.Sample(name, ring, level, 1.0).predicted(OTHER)
                samples.append(calibrate.Sample(name, ring, level, exact))
    fitted = calibrate.fit_costs(samples, "known")
    for field in dataclasses.fields(CostTable):
        if field.name != "machine":
            assert getattr(fitted, field.name) == pytest.approx(getattr(OTHER, field.name), rel=1e-5)


def test_a_machine_is_measured(tmp_path):
    """Two tiny rings: the table is usable and near to what was measured; keys are gone afterwards."""
    from heliograph.runtime.openfhe import registry

    before = registry.installed()
    rings = (Ring(10, 45, 35, 3, 2, None), Ring(12, 45, 35, 3, 2, None))
    # Other work on the machine may spoil one measurement; not three in a row.
    for _ in range(3):
        results = calibrate.calibrate(rings=rings)
        # Sums of many primitives are what predictions are made of; single ones may be off.
        shares = [
            sum(sample.predicted(found.costs) for sample in found.samples)
            / sum(sample.milliseconds for sample in found.samples)
            for found in results.values()
        ]
        if all(0.5 < share < 2.0 for share in shares):
            break
    assert all(0.5 < share < 2.0 for share in shares)
    assert registry.installed() == before
    assert set(results) == {"openfhe", "native"}
    for backend, found in results.items():
        values = dataclasses.asdict(found.costs)
        assert all(value >= 0 for name, value in values.items() if name != "machine")
        assert found.costs.machine.startswith("measured on ")
        assert found.costs.machine.endswith(f", {backend}")
        assert found.costs.ntt_ns + found.costs.mul_ns > 0
        assert len(found.samples) == 2 * (1 + 3 * 10)
        assert "primitives measured" in str(found)
        assert load_costs(save_costs(found.costs, tmp_path / "costs.json")) == found.costs
