"""The tables of the evidence are those of docs/results, and every page that tells a measured figure names the file."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
MEASURED = re.compile(
    r"(?<![\w./-])(?:\d[\d,]*\.\d+\stimes\b|\d[\d,.]*(?:x\b(?! \d)"
    r"|\s(?:times (?:faster|slower|as fast|as long|the time|less|more|at|of)\b|ms\b|µs\b|GFLOP/s|GB/s"
    r"|(?:rows|events|items)/s)))|(?:AUC|NE) \d\.\d{3,4}\b|\| \d\.\d{3,4}\b"
)
NOT_MEASURED = {
    "docs/explanation/xor-attention.md": "values of a derivative that the paper prints wrongly",
    "docs/how-to/explain-a-ranking.md": "what one explanation says, as an example of its form",
    "docs/how-to/serve-your-model.md": "a deadline",
    "docs/reference/configuration.md": "defaults and the paper's own hyperparameters",
}
NOT_OURS = ("docs/datasets/", "docs/decisions/")
"""Published figures of others, with their sources; and records of trials at the time of a decision."""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module("study_tables")


def test_tables_are_those_of_the_results(tables: ModuleType) -> None:
    """`python benchmarks/study_tables.py` writes them."""
    wanted = tables.wanted()
    assert wanted
    for name, (page, _) in wanted.items():
        text = page.read_text()
        assert tables.written(text, name) == text, f"{page.name}: {name}; run python benchmarks/study_tables.py"


def test_every_ratio_says_what_both_sides_had_kept(tables: ModuleType) -> None:
    """A LIME with a cached state beside a skyline without one compares caching, not rankers; both rows are there."""
    ratios = tables.known("latency")["ratios"]
    most = max(one["threads"] for one in ratios)
    wanted = [one for one in ratios if one["head"] and one["threads"] == most]
    assert {(one["lime_state"], one["skyline_state"]) for one in wanted} > {("cached", "cached")}
    lines = tables.ratios().splitlines()[2:]
    assert len(lines) == len(wanted)
    for line, one in zip(lines, wanted, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[3:5] == [f"`{one[side]}`, {one[f'{side}_state']}" for side in ("lime", "skyline")]


def sections(path: Path) -> list[tuple[str, str]]:
    """Sections without code, each with all that stands above it: its own text last."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    above: list[tuple[int, str]] = []
    found = []
    for part in re.split(r"(?m)^(?=#+ )", text):
        level = len(part) - len(part.lstrip("#"))
        above = [(depth, one) for depth, one in above if depth < level]
        found.append((part, "".join(one for _, one in above) + part))
        above.append((level, part))
    return found


def pages() -> list[Path]:
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if not str(page.relative_to(ROOT)).startswith(NOT_OURS)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_measured_figures_name_their_file(page: Path) -> None:
    """A section with a time, a ratio or a metric links a file of docs/results, or a section above it does."""
    if str(page.relative_to(ROOT)) in NOT_MEASURED:
        return
    for own, with_above in sections(page):
        if found := MEASURED.search(own):
            assert "results/" in with_above, f"{own.splitlines()[0]}: '{found.group()}' comes from no file"


def test_a_figure_without_a_file_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n[all](../results/a.json)\n\n## B\n\nit is 3.5x faster\n\n# C\n\n2.5 ms\n")
    found = [(own.split()[1], "results/" in whole) for own, whole in sections(page) if MEASURED.search(own)]
    assert found == [("B", True), ("C", False)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("The distance grows with the history: 12.8 times at 4,096 events", "12.8 times"),
        ("0.7 times\nthe work of a product", "0.7 times"),
        ("it takes 13 times at 4,096 events", "13 times at"),
        ("resampled 500 times by user", None),
        ("tried 3 times, then given to another", None),
    ],
)
def test_how_many_times_is_a_figure_and_how_often_is_none(words: str, found: str | None) -> None:
    """A decimal is always a ratio; a whole number is one if something is compared."""
    seen = MEASURED.search(words)
    assert (seen.group().replace("\n", " ") if seen else None) == found


