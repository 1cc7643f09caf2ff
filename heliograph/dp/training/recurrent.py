"""Recurrent layers, unrolled, with the user's own `nn.RNN`, `nn.GRU` and `nn.LSTM` modules and their parameters.

The fused kernels give no gradient at a layer's gates, but the gradients of one record are made from it: the gradient of
`weight_ih` is the sum over time of (gradient at the gates) x (input), and for `weight_hh` of (gradient at the gates) x
(previous state). So, while gradients are taken, such a module runs here: one product for all inputs, a loop over time
for the states with both directions of a layer in one batched product, a backward pass by hand, which has the gradients
of all gates as one tensor. Values equal the fused ones up to round-off.

Shapes inside: time first, then directions D, then records, [T, D, B, width]; the second direction runs on reversed time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils.rnn import PackedSequence

from heliograph.dp.training.factors import Dense, Factor, Outer
from heliograph.dp.training.layers import Factors, Record
from heliograph.errors import ProgramError, UnsupportedError

_sigmoid_backward, _tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


class _LSTM(Function):
    """States of an LSTM from its gates' input parts; differentiable once."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
        steps, directions, records, width = gates.shape
        hidden = width // 4
        acts = torch.empty_like(gates)
        i, f, g, o = (part.unbind(0) for part in acts.split(hidden, 3))
        cells = gates.new_empty(steps + 1, directions, records, hidden)
        states, squashed = torch.empty_like(cells), torch.empty_like(cells[1:])
        cells[0], states[0] = c0, h0
        cs, hs, ts = cells.unbind(0), states.unbind(0), squashed.unbind(0)
        for t, (given, act) in enumerate(zip(gates.unbind(0), acts.unbind(0), strict=True)):
            raw = torch.baddbmm(given, hs[t], weight)
            # tanh(x) = 2 sigmoid(2 x) - 1: one pass over all gates.
            raw[..., 2 * hidden : 3 * hidden].mul_(2)
            torch.sigmoid(raw, out=act)
            g[t].mul_(2).sub_(1)
            torch.mul(f[t], cs[t], out=cs[t + 1]).addcmul_(i[t], g[t])
            torch.mul(o[t], torch.tanh(cs[t + 1], out=ts[t]), out=hs[t + 1])
        ctx.save_for_backward(acts, cells, squashed, weight)
        return states, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_states: Tensor, d_cell: Tensor) -> Any:
        acts, cells, squashed, weight = ctx.saved_tensors
        i, f, g, o = (part.unbind(0) for part in acts.chunk(4, 3))
        made = torch.empty_like(acts)
        di, df, dg, do = (part.unbind(0) for part in made.chunk(4, 3))
        back, dh, dc = weight.mT, d_states[-1], d_cell
        # Step by step, so that the operands of a step stay in the cache.
        for t in range(len(acts) - 1, -1, -1):
            dc = dc + _tanh_backward(dh * o[t], squashed[t])
            torch.mul(dh, squashed[t], out=do[t])
            torch.mul(dc, g[t], out=di[t])
            torch.mul(dc, cells[t], out=df[t])
            _sigmoid_backward.grad_input(made[t], acts[t], grad_input=made[t])
            _tanh_backward.grad_input(dc * i[t], g[t], grad_input=dg[t])
            dh, dc = torch.baddbmm(d_states[t], made[t], back), dc * f[t]
        return made, None, dh, dc


