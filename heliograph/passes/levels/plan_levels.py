"""Give every value its level and true scale, and put rescale, relinearize and level_drop where they are needed.

Levels: every value is as low in the chain as its readers allow, because lower is cheaper. Products stay unrescaled and
unrelinearized while they are only added (lazy): a sum of products takes one rescale and one key switch.

Scales: the primes are not powers of two, so scales drift. Every product with a plaintext may choose the plaintext's
scale. The choice is made so that summands have exactly equal scales and results return to the nominal scale. The
planned scale is always the true one, from the real primes; no value is reinterpreted.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, PlanningError, ProgramError, said
from heliograph.ir import Builder, CipherType, Node, Program, Stage
from heliograph.ir.analysis.carried import carried_nodes, carried_outputs, carried_pairs, fits
from heliograph.ir.location import Location
from heliograph.ir.ops.slots.types import SCALE_TOLERANCE
from heliograph.ir.ops.table import OPS, Role, role_of
from heliograph.texts import number_of

# Take the place of an operand's position: correct the value itself, as an output or for all its readers.
OUTPUT, AFTER = -1, -2
# Roles whose results are rescaled later.
_PRODUCTS = (Role.PLAIN_PRODUCT, Role.PRODUCT)
# A plaintext encoded at fewer bits than this has lost its digits.
_MIN_PLAIN_BITS = 12.0
_MAX_CORRECTIONS = 2000
# Logarithms of scales that differ by less than this differ by rounding alone.
_ROUNDING = 2.0**-44
# A value whose scale is off by more than this has lost precision, or does not fit its modulus.
_MAX_DRIFT_BITS = 8.0
# If any value is that far off, the first one that is off by more than this is brought back to the nominal scale.
_CLEAR_DRIFT_BITS = 1.0


class TooFewLevelsError(PlanningError):
    """The chain is too short; `needed` levels would do."""

    def __init__(self, needed: int, given: int) -> None:
        self.needed = needed
        super().__init__(
            f"the program needs {number_of(needed, 'level')}, the ring has {given}",
            hint="lower a degree, or allow a larger ring",
        )


class DriftError(PlanningError):
    """Scales drift too far apart on this chain; one with other primes or another scale may work."""


def _raised(program: Program) -> Program:
    """The program with bootstraps that bring values from a small scale, chosen for their size, back to the nominal one.

    Without it they have more room in the modulus, but in a chain of products the distance from the nominal scale
    doubles. The parts of a pair double their scale by themselves.
    """
    builder, some = Builder(program.name, Stage.PACKED, program), False

    def emit(node: Node, operands: list[Node]) -> Node:
        nonlocal some
        made = builder.copy(node, operands)
        bits = node.attrs.get("size_bits", 0) - (len(operands) - 1)
        if node.op != "bootstrap" or bits <= 0 or "raised_bits" in node.attrs:
            return made
        some = True
        return builder.op("bootstrap", operands, node.loc, **{**node.attrs, "raised_bits": bits})

    made = builder.rewrite(program, emit)
    return made if some else program


def _secret_inputs(node: Node) -> tuple[Node, ...]:
    """The operands that are ciphertexts; plain ones have neither level nor scale."""
    return tuple(operand for operand in node.inputs if operand.type.secret)


def unrescaled(nodes: Sequence[Node], exact_rotations: bool = False) -> tuple[dict[Node, bool], set[Node]]:
    """Which of a packed program's secret values (in order) are products not yet rescaled, and which ones read such
    products without a rescale.
    """
    # Rotating a product before its rescale costs one more prime, but the rescale then also divides the rotation's error
    # by a prime. Where no product follows, few primes are left and the cost is low, so it is always done there.
    final = dict.fromkeys(nodes, True)
    for node in reversed(nodes):
        for operand in _secret_inputs(node):
            final[operand] &= final[node] and role_of(node) not in _PRODUCTS
    keeps = {
        node
        for node in nodes
        if role_of(node) in (Role.SUM, Role.TRANSPARENT)
        or (role_of(node) is Role.ROTATION and (exact_rotations or final[node]))
    }
    pending: dict[Node, bool] = {}
    for node in nodes:
        if role_of(node) in _PRODUCTS:
            pending[node] = True
        elif node in keeps:
            pending[node] = all(pending[operand] for operand in _secret_inputs(node))
        else:
            pending[node] = False
    return pending, keeps


def has_inexact_rotations(program: Program) -> bool:
    """Whether some rotation of a product comes after its rescale, unless `exact_rotations` is asked for."""
    nodes = [node for node in program.nodes if node.type.secret]
    return unrescaled(nodes)[0] != unrescaled(nodes, exact_rotations=True)[0]


class Levels:
    """The level at which each secret node of a packed program runs, and whether it is a product not yet rescaled.

    The level of a bootstrap is the one to which it returns, as its readers want it. Its operand is wanted at the level
    at which bootstrapping on `ring` begins.
    """

    def __init__(
        self,
        program: Program,
        ring: Ring | None = None,
        exact_rotations: bool = False,
        wanted_outputs: Mapping[Node, int] | None = None,
    ) -> None:
        self.program = program
        nodes = self.nodes = [node for node in program.nodes if node.type.secret]
        self.pending, self.keeps = unrescaled(nodes, exact_rotations)
        # The levels wanted of each value as it is (pending) and after its rescale (ready).
        as_is: dict[Node, int] = dict.fromkeys(nodes, -1)
        ready: dict[Node, int] = dict.fromkeys(nodes, -1)
        for node in program.outputs:
            ready[node] = (wanted_outputs or {}).get(node, 0)
        self.level: dict[Node, int] = {}
        for node in reversed(nodes):
            if self.pending[node]:
                level = max(as_is[node], ready[node] + 1, 1)
            else:
                level = max(as_is[node], ready[node], 0)
            if role_of(node) is Role.BOOTSTRAP:
                if ring is None or ring.bootstrap is None:
                    raise InternalError("a bootstrap in a ring that is not planned for it")
                # It raises the level. If no reader wants a higher one, the bootstrap is superfluous but does no harm.
                # One that computes a series is never superfluous, and returns to the lowest level wanted.
                raised = ring.bootstrap_input_level + 1 if node.attrs.get("series") is None else 0
                self.level[node] = max(level, raised)
                for operand in node.inputs:
                    ready[operand] = max(ready[operand], ring.bootstrap_input_level)
                continue
            self.level[node] = level
            wanted = as_is if self.takes_pending(node) else ready
            for operand in _secret_inputs(node):
                wanted[operand] = max(wanted[operand], level)

    def takes_pending(self, node: Node) -> bool:
        """Whether a node reads products without a rescale."""
        return self.pending[node] and node in self.keeps

    @property
    def depth(self) -> int:
        """The levels that the chain needs."""
        return max(self.level.values(), default=0)

    @property
    def bootstrapped(self) -> int:
        """The highest level that a bootstrap has to reach; the levels of a series that it computes are added."""
        levels = ((level, node) for node, level in self.level.items() if role_of(node) is Role.BOOTSTRAP)
        return max((level + node.attrs.get("deeper", 0) for level, node in levels), default=0)


def levels_of(program: Program, ring: Ring, exact_rotations: bool = False) -> Levels:
    """The levels of a program; a value carried to the next run leaves at the level at which it enters.

    Raises TooFewLevelsError if the chain is too short, also where each run would need its carried inputs at a higher
    level than the previous run leaves them.
    """
    carried = carried_nodes(program)
    wanted: dict[Node, int] = {}
    while True:
        levels = Levels(program, ring, exact_rotations, wanted)
        if levels.depth > ring.levels:
            raise TooFewLevelsError(levels.depth, ring.levels)
        following: dict[Node, int] = {}
        for output, source in carried_pairs(program):
            following[output] = max(following.get(output, 0), levels.level[source])
        if not carried or following == wanted:
            return levels
        wanted = following


# The remaining work for one node; it yields the steps on which it waits.
_Step = Generator["_Step", None, None]


def _settle(first: _Step) -> None:
    """Carry out a step and those that it waits for, as recursion would: a sum may be longer than Python's stack."""
    waiting = [first]
    while waiting:
        following = next(waiting[-1], None)
        if following is None:
            waiting.pop()
        else:
            waiting.append(following)


