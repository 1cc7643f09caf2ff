"""Programs that carry values from run to run: what is done stays done, and nothing strange is carried on."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.errors import PlanningError, ProgramError, RangeError, WireError
from heliograph.ir.analysis.carried import carried_outputs, carried_pairs, fits, only, released
from heliograph.ir.interface import Interface
from heliograph.ir.text import parse_program, print_program

TEXT = """program counter
input x: secret tensor[4] in [-1, 1]
input extra: secret tensor[4] in [-1, 1]
input total: carried tensor[4] in [-1, 1]
input share: plain tensor[] in [0, 1]
seen = total * 0.5 + x * x * share
output seen
output peek = total * extra
output total = seen
"""
START, X, EXTRA = np.array([0.1, 0.2, -0.3, 0.4]), np.array([0.5, -0.5, 0.25, 1.0]), np.array([1.0, -1.0, 0.5, 0.0])


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(TEXT), hg.Options(security_bits=None, log_ring=11))


@pytest.fixture(scope="module")
def client(artifact: hg.Artifact) -> hg.Client:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hg.Client(artifact.public(), allow_insecure=True)


@pytest.fixture(scope="module")
def server(artifact: hg.Artifact, client: hg.Client) -> Iterator[hg.Server]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as made:
            yield made


@contextlib.contextmanager
def served(artifact: hg.Artifact) -> Iterator[tuple[hg.Client, hg.Server]]:
    """A client and a server of another artifact."""
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client(artifact.public(), allow_insecure=True)
    with pytest.warns(hg.errors.InsecureWarning):
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    with server:
        yield client, server


@pytest.mark.front
def test_rounds_go_on_from_each_other_and_are_found_again(tmp_path: Path, client: hg.Client, server: hg.Server) -> None:
    total = START
    with hg.Session(server, tmp_path) as session:
        assert not session.started
        with pytest.raises(ProgramError, match="call start first"):
            session.run(client.encrypt(X, EXTRA))
        session.start(client.encrypt_carried(total=START))
        for number in range(1, 4):
            output = session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
            before, total = total, total * 0.5 + X * X * 0.25
            assert session.round == number
            seen, peek = client.decrypt(output)
            assert seen == pytest.approx(total, abs=1e-4)
            assert peek == pytest.approx(before * EXTRA, abs=1e-4)
            assert client.decrypt_carried(session.carried())["total"] == pytest.approx(total, abs=1e-4)
            session.keep(1)
        with pytest.raises(ProgramError, match="another process is using"):
            hg.Session(server, tmp_path)
    # Rounds that are far back are gone, those that were to be kept are not.
    assert sorted(path.name for path in tmp_path.glob("*.carried")) == [
        "00001.carried",
        "00002.carried",
        "00003.carried",
    ]
    (tmp_path / "00004.output").write_bytes(b"a round that was never done")
    with hg.Session(server, tmp_path) as session:
        assert session.round == 3
        with pytest.raises(ProgramError, match="has 3 rounds already"):
            session.start(client.encrypt_carried(total=START))
        session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
        assert client.decrypt(session.output())[0] == pytest.approx(total * 0.5 + X * X * 0.25, abs=1e-4)


def test_what_is_kept_stays_when_another_process_goes_on(tmp_path: Path, client: hg.Client, server: hg.Server) -> None:
    with hg.Session(server, tmp_path, kept=1) as session:
        session.start(client.encrypt_carried(total=START))
        session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
        session.keep(0)
        session.keep(1)
    with hg.Session(server, tmp_path, kept=1) as session:
        for _ in range(2):
            session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
        kept = client.decrypt_carried(session.carried(1))["total"]
        assert kept == pytest.approx(START * 0.5 + X * X * 0.25, abs=1e-4)
        assert sorted(path.name for path in tmp_path.glob("*.carried")) == ["00001.carried", "00003.carried"]
        # Another mark takes its place.
        session.keep(3)
        session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
    assert sorted(path.name for path in tmp_path.glob("*.carried")) == ["00003.carried", "00004.carried"]
    assert [path.name for path in tmp_path.glob("*.kept")] == ["00003.kept"]


def test_parts_of_a_program_take_only_what_they_need(tmp_path: Path, client: hg.Client, server: hg.Server) -> None:
    with hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(total=START))
        asked = client.encrypt_some(extra=EXTRA)
        found = client.decrypt_some(session.look(asked, ["peek"]), of=asked)
        assert list(found) == ["peek"]
        assert found["peek"] == pytest.approx(START * EXTRA, abs=1e-4)
        assert session.round == 0
        output = session.run(client.encrypt_some(x=X), plain={"share": 0.25}, outputs=["seen"])
        assert client.decrypt_some(output)["seen"] == pytest.approx(START * 0.5 + X * X * 0.25, abs=1e-4)
        with pytest.raises(WireError, match="lack"):
            client.decrypt(output)
        with pytest.raises(WireError, match="too many"):
            session.look(client.encrypt_some(x=X, extra=EXTRA), ["peek"])
        with pytest.raises(ProgramError, match="no output 'nothing'"):
            session.look(asked, ["nothing"])
    with pytest.raises(ProgramError, match="no input 'y'"):
        client.encrypt_some(y=X)


DELAYED = """program delayed
input x: secret tensor[4] in [-1, 1]
input last: carried tensor[4] in [-1, 1]
input total: carried tensor[4] in [-1, 1]
output seen = x * 0.5
output peek = last + x
output last = x * 0.25
output total = total * 0.5
"""


@pytest.mark.parametrize("bootstrap", [None, False])
def test_what_spends_no_level_is_carried_without_bootstraps(tmp_path: Path, bootstrap: bool | None) -> None:
    """A sum goes on for ever; a value that is made anew in each run may cost levels."""
    text = """program sums
