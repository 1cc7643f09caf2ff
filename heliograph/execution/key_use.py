"""The order in which a program reads evaluation keys, and the keys to hold in memory if not all of them fit."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from heliograph.ckks.keys import EvaluationKey
from heliograph.execution.keys import program_keys
from heliograph.ir import CipherType, Program
from heliograph.ir.maps.steps import needed_keys, rotation_steps

# Reading a key, checking its digest and form, making OpenFHE's object from it, and putting the others back into
# OpenFHE's map: 2 ms and 0.18 GB/s on one core, with the file in the system's cache. (Keys of 0.8 to 5 MB. On a machine
# with twice as much work as cores it took up to twice as long, and a slow disk adds to it.)
_LOAD_MS = 2.0
_LOAD_NS_PER_BYTE = 5.6
# At most this many keys of the largest size are read before they are needed, in at most this share of the spare memory.
_AHEAD = 2
_AHEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a program's keys.

    Only rotation keys are read again; all others stay. A program runs again and again, so its first node follows its
    last.

    `staying`: the keys that always stay in memory.
    `others`: the other keys, by name.
    `reads`: the names of the keys that each node reads, by position.
    `positions`: the positions of the nodes that read each key.
    """

    staying: tuple[EvaluationKey, ...]
    others: dict[str, EvaluationKey]
    reads: tuple[frozenset[str], ...]
    positions: dict[str, tuple[int, ...]]

    def size(self, names: Collection[str]) -> int:
        """The bytes of these keys."""
        return sum(self.others[name].bytes for name in names)

    @property
    def staying_bytes(self) -> int:
        return sum(key.bytes for key in self.staying)

    @property
    def least_bytes(self) -> int:
        """The least room in which the program runs: the keys that stay, plus the keys of the node that reads most."""
        return self.staying_bytes + max((self.size(names) for names in set(self.reads)), default=0)

    def room(self, key_bytes: int) -> tuple[int, int]:
        """(bytes for keys in use, bytes for keys read ahead) that a bound leaves beside the keys that stay."""
        largest = max((key.bytes for key in self.others.values()), default=0)
        spare = key_bytes - self.least_bytes
        if key_bytes >= self.staying_bytes + self.size(self.others):
            return key_bytes - self.staying_bytes, 0
        ahead = max(0, min(_AHEAD * largest, int(_AHEAD_SHARE * spare)))
        return key_bytes - self.staying_bytes - ahead, ahead

    def next_use(self, name: str, after: int) -> int:
        """The position at which a key is read next; the next run's positions follow this one's."""
        found = self.positions.get(name, ())
        if not found:
            return 2 * len(self.reads)
        where = bisect.bisect_right(found, after)
        return found[where] if where < len(found) else found[0] + len(self.reads)

    def dropped(self, held: Collection[str], position: int, room: int) -> list[str]:
        """The held keys to drop so that the keys needed at `position` fit into `room` bytes with the rest.

        These are the ones with the furthest next use (Belady, 1966; optimal for keys of one size).
        """
        needed = self.reads[position]
        excess = self.size(held) + self.size(needed - set(held)) - room
        gone = []
        for name in sorted(set(held) - needed, key=lambda name: (-self.next_use(name, position), name)):
            if excess <= 0:
                break
            gone.append(name)
            excess -= self.others[name].bytes
        return gone

    def upcoming(self, position: int) -> Iterator[str]:
        """The keys in the order of their next uses after a position, each once."""
        yield from sorted(self.positions, key=lambda name: (self.next_use(name, position), name))

    def loading_ms(self, key_bytes: int) -> float:
        """The milliseconds for reading keys again in each run, if none of it overlaps with the evaluation."""
        return reading_ms(*self.loads(key_bytes))

    def loads(self, key_bytes: int) -> tuple[int, int]:
        """The numbers of keys and of bytes read again in each run, for a bound on the bytes of keys in memory."""
        room, _ = self.room(key_bytes)
        held: set[str] = set()
        count = loaded = 0
        for run in range(2):
            count = loaded = 0
            for position, names in enumerate(self.reads):
                missing = names - held
                if missing:
                    held -= set(self.dropped(held, position, room))
                    held |= missing
                    count, loaded = count + len(missing), loaded + self.size(missing)
            if run == 0 and held == set(self.positions):
                return 0, 0
        return count, loaded


def reading_ms(count: int, loaded: int) -> float:
    """The milliseconds for reading this many keys with this many bytes."""
    return count * _LOAD_MS + loaded * _LOAD_NS_PER_BYTE * 1e-6


def key_use(program: Program) -> KeyUse:
    """The use of keys of an executable program."""
    chains, slots = program.planned.chains, program.ring.slots
    keys = program_keys(program)
    staying = tuple(key for key in keys if key.kind != "rotation")
    others = {key.name: key for key in keys if key not in staying}
    named = {(key.ring, key.amount): name for name, key in others.items()}
    paths = program.planned.rotation_paths
    reads = []
    for node in program.nodes:
        names: set[str] = set()
        if isinstance(node.type, CipherType):
            ring = chains[node.type.chain].ring
            composed = needed_keys(node).composed
            for step in rotation_steps(node):
                amount = step % slots
                for part in paths.get(amount, (amount,)) if composed else (amount,):
                    names.update({named[ring, part]} if (ring, part) in named else ())
        reads.append(frozenset(names))
    positions: dict[str, list[int]] = {name: [] for name in others}
    for position, found in enumerate(reads):
        for name in found:
            positions[name].append(position)
    return KeyUse(staying, others, tuple(reads), {name: tuple(where) for name, where in positions.items()})
