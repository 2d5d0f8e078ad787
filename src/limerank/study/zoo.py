"""All rankers side by side: parameters, bytes, and complexities that are measured, not typed.

One request with random features runs through the real stages of every ranker at a few sizes; the counted work
(study/work_count.py) is a polynomial in

    N  events of the history        M  candidates of the request
    l  the ranker's budget (links, rank, recent, top)        d  the width of E and T

whose leading terms are printed. Heads, layers, feature towers and the widths of embeddings keep their defaults: they
are constants. The user stage is `encode_user`, feature towers included; the candidate stage is `interact` on cached
rows, without the head, which costs all rankers the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from limerank.bench.made_up import BUILT_IN, random_items, random_request, sized_ranker
from limerank.errors import UsageError, did_you_mean
from limerank.models import RANKERS, ItemState, Ranker, UserState
from limerank.models.presets import budget_options
from limerank.nn.encodings import KEEPS_CACHES
from limerank.ops.candidate import RowStore
from limerank.progress import Progress
from limerank.schema import FeatureSpace
from limerank.study.work_count import Polynomial, count_work, fit_polynomial

USER_GRID = {"N": (128, 256, 512), "l": (4, 8, 16), "d": (96, 128, 160)}
CANDIDATE_GRID = {"M": (16, 32), "N": (128, 256), "l": (4, 16), "d": (96, 128, 160)}
"""Multiples of the blocks that kernels work in, and wide enough for the paths that wide rankers take."""
LARGE = {"N": 10_000, "M": 10_000, "l": 32, "d": 128}
"""Where a term must matter to be printed, besides the largest sizes of the grid."""
HELD_OUT = {"N": 384, "M": 48, "l": 12, "d": 192}
"""Sizes that no polynomial was fitted to; how far it is off there is its `fit_error`."""


class Sizes(BaseModel):
    """One request and one ranker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    history: int = Field(default=1024, ge=1)
    candidates: int = Field(default=10_000, ge=1)
    links: int = Field(default=32, ge=1)
    width: int = Field(default=32, ge=1)

    def letters(self) -> dict[str, int]:
        """By the letters of the formulas."""
        return {"N": self.history, "M": self.candidates, "l": self.links, "d": self.width}


class Stage(BaseModel):
    """Leading terms of the work, what was counted at the given sizes, and how far the terms are off elsewhere."""

    complexity: str
    work: int
    fit_error: float


class ZooRow(BaseModel):
    """One ranker."""

    name: str
    family: str
    parameters: int
    embedding_parameters: int
    factorized: bool
    foldable: bool
    ordered: bool
    budget: tuple[str, ...]
    user_stage: Stage
    candidate_stage: Stage
    item_bytes: int
    user_bytes: int


class Option(BaseModel):
    """One option of a ranker."""

    name: str
    default: Any
    description: str


class ZooDetails(ZooRow):
    """One ranker, with all that `limerank models NAME` says."""

    summary: str
    options: list[Option]
    encodings_that_keep_caches: list[str]
    page: str


def zoo_rows(
    sizes: Sizes, space: FeatureSpace = BUILT_IN, tasks: int = 1, progress: Progress | None = None
) -> list[ZooRow]:
    """All rankers, in the order of the registry."""
    rows = []
    with (progress or Progress(quiet=True)).bar("measuring rankers", len(RANKERS)) as bar:
        for name in RANKERS:
            rows.append(zoo_row(name, sizes, space, tasks))
            bar.advance()
    return rows


def zoo_row(name: str, sizes: Sizes, space: FeatureSpace = BUILT_IN, tasks: int = 1) -> ZooRow:
    """One ranker at given sizes."""
    if name not in RANKERS:
        raise UsageError(f"no ranker '{name}'{did_you_mean(name, RANKERS)}")
    ranker = sized_ranker(name, sizes.letters(), space, tasks)
    with torch.no_grad():
        items = ranker.encode_items(random_items(space, 1))
        user = ranker.encode_user(random_request(space, sizes.history))
    embeddings = sum(p.numel() for n, p in ranker.named_parameters() if n.endswith("embedding.table"))
    user_stage, candidate_stage = complexities(name)
    return ZooRow(
        name=name,
        family=ranker.family,
        parameters=sum(parameter.numel() for parameter in ranker.parameters()),
        embedding_parameters=embeddings,
        factorized=ranker.factorized,
        foldable=ranker.foldable,
        ordered=ranker.ordered,
        budget=budget_options(ranker.options_type),
        user_stage=_stage(user_stage, partial(user_work, name), user_work(name, sizes.letters())),
        candidate_stage=_stage(candidate_stage, partial(candidate_work, name), _all_candidates_work(name, sizes)),
        item_bytes=RowStore.store(items.rows, items.head_part, "fp16").row_bytes,
        user_bytes=state_bytes(user),
    )