input x: secret tensor[4] in [-1, 1]
input last: carried tensor[4] in [-8, 8]
input total: carried tensor[4] in [-8, 8]
output seen = total * 0.5
output last = x * x
output total = total + last * 0.5
"""
    made = hg.compile(hg.parse(text), hg.Options(security_bits=None, log_ring=10, bootstrap=bootstrap))
    assert not made.report.figures.bootstraps
    with served(made) as (client, server), hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(last=START, total=START))
        last = total = START
        for _ in range(3):
            seen = client.decrypt(session.run(client.encrypt(X)))
            assert seen == pytest.approx(total * 0.5, abs=1e-6)
            last, total = X * X, total + last * 0.5
        left = client.decrypt_carried(session.carried())
        assert left["total"] == pytest.approx(total, abs=1e-6)
        assert left["last"] == pytest.approx(last, abs=1e-6)


def test_what_a_part_does_not_read_is_carried_on_all_the_same(tmp_path: Path) -> None:
    artifact = hg.compile(hg.parse(DELAYED), hg.Options(security_bits=None, log_ring=11))
    with served(artifact) as (client, server), hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(last=START, total=START))
        session.run(client.encrypt_some(x=X), outputs=["seen"])
        asked = client.encrypt_some(x=EXTRA)
        found = client.decrypt_some(session.run(asked, outputs=["peek"]), of=asked)
        assert found["peek"] == pytest.approx(X * 0.25 + EXTRA, abs=1e-4)


def test_several_samples_are_carried_side_by_side(tmp_path: Path) -> None:
    artifact = hg.compile(hg.parse(TEXT), hg.Options(security_bits=None, log_ring=11, batch=2))
    start, x, extra = (np.stack([one, one[::-1]]) for one in (START, X, EXTRA))
    with served(artifact) as (client, server), hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(total=start))
        seen, _ = client.decrypt(session.run(client.encrypt(x, extra), plain={"share": 0.25}))
        assert seen == pytest.approx(start * 0.5 + x * x * 0.25, abs=1e-4)
        assert client.decrypt_carried(session.carried())["total"] == pytest.approx(seen, abs=1e-4)


def test_a_part_draws_its_own_inputs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn is what reaches the outputs that are asked for."""
    text = print_program(hg.parse(TEXT.replace("plain tensor[] in [0, 1]", "plain tensor[] in [-1, 1]")))
    drawn = parse_program(text.replace('name = "share"', 'drawn = "uniform", name = "share"'))
    artifact = hg.compile(drawn, hg.Options(security_bits=None, log_ring=11))
    draws: list[str] = []

    def counted(distribution: str, shape: tuple[int, ...]) -> object:
        draws.append(distribution)
        return np.full(shape, 0.25)

    monkeypatch.setattr("heliograph.runtime.server.server.secure_draw", counted)
    with served(artifact) as (client, server), hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(total=START))
        asked = client.encrypt_some(extra=EXTRA)
        found = client.decrypt_some(session.look(asked, ["peek"]), of=asked)
        assert found["peek"] == pytest.approx(START * EXTRA, abs=1e-4)
        assert draws == []
        output = session.run(client.encrypt_some(x=X), outputs=["seen"])
        assert client.decrypt_some(output)["seen"] == pytest.approx(START * 0.5 + X * X * 0.25, abs=1e-4)
        assert draws == ["uniform"]


