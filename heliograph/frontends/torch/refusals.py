"""Error texts for models that use an op without a rule: the op as the user knows it, and what to do instead."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from heliograph.errors import UnsupportedError, said
from heliograph.frontends.torch.source import forward_location, leaf_module, op_name, short_name
from heliograph.ir import Location

# The way to keep samples apart, for any op.
APART = said(
    "keep axis 0, the batch axis, out of it (and give {example_input} a batch axis, for example x.unsqueeze(0))"
)
_POOL = "use nn.MaxPool1d/2d or average pooling, or a convolution with a stride, and train the model with it"
_CLIENT_SCORES = "return the scores and do this on the client after decryption"
_EQUAL = "encrypted numbers are equal up to a gap only: torch.abs(x - y) < gap"
_LOOKUP = "look the vectors up on the client and give them to the model as its input"
_ATTENTION = (
    "write it out: queries, keys and values by nn.Linear, reshaped to (batch, heads, length, width), then "
    "torch.nn.functional.scaled_dot_product_attention(q, k, v), which has a rule"
)
_LOSS = (
    "trace the model without its loss: a program is for inference; a loss of each sample alone, as a score, has "
    'reduction="none"'
)
_QUANTIZED = (
    "leave quantization out: trace the model as it was before; encrypted values have the precision of real numbers"
)
_QUANTIZING = (
    *("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "fused_moving_avg_obs_fake_quant"),
    *("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"),
    *("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "_fused_moving_avg_obs_fq_helper"),
    *("_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine"),
    *("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"),
)
_ROUNDED = f"{_CLIENT_SCORES}; where it stands for quantization, leave it out"
_LINALG = "compute it outside the model where it depends on weights only; otherwise on the client"

# Short name of the op -> (the user's name for it, or nothing for the usual guess; what to try instead).
_HINTS: dict[str, tuple[str, str]] = {
    "fractional_max_pool2d": ("", _POOL),
    "sort": ("", _CLIENT_SCORES),
    "argsort": ("", _CLIENT_SCORES),
    "median": ("", _CLIENT_SCORES),
    "index_put": ("writing under a mask", "choose instead: torch.where(mask, value, x)"),
    "eq": ("comparison (==)", _EQUAL),
    "ne": ("comparison (!=)", "encrypted numbers differ beyond a gap only: torch.abs(x - y) > gap"),
    "round": ("", _ROUNDED),
    "floor": ("", _ROUNDED),
    "ceil": ("", _ROUNDED),
    "remainder": ("", _CLIENT_SCORES),
    "floor_divide": ("", "divide without rounding, and round on the client"),
    "embedding": ("torch.nn.functional.embedding", _LOOKUP),
    "embedding_bag": ("torch.nn.functional.embedding_bag", _LOOKUP),
    "gather": ("", _LOOKUP),
    "_native_multi_head_attention": ("torch.nn.MultiheadAttention", _ATTENTION),
    "_transformer_encoder_layer_fwd": ("torch.nn.TransformerEncoderLayer", _ATTENTION),
    "cross_entropy_loss": ("torch.nn.functional.cross_entropy", _LOSS),
    "nll_loss": ("torch.nn.functional.nll_loss", _LOSS),
    "nll_loss_nd": ("torch.nn.functional.nll_loss", _LOSS),
    "mse_loss": ("torch.nn.functional.mse_loss", _LOSS),
    **dict.fromkeys(_QUANTIZING, ("fake quantization", _QUANTIZED)),
    "linalg_inv": ("torch.linalg.inv", _LINALG),
    "linalg_inv_ex": ("torch.linalg.inv", _LINALG),
    "_linalg_det": ("torch.linalg.det", _LINALG),
    "_linalg_svd": ("torch.linalg.svd", _LINALG),
}

# Ops of these names are refused directly, without decomposition: the hint names a substitute.
REFUSED = frozenset(_HINTS)

# Users' names of ops that have a rule, for the error when one of their forms is refused.
_NAMES = {
    "gt": "comparison (>)",
    "lt": "comparison (<)",
    "ge": "comparison (>=)",
    "le": "comparison (<=)",
    "__and__": "the operator &",
    "__or__": "the operator |",
    "__xor__": "the operator ^",
    "bitwise_not": "the operator ~",
    "layer_norm": "torch.nn.functional.layer_norm",
    "group_norm": "torch.nn.functional.group_norm",
    "instance_norm": "torch.nn.functional.instance_norm",
    "scaled_dot_product_attention": "torch.nn.functional.scaled_dot_product_attention",
    "max_pool1d": "torch.nn.functional.max_pool1d",
    "max_pool2d": "torch.nn.functional.max_pool2d",
    "max_pool3d": "torch.nn.functional.max_pool3d",
    "adaptive_max_pool1d": "torch.nn.functional.adaptive_max_pool1d",
    "adaptive_max_pool2d": "torch.nn.functional.adaptive_max_pool2d",
    "adaptive_max_pool3d": "torch.nn.functional.adaptive_max_pool3d",
    "one_hot": "torch.nn.functional.one_hot",
    "linalg_vector_norm": "torch.norm",
}

# Higher-order ops of torch: branches and loops.
CONTROL_FLOW = frozenset({"cond", "while_loop", "switch", "map_impl", "map", "scan", "associative_scan"})

_DATA_DEPENDENT = (
    "write the model so that every input takes the same path: the server cannot see the values that would decide it"
)


# Short name of an op that mixes samples -> how to write it within each sample.
_WITHIN_SAMPLES: dict[str, str] = {
    **dict.fromkeys(
        ("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "std", "var", "norm", "logsumexp"),
        "reduce the other axes: x.flatten(1).{op}(1)",
    ),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum"), "take a later axis: torch.{op}(x, dim=-1)"),
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "where", "maximum", "minimum"),
        "give both operands the same number of axes, for example with unsqueeze(1)",
    ),
    **dict.fromkeys(("matmul", "mm", "bmm", "inner", "outer", "dot"), "of vectors of one sample: (x * y).sum(-1)"),
    "einsum": "keep the batch axis in every term: 'bij,bjk->bik'",
    **dict.fromkeys(("view", "reshape", "flatten"), "keep the batch axis: x.view(x.size(0), -1)"),
    **dict.fromkeys(("select", "slice", "index", "index_select"), "take from a later axis: x[:, 0]"),
    **dict.fromkeys(("cat", "stack"), "join along a later axis: dim=1"),
}


def apart_hint(target: Any) -> str:
    """The hint where this op mixes samples of the batch."""
    own = _WITHIN_SAMPLES.get(short_name(target), "").format(op=short_name(target))
    return f"{own}; {APART}" if own else APART


def user_name(target: Any) -> str:
    """The user's name of the op: `torch.softmax`, `torch.nn.functional.max_pool2d`, `Tensor.view`."""
    short = short_name(target)
    known = _NAMES.get(short) or _HINTS.get(short, ("", ""))[0]
    if known:
        return known
    if not op_name(target).startswith("aten."):
        return op_name(target).replace(".", "::")
    for prefix, owner in (
        ("torch", torch),
        ("torch.nn.functional", torch.nn.functional),
        ("Tensor", torch.Tensor),
    ):
        if hasattr(owner, short):
            return f"{prefix}.{short}"
    return op_name(target)