class _Scales:
    """True log2 scales: `scale` by node, before the rescale of a pending product."""

    def __init__(
        self, program: Program, levels: Levels, log_primes: Sequence[float], nominal: float, output_shift: int
    ) -> None:
        self.program, self.levels, self.log_primes, self.nominal = program, levels, log_primes, nominal
        self.scale: dict[Node, float] = {}
        self._adjustable: dict[Node, bool] = {}
        # A node with operands of different scales, and the operand to make adjustable (None: either).
        self.mismatch: tuple[Node, int | None] | None = None
        # An input that is only bootstrapped enters at the scale for its size; otherwise it would take a product.
        self.entering = {node: nominal for node in program.inputs if node.type.secret}
        users = program.users()
        for node in self.entering:
            if users[node] and all(role_of(user) is Role.BOOTSTRAP for user in users[node]):
                self.entering[node] = nominal - max(user.attrs.get("size_bits", 0) for user in users[node])
        for node in levels.nodes:
            self._visit(node)
        # Outputs carried to the next run leave at the scale of that run's input; others at a smaller one.
        carried = carried_nodes(program)
        for node in program.outputs:
            if self.adjustable(node):
                leaving = self.entering[carried[node]] if node in carried else nominal - output_shift
                self.fix(node, leaving + self._drop(node))
        # Readers first: the scale that a sum or product needs takes precedence over the default.
        for node in reversed(levels.nodes):
            self.force(node)
        for node in levels.nodes:
            if self.mismatch is not None:
                break
            seen = [self._seen(node, operand) for operand in _secret_inputs(node)]
            if role_of(node) in (Role.SUM, Role.STACK) and max(seen) - min(seen) > SCALE_TOLERANCE / 2:
                self.mismatch = node, None
            elif role_of(node) is Role.BOOTSTRAP:
                self._check_bootstrap(node, seen)
        for node, source in carried.items():
            if (
                self.mismatch is None
                and abs(self.force(node) - self._drop(node) - self.scale[source]) > SCALE_TOLERANCE / 2
            ):
                self.mismatch = node, OUTPUT

    def _check_bootstrap(self, node: Node, seen: Sequence[float]) -> None:
        """Record a mismatch where a bootstrap's operand has too large a scale for its size, or two have different
        scales.
        """
        away = [scale - self.nominal + node.attrs.get("size_bits", 0) for scale in seen]
        if max(away) > 0.5 or max(seen) - min(seen) > SCALE_TOLERANCE / 2:
            self.mismatch = node, max(range(len(away)), key=lambda position: abs(away[position]))

    @property
    def drift(self) -> Node | None:
        """The product to bring back to the nominal scale, None unless some factor or product is too far from it.

        It is the first product that is clearly off, because each squaring doubles the distance. A factor whose scale makes
        up for the other one's may be the farthest.
        """
        off = {
            node: abs(self.scale[node] - self._drop(node) - self.nominal)
            for node in self.levels.nodes
            if role_of(node) in _PRODUCTS
        }
        if max(off.values(), default=0.0) <= _MAX_DRIFT_BITS:
            return None
        clear = (node for node, far in off.items() if far > _CLEAR_DRIFT_BITS and role_of(node) is Role.PRODUCT)
        return next(clear, None)

    def _drop(self, node: Node) -> float:
        return self.log_primes[self.levels.level[node]] if self.levels.pending[node] else 0.0

    def _seen(self, reader: Node, operand: Node) -> float:
        return self.force(operand) - self._drop_between(reader, operand)

    def _set_seen(self, reader: Node, operand: Node, scale: float) -> None:
        self.fix(operand, scale + self._drop_between(reader, operand))

    def _drop_between(self, reader: Node, operand: Node) -> float:
        """The bits that a rescale between an operand and its reader takes off the scale."""
        return 0.0 if self.levels.takes_pending(reader) else self._drop(operand)

    def _less(self, reader: Node, operand: Node) -> float:
        """The bits by which a reader that is no product has a smaller scale than its operand: parts double theirs."""
        return self._drop_between(reader, operand) - (1.0 if role_of(reader) is Role.PART else 0.0)

    def adjustable(self, node: Node) -> bool:
        """Whether the scale can still be chosen."""
        return node not in self.scale and self._adjustable[node]

    def _visit(self, node: Node) -> None:
        """Settle the node's scale where it is known in program order; an open one is a plain product or follows from
        one.
        """
        operands, role = _secret_inputs(node), role_of(node)
        if role is Role.PLAIN_PRODUCT:
            self._adjustable[node] = True
        elif role is Role.PRODUCT:
            left, right = operands
            free = left is not right and self.adjustable(left) != self.adjustable(right)
            if not free and left is not right and self.adjustable(left):
                self.force(right)
                free = self.adjustable(left)
            self._adjustable[node] = free
        elif role in (Role.SUM, Role.STACK):
            open_ = [self.adjustable(operand) for operand in operands]
            self._adjustable[node] = all(open_)
            if not all(open_):
                rigid = operands[open_.index(False)]
                scale = self._seen(node, rigid)
                for operand in operands:
                    if self.adjustable(operand):
                        self._set_seen(node, operand, scale)
        elif operands:
            for operand in operands if role is Role.BOOTSTRAP else ():
                # A value up to 2**k in size takes a scale k bits smaller, so that the bootstrap sees a value of at most
                # one.
                if self.adjustable(operand):
                    self._set_seen(node, operand, self.nominal - node.attrs.get("size_bits", 0))
            self._adjustable[node] = self.adjustable(operands[0])
        else:
            self._adjustable[node] = False
        if not self._adjustable[node]:
            self.force(node)

    def force(self, node: Node) -> float:
        """The scale before any rescale; an open one is set to the nominal scale."""
        if node not in self.scale:
            _settle(self._forcing(node))
        return self.scale[node]

    def fix(self, node: Node, scale: float) -> None:
        """Choose the scale of an adjustable value."""
        _settle(self._fixing(node, scale))

    def _forcing(self, node: Node) -> _Step:
        if node in self.scale:
            return
        if self._adjustable.get(node, False):
            yield self._fixing(node, self.nominal + self._drop(node))
            return
        role = role_of(node)
        for operand in _secret_inputs(node) if role is Role.PRODUCT else _secret_inputs(node)[:1]:
            yield self._forcing(operand)
        if node.op == "input":
            scale = self.entering[node]
        elif role is Role.PRODUCT:
            scale = self._product(node)
        else:
            operand = node.inputs[0]
            scale = self.scale[operand] - self._less(node, operand)
            if role is Role.BOOTSTRAP:
                scale += node.attrs.get("raised_bits", 0)
        self.scale[node] = scale

    def _fixing(self, node: Node, scale: float) -> _Step:
        if node in self.scale:
            return
        self.scale[node] = scale
        if role_of(node) is Role.PLAIN_PRODUCT:
            return
        if role_of(node) is Role.PRODUCT:
            left, right = node.inputs
            free, rigid = (left, right) if self.adjustable(left) else (right, left)
            yield self._forcing(rigid)
            if self.adjustable(free):
                yield self._fixing(free, scale - self.scale[rigid] + self._drop(rigid) + self._drop(free))
            else:
                yield self._forcing(free)
                self.scale[node] = self._product(node)
            return
        for operand in _secret_inputs(node):
            if self.adjustable(operand):
                yield self._fixing(operand, scale + self._less(node, operand))
            elif (
                operand in self.scale
                and abs(settled := self.scale[operand] - self._less(node, operand) - scale) > _ROUNDING
            ):
                # Another reader has settled the operand's scale.
                self.scale[node] = scale + settled

    def _product(self, node: Node) -> float:
        """The scale of a product of values whose scales are settled."""
        left, right = node.inputs
        return self.scale[left] - self._drop(left) + self.scale[right] - self._drop(right)