def test_what_is_no_carried_value_is_refused(
    tmp_path: Path, artifact: hg.Artifact, client: hg.Client, server: hg.Server
) -> None:
    with pytest.raises(ProgramError, match="from the run before"):
        server.run(client.encrypt(X, EXTRA))
    with pytest.raises(ProgramError, match="carries the inputs 'total'"):
        client.encrypt_carried(count=START)
    with pytest.raises(RangeError, match="outside its range"):
        client.encrypt_carried(total=2 * np.ones(4))
    with pytest.raises(WireError, match="not EncryptedInput"):
        server.step(client.encrypt(X, EXTRA), client.encrypt(X, EXTRA))  # type: ignore[arg-type]
    with pytest.warns(hg.errors.InsecureWarning):
        stranger = hg.Client(artifact.public(), allow_insecure=True)
    with hg.Session(server, tmp_path) as session:
        with pytest.raises(WireError, match="another client"):
            session.start(stranger.encrypt_carried(total=START))
        session.start(client.encrypt_carried(total=START))
        path = tmp_path / "00000.carried"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(WireError):
            session.run(client.encrypt(X, EXTRA), plain={"share": 0.25})
        with pytest.raises(WireError):
            client.decrypt_carried(hg.CarriedValues.load(path))


def test_a_value_that_left_its_range_is_told(tmp_path: Path, client: hg.Client, server: hg.Server) -> None:
    with hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(total=np.ones(4)))
        session.run(client.encrypt(np.ones(4), EXTRA), plain={"share": 1.0})
        with pytest.raises(RangeError, match="'total' left its range at index"):
            client.decrypt_carried(session.carried())


def test_programs_without_state_have_no_session(tmp_path: Path) -> None:
    program = hg.parse("program p\ninput x: secret tensor[2] in [-1, 1]\noutput x * x\n")
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=10))
    with served(artifact) as (_, server), pytest.raises(ProgramError, match="carries nothing"):
        hg.Session(server, tmp_path)


def test_state_is_in_every_text_and_file(tmp_path: Path, artifact: hg.Artifact, client: hg.Client) -> None:
    program = hg.parse(TEXT)
    assert program.interface.carried == (("total", "total"),)
    assert hg.parse(hg.to_language(program)).interface == program.interface
    assert parse_program(print_program(artifact.program)).interface == artifact.program.interface
    again = hg.Artifact.from_bytes(artifact.to_bytes())
    assert again.fingerprint == artifact.fingerprint
    public = hg.PublicArtifact.from_bytes(artifact.public().to_bytes())
    assert [spec.name for spec in public.carried] == ["total"]
    assert [spec.name for spec in public.given] == ["x", "extra"]
    assert [spec.name for spec in public.outputs] == ["seen", "peek"]
    client.save(tmp_path / "key")
    with pytest.warns(hg.errors.InsecureWarning):
        loaded = hg.Client.load(tmp_path / "key", allow_insecure=True)
    assert loaded.public.carried == public.carried


def test_what_comes_out_fits_what_goes_in(artifact: hg.Artifact) -> None:
    program = artifact.program
    ((output, source),) = carried_pairs(program)
    assert fits(output.type, source.type)
    assert output.type.level == source.attrs["level"] > 0
    assert list(carried_outputs(program)) == ["total"]
    assert released(program) == {"seen": 0, "peek": 1}
    part = only(program, {"peek"})
    assert [node.attrs["name"] for node in part.inputs] == ["extra", "total"]
    assert not part.interface.carried


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (("output total = seen\n", ""), "nothing says what 'total' is in the next run"),
        (("output total = seen", "output total = sum(seen)"), "has shape"),
        (("output total = seen", "output total = share"), "not in the next run"),
        (("carried tensor[4] in [-1, 1]", "carried tensor[4]"), "has no range"),
        (("output seen\noutput peek = total * extra\n", ""), "every output is carried"),
    ],
)
def test_state_that_makes_no_sense_is_refused_where_it_stands(change: tuple[str, str], wrong: str) -> None:
    with pytest.raises(hg.LanguageError, match=wrong):
        hg.parse(TEXT.replace(*change))


