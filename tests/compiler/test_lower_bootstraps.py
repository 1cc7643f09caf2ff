"""Bootstraps in lower parts of the chain: the same values as in the whole one, with keys, tables and prices of their own."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.backends import native, openfhe, run, simulator
from helpers.keyed import RingKeys, keyed
from helpers.records import chains_json, read_chains
from runtime.bootstrapped import lowered
from runtime.support import toy_artifact

import heliograph as hg
from heliograph.artifact.figures import complete
from heliograph.artifact.validate import check_program
from heliograph.ckks.chains import Chain
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.compiler.pipeline import front_passes, lower_passes, pack_passes
from heliograph.errors import ProgramError, VerifyError, WireError
from heliograph.execution.key_use import key_use
from heliograph.execution.keys import program_keys
from heliograph.execution.memory import memory_bytes, table_bytes
from heliograph.execution.prices import call_ms
from heliograph.execution.protocol import Call
from heliograph.execution.walk import node_calls
from heliograph.interpret import interpret
from heliograph.ir import Array, Builder, CipherType, Node, Program, Stage
from heliograph.ir.bootstraps.asked import RAISED, bootstraps, raising_chains, written_out
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.maps.layout import Layout
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.passes.bootstraps.pair_bootstraps import PairBootstraps
from heliograph.passes.bootstraps.place_bootstraps import PlaceBootstraps
from heliograph.report.text import Report
from heliograph.runtime.server.floor import Floor
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import EvaluationKeys

# A bootstrap enters at level 2 and returns to 8 in the whole chain, to 5 in the lower one.
RING = Ring(11, 60, 52, 19, 4, None, (2, 2))
LOWER = RING.lower(16, 3, bootstraps=True)
TOY = hg.Options(security_bits=None, log_ring=11, bootstrap=True)
SIZE = 64


@functools.cache
def compiled(*lower: Ring, chunks: int = 1) -> Program:
    """Activations of degrees 31 and 7: bootstraps return to the level that the next ones want."""
    size = SIZE if chunks == 1 else chunks * RING.slots
    builder = Builder("levels", Stage.TENSOR)
    h = builder.input("x", shape=(size,), low=-1.0, high=1.0)
    for degree in (31, 31, 7, 31, 7, 31):
        h = builder.op("tanh", (h,), degree=degree)
    packed = pack_passes(front_passes(builder.finish([h]), TOY)[-1].program, RING, TOY)[-1].program
    placed = PlaceBootstraps(RING, low_inputs=True).run(packed)
    program = PairBootstraps(RING).run(placed) if chunks > 1 else placed
    return lower_passes(program, RING, TOY, 0, lower)[-1].program


def places(program: Program) -> list[tuple[int, int]]:
    """(level that it returns to, levels of the chain to whose top it raises the modulus) of every bootstrap."""
    return [(cipher(end).level, cipher(raised(program, end)).level) for end in bootstraps(program)]


def raised(program: Program, end: Node) -> Node:
    """The node in which a bootstrap raises the modulus."""
    (found,) = (node for node in written_out(program, end) if node.op == RAISED)
    return found


def cipher(node: Node) -> CipherType:
    assert isinstance(node.type, CipherType)
    return node.type


def artifact(program: Program) -> hg.Artifact:
    """The program with what the compiler would say of another one."""
    return hg.Artifact(program, Report(complete(program, toy_artifact().report.figures)), {})


def test_each_bootstrap_happens_in_the_lowest_chain_that_reaches_its_level() -> None:
    assert {level for level, _ in places(compiled())} == {5, 7}
    assert set(places(compiled())) == {(5, 19), (7, 19)}
    program = compiled(LOWER)
    assert Counter(places(program)) == Counter(
        {(level, 16 if level <= 5 else 19): number for (level, _), number in Counter(places(compiled())).items()}
    )
    whole, lower, *rest = program.planned.chains
    assert (whole.ring, lower.ring) == (RING, LOWER)
    assert all(chain.ring.bootstrap is None for chain in rest)
    # What happens between the tops of two chains has its keys in the higher one.
    for node in program.nodes:
        if node.op in ("rotate", "relinearize"):
            chain = program.planned.chains[cipher(node).chain].ring
            assert chain == min(
                (c.ring for c in program.planned.chains if c.ring.levels >= cipher(node).level), key=_levels
            )


def _levels(ring: Ring) -> int:
    return ring.levels


def test_a_chain_in_which_nothing_would_be_bootstrapped_is_left_out() -> None:
    short, long = RING.lower(14, 3, bootstraps=True), RING.lower(18, 4, bootstraps=True)
    program = compiled(short, LOWER, long)
    assert [chain.ring for chain in program.planned.chains][:3] == [RING, long, LOWER]
    assert {chain for _, chain in places(program)} == {18, 16}
    # None is left for the whole chain, whose keys for bootstraps are then not made.
    assert 0 not in raising_chains(program)
    assert not any(key.ring == RING and key.kind == "encapsulation" for key in program_keys(program))
    assert print_program(compiled(short)) == print_program(compiled())


@pytest.mark.parametrize("chunks", [1, 2])
def test_real_ciphertexts_come_out_the_same(chunks: int) -> None:
    """Level and scale of every value are compared with the plan while it runs. Two ciphertexts share a bootstrap."""
    x = np.random.default_rng(0).uniform(-1, 1, SIZE if chunks == 1 else chunks * RING.slots)
    errors = {}
    for lower in ((), (LOWER,)):
        program = compiled(*lower, chunks=chunks)
        exact = interpret(program, x)
        (predicted,), planned = run(program, [x], simulator(program))
        for backend in (native, openfhe):
            (measured,), calls = run(program, [x], backend(program))
            assert calls == planned == sum(node_calls(program).values(), Counter())
            errors[lower] = np.std(measured - exact)
            assert 1 / 4 < np.std(predicted - exact) / errors[lower] < 4
        chains = Counter(cipher(raised(program, end)).chain for end in bootstraps(program))
        for number, found in chains.items():
            assert sum(n for call, n in calls.items() if call.primitive == RAISED and call.chain == number) == found
    assert {chain for _, chain in places(compiled(LOWER, chunks=chunks))} == {16, 19}
    assert errors[LOWER,] < 2 * errors[()]


def refreshed(whole: Ring, lower: Ring | None, slots: int, count: int) -> Program:
    """A bootstrap of one input or of a pair, in the whole chain or in a lower one, to the lower one's highest level."""
    builder = Builder("refreshed", Stage.MANAGED)
    builder.set_ring(whole)
    layout, level = Layout((slots,), whole.slots, slots), whole.lower(16, 3, bootstraps=True).bootstrap_level
    # Half the size for a pair: its parts come out at twice the scale.
    x = [
        builder.input(
            f"x{i}",
            slots=whole.slots,
            chunk=0,
            level=whole.bootstrap_input_level,
            log_scale=whole.scale_bits + 1.0 - count,
        )
        for i in range(count)
    ]
    fresh = builder.op("bootstrap", tuple(x), slots=slots, level=level)
    parts = [builder.op(part, (fresh,)) for part in ("real_part", "imaginary_part")] if count > 1 else [fresh]
    inputs, outputs = (tuple(TensorSpec(f"{name}{i}", (slots,), layout) for i in range(count)) for name in "xy")
    builder.interface = Interface(inputs, outputs)
    made = builder.finish([builder.op("level_drop", (part,), levels=level) for part in parts])
    return lowered(made, *([lower] if lower else []))


