"""How alike arms are in what they show. Their users differ, so rankings cannot be compared one by one; what can be
compared is how often each item is shown. Few rankings overlap little by chance alone: so an arm and as many rankings of
control are compared with the same other part of control, and the second number says what alike arms would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.outcome.reading import Observed, Window, read_items
from limerank.serve.experiments.outcome.result import ShownOverlap

DEPTHS = (1, 5, 10, 20)
FEWEST = 20
"""Rankings of an arm below which there is nothing to say."""
ARM, ALIKE, REST = range(3)


def shown_overlaps(log: LogFile, window: Window, seen: Observed, control: str, arm: str) -> list[ShownOverlap]:
    """By depth; none where an arm or control has too few rankings."""
    own, other = seen.of_arm(arm), seen.of_arm(control)
    rankings = np.frombuffer(seen.rankings, dtype=np.int64)
    most = min(int(rankings[own].sum()), int(rankings[other].sum()) // 2)
    if most < FEWEST:
        return []
    keys = list(seen.users)
    alike = _some(keys, other, rankings, most)
    roles = {keys[number]: REST for number in other if number not in alike}
    roles |= {keys[number]: ALIKE for number in alike}
    roles |= {keys[number]: ARM for number in _some(keys, own, rankings, most)}
    counts = [[Counter[str]() for _ in DEPTHS] for _ in range(3)]
    for user, items in read_items(log, window):
        if (role := roles.get(user)) is not None:
            for counted, depth in zip(counts[role], DEPTHS, strict=True):
                counted.update(items[:depth])
    return [
        ShownOverlap(
            arm=arm,
            depth=depth,
            overlap=overlap_of_counts(counts[ARM][number], counts[REST][number]),
            chance=overlap_of_counts(counts[ALIKE][number], counts[REST][number]),
        )
        for number, depth in enumerate(DEPTHS)
    ]


def overlap_of_counts(first: Counter[str], second: Counter[str]) -> float:
    """What two distributions have in common: the sum of the smaller of the two fractions."""
    one, two = first.total(), second.total()
    if not one or not two:
        return 0.0
    return sum(min(count / one, second[item] / two) for item, count in first.items() if item in second)


def _some(keys: list[bytes], users: Iterable[int], rankings: NDArray[np.int64], most: int) -> set[int]:
    """Users, by chance but always the same ones, who have about so many rankings together; keys are hashes."""
    chosen: set[int] = set()
    total = 0
    for number in sorted(users, key=lambda position: keys[position]):
        if total >= most:
            break
        chosen.add(int(number))
        total += int(rankings[number])
    return chosen
