"""Who competes in `limerank bench ops`: our ops and the best honest alternatives, on the same tensors.

A group is what runs interleaved. `limerank.ops.cost` counts the FLOP, for each contestant what it multiplies itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from limerank.nn.layers.xor import XorStack
from limerank.ops.candidate import RequestHead, RowStore, best_candidates, candidate_logits
from limerank.ops.cost import link_pool_cost, rest_of_head_flops, scoring_cost, xor_attention_cost, xor_stack_cost
from limerank.ops.link_pool import HistoryProjection, LinkPool, absorb_keys, pool_absorbed, project_pooled
from limerank.ops.target_attention import attend_dense
from limerank.ops.xor_attention import Activation, Backend, xor_attention
from limerank.ops.xor_attention.reference import xor_mask

Work = Callable[[], object]
APPENDED = 64  # events appended one by one in a run


@dataclass(frozen=True)
class Contestant:
    """One way to do the group's work; `flops` is what it multiplies."""

    op: str
    backend: str
    run: Work
    flops: int
    times: int = 1
    """How often a run does the work: what takes microseconds is repeated, and divided by this."""


@dataclass(frozen=True)
class Group:
    """Contestants on the same inputs; ratios are those of every other contestant's time to `ours`."""

    shape: dict[str, int]
    contestants: list[Contestant]
    ours: str
    slow: bool = False
    """Whether a round takes seconds, so that a few must do."""


@dataclass(frozen=True)
class XorShape:
    """One size of XOR attention: users with `history` events each."""

    history: int
    links: int = 32
    width: int = 256
    heads: int = 4
    users: int = 1

    def as_dict(self) -> dict[str, int]:
        """For the report."""
        return {
            "users": self.users,
            "history": self.history,
            "links": self.links,
            "width": self.width,
            "heads": self.heads,
        }