def test_one_output_that_becomes_inputs_at_two_levels_is_refused_with_their_names() -> None:
    program = hg.parse(TEXT.replace("input extra: secret", "input extra: carried") + "output extra = total\n")
    # It is read just before the end, and wanted lower than the other one.
    interface = Interface(carried=(("total", "total"), ("total", "extra")))
    kept = program.output_names.index("extra")
    one = replace(
        program, output_names=program.output_names[:kept], outputs=program.outputs[:kept], interface=interface
    )
    with pytest.raises(PlanningError, match="'total' cannot become 'total' and 'extra'") as raised:
        hg.compile(one, hg.Options(security_bits=None, log_ring=11))
    assert "level" in str(raised.value.why)
    # With outputs of their own they may come at any.
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=11))
    assert all(fits(output.type, source.type) for output, source in carried_pairs(artifact.program))


def test_one_output_becomes_two_inputs_that_are_alike(tmp_path: Path) -> None:
    text = """program twice
input x: secret tensor[4] in [-1, 1]
input one: carried tensor[4] in [-1, 1]
input other: carried tensor[4] in [-1, 1]
output seen = one + other
output one = (one + other) * 0.25 + x * 0.25
output other = x * 0.5
"""
    program = hg.parse(text)
    kept = [number for number, name in enumerate(program.output_names) if name != "other"]
    names, nodes = ([each[number] for number in kept] for each in (program.output_names, program.outputs))
    carried = Interface(carried=(("one", "one"), ("one", "other")))
    program = replace(program, output_names=tuple(names), outputs=tuple(nodes), interface=carried)
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=11))
    again = hg.Artifact.from_bytes(artifact.to_bytes())
    with served(again) as (client, server), hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(one=START, other=EXTRA))
        assert client.decrypt(session.run(client.encrypt(X))) == pytest.approx(START + EXTRA, abs=1e-4)
        one = (START + EXTRA) * 0.25 + X * 0.25
        assert client.decrypt(session.run(client.encrypt(X))) == pytest.approx(2 * one, abs=1e-4)
        left = client.decrypt_carried(session.carried())
        assert left["one"] == pytest.approx(one * 0.5 + X * 0.25, abs=1e-4)
        assert left["other"] == pytest.approx(left["one"], abs=1e-6)


def test_two_outputs_do_not_become_one_input() -> None:
    with pytest.raises(ProgramError, match="input 'total' comes from 2 outputs of the run before: 'total' and 'seen'"):
        Interface(carried=(("total", "total"), ("seen", "total")))
    # Nor in a text, or in the file of an artifact that says so.
    told = 'carry "total" {input = "total"}\n'
    with pytest.raises(hg.errors.HeliographError, match="comes from 2 outputs"):
        parse_program(print_program(hg.parse(TEXT)).replace(told, told + 'carry "seen" {input = "total"}\n'))


def test_without_bootstraps_nothing_is_carried() -> None:
    with pytest.raises(PlanningError, match="bootstrap=False"):
        hg.compile(hg.parse(TEXT), hg.Options(security_bits=None, log_ring=11, bootstrap=False))


def test_a_server_that_looked_is_collected(tmp_path: Path, artifact: hg.Artifact, client: hg.Client) -> None:
    """Its keys leave the process with it."""
    with pytest.warns(hg.errors.InsecureWarning):
        server = hg.Server(artifact, client.evaluation_keys(), allow_insecure=True)
    with hg.Session(server, tmp_path) as session:
        session.start(client.encrypt_carried(total=START))
        session.look(client.encrypt_some(extra=EXTRA), ["peek"])
    gone = weakref.ref(server)
    del server, session
    gc.collect()
    assert gone() is None
