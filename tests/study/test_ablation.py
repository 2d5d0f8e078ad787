"""The ablation study: no variant is its base, differences are by seed, and what is written is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import answer, limerank

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.models import RANKERS, build_ranker, complete_model
from limerank.models.incremental import incremental_user
from limerank.progress import Progress
from limerank.study import trainings
from limerank.study.ablation.differences import paired
from limerank.study.ablation.linear.costs import measure_costs
from limerank.study.ablation.results import AblationStudy
from limerank.study.ablation.served import row_precisions
from limerank.study.ablation.variants import (
    LINEAR,
    Change,
    check_bases,
    different_options,
    groups,
    parse_groups,
    section,
)
from limerank.training.parallel import Job, train_all
from limerank.training.run import FinishedRun

ALL = [change for group in groups(32, 4).values() for change in group]
SHARED: list[dict[str, Any]] = [{}, {"links": 8, "width": 16}]


@pytest.mark.parametrize("change", ALL, ids=lambda change: f"{change.group}: {change.key}")
def test_a_variant_differs_from_its_base_in_what_it_names_and_in_nothing_else(change: Change) -> None:
    """An ablation cannot compare a thing with itself, nor change two things at once."""
    for shared in SHARED:
        mine = next(
            one
            for one in groups(shared.get("links", 32), 4)[change.group]
            if (one.name, one.base) == (change.name, change.base)
            or (change.group == "links" and one.base == change.base)
        )
        found = different_options(mine, shared)
        named = {"name"} if mine.model is not None and not mine.options else set(mine.options)
        if mine.model is not None:
            named |= {"name"}
        assert set(found) == named, "exactly what is named differs"
        assert all(before != after for before, after in found.values())
        assert found.get("name", ("", mine.base))[1] == mine.ranker


def test_every_variant_builds(dataset: StoredDataset) -> None:
    """And has another name for its runs than all others; a group may share a run with another group."""
    space, tasks = dataset.encoders.space(), len(dataset.schema.tasks)
    sections: dict[str, dict[str, Any]] = {base: complete_model(section(base, {}), "test") for base in RANKERS}
    for change in ALL:
        ranker = build_ranker(change.section({"width": 16}), space, tasks, "test")
        assert ranker.name == change.ranker
        mine = complete_model(change.section({}), "test")
        assert sections.setdefault(change.key, mine) == mine, f"{change.key} names two different things"
    assert len({change.key for change in ALL} | {"lime-mha", "lime-xor"}) == 41, "the number that --help and docs say"


def test_rows_of_linear_attention_are_as_wide_as_limes(dataset: StoredDataset) -> None:
    """Equal rank: heads times links numbers per item, or as many mixtures, features or events as links."""
    for change in groups(8, 4)[LINEAR]:
        ranker = build_ranker(change.section({"links": 8}), dataset.encoders.space(), 2, "test")
        options = ranker.options.model_dump()
        if ranker.factorized:
            heads, width = ranker.row_shape()
            numbers = width or options["query_width"]
            assert options.get("query_width") == 32 or heads * numbers == 32, change.name
        elif ranker.name != "mha":
            assert 8 in (options.get("rank"), options.get("recent"), options.get("links")), change.name


def test_differences_are_by_seed() -> None:
    """What seeds share cancels: a small constant difference is clear beside a large spread."""
    base = [0.80, 0.90, 0.70]
    clear = paired(base, [0.79, 0.889, 0.691])
    assert clear is not None
    assert clear.mean == pytest.approx(-0.01)
    assert clear.standard_error == pytest.approx(0.001 / 3**0.5)
    assert clear.low is not None
    assert clear.low == pytest.approx(-0.01 - 4.303 * 0.001 / 3**0.5)
    assert clear.verdict(lower_is_better=True) == "better"
    assert clear.verdict(lower_is_better=False) == "worse"
    unclear = paired(base, [0.75, 0.96, 0.69])
    assert unclear is not None
    assert unclear.verdict(lower_is_better=True) == "cannot be told"
    alone = paired([0.8], [0.7])
    assert alone is not None
    assert (alone.low, alone.verdict(lower_is_better=True)) == (None, "cannot be told")
    assert paired([0.8, None], [0.7, 0.7]) is None, "an undefined value leaves no seed out silently"


def test_groups_and_models_are_checked() -> None:
    known = list(groups(32, 4))
    assert parse_groups(None, known) == known
    assert parse_groups("links,keys,links", known) == ["links", "keys"]
    with pytest.raises(UsageError, match="no group 'linkz'; did you mean 'links'"):
        parse_groups("linkz", known)
    with pytest.raises(UsageError, match="'mha' has no variants here; choose from lime-mha, lime-xor"):
        check_bases(["mha"])


def test_rows_of_other_precision_serve_nearly_the_same(runs: dict[str, Run], dataset: StoredDataset) -> None:
    """fp32 rows give the run's own test metrics through the serving path; fp16 and u8 are held against them."""
    run = FinishedRun.open(runs["lime-mha"].path)
    whole, half, small = row_precisions("lime-mha", [run], dataset, "click", requests=5)
    assert whole.test[0].ne == pytest.approx(run.record.test["click"].ne, abs=1e-4)
    assert (whole.largest_difference, whole.top_10, whole.top_100) == (0, 1, 1)
    assert whole.bytes_per_item == 2 * (half.bytes_per_item or 0)
    assert (small.bytes_per_item or 0) < (half.bytes_per_item or 0)
    for one, most in ((half, 1e-3), (small, 1e-2)):
        assert one.ne is not None
        assert abs(one.ne.mean) < most
        assert 0 < (one.largest_difference or 0) < most
        assert 0.5 < (one.top_10 or 0) <= 1


