"""What an ablation does, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limerank.config import TrainConfig
from limerank.errors import UsageError
from limerank.study.ablation.linear.costs import CANDIDATES, HISTORY
from limerank.study.ablation.linear.kernel_error import KernelPlan
from limerank.study.ablation.results import Found
from limerank.study.ablation.served import CATALOG_REQUESTS
from limerank.study.ablation.variants import MHA, ROWS, Change, groups, section, width_of_rows


@dataclass(frozen=True)
class AblationPlan:
    """What is done, and how much of it."""

    bases: Sequence[str]
    groups: Sequence[str]
    seeds: Sequence[int]
    train: TrainConfig
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Options of all rankers that have them."""
    history: int = HISTORY
    candidates: int = CANDIDATES
    repeats: int = 9
    catalog_requests: int = CATALOG_REQUESTS
    kernel: KernelPlan | None = None
    """None: by the number of links."""
    found: Found | None = None
    """What the rankers of the group `linear` are trained with; None: all as the base is."""
    keep: Path | None = None
    """An earlier result, of which groups that are not asked for are taken."""
    quick: bool = False

    @property
    def links(self) -> int:
        """Of the base, LIME-MHA's."""
        return width_of_rows(section(MHA, self.shared))[0]

    def changes(self, with_times: bool) -> list[Change]:
        """The variants that are trained; without times in the log, those that need none."""
        chosen = [
            change
            for name, group in groups(*width_of_rows(section(MHA, self.shared))).items()
            if name in self.groups
            for change in group
            if change.base in self.bases and (with_times or not change.needs_times)
        ]
        if not chosen and ROWS not in self.groups:
            raise UsageError(f"--groups {','.join(self.groups)}: none has a variant of {', '.join(self.bases)}")
        return chosen

    def kernels(self) -> KernelPlan:
        """What is approximated how well."""
        links = self.links
        return self.kernel or KernelPlan(ranks=[n for n in (links // 4, links // 2, links, 2 * links) if n])
