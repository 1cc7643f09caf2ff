"""The effect of one pass: the program before, the program after, and the number that it improved."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from heliograph.errors import ProgramError
from heliograph.execution.memory import peak_bytes
from heliograph.ir import CipherType, Node, Program, SlotsType, Stage
from heliograph.ir.analysis.depth import critical_depth
from heliograph.ir.maps.steps import rotation_steps
from heliograph.ir.ops.table import OPS, Role, role_of
from heliograph.ir.text import print_program

_LINES = 40


@dataclass(frozen=True, slots=True)
class Improvement:
    """One number before and after the pass; `what` names it."""

    what: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.what}: {self.before:g} -> {self.after:g}"


@dataclass(slots=True)
class Recorder:
    """Keeps the program after each pass; pass it to `compile` as `watch`."""

    steps: list[tuple[str, Program]] = field(default_factory=list)

    def __call__(self, name: str, program: Program) -> None:
        self.steps.append((name, program))

    def explain(self, source: Program, name: str) -> Explanation:
        """The effect of the named pass on `source`; a ProgramError for an unknown name lists the existing ones."""
        names = [step for step, _ in self.steps]
        check_pass(name, names)
        # A pass that ran more than once is explained by its last run, with the parameters that were chosen.
        position = len(names) - 1 - names[::-1].index(name)
        before = self.steps[position - 1][1] if position else source
        after = self.steps[position][1]
        return Explanation(name, before, after, tuple(improvements(name, before, after)))


def check_pass(name: str, names: Sequence[str]) -> None:
    """Raise a ProgramError, which lists the passes, if none has this name."""
    if name not in names:
        near = difflib.get_close_matches(name, names, n=2)
        raise ProgramError(
            f"there is no pass called {name!r}",
            where="--explain",
            hint=(f"did you mean {' or '.join(near)}? " if near else "") + f"the passes are {', '.join(names)}",
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pass with the programs around it."""

    name: str
    before: Program
    after: Program
    improved: tuple[Improvement, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "pass": self.name,
            "improved": [{"what": i.what, "before": i.before, "after": i.after} for i in self.improved],
            "before": {"stage": self.before.stage.value, "ops": dict(_ops(self.before)), "text": str(self.before)},
            "after": {"stage": self.after.stage.value, "ops": dict(_ops(self.after)), "text": str(self.after)},
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: from stage {self.before.stage.value} to {self.after.stage.value}"]
        lines += [f"  {improvement}" for improvement in self.improved]
        old, new = _ops(self.before), _ops(self.after)
        changed = [f"{op} {old[op]} -> {new[op]}" for op in sorted(old | new) if old[op] != new[op]]
        lines.append(f"  operations: {', '.join(changed) or 'the same'}")
        for title, program in (("before", self.before), ("after", self.after)):
            lines += [f"{title}:", *(f"  {line}" for line in _shown(program))]
        return "\n".join(lines)


def _ops(program: Program) -> Counter[str]:
    return Counter(node.op for node in program.nodes)


def _shown(program: Program) -> list[str]:
    """The nodes of a program as text, without the middle if there are many."""
    lines = [line for line in print_program(program).splitlines() if line.startswith(("%", "return"))]
    lines = [line if len(line) <= 160 else line[:157] + "..." for line in lines]
    if len(lines) <= _LINES:
        return lines
    half = _LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} more ...", *lines[-half:]]


def improvements(name: str, before: Program, after: Program) -> list[Improvement]:
    """The numbers that a pass is meant to improve, measured on both programs."""
    return [Improvement(what, *measure(before, after)) for what, measure in _MEASURES.get(name, _SIZE)]


def _nodes(program: Program) -> float:
    return len(program.nodes)


def _activations(program: Program) -> float:
    """The number of activations on encrypted values; the server computes plain ones in the clear."""
    return sum(
        node.type.secret and (OPS[node.op].activation is not None or role_of(node) is Role.ALONG_ROWS)
        for node in program.nodes
    )


def _joint(program: Program) -> float:
    return sum(node.type.secret and role_of(node) is Role.JOINT for node in program.nodes)


def _slots(program: Program) -> float:
    """The most slots of any vector in the program, whether repeated or not."""
    return max(node.type.slots for node in program.nodes if isinstance(node.type, SlotsType))


def _linear_depth(program: Program) -> float:
    """Linear operations, reshaping included, on the longest path."""
    depth: dict[Node, int] = {}
    for node in program.nodes:
        own = OPS[node.op].linear is not None and node.op not in ("input", "constant", "add", "sub", "neg")
        depth[node] = max((depth[operand] for operand in node.inputs), default=0) + own
    return max((depth[node] for node in program.outputs), default=0)