def test_what_is_said_not_to_be_measured_exists() -> None:
    assert not [page for page in NOT_MEASURED if not (ROOT / page).is_file()]


def latency_section() -> str:
    """What the evidence says of latency, in one line."""
    text = (ROOT / "docs/explanation/evidence.md").read_text()
    return " ".join(text.split("## Latency")[1].split("\n## ")[0].split())


def test_the_evidence_says_what_load_latency_was_measured_under(tables: ModuleType) -> None:
    """As the file does: whoever measured may have believed that nothing else was running."""
    study, text = tables.known("latency"), latency_section()
    (told,) = (caveat for caveat in study["caveats"] if caveat.startswith("Load average"))
    load, cores = re.findall(r"\d+\.\d+|\d+", told)
    assert f"load average of {load} on its {cores} cores when it began" in text
    assert "nothing else running" not in text
    one, two = (f"{peak['gemm_gflops']:.0f}" for peak in study["peaks"])
    assert f"{one} and {two} GFLOP/s on one and two threads" in text


def engine_corner(tables: ModuleType) -> dict[str, float]:
    """Milliseconds of all items and the longest history by ranker, as `bench engine` measured them on two threads."""
    return {
        row["model"]: row["total_ms"]
        for row in tables.known("bench-engine")["rows"]
        if (row["candidates"], row["history"], row["threads"]) == (32_768, 16_384, 2)
        and not row["burner"]
        and row["forced"] is None
        and row["user_state"] == "computed"
    }


def test_the_evidence_says_that_the_readme_quotes_another_run_of_the_same_corner(tables: ModuleType) -> None:
    """Two pairs of milliseconds for one size would otherwise look like a mistake in one of them."""
    own = next(
        one
        for one in tables.known("latency")["ratios"]
        if (one["sweep"], one["lime"], one["threads"]) == ("corner", "lime-mha", 2)
    )
    other = engine_corner(tables)
    said = f"not the {other['lime-mha']:.1f} and {other['mha']:,.0f} ms of the README"
    assert f"{own['lime_ms']:.1f} and {own['skyline_ms']:,.0f} ms for LIME-MHA and MHA are {said}" in latency_section()


def test_the_first_sentences_of_the_readme(tables: ModuleType) -> None:
    """What it says of speed and accuracy is what the files have."""
    text = " ".join((ROOT / "README.md").read_text().split())
    ms = engine_corner(tables)
    assert (
        f"take LIME-MHA {ms['lime-mha']:.1f} ms on two cores, where cross-attention takes {ms['mha']:,.0f} ms" in text
    )
    closed = {
        log: f"{100 * tables.row_of(found, 'lime-mha')['gap']['of_means']:.0f} %"
        for log, found in tables.accuracy().items()
    }
    assert (
        f"LIME-MHA keeps {closed['ml-100k']} on ml-100k, {closed['easy']} and {closed['medium']} on two simulated logs"
        in text
    )
    assert "Within a user (gAUC) neither real log tells any ranker of the paper from two towers" in text
    for log in ("ml-100k", "kuairand-likehate"):
        for one in tables.accuracy()[log]["comparisons"]:
            if one["second"] == "ttsn" and one["first"] in tables.TABLE_B:
                assert tables.verdict(one["metrics"]["gauc"], 1) == "?", one["first"]


def test_what_can_be_told_is_what_intervals_tell(tables: ModuleType) -> None:
    """An interval that holds zero tells nothing, and for NE less is better."""
    below, above, around = ({"low": low, "high": high} for low, high in ((-0.2, -0.1), (0.1, 0.2), (-0.1, 0.1)))
    assert [tables.verdict(one, -1) for one in (below, above, around)] == ["better", "worse", "?"]
    assert [tables.verdict(one, 1) for one in (below, above, around)] == ["worse", "better", "?"]
    assert tables.verdict({"low": None, "high": None}, 1) == "?"
