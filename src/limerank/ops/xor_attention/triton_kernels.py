# mypy: disallow-untyped-decorators=False
"""Triton kernels of XOR attention. They import triton, so only functions of `triton_backend` import this module.

Both directions are a cross-attention of one user's queries over the same user's keys: links over history rows in pool,
history rows over links in spread. A program owns a block of one side, reads the other side block by block and writes
what it owns once. So nothing is added atomically, and every sum has a fixed order. Three kernels do the work:

    attend                 owns queries, reads keys and values       O = phi(X) V / c,   X = scale Q K^T
    grad_queries           owns queries, reads keys and values       dQ = scale dX K
    grad_keys_and_values   owns keys, reads queries and gradients    dK = scale dX^T Q,  dV = phi(X)^T dO / c

    SiLU      phi(x) = x sigma(x), c keys per query,   dX = sigma(X) (1 + X (1 - sigma(X))) * dO V^T / c
    softmax   phi(x) = exp(x - lse), c = 1,            dX = phi(X) * (dO V^T - sum_v dO O)

`links_own` says which side a program owns:

    false  an item of the work list is a block of history rows; the program owns it and reads all links
    true   an item is a longer piece of a history; the program reads it, owns one block of links and writes one part
           [item, links]; `sum_parts` or `merge_parts` add a user's parts in the order of the items

An item is (user, first row, row after the last, keys per query). Tensors come as `Strided`; history rows are numbered
through the whole batch, so their user stride is 0. Blocks are powers of two of at least 16: what lies outside is read
as 0 and weighs 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from limerank.ops.xor_attention.strided import Strided

# The functions `tl.sum` and `tl.max` reduce with. The wrappers themselves cannot be used: they are broken in the
# interpreter whenever something (torch.compile, say) imported triton before TRITON_INTERPRET was set.
ADD = tl.standard._sum_combine
GREATER = tl.standard._elementwise_max


@triton.jit
def work_item(work: tl.tensor, links: tl.tensor, own_block: tl.constexpr, links_own: tl.constexpr) -> tl.tuple:
    """User, keys per query, and the first and last + 1 row of what this program owns and of what it reads."""
    item = work + tl.program_id(0).to(tl.int64) * 4
    user, first, stop, keys = tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    if links_own:
        link = tl.program_id(2).to(tl.int64) * own_block
        return user, keys, link, links.to(tl.int64), first, stop
    return user, keys, first, stop, first * 0, links.to(tl.int64)


@triton.jit
def load_tile(
    tensor: Strided,
    user: tl.tensor,
    rows: tl.tensor,
    stop: tl.tensor,
    head: tl.tensor,
    width: tl.constexpr,
    block: tl.constexpr,
) -> tl.tensor:
    """[rows, block] of one user and head."""
    columns = tl.arange(0, block)
    base = tensor.pointer + user * tensor.user + head * tensor.head
    addresses = base + rows[:, None] * tensor.row + columns[None, :] * tensor.column
    return tl.load(addresses, mask=(rows < stop)[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def store_tile(
    tensor: Strided,
    user: tl.tensor,
    rows: tl.tensor,
    stop: tl.tensor,
    head: tl.tensor,
    tile: tl.tensor,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """[rows, block] of one user and head, without the padding."""
    columns = tl.arange(0, block)
    base = tensor.pointer + user * tensor.user + head * tensor.head
    addresses = base + rows[:, None] * tensor.row + columns[None, :] * tensor.column
    tl.store(addresses, tile, mask=(rows < stop)[:, None] & (columns < width)[None, :])


@triton.jit
def load_rows(tensor: Strided, user: tl.tensor, rows: tl.tensor, stop: tl.tensor, head: tl.tensor) -> tl.tensor:
    """[rows] of one user and head: one number per row."""
    addresses = tensor.pointer + user * tensor.user + head * tensor.head + rows * tensor.row
    return tl.load(addresses, mask=rows < stop, other=0.0)


@triton.jit
def store_rows(
    tensor: Strided, user: tl.tensor, rows: tl.tensor, stop: tl.tensor, head: tl.tensor, numbers: tl.tensor
) -> None:
    """[rows] of one user and head, without the padding."""
    addresses = tensor.pointer + user * tensor.user + head * tensor.head + rows * tensor.row
    tl.store(addresses, numbers, mask=rows < stop)


@triton.jit
def finish_softmax(total: tl.tensor, peak: tl.tensor, mass: tl.tensor) -> tl.tuple:
    """Output and log-sum-exp of running sums; both are 0 where there was nothing to read."""
    divisor = tl.where(mass == 0.0, 1.0, mass)
    return total / divisor[:, None], tl.where(mass == 0.0, 0.0, peak + tl.log(divisor))


@triton.jit
def weights_and_grad(
    scores: tl.tensor, d_weights: tl.tensor, lse: tl.tensor, delta: tl.tensor, valid: tl.tensor, softmax: tl.constexpr
) -> tl.tuple:
    """phi(X) and dX, for SiLU both without the division by c."""
    if softmax:
        # also where the owned row is padding: the score 0 of a padded key minus a very negative lse would overflow
        weights = tl.exp(tl.where(valid, scores - lse, float("-inf")))
        return weights, weights * (d_weights - delta)
    sigma = 1.0 / (1.0 + tl.exp(-scores))
    slope = sigma * (1.0 + scores * (1.0 - sigma))
    return tl.where(valid, scores * sigma, 0.0), tl.where(valid, slope * d_weights, 0.0)


@triton.jit
def attend(
    q: Strided,
    k: Strided,
    v: Strided,
    out: Strided,
    peaks: Strided,
    masses: Strided,
    work: tl.tensor,
    links: tl.tensor,
    scale: tl.tensor,
    a: tl.constexpr,
    a_block: tl.constexpr,
    v_width: tl.constexpr,
    v_block: tl.constexpr,
    own_block: tl.constexpr,
    read_block: tl.constexpr,
    links_own: tl.constexpr,
    softmax: tl.constexpr,
) -> None:
    """Outputs of the owned queries. Softmax also leaves lse in `peaks`, or, for parts, running maximum and sum."""
    user, keys, first, stop, read_first, read_stop = work_item(work, links, own_block, links_own)
    head = tl.program_id(1).to(tl.int64)
    own = first + tl.arange(0, own_block)
    queries = load_tile(q, user, own, stop, head, a, a_block)
    total = tl.full((own_block, v_block), 0.0, tl.float32)
    peak = tl.full((own_block,), float("-inf"), tl.float32)
    mass = tl.full((own_block,), 0.0, tl.float32)
    for start in range(read_first, read_stop, read_block):
        read = start + tl.arange(0, read_block)
        key = load_tile(k, user, read, read_stop, head, a, a_block)
        value = load_tile(v, user, read, read_stop, head, v_width, v_block)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        valid = (read < read_stop)[None, :]
        if softmax:
            scores = tl.where(valid, scores, float("-inf"))
            higher = tl.maximum(peak, tl.reduce(scores, 1, GREATER))
            shrink = tl.exp(peak - higher)
            weights = tl.exp(scores - higher[:, None])
            mass = mass * shrink + tl.reduce(weights, 1, ADD)
            total = total * shrink[:, None]
            peak = higher
        else:
            weights = tl.where(valid, scores / (1.0 + tl.exp(-scores)), 0.0)
        total = tl.dot(weights.to(value.dtype), value, total, input_precision="ieee")
    slot = tl.program_id(0).to(tl.int64) if links_own else user
    if softmax:
        if links_own:
            store_rows(masses, slot, own, stop, head, mass)
        else:
            total, peak = finish_softmax(total, peak, mass)
        store_rows(peaks, slot, own, stop, head, peak)
    else:
        total = total / keys.to(tl.float32)
    store_tile(out, slot, own, stop, head, total, v_width, v_block)


@triton.jit
def grad_queries(
    d_out: Strided,
    q: Strided,
    k: Strided,
    v: Strided,
    out: Strided,
    lse: Strided,
    d_q: Strided,
    work: tl.tensor,
    links: tl.tensor,
    scale: tl.tensor,
    a: tl.constexpr,
    a_block: tl.constexpr,
    v_width: tl.constexpr,
    v_block: tl.constexpr,
    own_block: tl.constexpr,
    read_block: tl.constexpr,
    links_own: tl.constexpr,
    softmax: tl.constexpr,
) -> None:
    """Gradients of the owned queries, or this item's part of them."""
    user, keys, first, stop, read_first, read_stop = work_item(work, links, own_block, links_own)
    head = tl.program_id(1).to(tl.int64)
    own = first + tl.arange(0, own_block)
    queries = load_tile(q, user, own, stop, head, a, a_block)
    d_own = load_tile(d_out, user, own, stop, head, v_width, v_block)
    own_lse = tl.full((own_block,), 0.0, tl.float32)
    delta = tl.full((own_block,), 0.0, tl.float32)
    if softmax:
        own_lse = load_rows(lse, user, own, stop, head)
        own_out = load_tile(out, user, own, stop, head, v_width, v_block)
        delta = tl.reduce(d_own.to(tl.float32) * own_out.to(tl.float32), 1, ADD)
    total = tl.full((own_block, a_block), 0.0, tl.float32)
    for start in range(read_first, read_stop, read_block):
        read = start + tl.arange(0, read_block)
        key = load_tile(k, user, read, read_stop, head, a, a_block)
        value = load_tile(v, user, read, read_stop, head, v_width, v_block)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        d_weights = tl.dot(d_own, tl.trans(value), input_precision="ieee")
        valid = (own < stop)[:, None] & (read < read_stop)[None, :]
        _, d_scores = weights_and_grad(scores, d_weights, own_lse[:, None], delta[:, None], valid, softmax)
        total = tl.dot(d_scores.to(key.dtype), key, total, input_precision="ieee")
    if not softmax:
        total = total / keys.to(tl.float32)
    slot = tl.program_id(0).to(tl.int64) if links_own else user
    store_tile(d_q, slot, own, stop, head, total * scale, a, a_block)