@pytest.mark.parametrize(("log_ring", "slots", "count"), [(12, 2048, 1), (12, 256, 2)])
def test_a_bootstrap_is_as_precise_in_a_lower_chain(log_ring: int, slots: int, count: int) -> None:
    """Over several keys and samples, within a bit of the whole chain and two of what is predicted."""
    whole = Ring(log_ring, 60, 52, 19, 4, None, (2, 2))
    lower = whole.lower(16, 3, bootstraps=True)
    squares: dict[bool, list[float]] = {False: [], True: []}
    for key in range(2):
        keys = RingKeys(whole)
        for low in squares:
            program = refreshed(whole, lower if low else None, slots, count)
            session = openfhe(program, keys=keys)
            for seed in range(2):
                x = list(np.random.default_rng((key, seed)).uniform(-1, 1, (count, slots)))
                found, calls = run(program, x, session)
                squares[low] += [float(np.mean((a - b) ** 2)) for a, b in zip(found, x, strict=True)]
            assert calls[Call(RAISED, 0, slots, int(low))] == 1
            # The parts of a pair come apart, by one conjugation, where its key is.
            # So does the end of the reduction, of each part, in the lower chain at the same level.
            apart, reduced = (1 if count > 1 else 0), (count if low else 0)
            assert calls[Call("conjugate", lower.bootstrap_level, 2, int(low))] == apart + reduced
            (predicted, *_), planned = run(program, x, simulator(program))
            assert planned == calls
            assert 1 / 4 < np.std(predicted - x[0]) / np.sqrt(np.mean(squares[low])) < 4
            # Its keys take hundreds of megabytes.
            del session
    assert 1 / 2 < np.sqrt(np.mean(squares[True]) / np.mean(squares[False])) < 2


