"""`limerank bench train` prints tables, goals and one JSON object, also to a file, and refuses what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

from calling import answer, limerank, refusal

TINY = ("--histories", "8", "--requests", "2", "--rows", "300,400", "--metric-rows", "2000", "--users", "20")


def test_json_is_what_the_file_holds(tmp_path: Path) -> None:
    """One object on standard output, the same in the file."""
    out = tmp_path / "bench.json"
    asked = ("--models", "lime-mha", "--repeats", "1", "--cpu", "--out", str(out), "--json")
    result = answer("bench", "train", *asked, *TINY)
    assert result == json.loads(out.read_text())
    assert [row["model"] for row in result["throughput"]] == ["lime-mha"]
    assert {row["rows"] for row in result["tables"]} == {300, 400}
    assert result["clock"] == "cpu"


def test_text_says_which_goals_were_reached() -> None:
    done = limerank("bench", "train", "--models", "ttsn,mha", "--repeats", "1", *TINY)
    text = " ".join(done.stdout.split())
    assert "training, rows per second: 2 requests of 16 candidates, 1 thread" in text
    assert "times longer if each of 16 candidates brings the history along" in text
    assert "mha: a request with 16 candidates against 16 with one each, history 8" in text
    assert text.count("reached: ") == 4


def test_bad_options_are_named() -> None:
    assert "no ranker 'lime-mah'; did you mean 'lime-mha'?" in refusal(2, "bench", "train", "--models", "lime-mah")
    assert "--histories x: must be whole numbers" in refusal(2, "bench", "train", "--histories", "x")
    assert "--rows 0: must be positive" in refusal(2, "bench", "train", "--rows", "0")
    assert "keep one of them" in refusal(2, "bench", "train", "--cpu", "--threads", "2")