def test_rows_that_a_type_cannot_hold_are_said(runs: dict[str, Run], dataset: StoredDataset) -> None:
    """Rows of LREA are queries of either sign, which u8 cannot hold; nothing is measured in their place."""
    run = FinishedRun.open(runs["lrea"].path)
    *_, small = row_precisions("lrea", [run], dataset, "click", requests=2)
    assert small.refused is not None
    assert (small.test, small.ne, small.top_10) == ([], None, None)


def test_costs_say_who_grows_and_who_reads_again(dataset: StoredDataset) -> None:
    torch.manual_seed(0)
    names = ("lime-mha", "mha", "performer", "lrea")
    rankers = {name: build_ranker({"name": name}, dataset.encoders.space(), 2, "test") for name in names}
    costs = {cost.model: cost for cost in measure_costs(rankers, dataset, history=30, candidates=20, repeats=1)}
    assert {name: cost.appended for name, cost in costs.items()} == {
        "lime-mha": True, "mha": False, "performer": True, "lrea": False,
    }  # fmt: skip
    assert all((cost.kept_bytes is not None) == cost.appended for cost in costs.values())
    assert costs["mha"].bytes_per_user == 4 * (30 * 2 * 32 + 64), "keys and values of every event, and the head part"
    assert costs["lime-mha"].bytes_per_user == 4 * (32 * 32 + 64)
    assert costs["lime-mha"].bytes_per_item == 2 * (4 * 32 + 64)
    assert costs["mha"].bytes_per_item == 4 * (32 + 64), "a ranker that would widen its rows is given wide ones"
    assert {name: cost.row_type for name, cost in costs.items()} == {
        "lime-mha": "fp16", "mha": "fp32", "performer": "fp16", "lrea": "fp16",
    }  # fmt: skip


def test_states_without_norms_are_not_grown(dataset: StoredDataset) -> None:
    """Kept states normalize events as they come; a ranker without norms is read again instead."""
    model = {"name": "lime-mha", "projection_norm": False}
    assert incremental_user(build_ranker(model, dataset.encoders.space(), 2, "test")) is None


def test_all_variants_train_alike(dataset: StoredDataset, tmp_path: Path) -> None:
    """`train` of a file reaches every run; what would be one ranker's own is refused by its key."""
    config = tmp_path / "study.yaml"
    config.write_text("train: {epochs: 2, batch_requests: 16}")
    arguments = ("study", "ablation", "--quick", "--dataset", str(dataset.path), "--out", str(tmp_path), "--json")
    chosen = ("--groups", "keys", "--models", "lime-mha", "--seeds", "1", "--threads", "1", "--config", str(config))
    train = json.loads(limerank(*arguments, *chosen).stdout)["train"]
    assert (train["epochs"], train["batch_requests"]) == (2, 16)
    config.write_text("rankers: {lime-mha: {train: {learning_rate: 0.1}}}")
    refused = limerank(*arguments, *chosen)
    assert refused.returncode == 2
    assert f"{config}: key 'rankers': an ablation trains all variants alike" in " ".join(refused.stderr.split())


