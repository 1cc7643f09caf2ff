"""What `heliograph inspect --ops` and the page of operations say is what the tracer's tables hold."""

from __future__ import annotations

import re

import pytest
from helpers.commands import run, run_json

from heliograph import functions
from heliograph.frontends.torch.coverage import coverage
from heliograph.frontends.torch.values import RULES
from heliograph.frontends.torch.ways.linear import LINEAR
from heliograph.frontends.torch.ways.pointwise import POINTWISE


def test_each_operation_is_in_one_list() -> None:
    found = coverage()
    lists = [names for _, names in found.sections()]
    assert sum(map(len, lists)) == len(set().union(*lists))
    assert {f"aten.{name}" for name in (*found.linear, *found.functions)} <= set(RULES)
    assert set(found.linear) == set(LINEAR)
    assert set(found.functions) == set(POINTWISE)
    assert {"lstm", "gru", "rms_norm", "cosine_similarity"} <= set(found.decomposed)
    assert {"sort", "round", "median"} <= set(found.refused)


def test_the_table_has_every_list_but_that_of_torch() -> None:
    found = coverage()
    names = [name for line in found.table().splitlines()[2:] for name in re.findall(r"`([^`]+)`", line)]
    assert names == [*found.rules, *found.linear, *found.functions, *found.refused]


def test_a_function_of_the_table_is_not_fitted_without_its_proof() -> None:
    """The rules of `POINTWISE` are registered later, and would replace that of the table."""
    proved = {name.removeprefix("aten.") for family in functions.families() for name in family.torch_ops}
    assert not proved & set(POINTWISE)


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "inspect", "--ops")
    assert code == 0
    assert printed.strip() == str(coverage())
    assert run_json(capsys, "inspect", "--ops")["linear"] == sorted(LINEAR)


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "model.helio", "--ops"]])
def test_the_command_says_what_it_takes(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, _, complaint = run(capsys, *arguments)
    assert code == 2
    assert "artifact" in complaint