def unsupported(node: Any, loc: Location) -> UnsupportedError:
    """The error for a call without a rule."""
    target = node.target
    short, full = short_name(target), op_name(target)
    if short in CONTROL_FLOW:
        return data_dependent(loc, f"torch.{short} chooses or repeats work by an encrypted value")
    if short in (
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "nonzero",
        "equal",
        "unique2",
        "masked_select",
        "bincount",
    ):
        return data_dependent(loc, f"{user_name(target)} reads an encrypted value, or makes a shape out of it")
    hint = _HINTS.get(short, ("", ""))[1] or (
        "rewrite it with the ops that have rules (linear, convolution, pooling, sums, products, activations, comparisons), "
        "do it on the client, or register a rule: heliograph.frontends.torch.values.rule"
    )
    layer = leaf_module(node)
    called, form = user_name(target), f"torch.nn.{leaf_module(node)}"
    form = called if not layer or called == form else f"{form}: {called}"
    return UnsupportedError(
        f"{form} cannot run on encrypted values",
        where=loc,
        why=f"there is no rule for {full}",
        hint=hint,
    )


def observed(layer: str, where: object) -> UnsupportedError:
    """The error for a layer that measures or imitates quantization."""
    return UnsupportedError(
        f"layer {layer!r} is for quantization",
        where=where,
        why="it keeps statistics of what passes through it, or rounds that",
        hint=_QUANTIZED,
    )


def sequence_first(model: Any, where: str) -> str:
    """The hint where a layer takes sequences with time in front; empty where it takes samples in front."""
    kinds = (torch.nn.RNNBase, torch.nn.MultiheadAttention)
    for path, module in model.named_modules():
        if isinstance(module, kinds) and not module.batch_first and f"({path}" in where:
            return f"make layer {path or 'the model'!r} with batch_first=True: now axis 0 of what it reads is time"
    return ""


