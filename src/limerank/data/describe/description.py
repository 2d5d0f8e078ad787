"""The description of a dataset, for people and machines."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import polars as pl

from limerank.data.describe.checks import Level
from limerank.data.describe.facts import describe
from limerank.data.store.dataset import StoredDataset
from limerank.tables import html_table, text_table

COLORS = {Level.PASS: "#1a7f37", Level.WARN: "#9a6700", Level.FAIL: "#cf222e"}
BAR_WIDTH = 40


@dataclass(frozen=True)
class Description:
    """What is in a dataset, and what usually goes wrong; it shows itself in a notebook."""

    path: str
    facts: dict[str, Any]
    """Everything, as `limerank describe --json` prints it."""

    @classmethod
    def of(cls, dataset: StoredDataset) -> Description:
        """Count, measure and check a dataset."""
        return cls(str(dataset.path), describe(dataset))

    @property
    def worst(self) -> Level:
        """The worst level of all checks."""
        return Level(self.facts["worst"])

    @property
    def checks(self) -> pl.DataFrame:
        """The checks: level, check, text."""
        return pl.DataFrame([{key: check[key] for key in ("level", "check", "text")} for check in self.facts["checks"]])

    def lines(self) -> list[str]:
        """The description as text; each check is a line that begins with its level."""
        tables = [text_table(*self._parts()), text_table(*self._features()), text_table(*self._histogram())]
        return [
            self._head(),
            *(line for table in tables for line in ("", *table.split("\n"))),
            "",
            self._bytes(),
            *(f"{check['level']}  {check['check']:<11}{check['text']}" for check in self.facts["checks"]),
        ]

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        checks = "".join(
            f"<li><b style='color:{COLORS[Level(check['level'])]}'>{check['level']}</b> "
            f"{escape(check['check'])}: {escape(check['text'])}</li>"
            for check in self.facts["checks"]
        )
        tables = "".join(html_table(*table) for table in (self._parts(), self._features(), self._histogram()))
        return f"<p>{escape(self._head())}</p>{tables}<p>{escape(self._bytes())}</p><ul>{checks}</ul>"

    def _head(self) -> str:
        facts = self.facts
        return (
            f"{self.path}: {facts['events']:,} events, {facts['requests']:,} requests, {facts['users']:,} users, "
            f"{facts['items']:,} items; fingerprint {facts['fingerprint'][:12]}"
        )

    def _parts(self) -> tuple[list[str], list[list[object]]]:
        tasks = self.facts["tasks"]
        rows = [
            [
                name,
                part["requests"],
                part["candidates"],
                part["history_median"],
                part["history_p95"],
                *(f"{part['rates'][task]:.3f}" for task in tasks),
            ]
            for name, part in self.facts["parts"].items()
        ]
        return ["part", "requests", "candidates", "hist. p50", "hist. p95", *tasks], rows

    def _features(self) -> tuple[list[str], list[list[object]]]:
        columns = ["name", "role", "kind", "indices"]
        rows = [[feature[column] for column in columns] for feature in self.facts["features"]]
        return ["feature", *columns[1:]], rows

    def _histogram(self) -> tuple[list[str], list[list[object]]]:
        (histories,) = [check for check in self.facts["checks"] if check["check"] == "histories"]
        bins = histories["values"]["histogram"]
        most = max(one["requests"] for one in bins)
        rows: list[list[object]] = []
        for one in bins:
            length = str(one["from"]) if one["from"] == one["to"] else f"{one['from']}-{one['to']}"
            bar = max(round(BAR_WIDTH * one["requests"] / most), int(one["requests"] > 0))
            rows.append([length, one["requests"], "#" * bar])
        return ["history", "test requests", ""], rows

    def _bytes(self) -> str:
        size = self.facts["bytes"]
        return (
            f"disk {size['disk'] / 1e6:,.1f} MB ({size['per_event']} bytes per event; a padded history of 256 for each "
            f"would take {size['padded_per_event']:,}); tables in memory {size['memory'] / 1e6:,.1f} MB, columns are "
            "mapped"
        )