def test_a_move_between_chains_that_bootstrap_is_exact() -> None:
    program = refreshed(RING, LOWER, SIZE, 1)
    session, x = openfhe(program), np.random.default_rng(1).uniform(-1, 1, RING.slots)
    whole, lower = (session.evaluator.part(number) for number in (0, 1))
    here = session.encrypt(x, LOWER.levels, 52.0)
    there = lower.move(here, LOWER.levels)
    back = whole.move(there, LOWER.levels)
    assert lower.describe(there) == whole.describe(back) == (LOWER.levels, 2)
    first, *others = (session.evaluator.residues(value) for value in (here, there, back))
    for other in others:
        np.testing.assert_array_equal(other, first)
    for value in (here, there, back):
        np.testing.assert_allclose(session.decrypt(value, 52.0), x, atol=2.0**-33)


def test_calls_are_timed_in_the_chain_that_they_happen_in() -> None:
    program = refreshed(RING, LOWER, SIZE, 2)
    session, calls = openfhe(program), sum(node_calls(program).values(), Counter())
    floor = Floor(session.evaluator, calls)
    floor.sample()
    assert {call.primitive for call in floor.medians_ms() if call.chain == 1} == {RAISED, "conjugate"}
    assert min(floor.medians_ms().values()) > 0
    # Its keys are in the lower chain alone.
    with pytest.raises(RuntimeError):
        Floor(session.evaluator, {Call("conjugate", LOWER.bootstrap_level, 2): 1}).sample()


def test_keys_are_those_of_the_chains_in_which_bootstraps_happen() -> None:
    program = compiled(LOWER)
    keys = program_keys(program)
    names = {key.name for key in keys}
    pairs = ("bootstrap/encapsulation", "chain16/bootstrap/encapsulation")
    assert names >= {*pairs, "conjugation", "chain16/conjugation", "relinearization", "chain16/relinearization"}
    assert sum(key.kind == "encapsulation" for key in keys) == 2
    # These never leave the memory, rotations do.
    use = key_use(program)
    assert {key.name for key in use.staying} >= {*pairs, "chain16/conjugation"}
    assert raising_chains(program) == (0, 1)
    for chain in program.planned.chains[:2]:
        assert sum(key.ring == chain.ring for key in use.others.values()) > 3


def test_a_client_and_a_server_over_files(tmp_path: Path) -> None:
    program = compiled(LOWER)
    artifact(program).save(tmp_path / "a.helio")
    loaded = hg.Artifact.load(tmp_path / "a.helio")
    assert loaded.program.planned == program.planned
    loaded.public().save(tmp_path / "a.public")
    public = hg.PublicArtifact.load(tmp_path / "a.public")
    assert public == loaded.public()
    assert [key.name for key in public.evaluation_keys] == [key.name for key in program_keys(program)]
    hg.Client(public, allow_insecure=True).save(tmp_path / "client.key")
    client = hg.Client.load(tmp_path / "client.key", allow_insecure=True)
    assert client.public.evaluation_keys == public.evaluation_keys
    made = client.evaluation_keys()
    made.save(tmp_path / "all.keys")
    client.write_evaluation_keys(tmp_path / "keys")
    x = np.random.default_rng(2).uniform(-1, 1, SIZE)
    exact, least = interpret(program, x), key_use(program).least_bytes
    for backend, keys, bound in (
        ("openfhe", EvaluationKeys.load(tmp_path / "all.keys"), None),
        ("native", KeyFolder(tmp_path / "keys"), None),
        ("openfhe", KeyFolder(tmp_path / "keys"), None),
        ("native", KeyFolder(tmp_path / "keys"), least),
    ):
        with hg.Server(loaded, keys, backend=backend, key_bytes=bound, allow_insecure=True) as server:
            found = client.decrypt(server.run(client.encrypt(x)))
        np.testing.assert_allclose(found, exact, atol=2.0**-14)
    with pytest.raises(hg.SecurityError, match="bootstraps cannot be shared"):
        client.decrypt(server_output(loaded, client, made, x), share=True)


def server_output(loaded: hg.Artifact, client: hg.Client, keys: EvaluationKeys, x: Array) -> object:
    with hg.Server(loaded, keys, allow_insecure=True) as server:
        return server.run(client.encrypt(x))