@dataclass(frozen=True, slots=True)
class PlanLevels:
    """Turns packed values into ciphertexts with level and true scale.

    `ring`: the chain.
    `output_shift`: outputs get a scale this many bits below the nominal one, where it can be chosen, for room in the
    first modulus.
    `exact_rotations`: all rotations of products come before the rescale, not only those that no product follows.
    """

    ring: Ring
    output_shift: int = 0
    exact_rotations: bool = False

    name: ClassVar[str] = "plan-levels"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.MANAGED

    def run(self, program: Program) -> Program:
        for _ in range(_MAX_CORRECTIONS):
            levels = levels_of(program, self.ring, self.exact_rotations)
            if levels.bootstrapped and levels.bootstrapped > self.ring.bootstrap_level:
                raise TooFewLevelsError(
                    self.ring.levels + levels.bootstrapped - self.ring.bootstrap_level, self.ring.levels
                )
            nominal = float(self.ring.scale_bits)
            scales = _Scales(program, levels, self.ring.log_primes, nominal, self.output_shift)
            if scales.mismatch is not None:
                program = _correct(program, *scales.mismatch)
            elif scales.drift is not None:
                raised = _raised(program)
                program = raised if raised is not program else _correct(program, scales.drift, AFTER)
            else:
                made = _Emitter(program, levels, scales, self.ring).run()
                _check_carried(made)
                return made
        raise InternalError("scales do not settle")