def data_dependent(where: object, why: str) -> UnsupportedError:
    """The error for control flow or shapes that depend on the values of an input."""
    return UnsupportedError(
        "the model's control flow depends on the values of its input", where=where, why=why, hint=_DATA_DEPENDENT
    )


def shape_of_values(node: Any, loc: Location) -> UnsupportedError:
    """The error for a result whose length depends on an encrypted value."""
    return UnsupportedError(
        f"the length of what {user_name(node.target)} gives depends on the values of the input",
        where=loc,
        why="a mask takes as many elements as it has true places, and the server cannot see them",
        hint="keep all places: torch.where(mask, x, 0) in place of x[mask], torch.where(mask, value, x) in place of "
        "x[mask] = value",
    )


def shape_of_known(node: Any, loc: Location) -> UnsupportedError:
    """The error for a result whose length depends on a known tensor, in a graph exported without its numbers."""
    return UnsupportedError(
        f"the length of what {user_name(node.target)} gives is not in the exported program",
        where=loc,
        why="a known mask or count decides it, and torch.export keeps shapes without numbers",
        hint="trace the module itself, or take places: x[:, places], where places = mask.nonzero().squeeze(1) is a buffer",
    )


def not_run(node: Any, loc: Location, error: Exception) -> UnsupportedError:
    """The error for a call that torch or numpy cannot run on its tensors."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return UnsupportedError(
        f"{user_name(node.target)} cannot be done here",
        where=loc,
        why=f"{type(error).__name__}: {first}"[:300],
        hint="write it with other operations, and report this",
    )


def complex_values(where: object, what: str) -> UnsupportedError:
    """The error for complex numbers."""
    return UnsupportedError(
        f"{what} is complex",
        where=where,
        why="programs compute with real numbers",
        hint="keep real and imaginary parts as two real tensors",
    )


def random_values(node: Any | None, where: Location) -> UnsupportedError:
    """The error for random numbers drawn inside the model, by a call or by a generator in the graph."""
    return UnsupportedError(
        "the model draws random numbers with a generator of its own"
        if node is None
        else f"{user_name(node.target)} draws random numbers inside the model",
        where=where,
        why="a program gives the same answer each time",
        hint="draw them once in __init__ and keep them with register_buffer",
    )


def dynamic_shape(name: str, shape: object) -> UnsupportedError:
    """The error for an exported program whose input has a symbolic size."""
    return UnsupportedError(
        f"input {name!r} has a dynamic shape {shape}",
        why="a program is compiled for one shape: the layout of its ciphertexts depends on it",
        hint="export without dynamic_shapes, once for each shape that you need",
    )


def writes_in_place(what: str, name: str, where: Location) -> UnsupportedError:
    """The refusal of a model that writes to an input, or to its own tensors."""
    return UnsupportedError(
        f"the model writes to {what} in place: {name!r}",
        where=where,
        why="a program has no state: it only returns its outputs",
        hint="work on a copy (x = x + 1 instead of x += 1), and return what must be kept",
    )


def keeps_state(module: torch.nn.Module, changed: Sequence[str], where: Location) -> UnsupportedError:
    """The refusal of a model whose answer depends on the calls before it; `changed` are the attributes that calls change."""
    named = ", ".join(map(repr, changed[:5])) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    return UnsupportedError(
        "the model's answer depends on the calls before it",
        where=_assignment(module, changed[0]) or where if changed else where,
        why=f"it keeps {named or 'something outside its attributes'} from one call to the next, and a program has no state",
        hint="make what is kept an argument of forward, and return what it becomes; or begin anew in each call",
    )


def _assignment(module: torch.nn.Module, path: str) -> Location | None:
    """The line of a module's `forward` that sets an attribute, or the line where `forward` begins."""
    owner, _, name = path.rpartition(".")
    begin = forward_location(module.get_submodule(owner))
    try:
        lines = inspect.getsource(type(module.get_submodule(owner)).forward).splitlines()
    except (OSError, TypeError):
        return begin
    writes = re.compile(rf"\.{re.escape(name)}\b(\[.*\])?(\s*[-+*/|&@]?=(?!=)|\.\w+\()")
    places = [place for place, line in enumerate(lines) if writes.search(line)]
    return replace(begin, line=(begin.line or 0) + places[0]) if begin is not None and places else begin