@triton.jit
def grad_keys_and_values(
    d_out: Strided,
    q: Strided,
    k: Strided,
    v: Strided,
    out: Strided,
    lse: Strided,
    d_k: Strided,
    d_v: Strided,
    work: tl.tensor,
    links: tl.tensor,
    scale: tl.tensor,
    a: tl.constexpr,
    a_block: tl.constexpr,
    v_width: tl.constexpr,
    v_block: tl.constexpr,
    own_block: tl.constexpr,
    read_block: tl.constexpr,
    links_own: tl.constexpr,
    softmax: tl.constexpr,
) -> None:
    """Gradients of the owned keys and values, or this item's part of them; tiles are [keys, queries]."""
    user, keys, first, stop, read_first, read_stop = work_item(work, links, own_block, links_own)
    head = tl.program_id(1).to(tl.int64)
    own = first + tl.arange(0, own_block)
    key = load_tile(k, user, own, stop, head, a, a_block)
    value = load_tile(v, user, own, stop, head, v_width, v_block)
    total_k = tl.full((own_block, a_block), 0.0, tl.float32)
    total_v = tl.full((own_block, v_block), 0.0, tl.float32)
    for start in range(read_first, read_stop, read_block):
        read = start + tl.arange(0, read_block)
        queries = load_tile(q, user, read, read_stop, head, a, a_block)
        d_read = load_tile(d_out, user, read, read_stop, head, v_width, v_block)
        read_lse = tl.full((read_block,), 0.0, tl.float32)
        delta = tl.full((read_block,), 0.0, tl.float32)
        if softmax:
            read_lse = load_rows(lse, user, read, read_stop, head)
            read_out = load_tile(out, user, read, read_stop, head, v_width, v_block)
            delta = tl.reduce(d_read.to(tl.float32) * read_out.to(tl.float32), 1, ADD)
        scores = tl.dot(key, tl.trans(queries), input_precision="ieee") * scale
        d_weights = tl.dot(value, tl.trans(d_read), input_precision="ieee")
        valid = (own < stop)[:, None] & (read < read_stop)[None, :]
        weights, d_scores = weights_and_grad(scores, d_weights, read_lse[None, :], delta[None, :], valid, softmax)
        total_v = tl.dot(weights.to(d_read.dtype), d_read, total_v, input_precision="ieee")
        total_k = tl.dot(d_scores.to(queries.dtype), queries, total_k, input_precision="ieee")
    if not softmax:
        total_k = total_k / keys.to(tl.float32)
        total_v = total_v / keys.to(tl.float32)
    slot = tl.program_id(0).to(tl.int64) if links_own else user
    store_tile(d_k, slot, own, stop, head, total_k * scale, a, a_block)
    store_tile(d_v, slot, own, stop, head, total_v, v_width, v_block)