def test_servers_of_other_chains_keep_their_keys() -> None:
    """One bootstraps in both chains, the other in the whole one alone; closing the first takes nothing of the other's."""
    x, found = np.random.default_rng(5).uniform(-1, 1, SIZE), []
    artifacts = [artifact(compiled(LOWER)), artifact(compiled())]
    clients = [hg.Client(each, allow_insecure=True) for each in artifacts]
    servers = [
        hg.Server(each, client.evaluation_keys(), backend="openfhe", allow_insecure=True)
        for each, client in zip(artifacts, clients, strict=True)
    ]
    for number in (0, 1):
        found.append(clients[number].decrypt(servers[number].run(clients[number].encrypt(x))))
    servers[0].close()
    found.append(clients[1].decrypt(servers[1].run(clients[1].encrypt(x))))
    servers[1].close()
    for values in found:
        np.testing.assert_allclose(values, interpret(compiled(), x), atol=2.0**-14)


@pytest.mark.parametrize("name", ["chain16/bootstrap/encapsulation", "chain16/conjugation"])
def test_a_missing_key_of_the_lower_chain_is_named_before_anything_runs(name: str) -> None:
    made = artifact(compiled(LOWER))
    _, _, keys = keyed(made)
    del keys.blobs[name]
    with pytest.raises(WireError, match=name):
        hg.Server(made, keys, allow_insecure=True)


def test_prices_and_bytes_are_those_of_each_chain() -> None:
    program = compiled(LOWER)
    calls = sum(node_calls(program).values(), Counter())
    at = {call.chain: call for call in calls if call.primitive == RAISED}
    assert at[0].level == at[1].level == 0
    assert call_ms(at[1], LOWER, BUILT_IN) < call_ms(at[1], RING, BUILT_IN)
    assert table_bytes(program) > table_bytes(compiled())
    _, client, made = keyed(artifact(program))
    memory = memory_bytes(program, program.ring)
    predicted = memory["sent_keys"]
    assert client.evaluation_key_bytes == predicted == sum(key.sent_bytes for key in program_keys(program))
    assert predicted < 0.55 * memory["evaluation_keys"]
    written = sum(len(made.blob(name)) for name in made.names())
    assert predicted < written < 1.05 * predicted


def test_the_report_says_which_chain_bootstraps() -> None:
    made = artifact(compiled(LOWER))
    values, count = made.report.to_dict(), Counter(places(compiled(LOWER)))
    (row,) = (row for row in values["lower_chains"] if row["level"] == 16)
    assert (row["bootstraps"], row["to_level"]) == (count[5, 16], 5)
    assert values["bootstraps"] == sum(count.values())
    assert values["operations"][f"chain16/{RAISED}@0/{SIZE}"] == count[5, 16]
    assert values["operations"][f"{RAISED}@0/{SIZE}"] == count[7, 19]
    text = " ".join(made.report.full().split())
    assert f"{count[5, 16]} of them in the part of 16 levels, to level 5 at most" in text
    assert "Each chain that bootstraps has its own" in text
    assert "bootstraps" not in str(artifact(compiled()).report.to_dict()["lower_chains"])
    assert hg.Artifact.from_bytes(made.to_bytes()).report == made.report


def test_the_text_says_which_chain_bootstraps() -> None:
    program = compiled(LOWER)
    text = print_program(program)
    assert "bootstraps = true" in text
    assert print_program(parse_program(text, program.constants)) == text
    assert "bootstraps = true" not in print_program(compiled())


def changed(program: Program, *chains: Chain) -> Program:
    return replace(program, parameters=replace(program.planned, chains=chains))


def test_what_no_compiler_writes_is_refused() -> None:
    program = compiled(LOWER)
    whole, lower, *rest = program.planned.chains
    text = print_program(program)
    without = text.replace(", bootstrap = [2, 2]", "", 1)
    assert without != text
    with pytest.raises(ProgramError, match="its whole chain does not"):
        parse_program(without, program.constants)
    # It returns no higher than it begins.
    low = changed(program, whole, replace(lower, ring=RING.lower(13, 3, bootstraps=True)), *rest)
    with pytest.raises(VerifyError, match="holds its level"):
        verify(low)
    with pytest.raises(WireError, match="returns no higher than it begins"):
        check_program(low)
    silent = changed(program, whole, replace(lower, ring=RING.lower(16, 3)), *rest)
    with pytest.raises(VerifyError, match="reaches their level"):
        verify(silent)
    with pytest.raises(WireError):
        check_program(silent)
    with pytest.raises(WireError):
        hg.Artifact.from_bytes(replace(artifact(program), program=low).to_bytes())


