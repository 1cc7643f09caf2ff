"""What to say where a model uses something that has no rule: the op as the user knows it, and what to do instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch_source import leaf_module, module_stack, op_name, short_name
from heliograph.ir import Location

_POOL = "use nn.MaxPool1d/2d or average pooling, or a convolution with a stride, and train the model with it"
_CLIENT_SCORES = "return the scores and do this on the client after decryption"
_EQUAL = "encrypted numbers are equal up to a gap only: torch.abs(x - y) < gap"
_NORM = "use layer norm or group norm, or batch norm (its statistics are constants at inference), and train again"
_SMOOTH = "use nn.ReLU, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh or nn.Softplus, and train the model with it"
_FUNCTION = "compute it on the client"
_RECURRENT = "unroll the steps by hand from nn.Linear layers with tanh and sigmoid, or use convolutions over time"
_LOOKUP = "look the vectors up on the client and give them to the model as its input"
_ATTENTION = (
    "write it out: queries, keys and values by nn.Linear, reshaped to (batch, heads, length, width), then "
    "torch.nn.functional.scaled_dot_product_attention(q, k, v), which has a rule"
)
_UPSAMPLE = "repeat elements with expand and reshape, or make the output smaller"
_TRANSPOSED = "upsample with expand and reshape, then use an ordinary convolution"
_LOSS = "trace the model without its loss: a program is for inference"
_LENGTH = "use the sum of squares: (x * x).sum(dim), and torch.sqrt of it where the root itself is needed"
_VARIANCE = (
    "write ((x - x.mean(dim, keepdim=True)) ** 2).sum(dim) / (n - 1) for n elements of dim; / n where correction=0"
)
_LINALG = "compute it outside the model where it depends on weights only; otherwise on the client"

# Short name of the op -> (what the user calls it, or nothing for the ordinary guess; what to try).
_HINTS: dict[str, tuple[str, str]] = {
    "fractional_max_pool2d": ("", _POOL),
    "logsumexp": ("", _CLIENT_SCORES),
    "any": ("", "of truth values it is their largest: (x > 0).amax(dim)"),
    "all": ("", "of truth values it is their smallest: (x > 0).amin(dim)"),
    "sort": ("", _CLIENT_SCORES),
    "argsort": ("", _CLIENT_SCORES),
    "median": ("", _CLIENT_SCORES),
    "heaviside": ("", "it is (x > 0).float(), but for its value at 0"),
    "index_put": ("writing under a mask", "choose instead: torch.where(mask, value, x)"),
    "eq": ("comparison (==)", _EQUAL),
    "ne": ("comparison (!=)", "encrypted numbers differ beyond a gap only: torch.abs(x - y) > gap"),
    "round": ("", _CLIENT_SCORES),
    "floor": ("", _CLIENT_SCORES),
    "ceil": ("", _CLIENT_SCORES),
    "remainder": ("", _CLIENT_SCORES),
    "floor_divide": ("", "divide without rounding, and round on the client"),
    "rms_norm": ("torch.nn.functional.rms_norm", _NORM),
    "local_response_norm": ("torch.nn.functional.local_response_norm", _NORM),
    "linalg_vector_norm": ("torch.linalg.vector_norm", _LENGTH),
    "norm": ("", _LENGTH),
    "var": ("", _VARIANCE),
    "std": ("", f"use the variance, or its torch.sqrt: {_VARIANCE}"),
    "var_mean": ("", _VARIANCE),
    "prod": ("", "multiply the elements by hand: x[:, 0] * x[:, 1] * ..."),
    "cumsum": ("", "multiply by a constant triangular matrix: x @ torch.triu(torch.ones(n, n))"),
    "hardswish": (
        "torch.nn.functional.hardswish",
        "use nn.SiLU, its smooth form; exactly it is x * relu6(x + 3) / 6",
    ),
    "hardsigmoid": (
        "torch.nn.functional.hardsigmoid",
        "use nn.Sigmoid, its smooth form; exactly it is relu6(x + 3) / 6",
    ),
    "elu": ("torch.nn.functional.elu", _SMOOTH),
    "selu": ("torch.selu", _SMOOTH),
    "celu": ("torch.celu", _SMOOTH),
    "mish": ("torch.nn.functional.mish", "use nn.SiLU or nn.GELU, which are close to it"),
    "log_sigmoid": ("torch.nn.functional.logsigmoid", "use -F.softplus(-x), the same function"),
    "log_sigmoid_forward": ("torch.nn.functional.logsigmoid", "use -F.softplus(-x), the same function"),
    "cosine_similarity": ("", "give the model normalized vectors, and use the inner product: (x * y).sum(-1)"),
    "pairwise_distance": ("", "use the squared distance: ((x - y) ** 2).sum(-1)"),
    "cdist": ("", "use squared distances: ((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1)"),
    "softsign": ("torch.nn.functional.softsign", _SMOOTH),
    "hardshrink": ("", _SMOOTH),
    "softshrink": ("", _SMOOTH),
    "threshold": ("torch.nn.functional.threshold", "use nn.ReLU"),
    "glu": ("torch.nn.functional.glu", "write it out: a, b = x.chunk(2, dim); a * torch.sigmoid(b)"),
    "rrelu": ("torch.nn.functional.rrelu", "use nn.LeakyReLU with a fixed slope"),
    "rrelu_with_noise": ("torch.nn.functional.rrelu", "use nn.LeakyReLU with a fixed slope"),
    "exp2": ("", "it is torch.exp(x * math.log(2))"),
    "expm1": ("", "it is torch.exp(x) - 1"),
    "log1p": ("", _FUNCTION),
    "atan": ("", _FUNCTION),
    "embedding": ("torch.nn.functional.embedding", _LOOKUP),
    "embedding_bag": ("torch.nn.functional.embedding_bag", _LOOKUP),
    "gather": ("", _LOOKUP),
    "lstm": ("torch.nn.LSTM", _RECURRENT),
    "gru": ("torch.nn.GRU", _RECURRENT),
    "rnn_tanh": ("torch.nn.RNN", _RECURRENT),
    "rnn_relu": ("torch.nn.RNN", _RECURRENT),
    "lstm_cell": ("torch.nn.LSTMCell", _RECURRENT),
    "gru_cell": ("torch.nn.GRUCell", _RECURRENT),
    "_native_multi_head_attention": ("torch.nn.MultiheadAttention", _ATTENTION),
    "_transformer_encoder_layer_fwd": ("torch.nn.TransformerEncoderLayer", _ATTENTION),
    "conv_transpose1d": ("torch.nn.functional.conv_transpose1d", _TRANSPOSED),
    "conv_transpose2d": ("torch.nn.functional.conv_transpose2d", _TRANSPOSED),
    "conv_transpose3d": ("torch.nn.functional.conv_transpose3d", _TRANSPOSED),
    "upsample_nearest1d": ("torch.nn.functional.interpolate", _UPSAMPLE),
    "upsample_nearest2d": ("torch.nn.functional.interpolate", _UPSAMPLE),
    "upsample_bilinear2d": ("torch.nn.functional.interpolate", _UPSAMPLE),
    "upsample_bicubic2d": ("torch.nn.functional.interpolate", _UPSAMPLE),
    "reflection_pad1d": ("torch.nn.functional.pad (reflect)", "pad with zeros"),
    "reflection_pad2d": ("torch.nn.functional.pad (reflect)", "pad with zeros"),
    "replication_pad1d": ("torch.nn.functional.pad (replicate)", "pad with zeros"),
    "replication_pad2d": ("torch.nn.functional.pad (replicate)", "pad with zeros"),
    "cross_entropy_loss": ("torch.nn.functional.cross_entropy", _LOSS),
    "nll_loss": ("torch.nn.functional.nll_loss", _LOSS),
    "nll_loss_nd": ("torch.nn.functional.nll_loss", _LOSS),
    "mse_loss": ("torch.nn.functional.mse_loss", _LOSS),
    "bilinear": ("torch.nn.functional.bilinear", "write it as products and sums: ((x1 @ w) * x2).sum(-1).t()"),
    "linalg_inv": ("torch.linalg.inv", _LINALG),
    "linalg_inv_ex": ("torch.linalg.inv", _LINALG),
    "_linalg_det": ("torch.linalg.det", _LINALG),
    "_linalg_svd": ("torch.linalg.svd", _LINALG),
    "fft_fft": ("torch.fft.fft", "complex numbers have no rule; multiply by constant cosine and sine matrices"),
    "fft_rfft": ("torch.fft.rfft", "complex numbers have no rule; multiply by constant cosine and sine matrices"),
}

# What a user calls ops that have a rule, for what is said where one of their forms is refused.
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
}

# Layers of torch.nn that export as many small ops, none of which would tell the user what is meant.
_LAYER_HINTS = {
    "MultiheadAttention": _ATTENTION,
    "TransformerEncoderLayer": _ATTENTION,
    "TransformerDecoderLayer": _ATTENTION,
    "LocalResponseNorm": _NORM,
    "CrossMapLRN2d": _NORM,
    "Softsign": _SMOOTH,
    "LPPool1d": _POOL,
    "LPPool2d": _POOL,
}

# Functions of one value that a user can register, with what they are in numpy.
_REGISTERED = {
    "elu": "lambda x: np.where(x > 0, x, np.expm1(x))",
    "selu": "lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))",
    "celu": "lambda x: np.where(x > 0, x, np.expm1(x))",
    "mish": "lambda x: x * np.tanh(np.logaddexp(0, x))",
    "hardswish": "lambda x: x * np.clip(x + 3, 0, 6) / 6",
    "hardsigmoid": "lambda x: np.clip(x + 3, 0, 6) / 6",
    "softsign": "lambda x: x / (1 + np.abs(x))",
    "log": "np.log",
    "log1p": "np.log1p",
    "erf": "scipy.special.erf",
    "sin": "np.sin",
    "cos": "np.cos",
    "atan": "np.arctan",
    "exp2": "np.exp2",
    "expm1": "np.expm1",
}

# Higher-order ops of torch: branches and loops.
CONTROL_FLOW = frozenset({"cond", "while_loop", "switch", "map_impl", "map", "scan", "associative_scan"})

_DATA_DEPENDENT = (
    "write the model so that every input takes the same path: the server cannot see the values that would decide it"
)


def user_name(target: Any) -> str:
    """What a user calls the op: `torch.softmax`, `torch.nn.functional.max_pool2d`, `Tensor.view`."""
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


def unsupported_layer(node: Any, loc: Location) -> UnsupportedError | None:
    """The error for a call within a layer of torch.nn that as a whole has no rule; None for other calls."""
    for path, kind in module_stack(node):
        name = kind.rsplit(".", 1)[-1]
        if kind.startswith("torch.nn.modules.") and name in _LAYER_HINTS:
            return UnsupportedError(
                f"torch.nn.{name} cannot run on encrypted values",
                where=replace(loc, layer=path),
                why="there is no rule for the layer",
                hint=_LAYER_HINTS[name],
            )
    return None


def unsupported(node: Any, loc: Location) -> UnsupportedError:
    """The error for a call that has no rule."""
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
        "do it on the client, or register a rule: heliograph.frontends.torch_values.rule"
    )
    if short in _REGISTERED:
        default = " (for alpha=1)" if short in ("elu", "celu") else ""
        made = f'hg.register_function("own_{short}", {_REGISTERED[short]}, torch_op="{full}")'
        hint += f"; or register it{default}: {made}"
    layer = leaf_module(node)
    called, form = user_name(target), f"torch.nn.{leaf_module(node)}"
    form = called if not layer or called == form else f"{form}: {called}"
    return UnsupportedError(
        f"{form} cannot run on encrypted values",
        where=loc,
        why=f"there is no rule for {full}",
        hint=hint,
    )


def data_dependent(where: object, why: str) -> UnsupportedError:
    """The error for control flow or shapes that depend on the values of an input."""
    return UnsupportedError(
        "the model's control flow depends on the values of its input", where=where, why=why, hint=_DATA_DEPENDENT
    )


def complex_values(where: object, what: str) -> UnsupportedError:
    """The error for complex numbers."""
    return UnsupportedError(
        f"{what} is complex",
        where=where,
        why="programs compute with real numbers",
        hint="keep real and imaginary parts as two real tensors",
    )


def random_values(node: Any, loc: Location) -> UnsupportedError:
    """The error for a random number drawn inside the model."""
    return UnsupportedError(
        f"{user_name(node.target)} draws random numbers inside the model",
        where=loc,
        why="a program gives the same answer on every run",
        hint="draw them once in __init__ and keep them with register_buffer",
    )


def dynamic_shape(name: str, shape: object) -> UnsupportedError:
    """The error for an exported program whose input has a symbolic size."""
    return UnsupportedError(
        f"input {name!r} has a dynamic shape {shape}",
        why="a program is compiled for one shape: the layout of its ciphertexts depends on it",
        hint="export without dynamic_shapes, once for each shape that you need",
    )
