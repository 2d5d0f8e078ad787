"""SIM: a general search finds a candidate's events in a long history, an exact search attends to them."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from limerank.batch import Features, RequestBatch, UserInputs
from limerank.errors import UsageError, did_you_mean
from limerank.models.base import AttentionOptions, ItemState, Ranker, UserState
from limerank.nn.layers.attention import HeadProjection, split_heads, start_aligned
from limerank.nn.losses import cross_entropy
from limerank.ops.jagged import pad, row_of
from limerank.ops.target_attention import attend_one
from limerank.ops.top_events import attend_chosen, recent_of_category, search_jagged, search_one
from limerank.schema import UNKNOWN_INDEX, FeatureSpace, Kind

DIGIT = 2**10
"""Numbers below twice this are exact in half precision."""
MOST_CATEGORIES = 2 * DIGIT * DIGIT
NO_CATEGORY = -1


class SIM(AttentionOptions):
    """Options of SIM."""

    top: int = Field(default=32, ge=1, description="K, events that the general search leaves for the exact one")
    search: Literal["soft", "hard"] = Field(
        default="soft", description="soft: largest inner products; hard: the most recent of the same category"
    )
    category: str | None = Field(default=None, description="the item feature that hard search compares")
    search_loss: float = Field(default=1.0, gt=0, description="weight of the loss that trains the soft search")

    @model_validator(mode="after")
    def _hard_search_has_a_category(self) -> SIM:
        if (self.search == "hard") != (self.category is not None):
            raise ValueError("search: hard needs a category, the name of an item feature, and soft search has none")
        return self


class SIMRanker(Ranker):
    """o_c = MHA(T_c, E_top, E_top; J), E_top the K events with the largest r_cj = (LN(T_c) W_a) . (LN(E_j) W_b).

    No gradient passes a choice, so W_a and W_b learn from a loss of their own:
    that of MLP[mean_j r_cj E_j, LN(T_c) W_a]. An item row holds the query of the exact search and, behind it, that of
    the general one or the category.
    """

    name = "sim"
    family = "target-attention"
    options_type = SIM
    options: SIM

    def __init__(self, space: FeatureSpace, tasks: int, options: SIM) -> None:
        super().__init__(space, tasks, options)
        width, queries = options.width, options.query_key_width
        self.to_queries = HeadProjection(width, options.heads, queries)
        self.to_keys_values = HeadProjection(width, options.heads, queries, width)
        self.search: SoftSearch | None = None
        if options.search == "hard":
            self.category_column = _category_column(space, options.category or "")
            start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)
        else:
            self.search = SoftSearch(width, queries, options.tower_hidden, tasks)
            start_aligned(
                queries=[self.to_queries, self.search.queries],
                keys=[self.to_keys_values, self.search.keys],
                sharpness=options.sharpness,
            )

    def encode_user(self, inputs: UserInputs) -> UserState:
        history = self.history(inputs)
        keys, values = self.to_keys_values(history)
        searched: tuple[Tensor, ...]
        if self.search is None:
            categories = inputs.history.items.indices[:, self.category_column]
            searched = (categories.index_select(0, inputs.history.item_of_event),)
        else:
            # only the loss reads the events themselves
            searched = (self.search.event_keys(history), *([history] if self.training else []))
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((keys, values, *searched), self.head.from_user(context), inputs.history.offsets)

    def encode_items(self, items: Features) -> ItemState:
        state = super().encode_items(items)
        if self.search is not None:
            return state
        digits = category_digits(items.indices[:, self.category_column], state.rows.dtype)
        return ItemState(torch.cat([state.rows, digits], 1), state.head_part)

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.to_queries(items)
        exact: Tensor = queries.flatten(1)
        return exact if self.search is None else torch.cat([exact, self.search.item_queries(items)], 1)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        assert user.offsets is not None
        keys, values, searched = user.memory[:3]
        exact, general = self._parts(items)
        queries, found = split_heads(exact, self.options.heads), None
        if self.search is None:
            categories = category_of_digits(general)
            categories = categories.where(categories > UNKNOWN_INDEX, NO_CATEGORY)
            index, found = recent_of_category(categories, candidate_offsets, searched, user.offsets, self.options.top)
        elif candidate_offsets.shape[0] > 2:
            index, found = search_jagged(general, candidate_offsets, searched, user.offsets, self.options.top)
        elif keys.shape[0] > self.options.top:
            index = search_one(general.detach(), searched.detach(), self.options.top)
        else:
            return attend_one(queries, keys, values).flatten(1)
        return attend_chosen(queries, keys, values, index, found).flatten(1)

    def auxiliary_loss(
        self, user: UserState, items: ItemState, batch: RequestBatch, weights: Tensor | None = None
    ) -> Tensor | None:
        if self.search is None or not self.training:
            return None
        assert user.offsets is not None
        logits = self.search(self._parts(items)[1], batch.candidates.offsets, *user.memory[2:], user.offsets)
        return self.options.search_loss * cross_entropy(logits, batch.labels, weights, self.peers)

    def row_parameters(self) -> list[Tensor]:
        searched = [] if self.search is None else list(self.search.queries.parameters())
        return [*self.to_queries.parameters(), *searched]

    def _parts(self, items: ItemState) -> tuple[Tensor, Tensor]:
        exact = self.options.query_key_width
        return items.rows[:, :exact], items.rows[:, exact:]


class SoftSearch(nn.Module):
    """The general search, and the network whose loss trains it."""

    def __init__(self, width: int, query_width: int, hidden: int, tasks: int) -> None:
        super().__init__()
        self.queries = HeadProjection(width, 1, query_width)
        self.keys = HeadProjection(width, 1, query_width)
        self.scale = query_width**-0.5
        self.predict = nn.Sequential(nn.Linear(width + query_width, hidden), nn.ReLU(), nn.Linear(hidden, tasks))

    def item_queries(self, items: Tensor) -> Tensor:
        """LN(T) W_a [n, a]."""
        queries: Tensor = self.queries(items)[0].flatten(1)
        return queries

    def event_keys(self, history: Tensor) -> Tensor:
        """LN(E) W_b [sum_n, a]."""
        keys: Tensor = self.keys(history)[0].flatten(1)
        return keys

    def forward(
        self, queries: Tensor, query_offsets: Tensor, keys: Tensor, history: Tensor, key_offsets: Tensor
    ) -> Tensor:
        """logits [candidates, tasks]; r is linear in the query, so sum_j r_cj E_j = q_c (sum_j k_j E_j^T)."""
        padded_keys, _ = pad(keys, key_offsets)
        padded_history, _ = pad(history, key_offsets)
        lengths = key_offsets.diff().clamp(min=1)[:, None, None]
        summary = padded_keys.transpose(1, 2) @ padded_history * (self.scale / lengths)
        request = row_of(query_offsets, queries.shape[0])
        pooled = torch.einsum("na,nad->nd", queries, summary.index_select(0, request))
        logits: Tensor = self.predict(torch.cat([pooled, queries], 1))
        return logits


def _category_column(space: FeatureSpace, name: str) -> int:
    """The column of item indices that holds a feature."""
    single = [feature for feature in space.item if feature.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    names = [feature.name for feature in single]
    if name not in names:
        raise UsageError(f"key 'model.category': no item feature '{name}' with one value{did_you_mean(name, names)}")
    column = names.index(name)
    if single[column].size > MOST_CATEGORIES:
        raise UsageError(
            f"key 'model.category': '{name}' has {single[column].size} values, more than {MOST_CATEGORIES}"
        )
    return column


def category_digits(categories: Tensor, dtype: torch.dtype) -> Tensor:
    """Categories [n] as two numbers [n, 2] that survive fp16 rows; below MOST_CATEGORIES."""
    return torch.stack([categories // DIGIT, categories % DIGIT], 1).to(dtype)


def category_of_digits(digits: Tensor) -> Tensor:
    """The inverse of `category_digits`."""
    whole = digits.round().long()
    return whole[:, 0] * DIGIT + whole[:, 1]