@triton.jit
def sum_parts(
    parts: Strided,
    result: Strided,
    part_bounds: tl.tensor,
    links: tl.tensor,
    width: tl.constexpr,
    block: tl.constexpr,
    own_block: tl.constexpr,
) -> None:
    """Add a user's parts [part, links, H, width] in their order; a user without parts gets 0."""
    user, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    own = tl.program_id(2).to(tl.int64) * own_block + tl.arange(0, own_block)
    total = tl.full((own_block, block), 0.0, tl.float32)
    for part in range(tl.load(part_bounds + user), tl.load(part_bounds + user + 1)):
        total += load_tile(parts, part, own, links, head, width, block)
    store_tile(result, user, own, links, head, total, width, block)


@triton.jit
def merge_parts(
    parts: Strided,
    peaks: Strided,
    masses: Strided,
    out: Strided,
    lse: Strided,
    part_bounds: tl.tensor,
    links: tl.tensor,
    width: tl.constexpr,
    block: tl.constexpr,
    own_block: tl.constexpr,
) -> None:
    """The same for softmax: parts with a running maximum and sum each give output and lse."""
    user, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    own = tl.program_id(2).to(tl.int64) * own_block + tl.arange(0, own_block)
    total = tl.full((own_block, block), 0.0, tl.float32)
    peak = tl.full((own_block,), float("-inf"), tl.float32)
    mass = tl.full((own_block,), 0.0, tl.float32)
    for part in range(tl.load(part_bounds + user), tl.load(part_bounds + user + 1)):
        part_peak = load_rows(peaks, part, own, links, head)
        higher = tl.maximum(peak, part_peak)
        shrink, part_shrink = tl.exp(peak - higher), tl.exp(part_peak - higher)
        mass = mass * shrink + load_rows(masses, part, own, links, head) * part_shrink
        total = total * shrink[:, None] + load_tile(parts, part, own, links, head, width, block) * part_shrink[:, None]
        peak = higher
    total, peak = finish_softmax(total, peak, mass)
    store_tile(out, user, own, links, head, total, width, block)
    store_rows(lse, user, own, links, head, peak)
