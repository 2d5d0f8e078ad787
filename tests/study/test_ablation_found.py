"""Linear attention after a search of its own, and groups of an earlier result beside those that are made anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from calling import answer, refusal

from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.study.ablation.contests import RANK, contests, read_found
from limerank.study.ablation.kept import ANEW, with_kept
from limerank.study.ablation.results import AblationStudy, Found
from limerank.study.ablation.variants import LINEAR, groups
from limerank.study.accuracy.results import AccuracyStudy
from limerank.study.configuration import StudyConfig
from limerank.study.pages import open_result
from limerank.study.trainings import Variant

RESULTS = Path(__file__).parents[2] / "docs" / "results"
EASY, ABLATION = RESULTS / "accuracy-easy.json", RESULTS / "ablation.json"
TRAIN = StudyConfig().training("")


def changed(path: Path, **rows: Mapping[str, Any]) -> Path:
    """The search on the easy log with other winners; no other figure of the file is looked at."""
    study = json.loads(EASY.read_text())
    for ranker, parameters in rows.items():
        row = study["search"]["rows"][ranker.replace("_", "-")]
        row["trials"][row["winner"]]["parameters"] = dict(parameters)
    path.write_text(json.dumps(study))
    return path


def test_every_ranker_of_the_group_has_what_was_found_for_it(tmp_path: Path) -> None:
    """The base too; all other groups have the base as it is, and rows stay as wide as LIME's."""
    found = read_found(changed(tmp_path / "a.json", lime_mha={"train.learning_rate": 0.0015}), {}, TRAIN)
    every = [change for group in groups(32, 4).values() for change in group]
    held = contests(every, TRAIN, {}, found)
    assert [one.change for one in held] == every
    for one in held:
        if one.change.group != LINEAR:
            assert (one.base.name, one.variant.name) == (one.change.base, one.change.key)
            assert (one.base.train, one.variant.train) == (TRAIN, TRAIN)
            continue
        assert one.base.name == "lime-mha-learning_rate-0.0015"
        for parameters, variant in ((one.base_chosen, one.base), (one.chosen, one.variant)):
            assert parameters == found.parameters[variant.model["name"]]
            for key, value in parameters.items():
                section, _, name = key.partition(".")
                assert (variant.model[name] if section == "model" else getattr(variant.train, name)) == value
        assert one.variant.model.get("query_width") == one.change.options.get("query_width")
    rivals = {one.change.ranker: one for one in held if one.change.group == LINEAR}
    assert rivals["mha"].changed == {
        "name": ("lime-mha", "mha"),
        "sharpness": (3.0, 1.0),
        "train.learning_rate": (0.0015, 0.003),
    }
    same_name: dict[str, Variant] = {}
    for variant in (both for one in held for both in (one.base, one.variant)):
        assert same_name.setdefault(variant.name, variant) == variant, "a folder holds one thing"


def test_without_a_search_nothing_is_trained_otherwise() -> None:
    every = [change for group in groups(32, 4).values() for change in group]
    for one in contests(every, TRAIN, {}, None):
        assert (one.base.name, one.variant.name) == (one.change.base, one.change.key)
        assert one.variant.model == one.change.section({})
        assert (one.base.train, one.variant.train) == (TRAIN, TRAIN)


def test_a_search_that_says_nothing_of_a_ranker_or_changes_its_rank_is_refused(tmp_path: Path) -> None:
    narrow = changed(tmp_path / "a.json", performer={"model.rank": 8})
    with pytest.raises(UsageError, match=r"its search changed 'model.rank' of 'performer', which an ablation keeps"):
        read_found(narrow, {}, TRAIN)
    wide = changed(tmp_path / "a.json", mha={"model.width": 8})
    read_found(wide, {}, TRAIN)
    with pytest.raises(UsageError, match=r"its search changed 'model.width' of 'mha'"):
        read_found(wide, {"width": 16}, TRAIN)
    slower = TRAIN.model_copy(update={"learning_rate": 0.0001})
    with pytest.raises(UsageError, match=r"kept train.learning_rate = 0.003 for .* from 0.0001"):
        read_found(EASY, {}, slower)
    study = json.loads(EASY.read_text())
    del study["search"]["rows"]["lrea"]
    wide.write_text(json.dumps(study))
    with pytest.raises(UsageError, match="has no search of 'lrea'"):
        read_found(wide, {}, TRAIN)
    wide.write_text(json.dumps({**study, "search": None}))
    said = refusal(2, "study", "ablation", "--found", wide, "--out", tmp_path / "out")
    assert "that study did not search" in said
    said = refusal(2, "study", "ablation", "--found", EASY, "--groups", "keys", "--out", tmp_path / "out")
    assert "is for the group 'linear' of lime-mha" in said
    assert not (tmp_path / "out").exists(), "refused before anything is made"
    assert set(RANK) >= {"links", "query_width"}


