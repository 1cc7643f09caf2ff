"""The table of cases: each model is compiled to what torch computes, or refused in words that name the thing."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from reading import Case, largest_share, simulated, traced, wanted

import heliograph as hg

_TABLES = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
CASES: list[Case] = [case for table in _TABLES for case in importlib.import_module(table).CASES]
RIGHT = [case for case in CASES if not case.says]
REFUSED = [case for case in CASES if case.says]
_SIMULATED = 3


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_it_is_read_as_torch_computes_it(case: Case) -> None:
    module, samples = case.made(), case.samples()
    program = hg.trace(module, calibration=samples, **case.keywords)
    expected = wanted(module, samples)
    assert largest_share(traced(program, samples), expected) <= case.tolerance
    count = len(samples[0] if isinstance(samples, tuple) else samples)
    first = np.concatenate([output.reshape(count, -1)[0] for output in expected])
    np.testing.assert_allclose(first, np.asarray(case.right), rtol=0, atol=2e-3 * max(1.0, np.abs(first).max()))
    if case.compiled is not None:
        artifact = hg.compile(program, hg.Options(precision_bits=16))
        answers = simulated(artifact, samples, _SIMULATED)
        assert largest_share(answers, [output.reshape(count, -1)[:_SIMULATED] for output in expected]) <= case.compiled


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_it_is_refused_in_words_that_name_the_thing(case: Case) -> None:
    with pytest.raises(hg.HeliographError) as caught:
        hg.compile(hg.trace(case.made(), calibration=case.samples(), **case.keywords))
    assert not isinstance(caught.value, hg.InternalError)
    for words in case.says:
        assert words in str(caught.value)


@pytest.mark.parametrize("case", [case for case in CASES if case.without is not None], ids=str)
def test_without_the_mend_the_check_refuses_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case.without is not None
    case.without(monkeypatch)
    module, samples = case.made(), case.samples()
    # The fault is there: without the check the program is made, and computes something else.
    program = hg.trace(module, calibration=samples, check=False, **case.keywords)
    try:
        share = largest_share(traced(program, samples), wanted(module, samples))
    except AssertionError:
        share = 1.0
    assert share > case.tolerance
    with pytest.raises(hg.UnsupportedError, match="not what the model computes"):
        hg.trace(module, calibration=samples, **case.keywords)
