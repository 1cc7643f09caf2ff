"""Types of values: tensors before packing, slot vectors after it, ciphertexts once levels are planned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TensorType:
    """A real tensor of a static shape; `secret` values are encrypted at run time, plain ones are the server's own."""

    shape: tuple[int, ...]
    secret: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape)) or "scalar"
        return f"tensor<{dims}>" if self.secret else f"tensor<{dims}, plain>"


@dataclass(frozen=True, slots=True)
class SlotsType:
    """A vector of `slots` numbers that share one ciphertext; no level or scale is decided yet.

    `count`: this many of them in a stack, which sums of ciphertexts read (ir/ops/slots/stacks.py).
    """

    slots: int
    secret: bool = True
    count: int = 1

    def __str__(self) -> str:
        return f"slots<{self.slots}{'' if self.secret else ', plain'}{_count(self.count)}>"


@dataclass(frozen=True, slots=True)
class CipherType:
    """A ciphertext of `parts` polynomials with `level` rescalings left, its slots scaled by 2**log_scale.

    `log_scale` is the true scale, from the real primes of the chain, not the nominal one that a backend may assume.
    `chain` is the number of its chain among the program's parameters: 0 is the whole one, the others
    are lower parts of it with smaller keys. Only the op `switch_chain` changes it. `count` is as for `SlotsType`.
    """

    slots: int
    level: int
    log_scale: float
    parts: int = 2
    chain: int = 0
    count: int = 1

    secret = True

    def __str__(self) -> str:
        chain = f", chain {self.chain}" if self.chain else ""
        more = f"{chain}{_count(self.count)}"
        return f"cipher<{self.slots}, level {self.level}, scale {self.log_scale!r}, parts {self.parts}{more}>"


def _count(count: int) -> str:
    return f", count {count}" if count > 1 else ""


Type: TypeAlias = TensorType | SlotsType | CipherType
