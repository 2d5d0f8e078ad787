"""`limerank bench models` prints tables, ratios and one JSON object, and refuses what it cannot measure."""

from __future__ import annotations

from calling import answer, limerank, refusal

SMALL = ("--history", "20", "--requests", "2", "--width", "8", "--links", "4", "--repeats", "1")


def test_json_has_rows_and_ratios() -> None:
    result = answer("bench", "models", "--models", "lime-mha,mha", "--candidates", "1,4", *SMALL, "--json")
    assert {(row["model"], row["candidates"]) for row in result["rows"]} == {
        ("lime-mha", 1),
        ("mha", 1),
        ("lime-mha", 4),
        ("mha", 4),
    }
    assert [(one["model"], one["other"], one["candidates"]) for one in result["ratios"]] == [
        ("lime-mha", "mha", 1),
        ("lime-mha", "mha", 4),
    ]
    assert result["history"] == 20
    assert result["gemm_gflops"] > 0


def test_text_says_which_is_faster() -> None:
    done = limerank("bench", "models", "--models", "lime-xor,hstu", "--candidates", "2", *SMALL)
    assert "training step: 2 requests, history 20, 2 candidates each" in " ".join(done.stdout.split())
    assert "2 candidates: a step of hstu takes" in done.stdout
    assert "GFLOP/s in the same rounds" in done.stdout


def test_bad_options_are_named() -> None:
    assert "no ranker 'lime-xr'; did you mean 'lime-xor'?" in refusal(2, "bench", "models", "--models", "lime-xr")
    assert "--candidates 1,x: must be whole numbers" in refusal(2, "bench", "models", "--candidates", "1,x")
    assert "--candidates 0: must be positive" in refusal(2, "bench", "models", "--candidates", "0")
