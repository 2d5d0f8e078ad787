"""At which sizes rates are fitted and checked: around what is asked for, within two minutes, never at the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from limerank.errors import UsageError
from limerank.serve.bundles.item_stage import ITEMS_PER_BLOCK

STAGES = (
    "prepare",
    "history store, write",
    "history store, read",
    "history store, bytes",
    "training",
    "offline item stage",
    "user stage, events known",
    "user stage, events computed",
    "interaction",
    "scan",
)
MOST_HISTORY, MOST_CANDIDATES = 16_384, 32_768
"""What is measured at most: more takes too long, and the lines are long by then."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one stage."""

    fitted: tuple[int, ...]
    checked: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """How large everything is that is measured; `quick` shows that it works and nothing else."""

    history: int = 1024
    candidates: int = 4096
    quick: bool = False
    repeats: int = 7

    def __post_init__(self) -> None:
        least = 16 if self.quick else 64
        if min(self.history, self.candidates) < least:
            raise UsageError(
                f"--history and --candidates: rates are measured from {least} on, to have something to fit"
            )

    @property
    def rounds(self) -> int:
        """Of what takes seconds; the least of them counts."""
        return 1 if self.quick else 3

    @property
    def requests(self) -> int:
        """Of a training step."""
        return 2 if self.quick else 8

    def of(self, stage: str) -> Sizes:
        """The sizes of a stage: events, items, candidates."""
        history, candidates = min(self.history, MOST_HISTORY), min(self.candidates, MOST_CANDIDATES)
        events, stored, block = (500, 1000, 256) if self.quick else (20_000, 2000, ITEMS_PER_BLOCK)

        def items(*blocks: int) -> tuple[int, ...]:
            """Whole blocks, with the unknown item: an export computes no less."""
            return tuple(count * block - 1 for count in blocks)

        return {
            "prepare": Sizes((2 * events, 10 * events), (events, 5 * events, 20 * events)),
            "history store, write": Sizes((16, 128, 512), (64, 256, 1024)),
            "history store, read": Sizes((64, 512), (128, 256, 1024)),
            "history store, bytes": Sizes((stored, 5 * stored), (2 * stored, 7 * stored, 10 * stored)),
            "training": Sizes((history // 8, history // 2), (history // 4, (3 * history) // 4, history)),
            "offline item stage": Sizes(items(2, 8), items(1, 4, 12)),
            "user stage, events known": Sizes(around(history), between(history)),
            "user stage, events computed": Sizes(around(history), between(history)),
            "interaction": Sizes(around(candidates), between(candidates)),
            "scan": Sizes(items(2, 8), items(4, 6, 12)),
        }[stage]


def around(size: int) -> tuple[int, ...]:
    """What is asked for and less of it."""
    return (max(1, size // 16), size // 4, size)


def between(size: int) -> tuple[int, ...]:
    """Sizes that were not fitted, the last one beyond those that were."""
    return (size // 8, size // 2, 2 * size)
