"""What all LIME rankers share: links, and candidates that read them through weights cached per item.

Decoupled interaction (equation `finalcand`, with the projections, the scale and the heads it drops):

    w_c = phi(LN(T_c) W_Q (LN(L) W_K)^T / sqrt(d_a))     per head; no user in it, so it is computed offline
    o_c = [w_(c,h) (LN(L^P) W_V)_h]_h                     keys are the raw links, values the personalized ones

How the links become personalized (L^P) is what the rankers of this family differ in.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from limerank.batch import Features, UserInputs
from limerank.models.base import AttentionOptions, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.links import ContextMix, Links, LinkSelection, LinkStart
from limerank.ops.jagged import row_of
from limerank.schema import FeatureSpace

ReadingLayer = Literal["first", "last"]


class LimeOptions(AttentionOptions):
    """Options of every LIME ranker; `select_from` and `coarse_links` are the paper's future work and off by default."""

    links: int = Field(default=32, ge=1, description="l, the number of link embeddings a request uses")
    link_scale: float = Field(default=1.0, gt=0, description="standard deviation of the links at the start")
    link_start: LinkStart = Field(
        default="normal", description="links start at random (the paper's), or as items of the log that differ"
    )
    context: Literal["before", "after", "none"] = Field(
        default="before",
        description="whether E^C enters the links before they read the history, after, or not at all; unless before, "
        "the read links depend on no context and can be kept between requests. The head reads E^C in any case",
    )
    candidate_activation: Literal["softmax", "silu"] = Field(
        default="softmax", description="phi of the candidate stage; SiLU is divided by the number of links"
    )
    value_norm: bool = Field(
        default=True,
        description="LayerNorm before the values of personalized links; without it candidates read how large L^P is",
    )
    select_from: int | None = Field(
        default=None, ge=1, description="a larger number of links, of which user and context select `links`"
    )
    coarse_links: int = Field(
        default=0, ge=0, description="links of a coarse level, each the parent of links / coarse_links fine ones"
    )

    @model_validator(mode="after")
    def _links_fit_together(self) -> LimeOptions:
        if self.select_from is not None and self.select_from < self.links:
            raise ValueError(f"select_from {self.select_from} is smaller than links {self.links}")
        if self.select_from is not None and self.links == 1:
            raise ValueError("select_from needs at least 2 links: the choice is learned from how their scores compare")
        if self.select_from is not None and self.coarse_links:
            raise ValueError("select_from and coarse_links exclude each other")
        if self.coarse_links and self.links % self.coarse_links:
            raise ValueError(f"links {self.links} cannot be shared out among {self.coarse_links} coarse links")
        if self.coarse_links and self.candidate_activation != "softmax":
            raise ValueError("coarse_links need candidate_activation softmax: children share their parent's weight")
        return self

    @property
    def normed(self) -> bool:
        """Whether projections of links, history and candidates are behind a LayerNorm."""
        return True

    @property
    def all_links(self) -> int:
        """The links a candidate has a weight for."""
        return self.coarse_links + (self.select_from or self.links)


class LimeRanker(FactorizedRanker):
    """Links, the context that enters them, and the decoupled candidate stage."""

    family = "lime"
    options: LimeOptions

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeOptions) -> None:
        super().__init__(space, tasks, options)
        width, heads, context = options.width, options.heads, self.context_tower.output_width
        self.links = Links(options.select_from or options.links, width, options.coarse_links, options.link_scale)
        self.context_mix = None if options.context == "none" else ContextMix(width, context)
        self.selection = (
            None if options.select_from is None else LinkSelection(context, options.select_from, options.links)
        )
        self.candidate_queries = HeadProjection(width, heads, options.query_key_width, norm=options.normed)
        self.link_keys = HeadProjection(width, heads, options.query_key_width, norm=options.normed)
        self.link_values = HeadProjection(width, heads, width, norm=options.normed and options.value_norm)

    @property
    def start_items(self) -> int:
        return self.links.items_to_start_as if self.options.link_start == "items" else 0

    def start_from(self, items: Features) -> None:
        self.links.start_as_items(self.item_tower, items)

    def personalize(self, links: Tensor, inputs: UserInputs) -> Tensor:
        """L^P [B, l, d] from the links [B, l, d] that read the history."""
        raise TypeError(f"{type(self).__name__} personalizes no links")

    def read_weights(self, links: Tensor, inputs: UserInputs, layer: ReadingLayer) -> Tensor:
        """phi [sum_n, l, H]: how much of each event the links [B, l, d] of its request take in a layer."""
        raise TypeError(f"{type(self).__name__} does not say what its links read")

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.all_links

    def encode_user(self, inputs: UserInputs) -> UserState:
        context = self.context_tower(inputs.users, inputs.context)
        reading, chosen = self.reading_links(context)
        return self.user_state(self.personalize(reading, inputs), context, chosen)

    def user_state(self, personalized: Tensor, context: Tensor, chosen: tuple[Tensor, Tensor] | None) -> UserState:
        """What candidates read, from L^P [B, l, d], E^C and which links were selected."""
        if self.context_mix is not None and self.options.context == "after":
            personalized = self.context_mix(personalized, context)
        (values,) = self.link_values(personalized)
        if self.selection is not None and chosen is not None:
            values = self.selection.spread(values, *chosen)
        return UserState((values.transpose(1, 2),), self.head.from_user(context))

    def reading_links(self, context: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The links [B, l, d] that read the history of each request; if selected also which they are and their scale.

        They are L^C, or L itself unless the context comes before.
        """
        links = self.links()
        chosen = None
        if self.selection is not None:
            chosen = self.selection(context)
            links = links[chosen[0]]
        if self.context_mix is not None and self.options.context == "before":
            return self.context_mix(links, context), chosen
        return links.expand(context.shape[0], -1, -1), chosen

    def history_attention(self, inputs: UserInputs, layer: ReadingLayer = "first") -> Tensor:
        """How much each link reads of each event [sum_n, links, H], for explanations; zero for links not selected.

        Links are numbered as in an item row. A ranker whose links read the history once has one layer, first and last.
        """
        reading, chosen = self.reading_links(self.context_tower(inputs.users, inputs.context))
        weights = self.read_weights(reading, inputs, layer)
        if chosen is None:
            return weights
        events, _, heads = weights.shape
        numbers = chosen[0].index_select(0, row_of(inputs.history.offsets, events))
        everywhere = weights.new_zeros(events, self.options.all_links, heads)
        return everywhere.scatter(1, numbers[:, :, None].expand_as(weights), weights)

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.candidate_queries(items)
        (keys,) = self.link_keys(self.links())
        scores = (queries.transpose(0, 1) @ keys.permute(1, 2, 0)) * queries.shape[-1] ** -0.5
        if self.options.candidate_activation == "silu":
            weights = functional.silu(scores) / self.options.all_links
        else:
            weights = self.links.weights(scores)
        return weights.transpose(0, 1).flatten(1)

    def row_parameters(self) -> list[Tensor]:
        return [self.links.embeddings, *self.candidate_queries.parameters(), *self.link_keys.parameters()]
