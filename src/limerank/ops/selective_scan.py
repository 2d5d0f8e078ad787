"""The recurrence of Mamba, for lists padded behind their end, and its causal convolution, for jagged rows.

    h_t = exp(delta_t A) h_(t-1) + delta_t B_t x_t       per channel i and state s: h [i, s], A [i, s] < 0
    y_t = C_t h_t                                        summed over s

Where delta is zero (padding) the state stays what it was, so the state behind the last row is that of the last event.
In eager mode events are walked one by one, in chunks whose states stay in cache; the gradient keeps the state between
chunks and recomputes the rest. In a traced graph the number of events is free, so chunks of a fixed length are scanned
side by side, by doubling, and joined by their decays. No exponent is ever positive in either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from limerank.ops.jagged import row_of
from limerank.ops.precision import without_autocast

STATES_PER_CHUNK = 2**18
TRACED_CHUNK = 32


def causal_convolution(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """sum_k weight[k] * (the row k before it in the same list): rows [sum_n, i], weight [taps, i]."""
    count = rows.shape[0]
    starts = offsets[:-1].index_select(0, row_of(offsets, count))
    position = torch.arange(count, device=rows.device) - starts
    total = rows * weight[0]
    for back in range(1, weight.shape[0]):
        earlier = functional.pad(rows, (0, 0, back, 0))[:count]
        total = total + earlier * (position >= back)[:, None] * weight[back]
    return total


def selective_scan(
    delta: Tensor, inputs: Tensor, decay: Tensor, write: Tensor, read: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """y [L, n, i] and the last states [L, i, s], from delta and inputs [L, n, i], A [i, s], B and C [L, n, s].

    Without C there is no y: only the states are computed. Without events states are zero, and so are all gradients:
    zero, not missing, or a batch without history would be a step of some weights and not of others.
    """
    if torch.compiler.is_compiling():
        return _side_by_side(delta, inputs, decay, write, read)
    inputs, write = inputs.to(delta.dtype), write.to(delta.dtype)  # half precision reaches some of them only
    read, decay = None if read is None else read.to(delta.dtype), decay.to(delta.dtype)
    by_time = [one.transpose(0, 1).contiguous() for one in (delta, inputs, write)]
    reading = write.new_empty(0) if read is None else read.transpose(0, 1).contiguous()
    out, state = _Scan.apply(*by_time[:2], decay, by_time[2], reading)  # type: ignore[no-untyped-call]
    return None if read is None else out.transpose(0, 1), state


def _side_by_side(
    delta: Tensor, inputs: Tensor, decay: Tensor, write: Tensor, read: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    count = delta.shape[1]
    chunks = count // TRACED_CHUNK + 1  # at least one, without any event too: it leaves the state that was
    filling = (0, 0, 0, chunks * TRACED_CHUNK - count)
    delta, inputs, write = (
        functional.pad(one, filling).unflatten(1, (chunks, TRACED_CHUNK)) for one in (delta, inputs, write)
    )
    faded = (delta[..., None] * decay).exp()
    states = (delta * inputs)[..., None] * write[..., None, :]
    reach = 1
    while reach < TRACED_CHUNK:  # each row holds the last `reach` events of its chunk, then twice as many
        earlier = (0, 0, 0, 0, reach, 0)
        states = states + faded * functional.pad(states, earlier)[:, :, :TRACED_CHUNK]
        faded = faded * functional.pad(faded, earlier, value=1.0)[:, :, :TRACED_CHUNK]
        reach *= 2
    after, before = _join_chunks(states[:, :, -1], delta.sum(2), decay)
    if read is None:
        return None, after
    reading = functional.pad(read, filling).unflatten(1, (chunks, TRACED_CHUNK))
    rows = ((states + faded * before[:, :, None]) @ reading[..., None]).squeeze(-1)
    return rows.flatten(1, 2)[:, :count], after


def _join_chunks(own: Tensor, time: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """From what each chunk leaves on its own [L, K, i, s] and the time it takes [L, K, i], the states after the last
    chunk [L, i, s] and before each chunk [L, K, i, s].
    """
    number = torch.arange(own.shape[1], device=own.device)
    later = number[:, None] > number
    # [k, j]: the time of chunks j + 1 .. k, added up and never subtracted
    between = torch.where(later[..., None], time[:, :, None], 0).cumsum(1)
    weights = (between[..., None] * decay).exp() * (number[:, None] >= number)[..., None, None]
    after = (weights * own[:, None]).sum(2)
    return after[:, -1], functional.pad(after, (0, 0, 0, 0, 1, 0))[:, :-1]


class _Scan(torch.autograd.Function):
    """Everything time first: [n, L, i] and [n, L, s]."""

    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, inputs: Tensor, decay: Tensor, write: Tensor, read: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = delta.new_zeros(*delta.shape[1:], decay.shape[1])
        out = delta.new_empty(0) if read.shape == (0,) else torch.empty_like(delta)
        kept = []
        with without_autocast(delta.device):
            for own in _chunks(delta, decay):
                kept.append(state)
                states, _ = _walk(delta[own], inputs[own], decay, write[own], state)
                state = states[-1].clone()
                if read.numel():
                    out[own] = (states @ read[own][..., None]).squeeze(-1)
        ctx.save_for_backward(delta, inputs, decay, write, read, *kept)
        return out, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        delta, inputs, decay, write, read, *kept = ctx.saved_tensors
        d_delta, d_inputs, d_write = torch.empty_like(delta), torch.empty_like(inputs), torch.empty_like(write)
        d_decay, d_read = torch.zeros_like(decay), torch.zeros_like(read)
        chunks = _chunks(delta, decay)
        with without_autocast(delta.device):
            for own, before in zip(reversed(chunks), reversed(kept), strict=True):
                states, decays = _walk(delta[own], inputs[own], decay, write[own], before)
                if read.numel():
                    d_read[own] = (d_out[own][..., None, :] @ states).squeeze(-2)
                    gradient = d_out[own][..., None] * read[own][..., None, :]
                else:
                    gradient = torch.zeros_like(states)
                gradient[-1] += d_state
                steps, fading = gradient.unbind(), decays.unbind()
                for t in range(len(steps) - 2, -1, -1):
                    steps[t].addcmul_(fading[t + 1], steps[t + 1])
                scaled = (delta[own] * inputs[own])[..., None, :]
                d_write[own] = (scaled @ gradient).squeeze(-2)
                d_scaled = (gradient @ write[own][..., None]).squeeze(-1)
                d_state = decays[0] * gradient[0]
                # from here `gradient` is that of the exponent delta A
                gradient[0] *= before
                gradient[1:] *= states[:-1]
                gradient *= decays
                d_inputs[own] = d_scaled * delta[own]
                d_delta[own] = d_scaled * inputs[own] + torch.mul(gradient, decay, out=decays).sum(-1)
                d_decay += torch.mul(gradient, delta[own][..., None], out=decays).sum((0, 1))
        return d_delta, d_inputs, d_decay, d_write, d_read


def _chunks(delta: Tensor, decay: Tensor) -> list[slice]:
    count, lists, _ = delta.shape
    size = max(1, STATES_PER_CHUNK // max(1, lists * decay.numel()))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _walk(delta: Tensor, inputs: Tensor, decay: Tensor, write: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """States after each of a chunk's events and the decays that led there, both [t, L, i, s]."""
    decays = (delta[..., None] * decay).exp_()
    states = (delta * inputs)[..., None] * write[..., None, :]
    state = before
    for own, fading in zip(states.unbind(), decays.unbind(), strict=True):
        state = own.addcmul_(fading, state)
    return states, decays
