"""The contract of each stage, checked after every pass."""

from __future__ import annotations

import numpy as np

from heliograph.errors import ProgramError, VerifyError
from heliograph.ir.bootstraps.asked import RAISED, refreshing
from heliograph.ir.maps.steps import needed_keys, rotation_steps
from heliograph.ir.node import Matrix, Node, Stage
from heliograph.ir.ops.table import Context, check_call, check_stacks, check_stage, check_type, spec_of
from heliograph.ir.program import Program
from heliograph.ir.text import print_node
from heliograph.ir.types import CipherType, SlotsType, TensorType


def _fail(program: Program, after: str, rule: str, node: Node, detail: str) -> VerifyError:
    names = program.names()
    for operand in node.inputs:
        names.setdefault(operand, "%?")
    index = program.nodes.index(node) if node in names else 0
    around = program.nodes[max(0, index - 5) : index + 5]
    lines = [
        ("> " if n is node else "  ") + print_node(n, names)[:160] for n in around if names.keys() >= set(n.inputs)
    ]
    return VerifyError(
        f"after {after}: rule {rule!r} fails at {names.get(node, '?')} = {node.op}",
        where=node.loc,
        why=detail + "\n" + "\n".join(lines),
        hint="this is a fault of the compiler, not of your model; please report it with the model",
    )


def verify(program: Program, after: str = "construction") -> Program:
    """The program itself if it keeps its stage's contract; otherwise a VerifyError with pass, rule, node and line."""
    seen: set[Node] = set()
    context = Context(program.constants, program.log_primes)
    for node in program.nodes:
        for operand in node.inputs:
            if operand not in seen:
                raise _fail(program, after, "operands come first", node, f"operand {operand!r} is not defined before")
        if node in seen:
            raise _fail(program, after, "one place per node", node, "the node appears twice")
        seen.add(node)
        _verify_node(program, after, node, context)
    for output in program.outputs:
        if output not in seen:
            raise _fail(program, after, "outputs are nodes", output, "an output is not among the nodes")
    if len(program.output_names) != len(program.outputs):
        raise VerifyError(f"after {after}: {len(program.outputs)} outputs, {len(program.output_names)} names")
    if not program.outputs:
        raise VerifyError(f"after {after}: the program has no output")
    if len(set(program.output_names)) != len(program.output_names):
        raise VerifyError(f"after {after}: two outputs have one name: {', '.join(program.output_names)}")
    if tuple(n for n in program.nodes if n.op == "input") != program.inputs:
        raise VerifyError(f"after {after}: the list of inputs is not that of the input nodes")
    labels: set[tuple[object, object]] = set()
    for node in program.inputs:
        label = (node.attrs["name"], node.attrs.get("chunk"))
        if label in labels:
            raise _fail(program, after, "inputs have names of their own", node, f"another one is called {label[0]!r}")
        labels.add(label)
    for name, constant in program.constants.items():
        values = constant.numbers if isinstance(constant, Matrix) else (constant,)
        if any(isinstance(each, np.ndarray) and not np.isfinite(each).all() for each in values):
            raise VerifyError(f"after {after}: constant @{name} holds NaN or infinity")
    if program.stage is Stage.EXECUTABLE:
        _verify_executable(program, after)
    return program


def _verify_node(program: Program, after: str, node: Node, context: Context) -> None:
    try:
        spec = spec_of(node.op)
        check_call(spec, len(node.inputs), node.attrs, program.constants)
        check_stacks(spec, [operand.type for operand in node.inputs])
        inferred = spec.infer_type([operand.type for operand in node.inputs], node.attrs, context)
        check_stage(spec, program.stage, inferred)
        check_type(node.op, inferred)
    except ProgramError as error:
        raise _fail(program, after, "ops take what the table says", node, error.what) from None
    except (ArithmeticError, AttributeError, TypeError, ValueError, LookupError) as error:
        # Only a program text from outside can hold attributes that no rule of the op expects.
        raise _fail(program, after, "ops take what the table says", node, f"{type(error).__name__}: {error}") from None
    if inferred != node.type:
        raise _fail(program, after, "types are inferred", node, f"type is {node.type}, the op gives {inferred}")
    wanted = {
        Stage.TENSOR: (TensorType,),
        Stage.POLYNOMIAL: (TensorType,),
        Stage.PACKED: (SlotsType,),
        Stage.MANAGED: (CipherType,),
        Stage.EXECUTABLE: (CipherType,),
    }[program.stage]
    # Plain values have neither level nor scale; they keep their type until they meet a ciphertext.
    if node.type.secret and not isinstance(node.type, wanted):
        raise _fail(program, after, "types belong to the stage", node, f"{node.type} at stage {program.stage.value}")
    if isinstance(node.type, CipherType) and not 0 <= node.type.level < len(context.log_primes):
        raise _fail(
            program,
            after,
            "levels are those of the chain",
            node,
            f"level {node.type.level} in a chain of {len(context.log_primes)} primes",
        )


def _verify_executable(program: Program, after: str) -> None:
    if program.parameters is None:
        raise VerifyError(f"after {after}: an executable program has no parameters")
    chains, paths = program.parameters.chains, program.parameters.rotation_paths
    bootstrapping = {node.type.chain for node in refreshing(program) if isinstance(node.type, CipherType)}
    for node in program.nodes:
        if not isinstance(node.type, CipherType):
            continue
        slots = node.type.slots
        # A ciphertext uses the keys of the lowest part of the chain that holds it.
        if not 0 <= node.type.chain < len(chains) or node.type.level > chains[node.type.chain].ring.levels:
            detail = f"level {node.type.level} is not in chain {node.type.chain} of {len(chains)}"
            raise _fail(program, after, "a value's chain holds its level", node, detail)
        chain, needed = chains[node.type.chain], needed_keys(node)
        for step in rotation_steps(node):
            amount = step % slots
            path = paths.get(amount, (amount,)) if needed.composed else (amount,)
            if amount and (sum(path) % slots != amount or not set(chain.rotation_keys).issuperset(path)):
                raise _fail(program, after, "every rotation has a key", node, f"no key rotates by {amount}")
        if needed.relinearization and not chain.relinearization_key:
            raise _fail(program, after, "products have a relinearization key", node, "its chain has none")
        # The whole chain has the conjugation key if any value needs it, a lower part only if it bootstraps.
        if needed.conjugation and node.type.chain and node.type.chain not in bootstrapping:
            raise _fail(program, after, "conjugations have a key", node, "its chain has none")
        if node.op == RAISED and node.type.chain:
            ring = chain.ring
            if ring.bootstrap is None or node.type.level > ring.levels:
                detail = f"chain {node.type.chain} does not bootstrap to level {node.type.level}"
                raise _fail(program, after, "bootstraps happen in a chain that reaches their level", node, detail)
