"""In which chain each value is, and where it changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from runtime.bootstrapped import LOWER, program

from heliograph.ckks.chains import chain_at
from heliograph.errors import ProgramError, VerifyError
from heliograph.ir import Builder, CipherType, Stage
from heliograph.ir.maps.steps import needed_keys
from heliograph.ir.ops.table import Role, role_of
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.passes.levels.place_chains import PlaceChains


def test_work_is_done_in_the_lowest_chain_that_holds_it() -> None:
    made = program()
    chains = made.planned.chains
    assert len(chains) == 3
    for node in made.nodes:
        if node.op in ("input", "switch_chain"):
            continue
        for operand in node.inputs:
            assert isinstance(operand.type, CipherType)
            whole = role_of(node) is Role.BOOTSTRAP or needed_keys(node).conjugation
            assert chains[operand.type.chain] == (chains[0] if whole else chain_at(chains, operand.type.level))
    switches = Counter((node.inputs[0], node.attrs["chain"]) for node in made.nodes if node.op == "switch_chain")
    assert set(switches.values()) == {1}
    assert {chain for _, chain in switches} == {0, 1, 2}


def test_one_chain_needs_no_switch_and_a_placed_program_no_other() -> None:
    alone = program(chains=False)
    assert PlaceChains().run(alone) is alone
    made = program()
    again = PlaceChains().run(replace(made, stage=Stage.MANAGED))
    assert [node.op for node in again.nodes].count("switch_chain") == [n.op for n in made.nodes].count("switch_chain")


def test_the_chain_is_part_of_the_text() -> None:
    text = print_program(program())
    assert "parts 2, chain 1>" in text
    assert print_program(parse_program(text, program().constants)) == text


def test_operands_of_different_chains_do_not_meet() -> None:
    builder = Builder("p", Stage.MANAGED)
    builder.set_ring(program().ring)
    x = builder.input("x", slots=1024, chunk=0, level=LOWER, log_scale=52.0)
    there = builder.op("switch_chain", (x,), chain=1)
    with pytest.raises(ProgramError, match=r"operands are in chains \[0, 1\]"):
        builder.op("add_ct", (x, there))
    with pytest.raises(ProgramError, match="cannot lead from chain 1 to chain 1"):
        builder.op("switch_chain", (there,), chain=1)


def test_a_value_above_its_chain_is_caught() -> None:
    made = program()
    less = replace(made, parameters=replace(made.planned, chains=made.planned.chains[:1]))
    with pytest.raises(VerifyError, match="a value's chain holds its level"):
        verify(less)