def test_a_conjugation_in_a_chain_without_its_key_is_refused() -> None:
    program = refreshed(RING, LOWER, SIZE, 2)
    whole, lower = program.planned.chains
    verify(program)
    # Nothing is bootstrapped in this one.
    other = Chain(RING.lower(15, 3, bootstraps=True))
    builder = Builder("conjugated", Stage.MANAGED)
    builder.set_ring(RING)
    x = builder.input("x", slots=RING.slots, chunk=0, level=5, log_scale=52.0)
    there = builder.op("conjugate", (builder.op("switch_chain", (x,), chain=2),))
    builder.parameters = Parameters((whole, lower, other))
    builder.interface = Interface(
        (TensorSpec("x", (RING.slots,), Layout((RING.slots,), RING.slots, RING.slots)),),
        (TensorSpec("y", (RING.slots,), Layout((RING.slots,), RING.slots, RING.slots)),),
    )
    made = replace(builder.finish([builder.op("level_drop", (there,), levels=5)]), stage=Stage.EXECUTABLE)
    with pytest.raises(VerifyError, match="conjugations have a key"):
        verify(made)


PART = {"level": 16, "digits": 3, "rotation_keys": [], "relinearization_key": True, "bootstraps": True}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({**PART, "bootstraps": 1}, "bootstraps"),
        ({**PART, "bootstraps": False}, "malformed"),
        ({**PART, "level": 13}, "returns no higher"),
        ({**PART, "level": 4}, "returns no higher"),
        ({**PART, "bootstrap": [1, 1]}, "no field"),
    ],
)
def test_nonsense_about_lower_chains_is_refused(part: dict[str, object], words: str) -> None:
    given = chains_json([Chain(RING), Chain(LOWER, (), True)])
    assert given["chains"] == [PART]
    assert [chain.ring for chain in read_chains(given)] == [RING, LOWER]
    with pytest.raises(WireError, match=words):
        read_chains({**given, "chains": [part]})


def test_a_lower_chain_does_not_bootstrap_alone() -> None:
    ring = replace(RING, bootstrap=None)
    with pytest.raises(WireError, match="the whole one does not"):
        read_chains({**chains_json([Chain(ring)]), "chains": [PART]})
    with pytest.raises(ProgramError, match="its whole chain does not"):
        ring.lower(16, 3, bootstraps=True)
    # Files from before say nothing of it.
    before = {key: value for key, value in PART.items() if key != "bootstraps"}
    (_, lower) = read_chains({**chains_json([Chain(RING)]), "chains": [before]})
    assert lower.ring == RING.lower(16, 3)


def test_a_secure_chain_has_secure_lower_parts() -> None:
    """log PQ falls with the length: fewer primes, and no more special ones."""
    whole = Ring(16, 60, 55, 23, 4, 128, (3, 3))
    for levels, digits in ((22, 4), (21, 3), (20, 3)):
        lower = whole.lower(levels, digits, bootstraps=True)
        assert lower.legal
        if lower.special <= whole.special:
            assert lower.secure
            assert lower.log_pq < whole.log_pq
    assert not whole.lower(22, 1, bootstraps=True).secure


# ---------------------------------------------------------------------------------------------- the planner's choice


def planned(chains: int | None) -> hg.Artifact:
    """Sixteen layers of degree 31 and four of degree 3, at full security."""
    builder = Builder("mixed", Stage.TENSOR)
    h = builder.input("x", shape=(SIZE,), low=-1.0, high=1.0)
    for degree in [31] * 16 + [3] * 4:
        h = builder.op("tanh", (h,), degree=degree)
    return hg.compile(builder.finish([h]), hg.Options(log_ring=16, bootstrap=True, chains=chains))


def test_the_planner_takes_a_second_chain_where_it_pays() -> None:
    one, several = planned(1), planned(None)
    assert not any(chain.ring.bootstrap for chain in one.program.planned.chains[1:])
    lower = [chain.ring for chain in several.program.planned.chains[1:] if chain.ring.bootstrap is not None]
    assert lower
    assert all(ring.secure and ring.legal for ring in lower)
    # Of plans that are nearly as fast it has the smallest keys: that is what it was taken for.
    assert several.report.figures.predicted_ms < 1.1 * one.report.figures.predicted_ms
    assert several.report.figures.evaluation_key_bytes < one.report.figures.evaluation_key_bytes