def _check_carried(program: Program) -> None:
    """Raise a PlanningError where an output does not have the type of the next run's inputs that it becomes."""
    outputs = dict(zip(program.output_names, program.outputs, strict=True))
    for name, sources in carried_outputs(program).items():
        if not all(fits(outputs[name].type, source.type) for source in sources):
            types = [source.type for source in sources if isinstance(source.type, CipherType)]
            raise PlanningError(
                f"output {name!r} cannot become {' and '.join(repr(source.attrs['name']) for source in sources)}",
                where=outputs[name].loc,
                why=f"the next run takes {' and '.join(f'level {t.level}, scale 2^{t.log_scale:.2f}' for t in types)}",
                hint="give each of these inputs its own output",
            )


def _correct(program: Program, node: Node, position: int | None) -> Program:
    """Multiply one operand of a node by one, so that its scale can be chosen: if either will do, the one with more
    levels to spare.
    """
    builder = Builder(program.name, Stage.PACKED, program)

    @functools.cache
    def times_one(value: Node, loc: Location) -> Node:
        return builder.op("lincomb", (value,), loc, weights=(1.0,), constant=0.0)

    if position == OUTPUT:
        return builder.rewrite(
            program, builder.copy, leave=lambda _, n, made: times_one(made, n.loc) if n is node else made
        )
    if position is None:
        spent: dict[Node, int] = {}
        for n in program.nodes:
            spent[n] = max((spent[o] for o in n.inputs), default=0) + int(role_of(n) in _PRODUCTS and n.type.secret)
        position = 0 if spent[node.inputs[0]] <= spent[node.inputs[-1]] else 1

    def emit(n: Node, operands: list[Node]) -> Node:
        if n is not node:
            return builder.copy(n, operands)
        if position == AFTER:
            return times_one(builder.copy(n, operands), n.loc)
        operands[position] = times_one(operands[position], n.loc)
        return builder.copy(n, operands)

    return builder.rewrite(program, emit)


