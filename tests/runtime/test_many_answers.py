"""`encrypt_many`, `decrypt_many`: results in the order of the samples, however answers come back, and none made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.ir import Builder, Stage
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

WEIGHT = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]])
COUNT = 19


def right(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x @ WEIGHT.T, -x


@dataclass(frozen=True)
class Asked:
    """A client, its server, and 19 samples that it encrypted, with the answers to them in order."""

    client: hg.Client
    server: hg.Server
    batch: int
    x: np.ndarray
    sent: list[EncryptedInput]
    answers: list[EncryptedOutput]

    def check(self, found: Any) -> None:
        for one, expected in zip(found, right(self.x), strict=True):
            assert one.shape == expected.shape
            np.testing.assert_allclose(one, expected, atol=1e-4)


@pytest.fixture(scope="module", params=[1, 8], ids=lambda batch: f"batch {batch}")
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    builder = Builder("two", Stage.TENSOR)
    x = builder.input("x", shape=(3,), low=-1.0, high=1.0)
    outputs = {"y": builder.op("linear", (x,), weight=builder.constant(WEIGHT)), "z": builder.op("neg", (x,))}
    artifact = hg.compile(builder.finish(outputs), hg.Options(security_bits=None, log_ring=10, batch=request.param))
    client = hg.Client(artifact, allow_insecure=True)
    samples = np.random.default_rng(0).uniform(-1, 1, (COUNT, 3))
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        sent = list(client.encrypt_many(samples))
        yield Asked(client, server, request.param, samples, sent, [server.run(each) for each in sent])


def through_bytes(messages: Sequence[Any]) -> list[Any]:
    return [type(each).from_bytes(each.to_bytes()) for each in messages]


def test_results_are_in_the_order_of_the_samples(asked: Asked) -> None:
    orders = [random.Random(seed).sample(asked.answers, len(asked.answers)) for seed in range(3)]
    for answers in (asked.answers, asked.answers[::-1], *orders):
        asked.check(asked.client.decrypt_many(answers, of=asked.sent))
        asked.check(asked.client.decrypt_many(iter(through_bytes(answers)), of=iter(asked.sent)))
        asked.check(asked.client.decrypt_many(answers, of=through_bytes(asked.sent)))
        asked.check(asked.client.decrypt_many(answers, of=[each.receipt() for each in asked.sent]))


def test_inputs_know_how_many_samples_they_hold(asked: Asked) -> None:
    counts = [8, 8, 3] if asked.batch == 8 else [None] * COUNT
    assert [each.samples for each in asked.sent] == counts
    assert [each.samples for each in through_bytes(asked.sent)] == counts


def test_names_of_jobs_are_enough_where_each_has_one_sample(asked: Asked) -> None:
    of = [each.request for each in asked.sent]
    if asked.batch == 1:
        asked.check(asked.client.decrypt_many(asked.answers[::-1], of=of))
        return
    # How many rows of the last answer are samples is not known: none is made up.
    for unknown in (of, [replace(each, samples=None) for each in asked.sent], [replace(asked.sent[0], samples=9)]):
        with pytest.raises(ProgramError, match=r"how many of up to 8 samples(?s:.)*receipt\(\)"):
            asked.client.decrypt_many(asked.answers, of=unknown)


def test_an_answer_is_decrypted_as_it_comes(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many answers in files one is in memory at a time."""
    decrypt, done = asked.client.decrypt, []
    monkeypatch.setattr(
        asked.client, "decrypt", lambda output, **how: done.append(output.request) or decrypt(output, **how)
    )

    def answers() -> Iterator[EncryptedOutput]:
        for each in reversed(asked.answers):
            yield each
            assert done[-1] == each.request

    asked.check(asked.client.decrypt_many(answers(), of=asked.sent))
    assert len(done) == len(asked.sent)


def test_batches_that_are_not_full_give_what_was_encrypted(asked: Asked) -> None:
    if asked.batch == 1:
        pytest.skip("it takes one sample at a time")
    parts = [asked.x[:3], asked.x[3:11], asked.x[11:12], asked.x[12:]]
    sent = [asked.client.encrypt(part) for part in parts]
    assert [each.samples for each in sent] == [3, 8, 1, 7]
    answers = [asked.server.run(each) for each in sent]
    asked.check(asked.client.decrypt_many(answers[::-1], of=sent))


WRONG: dict[str, tuple[Callable[[Asked], dict[str, Any]], type[Exception], str]] = {
    "missing": (lambda a: {"outputs": [*a.answers[:1], *a.answers[2:]], "of": a.sent}, WireError,
                r"1 of \d+ inputs have no answer\n.*{1}, number 2 of `of`"),
    "none": (lambda a: {"outputs": [], "of": a.sent[:2]}, WireError, r"2 of 2 inputs have no answer\n.*{0}, number 1"),
    "twice": (lambda a: {"outputs": [*a.answers, a.answers[1]], "of": a.sent}, WireError,
              "two answers to the inputs {1}, number 2 of `of`"),
    "one in place of another": (lambda a: {"outputs": [a.answers[0], *a.answers[:2]], "of": a.sent[:3]}, WireError,
                                "two answers to the inputs {0}, number 1 of `of`"),
    "foreign": (lambda a: {"outputs": a.answers, "of": [each for each in a.sent if each is not a.sent[1]]}, WireError,
                "carries the request '{1}', which none of the inputs has"),
    "inputs twice": (lambda a: {"outputs": a.answers, "of": [*a.sent, a.sent[1]]}, WireError, "names inputs twice"),
    "no inputs": (lambda a: {"outputs": [], "of": []}, WireError, "names no inputs"),
    "no answer": (lambda a: {"outputs": a.sent, "of": a.sent}, WireError, "takes encrypted outputs, not EncryptedInput"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_refused_by_name(asked: Asked, name: str) -> None:
    arguments, error, words = WRONG[name]
    words = words.replace("{0}", asked.sent[0].request[:12]).replace("{1}", asked.sent[1].request[:12])
    with pytest.raises(error, match=words):
        asked.client.decrypt_many(**arguments(asked))


def test_answers_for_another_client_are_refused(asked: Asked) -> None:
    other = hg.Client(asked.client.public, allow_insecure=True)
    with pytest.raises(WireError, match="belong to another client"):
        other.decrypt_many(asked.answers, of=asked.sent)


def test_inputs_of_a_batch_have_as_many_samples_each() -> None:
    builder = Builder("sum", Stage.TENSOR)
    a, b = (builder.input(name, shape=(3,), low=-1.0, high=1.0) for name in "ab")
    program = builder.finish([builder.op("add", (a, b))])
    client = hg.Client(hg.compile(program, hg.Options(security_bits=None, batch=8)), allow_insecure=True)
    x = np.zeros((5, 3))
    assert client.encrypt(x, x).samples == 5
    for call in (client.encrypt, client.encrypt_many):
        with pytest.raises(ProgramError, match="inputs have 5 and 3 samples"):
            call(x, x[:3])