class XorCase:
    """Random inputs of one size, in the jagged layout of ours and in the padded one of PyTorch's attention."""

    def __init__(self, shape: XorShape) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(0)
        rows, links, heads = shape.users * shape.history, shape.links, shape.heads
        head = shape.width // heads
        sources = [torch.randn(rows, heads, head, generator=generator) for _ in range(3)]
        targets = [torch.randn(shape.users, links, heads, head, generator=generator) for _ in range(3)]
        self.tensors = [tensor.requires_grad_() for tensor in (*sources, *targets)]
        self.offsets = torch.arange(shape.users + 1) * shape.history
        pairs = zip(sources, targets, strict=True)
        self.stacked = [
            torch.cat([source.detach().unflatten(0, (shape.users, -1)), target.detach()], 1)
            .transpose(1, 2)
            .contiguous()
            for source, target in pairs
        ]
        self.mask = xor_mask(shape.history, links)

    def cost(self, *, backend: str, backward: bool = False) -> int:
        """FLOP of one pass."""
        shape = self.shape
        passes = (
            xor_attention_cost(
                history=shape.history * shape.users,
                links=shape.links,
                heads=shape.heads,
                width=shape.width,
                users=shape.users,
                backend=backend,
                backward=back,
            )
            for back in ((False, True) if backward else (False,))
        )
        return sum(one.flops for one in passes)

    def ours(self, backend: Backend, activation: Activation, *, backward: bool = False) -> Contestant:
        """One of our backends."""

        def forward() -> tuple[Tensor, Tensor]:
            q_s, k_s, v_s, q_t, k_t, v_t = self.tensors
            return xor_attention(q_s, k_s, v_s, q_t, k_t, v_t, self.offsets, activation=activation, backend=backend)

        def run() -> object:
            if not backward:
                with torch.no_grad():
                    return forward()
            out = forward()
            return torch.autograd.grad(out, self.tensors, [torch.ones_like(one) for one in out])

        name = f"xor_attention {activation} {'forward+backward' if backward else 'forward'}"
        return Contestant(name, backend, run, self.cost(backend=backend, backward=backward))

    def sdpa_masked(self) -> Contestant:
        """PyTorch's fused attention with the XOR as an explicit mask."""
        queries, keys, values = self.stacked
        return Contestant(
            "xor_attention softmax forward",
            "sdpa, explicit mask",
            _no_grad(lambda: functional.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)),
            self.cost(backend="reference"),
        )

    def sdpa_twice(self) -> Contestant:
        """PyTorch's fused attention without a mask, once per direction: what someone who saw the trick would write."""
        history = self.shape.history
        (q_s, q_t), (k_s, k_t), (v_s, v_t) = (
            (one[:, :, :history].contiguous(), one[:, :, history:].contiguous()) for one in self.stacked
        )

        def run() -> object:
            pooled = functional.scaled_dot_product_attention(q_t, k_s, v_s)
            return functional.scaled_dot_product_attention(q_s, k_t, v_t), pooled

        name = "xor_attention softmax forward"
        return Contestant(name, "sdpa, two calls", _no_grad(run), self.cost(backend="chunked"))

    def flex(self) -> Contestant:
        """FlexAttention, compiled, with the XOR as a block mask: it skips whole blocks of 128 x 128."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        history, rows = self.shape.history, self.shape.history + self.shape.links

        def xor(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query < history) ^ (key < history)

        torch.compiler.reset()  # after a few sizes the compiler would give up and run it eagerly
        mask = create_block_mask(xor, None, None, rows, rows, device="cpu")
        compiled = torch.compile(flex_attention, dynamic=False)
        queries, keys, values = self.stacked
        run = _no_grad(lambda: compiled(queries, keys, values, block_mask=mask))
        run()  # compiles, or says why it cannot
        return Contestant("xor_attention softmax forward", "flex attention", run, self.cost(backend="chunked"))


def xor_groups(shape: XorShape, *, flex: Callable[[XorCase], Contestant | None]) -> Iterator[Group]:
    """SiLU against the dense mask, forward and with gradients; softmax against PyTorch's own attention."""
    case = XorCase(shape)
    slow = shape.users * shape.history**2 > 4e6
    yield Group(
        shape.as_dict(), [case.ours("chunked", "silu"), case.ours("reference", "silu")], ours="chunked", slow=slow
    )
    both = [case.ours(backend, "silu", backward=True) for backend in ("chunked", "reference")]
    yield Group(shape.as_dict(), both, ours="chunked", slow=slow)
    peers = [case.sdpa_masked(), case.sdpa_twice(), flex(case)]
    entries = [case.ours("chunked", "softmax"), *(peer for peer in peers if peer is not None)]
    yield Group(shape.as_dict(), entries, ours="chunked", slow=slow)


def stack_group(*, history: int, links: int = 32, width: int = 256, heads: int = 4, layers: int = 3) -> Group:
    """The fused, absorbed and pruned XOR stack against the module's plain forward."""
    torch.manual_seed(0)
    stack = XorStack(width, heads, layers).eval()
    sources, own = torch.randn(history, width), torch.randn(1, links, width)
    offsets = torch.tensor([0, history])

    def flops(*, absorbed: bool) -> int:
        cost = xor_stack_cost(layers=layers, links=links, heads=heads, width=width, absorbed=absorbed)
        return cost.total(history=history).flops

    shape = {"history": history, "layers": layers, "links": links, "heads": heads, "width": width}
    return Group(
        shape,
        [
            Contestant(
                "xor_stack", "fused, absorbed", lambda: stack.infer(sources, own, offsets), flops(absorbed=True)
            ),
            Contestant(
                "xor_stack", "plain modules", _no_grad(lambda: stack(sources, own, offsets)), flops(absorbed=False)
            ),
        ],
        ours="fused, absorbed",
    )


