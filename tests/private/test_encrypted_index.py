"""An index whose vectors are encrypted, and answers that the server decides: those of the clear, refused in words."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.serving import Running

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.interpret import interpret_many
from heliograph.ir import Builder, Stage
from heliograph.private.encrypted_index import Blocks, power_above
from heliograph.private.search import best

# As coarse rings as there are: the tests of rings and errors are elsewhere.
OPTIONS = hg.Options(security_bits=None, log_ring=10)
DECIDING = hg.Options(security_bits=None, log_ring=11)
ROWS = np.random.default_rng(0).normal(size=(12, 8))


def cosine(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    return rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)


def parts(made: hg.Artifact, rows: np.ndarray) -> tuple[hg.Client, hg.Server]:
    """The owner of an index, and a server that keeps its encrypted vectors."""
    owner = hg.Client(made.public(), allow_insecure=True)
    kept = hg.encrypt_index(owner, rows)
    return owner, hg.Server(made, owner.evaluation_keys(), allow_insecure=True, kept=kept)


class Noting:
    """A server whose last answer can be read."""

    def __init__(self, server: hg.Server) -> None:
        self._server = server
        self.output: Any = None

    def run(self, encrypted: Any) -> Any:
        self.output = self._server.run(encrypted)
        return self.output


@functools.cache
def deciding(answer: Any, encrypted: bool) -> hg.Artifact:
    threshold = 0.8 if answer == "matches" else None
    return hg.search_index(
        ROWS,
        answer=answer,
        threshold=threshold,
        gap=0.1,
        encrypted=encrypted,
        options=DECIDING,
        names=[f"e{i}" for i in range(12)],
    )


@pytest.mark.parametrize(
    ("entries", "components", "log_ring", "slots", "ciphertexts"),
    [
        # Several components of a row in a ciphertext: all of them, or 121 slots a copy.
        (100, 24, None, 4096, 1),
        (100, 24, 10, 512, 6),
        (100, 16, 11, 1024, 2),
        (5, 3, None, 4096, 1),
        # One in each.
        (9000, 16, None, 4096, 3 * 16),
        (9000, 24, None, 4096, 3 * 24),
        (4096, 16, None, 4096, 16),
        (100, 24, 8, 128, 24),
        (2, 1, None, 2, 1),
    ],
)
def test_blocks_give_the_scores(
    entries: int, components: int, log_ring: int | None, slots: int, ciphertexts: int
) -> None:
    random = np.random.default_rng(1)
    vectors, query = random.normal(size=(entries, components)), random.normal(size=components)
    blocks = Blocks.of(entries, components, False, log_ring)
    assert (blocks.slots, len(blocks.inputs)) == (slots, ciphertexts)
    builder = Builder("index", Stage.TENSOR)
    program = builder.finish(blocks.scores(builder, 9.0, 9.0))
    values = {"query": blocks.query(query), **dict(blocks.values(vectors))}
    found = interpret_many(program, [values[node.attrs["name"]][np.newaxis] for node in program.inputs])
    scores = np.concatenate([each[0] for each in found])
    assert len(scores) == blocks.count * blocks.rows
    assert scores[:entries] == pytest.approx(vectors @ query)
    assert not scores[entries:].any()


def test_powers_above() -> None:
    assert [power_above(size) for size in (1.0, 1.1, 0.5, 0.3, 4.0)] == [1.0, 2.0, 0.5, 0.5, 4.0]


def test_hits_of_an_encrypted_index_are_those_of_the_clear() -> None:
    rows = np.random.default_rng(2).normal(size=(100, 24))
    made = hg.search_index(rows, encrypted=True, options=OPTIONS)
    owner, server = parts(made, rows)
    # The server's artifact knows the shape alone.
    other = hg.search_index(rows[::-1] + 1.0, encrypted=True, options=OPTIONS)
    assert other.fingerprint == made.fingerprint
    queries = 40.0 * (rows[[3, 99]] + 0.2)
    with server:
        asked = owner.encrypt_some(query=np.zeros(512))
        assert len(asked.names()) == 1
        found = hg.search(server, owner, queries, 5)
        with pytest.raises(hg.WireError, match="lack query"):
            server.run(hg.encrypt_index(owner, rows))
        with pytest.raises(hg.ProgramError, match="24 components"):
            hg.search(server, owner, queries[:, :9])
    for query, hits in zip(queries, found, strict=True):
        exact = cosine(rows, query)
        assert [hit.place for hit in hits] == best(exact, 5)
        assert all(abs(hit.score - exact[hit.place]) < 1e-6 for hit in hits)


def test_an_encrypted_index_of_several_blocks_has_no_places_beyond_its_entries() -> None:
    rows = np.abs(np.random.default_rng(3).normal(size=(4100, 2)))
    made = hg.search_index(
        rows, metric="dot", largest=2.0, encrypted=True, names=[f"({i})" for i in range(4100)],
        options=hg.Options(security_bits=None, log_ring=13),
    )  # fmt: skip
    owner, server = parts(made, rows)
    with server:
        # All scores are negative, so those of the zeros that fill the last block would be the largest.
        hits = hg.search(server, owner, [-1.0, -2.0], 4100)
    assert [hit.place for hit in hits] == best(rows @ [-1.0, -2.0], 4100)
    assert hits[0].name == f"({hits[0].place})"


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("answer", ["top1", "matches"])
def test_the_server_decides(answer: Any, encrypted: bool) -> None:
    made = deciding(answer, encrypted)
    owner = hg.Client(made.public(), allow_insecure=True)
    kept = hg.encrypt_index(owner, ROWS) if encrypted else None
    near = ROWS[[5, 2, 11]] + 0.05
    with hg.Server(made, owner.evaluation_keys(), allow_insecure=True, kept=kept) as server:
        found = hg.search(server, owner, near)
        far = hg.search(server, owner, -ROWS.mean(axis=0))
        noting = Noting(server)
        hg.search(noting, owner, near[0])
        decided = owner.decrypt(noting.output)
    for query, hits in zip(near, found, strict=True):
        exact = cosine(ROWS, query)
        # What is decided lies within 2^-5 of 0 or 1; entries within the gap of the threshold may be hits or not.
        clear = {int(i) for i in np.flatnonzero(np.abs(exact - 0.8) > 0.1)} if answer == "matches" else set(range(12))
        wanted = {int(i) for i in np.flatnonzero(exact > 0.8)} if answer == "matches" else {int(exact.argmax())}
        assert {hit.place for hit in hits} & clear == wanted & clear
        assert all(abs(hit.score - 1.0) < 2**-5 for hit in hits if hit.place in clear)
        assert all(hit.name == f"e{hit.place}" for hit in hits)
    assert len(far) == (1 if answer == "top1" else 0)
    exact = cosine(ROWS, near[0])
    hidden = np.abs(exact - 0.8) > 0.1 if answer == "matches" else exact == exact
    wanted = exact > 0.8 if answer == "matches" else exact == exact.max()
    assert np.abs(decided - wanted)[hidden].max() < 2**-5


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_encrypted_dot_products_may_be_as_large_as_their_components_allow(size: float) -> None:
    rows = size * np.abs(ROWS[:20])
    rows[3] = rows.max()
    made = hg.search_index(
        rows, metric="dot", largest=1.0, encrypted=True, options=hg.Options(security_bits=None, log_ring=11)
    )
    owner, server = parts(made, rows)
    query = np.ones(rows.shape[1])
    with server:
        hits = hg.search(server, owner, query, 2)
    exact = rows @ query
    assert [hit.place for hit in hits] == best(exact, 2)
    assert abs(hits[0].score - exact[3]) < max(made.report.figures.predicted_max_abs_error, 1e-3 * exact[3])


@pytest.mark.parametrize("answer", ["top1", "matches"])
def test_decisions_over_encrypted_dot_products_hold_for_the_largest_of_them(answer: Any) -> None:
    rows = np.array([[0.9] * 8, [0.8] * 8, [-0.1] * 8, [-0.95] * 8])
    more = {"threshold": 3.0} if answer == "matches" else {}
    made = hg.search_index(
        rows, metric="dot", largest=2.0, encrypted=True, answer=answer, gap=1.5, options=OPTIONS, **more
    )
    assert made.report.values["ranges"][0]["high"] >= 16.0 - (3.0 if answer == "matches" else 0.0)
    owner, server = parts(made, rows)
    with server:
        for sign, near in ((1.0, [0, 1]), (-1.0, [3])):
            hits = hg.search(server, owner, np.full(8, 2.0 * sign))
            assert [hit.place for hit in sorted(hits, key=lambda hit: hit.place)] == (
                near[:1] if answer == "top1" else near
            )
            assert all(hit.score > 0.9 for hit in hits)


def test_samples_give_the_gap_and_are_counted() -> None:
    samples = ROWS[:8] + 0.2
    made = hg.search_index(ROWS, answer="top1", samples=samples, options=DECIDING)
    ordered = np.sort([cosine(ROWS, sample) for sample in samples], axis=1)
    figures = made.report.to_dict()
    (entry,) = [each for each in figures["ranges"] if each.get("gap") is not None]
    assert entry["gap_source"] == "observed"
    assert entry["gap"] <= (ordered[:, -1] - ordered[:, -2]).min() * (1 + 1e-6)


def test_a_tie_is_a_hit_that_is_not_sure() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    made = hg.search_index(rows, answer="top1", gap=0.2, options=DECIDING)
    owner = hg.Client(made.public(), allow_insecure=True)
    with hg.Server(made, owner.evaluation_keys(), allow_insecure=True) as server:
        hits = hg.search(server, owner, [1.0, 1.0])
    assert {hit.place for hit in hits} <= {0, 1}
    assert hits


def test_what_cannot_be_decided_is_refused_in_words() -> None:
    for values, more, said in (
        (ROWS, {"answer": "best"}, "does not answer 'best'"),
        (ROWS, {"answer": "matches"}, "has a threshold"),
        (ROWS, {"threshold": 0.5}, "has a threshold"),
        (ROWS, {"answer": "matches", "threshold": 1.5}, "no cosine similarity"),
        (ROWS, {"gap": 0.1}, "scores are not compared"),
        (ROWS, {"answer": "top1", "gap": 0.0}, "a positive number"),
        (ROWS, {"answer": "top1", "samples": ROWS, "encrypted": True}, "in the clear"),
        (ROWS, {"answer": "top1", "samples": ROWS[:, :3]}, "samples have 3 components"),
        (ROWS, {"answer": "top1", "metric": "dot", "largest": 1.0}, "need a gap"),
        (np.ones((1, 3)), {"answer": "top1"}, "these are 1"),
        (np.ones((5000, 3)), {"answer": "top1"}, "these are 5000"),
        (np.ones((5000, 3)), {"encrypted": True, "names": ["a"]}, "has 1 names"),
    ):
        with pytest.raises(hg.ProgramError, match=said):
            hg.search_index(values, options=OPTIONS, **more)
    made = hg.search_index(ROWS, options=OPTIONS)
    owner = hg.Client(made.public(), allow_insecure=True)
    with pytest.raises(hg.ProgramError, match="in the clear"):
        hg.encrypt_index(owner, ROWS)
    made = hg.search_index(ROWS, encrypted=True, options=OPTIONS)
    owner = hg.Client(made.public(), allow_insecure=True)
    with pytest.raises(hg.ProgramError, match=r"shape \(11, 8\)"):
        hg.encrypt_index(owner, ROWS[1:])


def test_kept_inputs_belong_to_the_client_of_the_keys_and_to_the_program() -> None:
    made = hg.search_index(ROWS, encrypted=True, options=OPTIONS)
    keys = hg.Client(made.public(), allow_insecure=True).evaluation_keys()
    with pytest.raises(hg.WireError, match="keeps encrypted inputs, not str"):
        hg.Server(made, keys, allow_insecure=True, kept="vectors.kept")  # type: ignore[arg-type]
    owner, other = (hg.Client(made.public(), allow_insecure=True) for _ in range(2))
    server = hg.Server(made, owner.evaluation_keys(), allow_insecure=True)
    with server, pytest.raises(hg.WireError, match="lack index_0_0") as caught:
        hg.search(server, owner, ROWS[0])
    assert "give the server those that it keeps" in caught.value.hint
    kept = hg.encrypt_index(owner, ROWS)
    with pytest.raises(hg.WireError, match="client"):
        hg.Server(made, other.evaluation_keys(), allow_insecure=True, kept=kept)
    stranger = type(kept)(kept.artifact, kept.client, {"strange": kept.blob(kept.names()[0])})
    with pytest.raises(hg.WireError, match="strange"):
        hg.Server(made, owner.evaluation_keys(), allow_insecure=True, kept=stranger)
    short = type(kept)(kept.artifact, kept.client, {name: bytes(kept.blob(name))[:-1] for name in kept.names()})
    with pytest.raises(hg.WireError, match="input ciphertext index_0_0"):
        hg.Server(made, owner.evaluation_keys(), allow_insecure=True, kept=short)


def test_the_commands_here_and_over_http(tmp_path: Path) -> None:
    run = functools.partial(CliRunner().invoke, cli, catch_exceptions=False)
    place = {
        name: str(tmp_path / name) for name in ("v.npy", "q.npy", "i.helio", "i.public", "c.key", "keys", "v.kept")
    }
    np.save(place["v.npy"], ROWS)
    np.save(place["q.npy"], ROWS[[7, 4]] + 0.1)
    built = run(
        ["search", "build", place["v.npy"], "-o", place["i.helio"], "--public", place["i.public"], "--encrypted"]
    )
    assert built.exit_code == 0, built.output
    assert "128 bits of security" in built.output
    assert run(["keygen", place["i.public"], "-o", place["c.key"], "--keys", f"{place['keys']}/"]).exit_code == 0
    assert run(["search", "encrypt", place["c.key"], place["v.npy"], "-o", place["v.kept"]]).exit_code == 0
    ask = ["search", "query", place["c.key"], place["q.npy"], "--keys", place["keys"], "-k", "1", "--json"]
    local = run([*ask, "--index", place["i.helio"], "--kept", place["v.kept"]])
    assert [hits[0]["place"] for hits in json.loads(local.output)["hits"]] == [7, 4]
    running = Running(tmp_path / "data", [Path(place["i.helio"])], "--kept", f"i={place['v.kept']}").start()
    token = tmp_path / "token"
    token.write_text(running.token)
    shown = run([*ask, "--url", running.url, "--token-file", str(token)])
    assert [hits[0]["place"] for hits in json.loads(shown.output)["hits"]] == [7, 4]
    assert running.stop() == 0
    with pytest.raises(hg.ProgramError, match="has the encrypted vectors itself"):
        run([*ask, "--url", running.url, "--token-file", str(token), "--kept", place["v.kept"]])
    for given, said in ((f"j={place['v.kept']}", "not served"), ("nothing", "NAME=FILE")):
        refused = CliRunner().invoke(cli, ["serve", place["i.helio"], "--data", str(tmp_path / "d"), "--kept", given])
        assert refused.exit_code != 0
        assert said in refused.output + str(refused.exception)