def test_the_group_alone_beside_an_earlier_result(dataset: StoredDataset, tmp_path: Path) -> None:
    """What was found is used, written down and shown; other groups stay, with who made them and against which base."""
    arguments = ("study", "ablation", "--quick", "--dataset", dataset.path, "--models", "lime-mha", "--seeds", "1")
    before = answer(*arguments, "--groups", "keys,linear", "--threads", "1", "--out", tmp_path / "before")
    assert any("nothing was searched for its rivals" in one for one in before["caveats"])
    chosen = {"train.learning_rate": 0.01}
    found = changed(tmp_path / "accuracy.json", lime_mha=chosen, mha={"model.sharpness": 1.0})
    asked = ("--groups", "linear", "--found", found, "--threads", "1", "--out", tmp_path / "after")
    facts = answer(*arguments, *asked, "--keep", before["result"])
    after = AblationStudy.model_validate({key: one for key, one in facts.items() if key not in ("result", "page")})
    assert after.groups == ["keys", "linear"]
    assert [one.model_dump(mode="json") for one in after.in_group("keys")] == [
        one for one in before["compared"] if one["group"] == "keys"
    ]
    (kept,) = after.kept
    assert (kept.file, kept.groups, kept.made.command) == ("ablation.json", ["keys"], before["made"]["command"])
    assert isinstance(after.found, Found)
    assert after.found.parameters["mha"] == {"model.sharpness": 1.0}
    assert {one.base for one in after.in_group(LINEAR)} == {"lime-mha-learning_rate-0.01"}
    base = after.of("lime-mha-learning_rate-0.01")
    assert base.chosen == chosen
    assert base.test != after.of("lime-mha").test, "the base of the kept group stays its own"
    mha = next(one for one in after.in_group(LINEAR) if one.name == "mha (skyline)")
    assert (mha.key, after.of(mha.key).model["sharpness"]) == ("mha-sharpness-1", 1.0)
    assert after.kernel is not None
    assert "mha-sharpness-1" in after.kernel.skyline
    assert {one.model for one in after.costs} == {one["model"] for one in before["costs"]}
    page = Path(facts["page"]).read_text()
    for said in ("found for it", "train.learning_rate 0.01", "some groups are those of an earlier result"):
        assert said in page
    assert any("Not made anew but taken from ablation.json: keys" in one for one in after.caveats)
    again = refusal(2, *arguments, "--groups", "keys,linear", "--keep", before["result"], "--out", tmp_path / "after")
    assert "all of its groups are made anew" in again
    other = refusal(2, *arguments, *asked, "--epochs", "2", "--keep", before["result"])
    assert "has train.epochs 1, this study 2" in other


def test_what_came_out_otherwise_has_a_name_of_its_own() -> None:
    """A base that was trained for both results: kept groups are not held against the new one, nor the other way."""
    earlier = made_at_once()
    compared = earlier.in_group(LINEAR)
    keys = {key for one in compared for key in (one.base, one.key)}
    own = [one.model_copy(deep=True) for one in earlier.trained if one.key in keys]
    for one in own:
        if one.key == "lime-mha":
            one.test[0].ne = 0.5
    mine = earlier.model_copy(update={"groups": [LINEAR], "trained": own, "compared": compared, "rows": [], "kept": []})
    both = with_kept(mine, "before.json", earlier)
    assert both.groups == earlier.groups
    assert both.of("lime-mha").test == earlier.of("lime-mha").test
    assert both.of("lime-mha (anew)").test[0].ne == 0.5
    assert {one.base for one in both.in_group(LINEAR)} == {"lime-mha (anew)"}
    assert {one.base for one in both.in_group("keys")} == {"lime-mha"}
    assert len({one.key for one in both.trained}) == len(both.trained) == len(earlier.trained) + 1
    assert (both.rows, both.kept[0].groups) == (earlier.rows, [one for one in earlier.groups if one != LINEAR])
    third = with_kept(mine.model_copy(update={"groups": ["rows"], "compared": []}), "second.json", both)
    assert [(one.file, one.groups) for one in third.kept] == [
        ("second.json", [LINEAR]),
        ("before.json", [one for one in earlier.groups if one not in (LINEAR, "rows")]),
    ]


def made_at_once() -> AblationStudy:
    """The committed result as if all of its groups had been made together, with one base."""
    study = open_result(ABLATION).result
    assert isinstance(study, AblationStudy)
    trained = [one for one in study.trained if not one.key.endswith(ANEW)]
    compared = [one.model_copy(update={"base": one.base.removesuffix(ANEW)}) for one in study.compared]
    assert {one.base for one in compared} | {one.key for one in compared} <= {one.key for one in trained}
    return study.model_copy(update={"trained": trained, "compared": compared, "kept": []})


def test_results_of_before_are_opened() -> None:
    """The committed ones, whether they have what came since or not."""
    result = open_result(ABLATION).result
    assert isinstance(result, AblationStudy)
    assert all(one.key for one in result.trained)
    easy = open_result(EASY).result
    assert isinstance(easy, AccuracyStudy)
    assert result.data_fingerprint == easy.dataset.fingerprint, "the search that the group linear takes is of its log"