def _unscaled(program: Program) -> int:
    return _unscaled_among(program.nodes)


def _unscaled_among(nodes: Sequence[Node]) -> int:
    return sum(node.op == "poly" and (node.attrs["low"], node.attrs["high"]) != (-1.0, 1.0) for node in nodes)


def _depth(program: Program) -> float:
    """Levels, counting one for each polynomial whose interval is not [-1, 1] yet."""
    depth, path = critical_depth(program)
    return depth + _unscaled_among(path)


def _rotations(program: Program) -> float:
    return sum(sum(1 for step in rotation_steps(node) if step) for node in program.nodes)


def _diagonals(program: Program) -> float:
    from heliograph.ir.ops.slots.transforms import transform_diagonals

    total = 0
    for node in program.nodes:
        if node.op == "linear_transform":
            for diagonals in transform_diagonals(node.attrs, program.linear_map):
                total += sum(1 for offset in diagonals.offsets if offset)
        elif node.op == "rotate":
            total += 1
    return total


def _ladder(program: Program) -> float:
    """The number of products if every power up to the degree were computed."""
    return sum(
        len(program.array(node.attrs["coefficients"])) - 2 for node in program.nodes if node.op == "poly"
    ) + _ops(program)["mul_ct"]  # fmt: skip


def _keys(program: Program) -> float:
    return len(program.parameters.chains[0].rotation_keys) if program.parameters else 0


def _in_whole_chain(program: Program) -> float:
    return sum(isinstance(node.type, CipherType) and node.type.chain == 0 for node in program.nodes)


def _alive(program: Program) -> float:
    if program.stage not in (Stage.MANAGED, Stage.EXECUTABLE):
        return 0.0
    ring = program.ring
    return round(peak_bytes(program, ring) / 1e6, 3)


# (program before, program after) -> the number before and after.
_Measure: TypeAlias = "Callable[[Program, Program], tuple[float, float]]"


def _each(measure: Callable[[Program], float]) -> _Measure:
    """The same measure of both programs."""
    return lambda before, after: (measure(before), measure(after))


def _products(before: Program, after: Program) -> tuple[float, float]:
    """Rescales; before levels are planned, one for each product."""
    ops = _ops(before)
    return ops["mul_ct"] + ops["linear_transform"] + ops["mul_plain"] + ops["lincomb"], _ops(after)["rescale"]


def _amounts(program: Program) -> float:
    return len({step for node in program.nodes for step in rotation_steps(node)} - {0})


_Measures: TypeAlias = "tuple[tuple[str, _Measure], ...]"
# What a pass is meant to improve, by its name; of others, the size of the program.
_SIZE: _Measures = (("nodes", _each(_nodes)),)
_MEASURES: dict[str, _Measures] = {
    "expand": (("functions of several values, or along any axis", _each(_joint)),),
    "fit-slots": (
        ("slots of a ciphertext in use", _each(_slots)),
        ("polynomials that stand on another interval than [-1, 1]", _each(_unscaled)),
    ),
    "fuse-linear": (("linear operations on the longest path", _each(_linear_depth)), *_SIZE),
    "approximate": (("functions that encryption cannot compute", _each(_activations)),),
    "fold-scaling": (
        ("polynomials that would spend a level on scaling their input", _each(_unscaled)),
        ("depth", _each(_depth)),
    ),
    "merge-activations": (("depth", _each(_depth)),),
    # Nothing rotates before packing.
    "pack": (
        ("rotations, where each diagonal would take one", lambda before, after: (_diagonals(after), _rotations(after))),
    ),
    "lower-polynomials": (
        ("polynomials", _each(lambda program: _ops(program)["poly"])),
        (
            "products of ciphertexts, where powers would take",
            lambda before, after: (_ladder(before), _ops(after)["mul_ct"]),
        ),
    ),
    "plan-levels": (
        ("rescales, where each product would take one", _products),
        (
            "relinearizations, where each product of ciphertexts would take one",
            lambda before, after: (_ops(before)["mul_ct"], _ops(after)["relinearize"]),
        ),
    ),
    "select-keys": (
        ("rotation keys, where each amount would take one", lambda before, after: (_amounts(before), _keys(after))),
    ),
    "place-chains": (("ciphertexts made in the whole chain", _each(_in_whole_chain)),),
    "schedule": (("megabytes of ciphertexts alive at once", _each(_alive)),),
}