def zoo_details(name: str, sizes: Sizes, space: FeatureSpace = BUILT_IN, tasks: int = 1) -> ZooDetails:
    """One ranker with its options and the first paragraph of its documentation."""
    row = zoo_row(name, sizes, space, tasks)
    kind = RANKERS[name]
    options = [
        Option(name=option, default=field.get_default(call_default_factory=True), description=field.description or "")
        for option, field in kind.options_type.model_fields.items()
    ]
    summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    page = f"docs/rankers/{kind.family}.md"
    kept: list[str] = [encoding for encoding, keeps in KEEPS_CACHES.items() if keeps]
    return ZooDetails(**row.model_dump(), summary=summary, options=options, encodings_that_keep_caches=kept, page=page)


@cache
def complexities(name: str) -> tuple[Polynomial, Polynomial]:
    """The measured work of the user stage and of the candidate stage."""
    return (
        fit_polynomial(partial(user_work, name), USER_GRID),
        fit_polynomial(partial(candidate_work, name), CANDIDATE_GRID),
    )


def user_work(name: str, letters: Mapping[str, int]) -> int:
    """Counted work of `encode_user` for one request, on the path that can be trained."""
    ranker, inputs = _ranker(name, letters["l"], letters["d"]), random_request(BUILT_IN, letters["N"])
    with torch.enable_grad():
        return count_work(lambda: ranker.encode_user(inputs))


def candidate_work(name: str, letters: Mapping[str, int]) -> int:
    """Counted work of `interact` for one request, on the path that can be trained."""
    ranker = _ranker(name, letters["l"], letters["d"])
    user = _user(name, letters["l"], letters["d"], letters["N"])
    with torch.no_grad():
        rows = ranker.encode_items(random_items(BUILT_IN, letters["M"])).rows
    items, offsets = ItemState(rows, rows.new_zeros(len(rows), 0)), torch.tensor([0, len(rows)])
    with torch.enable_grad():
        return count_work(lambda: ranker.interact(user, items, offsets))


def _all_candidates_work(name: str, sizes: Sizes) -> int:
    """Linear in the candidates, so few of them tell what many would cost."""
    few, more = CANDIDATE_GRID["M"]
    at_few, at_more = (candidate_work(name, sizes.letters() | {"M": count}) for count in (few, more))
    return at_few + (at_more - at_few) * (sizes.candidates - few) // (more - few)


def served_row_type(ranker: Ranker) -> Literal["fp16", "fp32"]:
    """What a ranker is timed with: rows as served if factorized, else rows that no request has to widen first."""
    return "fp16" if ranker.factorized else "fp32"


def state_bytes(user: UserState) -> int:
    """The bytes of a user state's tensors, offsets left out."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*user.memory, user.head_part))


@lru_cache(maxsize=16)
def _ranker(name: str, links: int, width: int) -> Ranker:
    return sized_ranker(name, {"l": links, "d": width})


@lru_cache(maxsize=2)
def _user(name: str, links: int, width: int, history: int) -> UserState:
    with torch.no_grad():
        return _ranker(name, links, width).encode_user(random_request(BUILT_IN, history))


def leading_terms(polynomial: Polynomial) -> str:
    """The terms that no other bounds, where sizes are large and where they were counted."""
    largest = {letter: max(sizes) for letter, sizes in (CANDIDATE_GRID | USER_GRID).items()}
    return polynomial.leading("l", "N", LARGE, largest)


def _stage(polynomial: Polynomial, counted: Callable[[Mapping[str, int]], int], work: int) -> Stage:
    held_out = counted(HELD_OUT)
    return Stage(
        complexity=leading_terms(polynomial),
        work=work,
        fit_error=abs(polynomial(HELD_OUT) - held_out) / max(held_out, 1),
    )