def test_quick_mode_writes_everything_and_keeps_it(dataset: StoredDataset, tmp_path: Path) -> None:
    """The command, in a small part: result, page, and a second invocation that trains nothing."""
    arguments = ("study", "ablation", "--quick", "--dataset", str(dataset.path), "--out", str(tmp_path), "--json")
    chosen = ("--groups", "keys,rows", "--models", "lime-mha", "--seeds", "2", "--threads", "1")
    facts = json.loads(limerank(*arguments, *chosen).stdout)
    result = AblationStudy.model_validate({k: v for k, v in facts.items() if k not in ("result", "page")})
    assert [one.name for one in result.compared] == ["coupled keys (pma)"]
    (compared,) = result.compared
    assert compared.changed == {"name": ("lime-mha", "pma")}
    assert compared.ne is not None
    base, variant = result.of("lime-mha"), result.of("pma")
    assert compared.ne.differences == pytest.approx(
        [(one.ne or 0) - (other.ne or 0) for one, other in zip(variant.test, base.test, strict=True)]
    )
    assert [one.row_type for one in result.rows] == ["fp32", "fp16", "u8"]
    assert result.made.quick
    page = Path(facts["page"]).read_text()
    for said in ("Decoupled or coupled keys", "Precision of item rows", "cannot be told", "Quick mode"):
        assert said in page
    written = (tmp_path / "quick" / "runs" / "pma-seed2" / "run.json").stat().st_mtime_ns
    served = tmp_path / "quick" / "rows-lime-mha.json"
    kept = json.loads(served.read_text())
    marked = [{**one, "bytes_per_item": 7} for one in kept["rows"]]
    served.write_text(json.dumps({**kept, "rows": marked}))
    again = json.loads(limerank(*arguments, *chosen).stdout)
    assert again["compared"] == facts["compared"]
    assert again["rows"] == marked, "not served again"
    assert (tmp_path / "quick" / "runs" / "pma-seed2" / "run.json").stat().st_mtime_ns == written
    served.write_text(json.dumps({"identity": "of other runs", "rows": marked}))
    assert json.loads(limerank(*arguments, *chosen).stdout)["rows"] == facts["rows"]


def test_a_training_that_is_not_finite_ends_no_ablation(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written down, its variant is compared in the seed that is left, and one without any is left out."""
    lost = {"lime-mha-links-2-seed2", "lime-mha-links-1-seed1", "lime-mha-links-1-seed2"}

    def train_some(jobs: list[Job], progress: Progress, *others: Any) -> list[FinishedRun]:
        for job in jobs:
            if job.out.name in lost:
                others[-1](job, DataError("it is not finite"))
        return train_all([job for job in jobs if job.out.name not in lost], progress, *others)

    monkeypatch.setattr(trainings, "train_all", train_some)
    arguments = ("study", "ablation", "--quick", "--dataset", dataset.path, "--models", "lime-mha", "--seeds", "2")
    facts = answer(*arguments, "--groups", "links", "--threads", "1", "--out", tmp_path)
    result = AblationStudy.model_validate({key: one for key, one in facts.items() if key not in ("result", "page")})
    assert {(one.row, one.seed) for one in result.failures} == {
        ("lime-mha-links-2", 2), ("lime-mha-links-1", 1), ("lime-mha-links-1", 2),
    }  # fmt: skip
    assert {one.key for one in result.compared} == {"lime-mha-links-2", "lime-mha-links-8"}
    seeds = {one.key: len(one.ne.differences) for one in result.compared if one.ne is not None}
    assert seeds == {"lime-mha-links-2": 1, "lime-mha-links-8": 2}
    assert (result.of("lime-mha-links-2").seeds, result.of("lime-mha").seeds) == ([1], [])
    assert "lime-mha-links-1 from seed 2 could not be finished: it is not finite." in result.caveats
    assert "it is not finite" in Path(facts["page"]).read_text()
