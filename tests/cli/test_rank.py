"""`rank` and `links` as people read them: titles beside ids, seen items, repeated candidates, what is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from calling import answer, limerank, refusal

DESCRIPTION = """
tables: {events: log.csv, items: items.csv}
user_id: user
item_id: movie
time: at
features:
  - {name: movie, role: item}
  - {name: liked, role: event}
tasks: [{name: liked}]
split: {protocol: last_events}
display: title
"""


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 12 movies with titles, one of them without; user u1 has seen 100 to 107."""
    folder = tmp_path_factory.mktemp("titled")
    dataset = ["user,movie,at,liked"]
    dataset += [f"u{u},{100 + m},{10**9 * (m + 1)},{(u + m) % 2}" for u in range(6) for m in range(8 + (u > 1) * 4)]
    (folder / "log.csv").write_text("\n".join(dataset) + "\n")
    titles = [f'{100 + m},"The {m}th, a film"' for m in range(11)]
    (folder / "items.csv").write_text("\n".join(["movie,title", *titles, "111,"]) + "\n")
    (folder / "log.yaml").write_text(DESCRIPTION)
    answer("prepare", "table", "--raw", folder / "log.yaml", "--out", folder / "dataset")
    (folder / "run.yaml").write_text("dataset: dataset\nmodel: {name: lime-mha, links: 4}\ntrain: {epochs: 1}\n")
    answer("train", folder / "run.yaml", "--out", folder / "run")
    answer("export", folder / "run", "--store", folder / "store")
    return folder / "store"


def test_titles_stand_beside_ids(titled: Path) -> None:
    done = limerank("rank", titled, "--user", "u1", "--explain", "1", "--limit", "12")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()[:13]
    assert header.split() == ["rank", "item", "title", "liked"]
    assert {row.split()[1] for row in rows if "th, a film" in row} == {str(100 + m) for m in range(11)}
    best = rows[0].split()[1]
    assert f"\n1. {best} The {int(best) - 100}th, a film: logit" in done.stdout
    assert "th, a film " in done.stdout.split("read most of")[1]
    assert "th, a film" in limerank("links", titled).stdout
    assert "title" in limerank("links", titled, "--link", "0").stdout


def test_titles_in_json(titled: Path) -> None:
    ranking = answer("rank", titled, "--user", "u1", "--explain", "1", "--limit", "12")
    displays = {item["id"]: item["display"] for item in ranking["items"]}
    assert displays["103"] == "The 3th, a film"
    assert displays["111"] is None
    explained = ranking["explanation"]
    assert explained["candidates"][0]["display"] == displays[explained["candidates"][0]["item"]]
    for link in explained["links"]:
        assert [one["display"] for one in link["items"]] == [displays[one["id"]] for one in link["items"]]
        assert [one["display"] for one in link["events"]] == [displays[one["item"]] for one in link["events"]]


def test_a_log_without_titles_shows_ids_only(store: Path) -> None:
    assert limerank("rank", store, "--user", "u1").stdout.split()[:4] == ["rank", "item", "click", "long_view"]
    assert set(answer("rank", store, "--user", "u1")["items"][0]) == {"id", "click", "long_view"}


def test_seen_items_can_be_left_out(titled: Path) -> None:
    done = limerank("rank", titled, "--user", "u1", "--exclude-seen")
    assert {row.split()[1] for row in done.stdout.splitlines()[1:5]} == {"108", "109", "110", "111"}
    assert "left out because the user has events with them: 8 items" in done.stdout
    assert answer("rank", titled, "--user", "u1", "--exclude-seen")["seen_items"] == 8
    nothing = limerank("rank", titled, "--user", "u1", "--items", "100,101", "--exclude-seen")
    assert nothing.returncode == 0
    assert "0 candidates" in nothing.stdout


def test_spaces_and_repetitions_among_candidates(titled: Path) -> None:
    done = limerank("rank", titled, "--user", "u1", "--items", " 103, 104 ,103,, 105")
    assert "4 candidates" in done.stdout
    assert "unknown" not in done.stdout
    assert "named more than once, and ranked as often: 103" in done.stdout


def test_a_role_without_features_is_said(titled: Path) -> None:
    said = refusal(2, "rank", titled, "--user", "u1", "--context", "device=phone")
    assert "no context feature 'device': the log has no features of the role 'context'" in said


def test_the_display_must_be_a_column(titled: Path) -> None:
    folder = titled.parent
    for line, reason in (
        ("display: titel", "column 'titel' is missing; did you mean 'title'?"),
        ("display: movie", "display: 'movie' is the id, which is always shown; name another column"),
    ):
        (folder / "other.yaml").write_text(DESCRIPTION.replace("display: title", line))
        assert reason in refusal(3, "prepare", "table", "--raw", folder / "other.yaml", "--out", folder / "other")


def test_titles_of_new_items_and_the_id_by_its_own_name(titled: Path, tmp_path: Path) -> None:
    """A file in the words of the log: its id column, which is a feature, and its display column."""
    store = Path(shutil.copytree(titled, tmp_path / "store"))
    (tmp_path / "new.csv").write_text("movie,title\n200,Brand new\n103,Renamed\n")
    assert answer("items", "upsert", store, "--file", tmp_path / "new.csv")["added"] == ["200"]
    ranking = answer("rank", store, "--user", "u1", "--items", "200,103,104")
    displays = {item["id"]: item["display"] for item in ranking["items"]}
    assert displays == {"200": "Brand new", "103": "Renamed", "104": "The 4th, a film"}
    assert ranking["overlay_items"] == 1  # only the title of 103 changed, which is no feature
    assert "Brand new" in limerank("rank", store, "--user", "u1", "--items", "200").stdout
    answer("items", "fold", store)
    answer("items", "forget", store, "--contained")
    ranking = answer("rank", store, "--user", "u1", "--items", "200,103")
    assert {item["display"] for item in ranking["items"]} == {"Brand new", "Renamed"}
