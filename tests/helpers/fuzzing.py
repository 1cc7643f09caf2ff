"""The loop of every fuzz run, and what it found."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# What a hostile file may take: seconds of processor time, and characters of the message that refuses it.
SECONDS, CHARACTERS = 10.0, 20_000


@dataclass(slots=True)
class Tally:
    """How many mutants were usable and how many refused; the worst of each bound; what broke a promise."""

    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    characters: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def mutants(self) -> int:
        return self.accepted + self.refused + len(self.failures)


def fuzz(make: Callable[[random.Random], Any], attempt: Callable[[Any], int], rounds: int, seed: int) -> Tally:
    """What became of this many mutants from `make`.

    `attempt` returns the length of the message that refuses one, 0 for a usable one. Whatever it raises is a failure, as are
    a mutant that takes too long and a message that is too long.
    """
    random_, tally = random.Random(seed), Tally()
    with warnings.catch_warnings():
        # What numpy says of overflows on untrusted numbers.
        warnings.simplefilter("ignore", RuntimeWarning)
        for number in range(rounds):
            mutant = make(random_)
            begun = time.process_time()
            try:
                length = attempt(mutant)
            except Exception as error:
                tally.failures.append(f"mutant {number} of seed {seed}: {type(error).__name__}: {str(error)[:300]}")
                continue
            seconds = time.process_time() - begun
            tally.seconds, tally.characters = max(tally.seconds, seconds), max(tally.characters, length)
            if seconds > SECONDS or length > CHARACTERS:
                tally.failures.append(f"mutant {number} of seed {seed}: {seconds:.1f} s, {length} characters")
            elif length:
                tally.refused += 1
            else:
                tally.accepted += 1
    return tally


def mutated_array_file(rng: random.Random, sound: bytes) -> bytes:
    """A sound .npy or .npz file with a few bytes altered, left out or doubled, some to what headers are made of."""
    data = bytearray(sound)
    for _ in range(rng.randint(1, 4)):
        place, choice = rng.randrange(len(data)), rng.random()
        if choice < 0.7:
            data[place] = rng.choice((rng.randrange(256), ord("9"), ord("-"), ord("("), 0x1B))
        elif choice < 0.85:
            del data[place : place + rng.randint(1, 8)]
        else:
            data[place:place] = data[place : place + rng.randint(1, 8)]
    return bytes(data)
