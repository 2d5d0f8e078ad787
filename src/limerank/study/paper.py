"""The paper's table `merged_results`, both halves, as data; and public figures on the same data.

A figure stands beside ours only where the dataset is that dataset: prepared by our reader of it, with the split that
the figure is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from limerank.data.store.manifest import Manifest

LABEL_A = "table (a), industrial results"
LABEL_B = "table (b), public dataset results"

INDUSTRIAL: Mapping[str, Mapping[str, float]] = {
    "lime-mha": {"VC NE": -0.72, "WT AUC": 0.46, "VC online": 28.6, "WT online": 22.1},
    "mha": {"VC NE": -0.73, "WT AUC": 0.53},
    "lime-xor": {"VC NE": -1.04, "WT AUC": 0.76, "VC online": 37.9, "WT online": 28.6},
    "hstu": {"VC NE": -1.06, "WT AUC": 0.77},
}
"""Table (a): percent relative to TTSN; video completion and watch time, offline and in online A/B experiments. The
skylines were too slow to be tested online."""


@dataclass(frozen=True)
class PublicTable:
    """One column of table (b)."""

    name: str
    """As the paper calls the dataset."""
    task: str
    auc: Mapping[str, float]


KUAIRAND = PublicTable(
    "KuaiRand-1K",
    "is_click",
    {
        "ttsn": 0.7389,
        "din": 0.7404,
        "sasrec": 0.7419,
        "truncated-mha": 0.7351,
        "lrea": 0.7408,
        "lime-mha": 0.7433,
        "mha": 0.7428,
        "lime-xor": 0.7448,
        "hstu": 0.7444,
    },
)
TAOBAO_AD = PublicTable(
    "Taobao-Ad",
    "clk",
    {
        "ttsn": 0.6452,
        "din": 0.6468,
        "sasrec": 0.6462,
        "truncated-mha": 0.6456,
        "lrea": 0.6447,
        "lime-mha": 0.6465,
        "mha": 0.6464,
        "lime-xor": 0.6467,
        "hstu": 0.6475,
    },
)
PUBLIC = {table.name: table for table in (KUAIRAND, TAOBAO_AD)}

LEADERBOARD: Mapping[str, float] = {"din": 0.652399}
"""AUC on TaobaoAd_x1 of the BARS leaderboard, of rankers that are ours too."""
LEADERBOARD_OTHERS: Mapping[str, float] = {
    "DNN, pooled history": 0.646715,
    "BST": 0.651131,
    "DIEN": 0.652937,
    "DMIN": 0.651103,
    "DMR": 0.652411,
}
"""Others of the same leaderboard."""
LEADERBOARD_NOTE = (
    "BARS (github.com/reczoo/BARS, revision 5b5e61f), TaobaoAd_x1; it selects on the test part, so its figures are "
    "comparable to a dataset prepared with --select-on-test only"
)


def public_table(manifest: Manifest) -> PublicTable | None:
    """The column of table (b) that is of this dataset, if one is."""
    origin = manifest.origin
    if manifest.grown_from:
        return None
    if origin.get("source") == "kuairand-1k":
        published = {"protocol": "paper", "random_log": False, "minimum_item_events": 30}
        return KUAIRAND if all(origin.get(key) == value for key, value in published.items()) else None
    if origin.get("source") == "taobao-ad":
        return TAOBAO_AD if origin.get("official") is True or origin.get("official_rows") is True else None
    return None


def leaderboard(table: PublicTable | None, *, select_on_test: bool) -> Mapping[str, float]:
    """The public leaderboard's figures of our rankers, for a dataset that is prepared as theirs is."""
    return LEADERBOARD if table is TAOBAO_AD and select_on_test else {}
