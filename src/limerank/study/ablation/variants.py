"""What is changed: groups of named variants, each against its base, from which it differs in what it names alone.

The base is LIME-MHA or LIME-XOR as it is by default. A variant is the same ranker with some other options, or another
ranker that shares all options with the base: then the ranker itself is the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limerank.errors import UsageError, did_you_mean
from limerank.models import RANKERS, check_model, complete_model
from limerank.models.presets import budget_options

MHA, XOR = "lime-mha", "lime-xor"
BASES = (MHA, XOR)
ROWS, LINEAR = "rows", "linear"
"""Groups that are more than trainings: row precisions train nothing, linear attention has kernel errors and costs."""


@dataclass(frozen=True)
class Change:
    """One variant of a base."""

    group: str
    base: str
    name: str
    """What is changed, short: labels a line of a chart."""
    model: str | None = None
    """Another ranker; None: the base's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the base's options."""
    needs_times: bool = False

    @property
    def ranker(self) -> str:
        """The ranker that is trained."""
        return self.model or self.base

    @property
    def key(self) -> str:
        """Names its runs: the ranker and what it was given."""
        return "-".join([self.ranker, *(f"{option}-{_text(value)}" for option, value in self.options.items())])

    def section(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Its model section; `shared` are options of all rankers of the study that have them."""
        return {**section(self.ranker, shared), **self.options}


def section(ranker: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a ranker with the options of the study that it has; `links` is each one's own budget."""
    fields = RANKERS[ranker].options_type.model_fields
    own = {name: value for name, value in shared.items() if name in fields}
    if "links" in shared:
        own |= dict.fromkeys(budget_options(RANKERS[ranker].options_type), shared["links"])
    return {"name": ranker, **own}


def different_options(change: Change, shared: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options that base and variant both have and that differ, as (base, variant); the ranker's name is one."""
    base = complete_model(section(change.base, shared), "ablation")
    variant = complete_model(change.section(shared), "ablation")
    return {name: (base[name], variant[name]) for name in base if name in variant and base[name] != variant[name]}


def groups(links: int, heads: int) -> dict[str, list[Change]]:
    """All groups, for a base with so many links and heads; rows of linear attention are made as wide as LIME's."""
    found = [
        Change("keys", MHA, "coupled keys (pma)", model="pma"),
        *(Change("links", MHA, f"{n} link{'s' * (n > 1)}", options={"links": n}) for n in _around(links)),
        Change("link-start", MHA, "N(0, 0.1²) links", options={"link_scale": 0.1}),
        Change("link-start", MHA, "N(0, 0.02²) links", options={"link_scale": 0.02}),
        *(Change("link-start", base, "links as items", options={"link_start": "items"}) for base in BASES),
        *(
            change
            for base in BASES
            for change in (
                Change("start", base, "aligned, sharpness 1", options={"sharpness": 1.0}),
                Change("start", base, "Xavier start", options={"sharpness": None}),
            )
        ),
        Change("norm", MHA, "no LayerNorm", options={"projection_norm": False}),
        *(Change("norm", base, "no LayerNorm before values", options={"value_norm": False}) for base in BASES),
        Change("activation", MHA, "candidates SiLU", options={"candidate_activation": "silu"}),
        Change("activation", XOR, "layers softmax", options={"activation": "softmax"}),
        Change("activation", XOR, "candidates SiLU", options={"candidate_activation": "silu"}),
        Change("context", MHA, "context after", options={"context": "after"}),
        Change("context", MHA, "context in the head only", options={"context": "none"}),
        Change("age", MHA, "position", options={"encoding": "position"}),
        Change("age", MHA, "position from the end", options={"encoding": "recent_position"}),
        Change("age", MHA, "age buckets", options={"encoding": "age"}, needs_times=True),
        Change("age", MHA, "hour and weekday", options={"encoding": "calendar"}, needs_times=True),
        Change("age", MHA, "recency bias", options={"recency": True}, needs_times=True),
        Change("order", XOR, "history reads updated links (isab)", model="isab"),
        Change("output", XOR, "concatenated output", options={"output": "concat"}),
        Change("readout", XOR, "read-out with residual", options={"readout": "residual"}),
        *(
            Change("layers", XOR, f"{n} layer{'s' * (n > 1)}", options={"layers": n})
            for n in (1, 2, 4)
        ),
        Change(LINEAR, MHA, "mha (skyline)", model="mha"),
        Change(LINEAR, MHA, "truncated-mha", model="truncated-mha"),
        Change(LINEAR, MHA, "pma", model="pma"),
        Change(LINEAR, MHA, "performer", model="performer"),
        Change(LINEAR, MHA, "linformer", model="linformer"),
        *(
            Change(LINEAR, MHA, name, model=name, options={"query_width": heads * links})
            for name in ("linear-attention", "lrea", "lightning")
        ),
    ]  # fmt: skip
    by_group: dict[str, list[Change]] = {}
    for change in found:
        by_group.setdefault(change.group, []).append(change)
    linear = by_group.pop(LINEAR)
    return {**by_group, ROWS: [], LINEAR: linear}


def parse_groups(text: str | None, known: Sequence[str]) -> list[str]:
    """`keys,links` to names of groups; all if none are named."""
    if text is None:
        return list(known)
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in known:
            raise UsageError(f"--groups {text}: no group '{name}'{did_you_mean(name, known)}")
    if not names:
        raise UsageError(f"--groups: must name groups, separated by commas; known: {', '.join(known)}")
    return names


def check_bases(names: Sequence[str]) -> list[str]:
    """The rankers that are ablated."""
    for name in names:
        if name not in BASES:
            raise UsageError(f"--models: '{name}' has no variants here; choose from {', '.join(BASES)}")
    if not names:
        raise UsageError(f"--models: must name what is changed: {', '.join(BASES)}, or both")
    return list(dict.fromkeys(names))


def width_of_rows(model: Mapping[str, Any]) -> tuple[int, int]:
    """Links and heads of a base, defaults filled in."""
    _, options = check_model(model, "ablation")
    filled = options.model_dump()
    return int(filled["links"]), int(filled["heads"])


def _around(links: int) -> list[int]:
    """Fewer links and more, by powers of two."""
    return [n for n in (links // 8, links // 4, links // 2, 2 * links) if n >= 1]


def _text(value: Any) -> str:
    return "none" if value is None else str(value).lower()
