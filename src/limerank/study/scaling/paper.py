"""The paper's tables `link_seq_scale` and `layer_scale` as data: relative changes in percent, on its industrial data.

Erratum 20: the caption promises "metric value and relative change"; only changes are printed. All are relative to
1k events, 32 links and 3 layers. Neither spread nor seeds are given.
"""

from __future__ import annotations

HISTORIES = (1000, 2000, 4000)
LINKS = (32, 64, 128, 256)
NE_CHANGES: dict[int, tuple[float, ...]] = {
    1000: (0.0, -0.04, -0.19, -0.20),
    2000: (-0.16, -0.19, -0.34, -0.39),
    4000: (-0.11, -0.36, -0.36, -0.55),
}
"""VC NE in percent, by length of the sequence, then by number of links."""
AUC_CHANGES: dict[int, tuple[float, ...]] = {
    1000: (0.0, 0.01, 0.08, 0.11),
    2000: (0.03, 0.05, 0.18, 0.18),
    4000: (0.03, 0.13, 0.17, 0.27),
}
"""WT AUC in percent."""
LAYER_CHANGES: dict[int, tuple[float, float]] = {3: (0.0, 0.0), 6: (-0.25, 0.12), 9: (-0.34, 0.18), 12: (-0.38, 0.19)}
"""VC NE and WT AUC in percent, by layers, at 1k events and 32 links."""
