"""Search: the hits are those of the clear, and what cannot be searched is refused in words."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.serving import Running

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.private.search import best

ROWS = np.random.default_rng(0).normal(size=(300, 24))
NAMES = [f"entry {i}" for i in range(len(ROWS))]
# As coarse a ring as there is: the tests of rings and errors are elsewhere.
OPTIONS = hg.Options(security_bits=None, log_ring=10)


@functools.cache
def index() -> hg.Artifact:
    return hg.search_index(ROWS, names=NAMES, options=OPTIONS)


@functools.cache
def client() -> hg.Client:
    return hg.Client(index().public(), allow_insecure=True)


@functools.cache
def keys() -> hg.EvaluationKeys:
    return client().evaluation_keys()


def cosine(query: np.ndarray) -> np.ndarray:
    return ROWS @ query / np.linalg.norm(ROWS, axis=1) / np.linalg.norm(query)


def near(places: list[int], seed: int = 1) -> np.ndarray:
    return 40.0 * (ROWS[places] + 0.2 * np.random.default_rng(seed).normal(size=(len(places), 24)))


def test_the_hits_are_those_of_the_clear() -> None:
    queries = near([3, 77, 299])
    with hg.Server(index(), keys(), allow_insecure=True) as server:
        many = hg.search(server, client(), queries, 5)
        one = hg.search(server, client(), queries[1].tolist(), 1)
    for query, hits in zip(queries, many, strict=True):
        exact = cosine(query)
        assert [hit.place for hit in hits] == best(exact, 5)
        assert all(abs(hit.score - exact[hit.place]) < 1e-3 for hit in hits)
        assert all(hit.name == NAMES[hit.place] for hit in hits)
    assert one[0].place == 77
    assert isinstance(one[0], hg.Hit)


def test_scores_are_no_classes() -> None:
    assert "class" not in dict(index().report.rows())


def test_dot_products_take_vectors_as_they_are() -> None:
    made = hg.search_index(ROWS, metric="dot", largest=4.0, options=OPTIONS)
    owner = hg.Client(made, allow_insecure=True)
    query = ROWS[5]
    with hg.Server(made, owner.evaluation_keys(), allow_insecure=True) as server:
        hits = hg.search(server, owner, query, len(ROWS) + 9)
        assert [hit.place for hit in hits][:20] == best(ROWS @ query, 20)
        assert len(hits) == len(ROWS)
        assert hits[0].name is None
        with pytest.raises(hg.RangeError, match="query"):
            hg.search(server, owner, 5.0 * np.eye(24)[0])


def test_a_query_beyond_the_index_is_told_how_to_ask() -> None:
    made = hg.search_index(ROWS, metric="dot", largest=4.0, options=OPTIONS)
    owner = hg.Client(made.public(), allow_insecure=True)
    queries = np.stack([np.ones(24), np.where(np.arange(24) == 7, -5.0, 1.0)])
    server = hg.Server(made, owner.evaluation_keys(), allow_insecure=True)
    with server, pytest.raises(hg.RangeError, match=r"query 1 has the component -5 \(number 7\)") as caught:
        hg.search(server, owner, queries)
    assert "largest=" in str(caught.value)


def test_equal_scores_come_in_their_order() -> None:
    assert best(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 4) == [1, 2, 4, 3]


def test_an_index_is_refused_in_words() -> None:
    hole = ROWS.copy()
    hole[4, 2] = np.nan
    for values, more, said in (
        (ROWS[0], {}, "must be a matrix"),
        (np.zeros((0, 3)), {}, "must be a matrix"),
        (hole, {}, "must be finite"),
        (np.vstack([ROWS, np.zeros(24)]), {}, "row 300 is zero"),
        (ROWS.astype(complex), {}, "real numbers"),
        (ROWS, {"metric": "euclid"}, "no metric 'euclid'"),
        (ROWS, {"metric": "dot"}, "largest component"),
        (ROWS, {"largest": 2.0}, "metric='dot'"),
        (ROWS, {"metric": "dot", "largest": "1"}, "largest='1' cannot be used"),
        (ROWS, {"answer": "matches", "threshold": "0.8"}, "threshold='0.8' cannot be used"),
        (ROWS, {"answer": "matches", "threshold": 0.8, "gap": "0.1"}, "gap='0.1' cannot be used"),
        (ROWS, {"encrypted": "no"}, "encrypted='no' cannot be used"),
        (ROWS, {"names": NAMES[1:]}, "300 entries has 299 names"),
        (ROWS, {"names": [*NAMES[1:], NAMES[5]]}, "entries 4 and 299 have one name, 'entry 5'"),
    ):
        with pytest.raises(hg.ProgramError, match=said):
            hg.search_index(values, options=OPTIONS, **more)


def test_a_query_is_refused_in_words() -> None:
    server = hg.Server(index(), keys(), allow_insecure=True)
    with server:
        for query, said in (
            (np.zeros(24), "query 0 is zero"),
            (ROWS[0, :9], r"shape \(9,\)"),
            ("text", "real numbers"),
        ):
            with pytest.raises(hg.ProgramError, match=said):
                hg.search(server, client(), query)
        for k in (0, 1.5, "3", True):
            with pytest.raises(hg.ProgramError, match="at least one"):
                hg.search(server, client(), ROWS[0], k)  # type: ignore[arg-type]
    other = hg.compile(hg.parse("program p\ninput x: secret tensor[4] in [-1, 1]\noutput y = 2 * x\n"), OPTIONS)
    with pytest.raises(hg.ProgramError, match="is no index"):
        hg.search(server, hg.Client(other, allow_insecure=True), ROWS[0])


def test_large_and_small_vectors_have_a_direction() -> None:
    made = hg.search_index(np.array([[1e200, 0.0], [0.0, 1e-200]]), options=OPTIONS)
    owner = hg.Client(made, allow_insecure=True)
    with hg.Server(made, owner.evaluation_keys(), allow_insecure=True) as server:
        assert [hit.place for hit in hg.search(server, owner, [1e-300, 1e-290], 2)] == [1, 0]


def test_the_commands_here_and_over_http(tmp_path: Path) -> None:
    run = functools.partial(CliRunner().invoke, cli, catch_exceptions=False)
    place = {name: str(tmp_path / name) for name in ("v.npy", "q.npy", "i.helio", "i.public", "c.key", "keys", "names")}
    np.save(place["v.npy"], ROWS)
    np.save(place["q.npy"], near([11, 12]))
    Path(place["names"]).write_text("\n".join(NAMES))
    words = ["search", "build", place["v.npy"], "-o", place["i.helio"], "--public", place["i.public"], "--names"]
    built = run([*words, place["names"]])
    assert built.exit_code == 0, built.output
    assert "128 bits of security" in built.output
    assert run(["keygen", place["i.public"], "-o", place["c.key"], "--keys", f"{place['keys']}/"]).exit_code == 0
    ask = ["search", "query", place["c.key"], place["q.npy"], "--keys", place["keys"], "-k", "2"]
    local = run([*ask, "--index", place["i.helio"], "--json"])
    hits = json.loads(local.output)["hits"]
    assert [row[0]["name"] for row in hits] == ["entry 11", "entry 12"]
    running = Running(tmp_path / "data", [Path(place["i.helio"])]).start()
    token = tmp_path / "token"
    token.write_text(running.token)
    shown = run([*ask, "--url", running.url, "--token-file", str(token)])
    assert next(line.split()[-1] for line in shown.output.splitlines() if "entry 1" in line) == "11"
    assert shown.output.startswith("query 0\n")
    assert running.stop() == 0
    with pytest.raises(hg.ProgramError, match="to a server or to an index"):
        run(ask)