@torch.inference_mode()
def pool_group(*, history: int, links: int = 32, width: int = 256, heads: int = 4) -> Group:
    """LIME-MHA's link pooling: absorbed, projected with PyTorch's attention, and the append of one event."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(history, width, generator=generator)
    weight = torch.randn(2, width, width, generator=generator) * width**-0.5
    ones, zeros = torch.ones(width), torch.zeros(width)
    projection = HistoryProjection(ones, zeros, 1e-6, weight[0], weight[1], zeros)
    queries = torch.randn(heads, links, width // heads, generator=generator)
    offsets = torch.tensor([0, history])
    pool = LinkPool(absorb_keys(queries, weight[0], (width // heads) ** -0.5))
    state = pool_absorbed(rows, pool, projection)
    events = list(torch.randn(APPENDED, width, generator=generator))

    def absorbed() -> object:
        pooled = pool_absorbed(rows, pool, projection).finalize()
        return project_pooled(pooled, projection.value_weight, projection.value_bias, history)

    def projected() -> object:
        normal = functional.layer_norm(rows, (width,), ones, zeros, 1e-6)
        keys, values = (functional.linear(normal, one, zeros).unflatten(1, (heads, -1)) for one in weight)
        return attend_dense(queries.transpose(0, 1)[None], keys, values, offsets)

    def append() -> object:
        for event in events:
            pool.append_row(state, functional.layer_norm(event, (width,), ones, zeros, 1e-6))
        return state

    absorbed_cost, plain_cost = (
        link_pool_cost(links=links, heads=heads, width=width, variant=variant) for variant in ("absorbed", "plain")
    )
    return Group(
        {"history": history, "links": links, "heads": heads, "width": width},
        [
            Contestant(
                "link_pool", "absorbed", torch.inference_mode()(absorbed), absorbed_cost.total(history=history).flops
            ),
            Contestant(
                "link_pool",
                "projected, sdpa",
                torch.inference_mode()(projected),
                plain_cost.total(history=history).flops,
            ),
            Contestant(
                "link_pool",
                "append one event",
                torch.inference_mode()(append),
                absorbed_cost.per_event.flops,
                times=APPENDED,
            ),
        ],
        ours="absorbed",
    )


def candidate_group(*, candidates: int, product: int = 128, width: int = 256, hidden: int = 96) -> Group:
    """Folded scoring of rows in every precision, a running top 100, the plain order, and the product unblocked."""
    generator = torch.Generator().manual_seed(0)
    heads = 4
    rows = torch.randn(candidates, heads, product // heads, generator=generator).softmax(-1).flatten(1)
    head_part = torch.randn(candidates, hidden, generator=generator)
    values = torch.randn(product, width, generator=generator) * width**-0.5
    first = torch.randn(width, hidden, generator=generator) * width**-0.5
    offset, last = torch.randn(hidden, generator=generator), torch.randn(1, hidden, generator=generator)
    layers = [(last, torch.zeros(1))]
    folded = RequestHead(values @ first, offset, layers)
    plain = RequestHead(first, offset, layers, interact=lambda block: block @ values)
    stores = {name: RowStore.store(rows, head_part, name) for name in ("fp32", "fp16", "u8")}
    cost = scoring_cost(heads=heads, links=product // heads, value_width=width, hidden=hidden)
    rest = rest_of_head_flops(hidden=[hidden])

    def at_once() -> object:
        return (torch.addmm(head_part + offset, rows, folded.matrix)).relu_() @ last.T

    def contestant(backend: str, run: Work, per_candidate: int) -> Contestant:
        return Contestant("candidate", backend, torch.inference_mode()(run), (per_candidate + rest) * candidates)

    return Group(
        {"candidates": candidates, "heads_x_links": product, "width": width, "hidden": hidden},
        [
            contestant("folded fp32", lambda: candidate_logits(stores["fp32"], folded), cost.folded),
            contestant("folded fp16", lambda: candidate_logits(stores["fp16"], folded), cost.folded),
            contestant("folded u8", lambda: candidate_logits(stores["u8"], folded), cost.folded),
            contestant("folded fp32, top 100", lambda: best_candidates(stores["fp32"], folded, 100), cost.folded),
            contestant("plain fp32", lambda: candidate_logits(stores["fp32"], plain), cost.plain),
            contestant("folded, unblocked", at_once, cost.folded),
        ],
        ours="folded fp32",
    )


def _no_grad(run: Work) -> Work:
    def quietly() -> object:
        with torch.no_grad():
            return run()

    return quietly