class _Emitter:
    """Writes the managed program."""

    def __init__(self, program: Program, levels: Levels, scales: _Scales, ring: Ring) -> None:
        self.program, self.levels, self.scales, self.ring = program, levels, scales, ring
        self.builder = Builder(program.name, Stage.MANAGED, program)
        self.builder.set_ring(ring)
        self.made: dict[Node, Node] = {}
        self.ready: dict[Node, Node] = {}
        self.short: dict[Node, Node] = {}
        self.dropped: dict[tuple[Node, int], Node] = {}
        self.allowed = dict.fromkeys(program.outputs, 2 * _MAX_DRIFT_BITS)

    def run(self) -> Program:
        for node in self.program.nodes:
            self.made[node] = self._emit(node)
        carried = carried_outputs(self.program)
        outputs = {
            name: self._at(self._ready(node), self.levels.level[carried[name][0]] if name in carried else 0)
            for name, node in zip(self.program.output_names, self.program.outputs, strict=True)
        }
        return self.builder.finish(outputs)

    def _ready(self, node: Node) -> Node:
        """The value relinearized and rescaled."""
        if node not in self.ready:
            value = self.made[node]
            if self._type(value).parts > 2:
                value = self._relinearized(value)
            if self.levels.pending[node]:
                value = self.builder.op("rescale", (value,), node.loc)
            drift = self._type(value).log_scale - self.scales.nominal
            if abs(drift) > max(_MAX_DRIFT_BITS, self.allowed.get(node, 0)):
                raise DriftError(
                    f"the scale of {node.op} drifts by {drift:+.1f} bits",
                    where=node.loc,
                    why="in a chain of products without a constant factor the distance from the nominal scale doubles",
                    hint="multiply by a constant between the products, or use fewer of them in a row",
                )
            self.ready[node] = value
        return self.ready[node]

    def _relinearized(self, value: Node) -> Node:
        if value not in self.short:
            self.short[value] = self.builder.op("relinearize", (value,), value.loc)
        return self.short[value]

    @staticmethod
    def _type(value: Node) -> CipherType:
        assert isinstance(value.type, CipherType)
        return value.type

    def _at(self, value: Node, level: int) -> Node:
        """The value at a lower level."""
        spare = self._type(value).level - level
        if spare < 0:
            raise InternalError(f"{value} is wanted at level {level}")
        if spare == 0:
            return value
        key = (value, level)
        if key not in self.dropped:
            self.dropped[key] = self.builder.op("level_drop", (value,), value.loc, levels=spare)
        return self.dropped[key]

    def _emit(self, node: Node) -> Node:
        builder = self.builder
        if not node.type.secret:
            if node.op == "input":
                builder.inputs.append(node)
                return node
            return builder.copy(node, [self.made[operand] for operand in node.inputs])
        level = self.levels.level[node]
        if node.op == "input":
            return builder.input(
                node.attrs["name"],
                node.loc,
                **{**node.attrs, "level": level, "log_scale": self.scales.scale[node]},
            )
        role = role_of(node)
        if role is Role.BOOTSTRAP:
            fresh = [self._at(self._ready(operand), self.ring.bootstrap_input_level) for operand in node.inputs]
            return builder.op(node.op, fresh, node.loc, **{**node.attrs, "level": level})
        as_is = self.levels.takes_pending(node)
        operands = [
            self.made[operand]
            if not operand.type.secret
            else self._at(self.made[operand] if as_is else self._ready(operand), level)
            for operand in node.inputs
        ]
        if role is Role.SUM:
            # A value that was already relinearized for a rotation is not relinearized again with the sum.
            operands = [self.short.get(value, value) for value in operands]
        if role is Role.ROTATION:
            operands = [self._relinearized(value) if self._type(value).parts > 2 else value for value in operands]
        attrs = dict(node.attrs)
        if node.op == "rescale":
            if not self.levels.pending[node.inputs[0]]:
                raise PlanningError(
                    "there is nothing to rescale",
                    where=node.loc,
                    why=f"a rescale brings a product back to the scale of its factors; {node.inputs[0].op} gives none, or "
                    "one that had to be rescaled before",
                    hint="put it after a product, or leave it out: rescales are placed where they are needed",
                )
            return operands[0]
        if role is Role.PLAIN_PRODUCT:
            plain = tuple(
                self.scales.scale[node] - self._type(operand).log_scale for operand in operands if operand.type.secret
            )
            if min(plain) < _MIN_PLAIN_BITS:
                raise PlanningError(
                    f"a plaintext of {node.op} would be encoded with {min(plain):.1f} bits",
                    where=node.loc,
                    hint="use a larger scale",
                )
            if "plain_log_scales" in OPS[node.op].attrs:
                attrs["plain_log_scales"] = plain
            else:
                attrs["plain_log_scale"] = plain[0]
        if role is Role.SUM:
            # In the plan, summands' scales agree up to the rounding of the logarithms; the result carries the first
            # summand's scale. Products of products double that rounding level by level, so the summand nearest to the
            # plan comes first.
            away = [abs(self._type(operand).log_scale - self.scales.scale[node]) for operand in operands]
            if node.op == "add_ct" and away[0] > _ROUNDING and away[1] < away[0]:
                operands = operands[::-1]
            try:
                return builder.op(node.op, operands, node.loc)
            except ProgramError as error:
                raise DriftError(
                    f"the scales of summands drift apart: {error.what}",
                    where=node.loc,
                    why="in a chain of products without a constant factor the distance from the nominal scale doubles",
                    hint=said("another {scale_bits} or {log_ring}; or multiply by a constant between the products"),
                ) from None
        return builder.op(node.op, operands, node.loc, **attrs)
