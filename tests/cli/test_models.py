"""`limerank models` as a user types it."""

from __future__ import annotations

from calling import answer, limerank, refusal

from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS


def test_the_table_has_every_ranker() -> None:
    """As text, as Markdown and as JSON; one call measures, the others read what it found."""
    found = answer("models", "--history", "100", "--links", "8")
    assert found["sizes"] == {"history": 100, "candidates": 10_000, "links": 8, "width": 32}
    assert [row["name"] for row in found["rankers"]] == list(RANKERS)
    keys = {
        "name", "family", "parameters", "embedding_parameters", "factorized", "foldable", "ordered", "budget",
        "user_stage", "candidate_stage", "item_bytes", "user_bytes",
    }  # fmt: skip
    for row in found["rankers"]:
        assert set(row) == keys
        assert set(row["user_stage"]) == {"complexity", "work", "fit_error"}
    shown = limerank("models", "--history", "100", "--links", "8").stdout
    markdown = limerank("models", "--history", "100", "--links", "8", "--markdown").stdout.splitlines()
    assert markdown[0].startswith("| ranker | family | parameters |")
    assert len(markdown) == len(RANKERS) + 2
    for row, line in zip(found["rankers"], markdown[2:], strict=True):
        assert f"| {row['name']} | {row['family']} | {row['parameters']:,} |" in line
        assert f"| {row['candidate_stage']['complexity']} | {row['item_bytes']:,} |" in line
        assert row["name"] in shown


def test_one_ranker_in_detail(dataset: StoredDataset) -> None:
    shown = limerank("models", "mha").stdout
    assert "o_c = MHA(T_c, E, E; J)" in shown
    assert "M·N·d" in shown
    assert "heads" in shown
    found = answer("models", "mha", "--dataset", dataset.path)
    space = dataset.encoders.space()
    sizes = sum(feature.size for feature in space.item + space.event + space.user + space.context)
    assert found["embedding_parameters"] == 16 * sizes
    assert {option["name"] for option in found["options"]} == set(RANKERS["mha"].options_type.model_fields)


def test_mistakes_name_the_option() -> None:
    assert "--width 30, --links 16, model" in refusal(2, "bench", "models", "--width", "30", "--models", "lime-mha")


def test_mistakes() -> None:
    assert "no ranker 'mhaa'; did you mean 'mha'?" in refusal(2, "models", "mhaa")
    assert "width 30 cannot be split into 4 heads" in refusal(2, "models", "mha", "--width", "30")
    assert "leave out the name" in refusal(2, "models", "mha", "--markdown")
