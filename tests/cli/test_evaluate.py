"""`limerank evaluate` as a user meets it: segments, another run, files, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from calling import answer, limerank, refusal

from limerank.api.run import Run


def test_everything_at_once_in_tables_and_in_json(runs: dict[str, Run], tmp_path: Path) -> None:
    """Both say the same; the JSON has every metric, the text says what can be concluded, the files are there."""
    own, other = runs["lime-mha"].path, runs["ttsn"].path
    options = ("--by", "topic", "--by", "new_users", "--against", other, "--intervals")
    files = {"scores": tmp_path / "out" / "s.parquet", "plot": tmp_path / "out" / "c.svg"}
    facts = answer("evaluate", own, *options, "--scores", files["scores"], "--plot", files["plot"])
    assert {name: facts[name] for name in files} == {name: str(path) for name, path in files.items()}
    assert pl.read_parquet(files["scores"]).height == facts["metrics"]["click"]["rows"]
    svg = files["plot"].read_text()
    assert svg.startswith("<svg")
    assert "predicted rate" in svg
    assert {one["by"] for one in facts["segments"]} == {"topic", "new_users"}
    assert {"auc", "gauc", "session_auc", "ne", "calibration"} <= set(facts["segments"][0])
    assert set(facts["intervals"]["click"]) == {"auc", "gauc", "session_auc", "ne", "logloss", "calibration"}
    assert facts["against"]["run"] == str(other)
    whole = next(one for one in facts["against"]["compared"] if one["by"] is None)
    click = whole["differences"]["auc"]
    assert click["first"] == facts["metrics"]["click"]["auc"]
    shown = limerank("evaluate", own, *options)
    assert shown.returncode == 0
    for text in (
        "session AUC",
        "NDCG@10",
        "topic: topic1",
        f"{click['difference']:+.4f}",
        *facts["against"]["conclusions"],
    ):
        assert text in shown.stdout


def test_parts_and_what_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    """Every part can be asked for; mistakes end before anything is computed, with the option named."""
    own = runs["ttsn"].path
    assert answer("evaluate", own, "--part", "train")["metrics"]["click"]["rows"] > 0
    assert "--by topik: no such segments; did you mean 'topic'?" in refusal(2, "evaluate", own, "--by", "topik")
    assert "--plot p.png: must end in .svg" in refusal(2, "evaluate", own, "--plot", "p.png")
    assert "--scores s.csv: must end in .parquet" in refusal(2, "evaluate", own, "--scores", "s.csv")
    assert "no run here" in refusal(3, "evaluate", own, "--against", tmp_path / "nowhere")
    assert "no dataset here" in refusal(3, "evaluate", own, "--dataset", tmp_path / "nowhere")
