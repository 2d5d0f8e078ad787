"""The inspector on other stores: a real log of the shared folder, the quickstart's, and a ranker without links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from calling import limerank

from browser.inspecting import Inspector, inspected, inspector
from limerank.api.dataset import Dataset
from limerank.api.training import train
from limerank.data.sources.movielens.read import read_movielens

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from limerank.api.run import Run

SHARED = Path(__file__).parents[3] / "shared/data/ml-100k"
USERS_KEPT = 120
SHOWN = 20


@pytest.fixture(scope="module")
def movies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some users' ratings: items have titles, users no context, and one ranker was trained twice."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED.name} is not beside the repository; it must not be shipped")
    folder = tmp_path_factory.mktemp("movies")
    raw = folder / "raw"
    raw.mkdir()
    for table in ("ratings", "users", "items"):
        rows = pl.read_csv(SHARED / f"{table}.csv.gz", infer_schema=False)
        kept = rows if table == "items" else rows.filter(pl.col("user_id").cast(int) <= USERS_KEPT)
        kept.write_csv(raw / f"{table}.csv")
    dataset = Dataset.build(read_movielens(raw), out=folder / "dataset", quiet=True)
    for seed in (1, 2):
        run = train("lime-mha", dataset, out=folder / f"run{seed}", epochs=1, max_history=50, seed=seed, quiet=True)
        run.publish(folder / "store", quiet=True)
    return folder / "store"


def check_every_view(page: Inspector, user: str) -> None:
    """Each view once, as the API has it."""
    page.open("try", user=user)
    answer = page.call("POST", "/v1/rank", {"user_id": user, "limit": 1000, "options": {"record": False}})
    assert page.ranked() == [str(one["id"]) for one in answer["items"]][:SHOWN]
    called = page.find("#ranking .item").all_inner_texts()
    assert all(
        one["display"] in text for one, text in zip(answer["items"], called, strict=False) if len(one["display"]) < 40
    )
    known = page.call("GET", f"/v1/users/{user}?limit=25")
    assert page.find(".events li").count() == len(known["history"])
    asked = page.request_id()
    page.find("[data-event]").nth(2).click()
    page.find("dialog [data-what-if]").click()
    page.wait_for_ranking(asked)
    assert page.find("#changes .chip").count() == 1
    page.find("#ranking a.button").first.click()
    page.tab.wait_for_selector(".proof")
    assert page.find(".proof").get_attribute("data-matches") == "true"
    page.open("links")
    assert page.find(".tiles a").count() == len(page.call("GET", "/v1/links")["links"])
    page.open("compare", user=user, run="1")
    assert page.find("#orders-title").count() == 1
    page.open("operate")
    page.tab.wait_for_selector("#live figure svg")
    assert page.find("#bundles tbody tr").count() == 2
    assert page.told == []


def test_a_real_log(browser: Browser, movies: Path) -> None:
    with inspected(movies) as served, inspector(browser, served.address) as page:
        users = page.call("GET", "/v1/users?prefix=1&limit=3")["users"]
        check_every_view(page, users[0]["id"])


def test_the_store_of_the_quickstart(browser: Browser, tmp_path: Path) -> None:
    """What a newcomer looks at first: the ranking, the click of the walk, why, and links, as the API has them."""
    done = limerank("quickstart", "--out", "walk", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    user = "u121"
    with inspected(tmp_path / "walk/store") as served, inspector(browser, served.address) as page:
        page.open("try", user=user)
        body = {"user_id": user, "limit": 1000, "options": {"record": False}}
        before = page.call("POST", "/v1/rank", body)["items"]
        assert page.ranked() == [one["id"] for one in before[:SHOWN]]
        asked, clicked = page.request_id(), before[2]["id"]
        page.find("[data-event]").nth(2).click()
        page.find("dialog [data-what-if]").click()
        page.wait_for_ranking(asked)
        assert page.find("#changes .chip").count() == 1
        assert clicked in page.find("#changes .chip").inner_text()
        page.find("#ranking a.button").first.click()
        page.tab.wait_for_selector(".proof")
        assert page.find(".proof").get_attribute("data-matches") == "true"
        page.open("links")
        assert page.find(".tiles a").count() == len(page.call("GET", "/v1/links")["links"])
        page.open("operate")
        assert page.find("#bundles tbody tr").count() == 1
        assert page.told == []


def test_a_ranker_without_links(browser: Browser, runs: dict[str, Run], tmp_path: Path) -> None:
    """Two towers have no links: Try works without "Why", and the other two views say why they are empty."""
    runs["ttsn"].publish(tmp_path / "store", quiet=True)
    with inspected(tmp_path / "store") as served, inspector(browser, served.address) as page:
        page.open("try", user="u7")
        answer = page.call("POST", "/v1/rank", {"user_id": "u7", "limit": SHOWN})
        assert page.ranked() == [one["id"] for one in answer["items"]]
        assert page.find("#ranking a.button").count() == 0
        asked = page.request_id()
        page.find("[data-event]").nth(2).click()
        page.find("dialog [data-what-if]").click()
        page.wait_for_ranking(asked)
        for view in ("why", "links"):
            page.open(view, user="u7")
            assert "ttsn has no links" in page.find("main").inner_text()
        page.open("compare")
        assert "only one bundle" in page.find("main").inner_text()
        page.open("operate")
        assert "Nothing to roll back to" in page.find("#bundles").inner_text()
        assert page.told == []