class _GRU(Function):
    """States of a GRU, and its reset gates; `bias` [D, 1, 3 H] is the recurrent one, which the reset gate scales."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        hidden = gates.shape[3] // 3
        acts = torch.empty_like(gates)
        states = torch.cat((h0.unsqueeze(0), gates.new_empty(len(gates), *h0.shape)))
        inner = torch.empty_like(states[1:])
        for t in range(len(gates)):
            back = torch.baddbmm(bias, states[t], weight)
            acts[t, ..., : 2 * hidden] = (gates[t, ..., : 2 * hidden] + back[..., : 2 * hidden]).sigmoid_()
            r, z, n = acts[t].split(hidden, 2)
            inner[t] = back[..., 2 * hidden :]
            torch.addcmul(gates[t, ..., 2 * hidden :], r, inner[t], out=n).tanh_()
            torch.lerp(n, states[t], z, out=states[t + 1])
        ctx.save_for_backward(acts, states, inner, weight)
        ctx.mark_non_differentiable(acts)
        return states, acts

    @staticmethod
    def backward(ctx: Any, d_states: Tensor, _: Tensor) -> Any:
        acts, states, inner, weight = ctx.saved_tensors
        hidden = states.shape[3]
        made = torch.empty_like(acts)
        back, dh = weight.mT, d_states[-1]
        for t in range(len(acts) - 1, -1, -1):
            r, z, n = acts[t].split(hidden, 2)
            dn = _tanh_backward(dh - dh * z, n)
            dz = _sigmoid_backward(dh * (states[t] - n), z)
            dr = _sigmoid_backward(dn * inner[t], r)
            torch.cat((dr, dz, dn), 2, out=made[t])
            dh = torch.baddbmm(torch.addcmul(d_states[t], dh, z), torch.cat((dr, dz, dn * r), 2), back)
        return made, None, None, dh


class _Elman(Function):
    """States of a plain recurrent layer with tanh or ReLU."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h0: Tensor, relu: bool) -> Tensor:
        states = torch.cat((h0.unsqueeze(0), gates.new_empty(len(gates), *h0.shape)))
        for t in range(len(gates)):
            raw = torch.baddbmm(gates[t], states[t], weight)
            states[t + 1] = raw.relu_() if relu else raw.tanh_()
        ctx.save_for_backward(states, weight)
        ctx.relu = relu
        return states

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> Any:
        states, weight = ctx.saved_tensors
        made = torch.empty_like(states[1:])
        back, dh = weight.mT, d_states[-1]
        for t in range(len(made) - 1, -1, -1):
            after = states[t + 1]
            made[t] = dh * (after > 0) if ctx.relu else _tanh_backward(dh, after)
            dh = torch.baddbmm(d_states[t], made[t], back)
        return made, None, dh, None


def refused(layer: nn.RNNBase) -> str:
    """The reason why a recurrent module cannot be unrolled here; empty if it can."""
    if layer.proj_size:
        return "projections (proj_size) are not unrolled"
    if layer.mode not in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU"):
        return f"mode {layer.mode} is not known"
    return ""


def unrolled(layer: nn.RNNBase, record: Record) -> Callable[..., Any]:
    """A forward function for the module that calls `record` for each of its layers.

    Same arguments and results as the module's own forward, for batched tensors (not packed sequences).
    """

    def forward(x: Tensor | PackedSequence, initial: Any = None) -> Any:
        reason = refused(layer)
        if isinstance(x, PackedSequence):
            reason = "packed sequences hold positions of all records side by side"
        elif x.dim() != 3:
            reason = "the input has no dimension of records"
        if reason or isinstance(x, PackedSequence):
            raise UnsupportedError(
                f"no per-record gradients for this {type(layer).__name__}",
                where=type(layer).__name__,
                why=reason,
                hint="pad the sequences to one length and pass a tensor of three dimensions, without proj_size",
            )
        if layer.batch_first:
            x = x.transpose(0, 1)
        h0, c0 = _initial(layer, x, initial)
        last_h, last_c = [], []
        directions = 2 if layer.bidirectional else 1
        for index in range(layer.num_layers):
            if index and layer.dropout and layer.training:
                x = nn.functional.dropout(x, layer.dropout)
            at = slice(index * directions, (index + 1) * directions)
            x, h, c = _one_layer(layer, index, x, h0[at], c0[at], record)
            last_h.append(h)
            last_c.append(c)
        out = x.transpose(0, 1) if layer.batch_first else x
        if layer.mode == "LSTM":
            return out, (torch.cat(last_h), torch.cat(last_c))
        return out, torch.cat(last_h)

    return forward


def _initial(layer: nn.RNNBase, x: Tensor, given: Any) -> tuple[Tensor, Tensor]:
    zeros = x.new_zeros(layer.num_layers * (2 if layer.bidirectional else 1), x.shape[1], layer.hidden_size)
    if given is None:
        return zeros, zeros
    h0, c0 = given if layer.mode == "LSTM" else (given, zeros)
    if h0.shape != zeros.shape or c0.shape != zeros.shape:
        raise ProgramError(
            f"the initial state has shape {tuple(h0.shape)}, not {tuple(zeros.shape)}", where=type(layer).__name__
        )
    return h0, c0


def _one_layer(
    layer: nn.RNNBase, index: int, x: Tensor, h0: Tensor, c0: Tensor, record: Record
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [T, B, D H] and the last states of one layer, all its directions; the uses go to `record`."""
    ends = [f"_l{index}", f"_l{index}_reverse"][: len(h0)]
    own: list[dict[str, Tensor | None]] = [
        {kind: getattr(layer, kind + end, None) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        for end in ends
    ]
    gru = layer.mode == "GRU"
    steps, records, width = x.shape
    seen = torch.stack((x, x.flip(0)), 1) if len(own) > 1 else x.unsqueeze(1)
    inward = torch.stack([names["weight_ih"].mT for names in own])  # type: ignore[union-attr]
    offset = inward.new_zeros(len(own), 1, inward.shape[2])
    if layer.bias:
        offset = torch.stack([names["bias_ih"] for names in own]).unsqueeze(1)  # type: ignore[misc]
        if not gru:
            offset = offset + torch.stack([names["bias_hh"] for names in own]).unsqueeze(1)  # type: ignore[misc]
    gates = torch.baddbmm(
        offset.repeat(steps, 1, 1), seen.reshape(-1, records, width), inward.repeat(steps, 1, 1)
    ).unflatten(0, (steps, len(own)))
    trained = any(p is not None and p.requires_grad for names in own for p in names.values())
    if trained and not gates.requires_grad:
        gates.requires_grad_()
    weight = torch.stack([names["weight_hh"].detach().mT for names in own])  # type: ignore[union-attr]
    acts = last_c = None
    if layer.mode == "LSTM":
        states, last_c = _LSTM.apply(gates, weight, h0, c0)
    elif gru:
        biases = [names["bias_hh"] for names in own]
        bias = torch.stack([gates.new_zeros(gates.shape[3]) if b is None else b.detach() for b in biases]).unsqueeze(1)
        states, acts = _GRU.apply(gates, weight, bias, h0)
    else:
        states = _Elman.apply(gates, weight, h0, layer.mode == "RNN_RELU")
    if trained and torch.is_grad_enabled():
        previous, inputs = states.detach()[:-1], seen.detach()

        def factors(gradient: Tensor) -> Factors:
            made: list[tuple[Tensor | None, Factor]] = []
            for side, names in enumerate(own):
                b = b_back = gradient[:, side].transpose(0, 1)
                if acts is not None:  # the reset gate lies between the recurrent product and the candidate
                    r = acts[:, side, :, : layer.hidden_size].transpose(0, 1)
                    keep, candidate = b[..., : 2 * layer.hidden_size], b[..., 2 * layer.hidden_size :]
                    b_back = torch.cat((keep, candidate * r), 2)
                made += [
                    (names["weight_ih"], Outer(inputs[:, side].transpose(0, 1), b)),
                    (names["weight_hh"], Outer(previous[:, side].transpose(0, 1), b_back)),
                    (names["bias_ih"], Dense(b.sum(1))),
                    (names["bias_hh"], Dense(b_back.sum(1))),
                ]
            return made

        record(layer, gates, (x,), factors)
    outs = [states[1:, side].flip(0) if side else states[1:, side] for side in range(len(own))]
    last_h = states[-1]
    return torch.cat(outs, 2), last_h, torch.zeros_like(last_h) if last_c is None else last_c
