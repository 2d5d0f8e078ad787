"""Both clients against a running service: every method once, and what a caller sees when the service says no."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from both import Ask, with_both
from serving import RunningService, copied, serving

from limerank.client import (
    Client,
    InvalidRequestError,
    NotFoundError,
    ServiceConflictError,
    TooManyRequestsError,
)
from limerank.client.operations import Operations
from limerank.models import build_ranker
from limerank.serve.bundles.offline import export
from limerank.service.options import ServiceOptions

CONTEXT = {"device": "phone", "hour": 20}
CLICK = {"clicked": 1, "watched_fraction": 0.95}


@pytest.fixture(scope="module")
def changing(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service whose store these tests may change."""
    with serving(copied(store, tmp_path_factory.mktemp("changing"))) as running:
        yield running


def test_every_method_is_called_here() -> None:
    """The tests below call what there is: a new operation without a test is noticed."""
    text = Path(__file__).read_text()
    assert not [name for name in dir(Operations) if not name.startswith("_") and f'"{name}"' not in text]


@with_both
def test_rankings(service: RunningService, ask: Ask) -> None:
    """rank, rank_batch, recommend and explain: the engine's own items, in its order."""
    with service.host.lease() as lease:
        wanted = lease.engine.rank("u7", limit=5, context=CONTEXT)["item_id"].to_list()
    answer = ask(service.url, "rank", "u7", limit=5, context=CONTEXT, deadline_ms=20_000, request_id="mine")
    assert [item.id for item in answer.items] == wanted
    assert answer.request_id == "mine"
    assert answer.user.known
    few = ask(service.url, "rank", "u7", ["i3", "no-such-item", "i5"], missing="drop")
    assert {item.id for item in few.items} == {"i3", "i5"}
    assert few.unknown_items == ["no-such-item"]
    batch = ask(
        service.url, "rank_batch", [{"user_id": "u7", "limit": 5, "context": CONTEXT}, {"user_id": "u8", "task": "x"}]
    )
    assert [item.id for item in batch.parts[0].answer.items] == wanted
    assert batch.parts[1].problem.status == 422
    shown = ask(service.url, "recommend", "u7", 3, context=CONTEXT, diversify={"mmr": 0.3})
    assert len(shown.items) == 3
    assert shown.retrieved_by
    why = ask(service.url, "explain", "u7", wanted[:2], context=CONTEXT, top_events=2)
    assert len(why.candidates) == 2


@with_both
def test_about_the_service(service: RunningService, ask: Ask) -> None:
    """info, the probes, metrics and the interface."""
    info = ask(service.url, "info")
    assert info.served.bundle == service.host.current_id
    assert "device" in info.served.context_features
    assert ask(service.url, "live").status == "ok"
    assert ask(service.url, "ready").bundle == service.host.current_id
    assert ask(service.url, "health").status == "ok"
    assert "limerank_stage_duration_seconds" in ask(service.url, "metrics")
    assert ask(service.url, "openapi")["openapi"].startswith("3.1")
    assert ask(service.url, "status").bundle.id == service.host.current_id
    assert len(ask(service.url, "list_links").links) == info.served.links
    assert ask(service.url, "list_links", service.host.current_id).bundle == service.host.current_id


@with_both
def test_events_and_users(changing: RunningService, ask: Ask) -> None:
    """add_event, add_events, show_user and erase_user: stored once, read by the next ranking, and gone."""
    user = f"new-{ask.__name__}"
    before = ask(changing.url, "rank", user, context=CONTEXT)
    assert not before.user.known
    event = {"user_id": user, "item_id": "i5", "features": CLICK, "event_id": f"{user}-1"}
    assert ask(changing.url, "add_events", [event, event]).accepted == 1
    assert ask(changing.url, "add_events", [event]).duplicates == 1
    assert ask(changing.url, "add_event", user, "i6", features=CLICK, type="click", position=2).durable
    wrong = ask(changing.url, "add_events", [{"user_id": user, "item_id": "i5", "features": {"clickt": 1}}])
    assert [one.index for one in wrong.rejected] == [0]
    after = ask(changing.url, "rank", user, context=CONTEXT)
    assert after.user.known
    assert after.user.history_used == 2
    assert [item.score for item in after.items] != [item.score for item in before.items]
    shown = ask(changing.url, "show_user", user, 1)
    assert shown.events_stored == 2
    assert len(shown.history) == 1
    older = ask(changing.url, "show_user", user, 1, offset=1).history[0]
    assert (older.item_id, older.position) == ("i5", 2)
    assert [one.id for one in ask(changing.url, "find_users", user).users] == [user]
    unwanted = [{"item_id": "i5"}, {"item_id": "i6", "timestamp": shown.history[0].timestamp}]
    looked = ask(changing.url, "rank", user, context=CONTEXT, without=unwanted, record=False)
    assert (looked.user.left_out, looked.user.history_used) == (2, 0)
    assert [item.score for item in looked.items] == pytest.approx([item.score for item in before.items], abs=1e-6)
    erased = ask(changing.url, "erase_user", user)
    assert erased.deleted["events"] == 2
    assert not ask(changing.url, "rank", user, context=CONTEXT).user.known


@with_both
def test_items(changing: RunningService, ask: Ask) -> None:
    """upsert_items, show_item and delete_items."""
    item = f"new-{ask.__name__}"
    features = {"topic": "t1", "creator": "c3", "duration_s": 41.5, "tags": ["a", "b"]}
    assert ask(changing.url, "upsert_items", [{"id": item, "features": features}]).added == 1
    assert ask(changing.url, "show_item", item).source == "overlay"
    assert [one.id for one in ask(changing.url, "find_items", item, 5).items] == [item]
    assert item in [ranked.id for ranked in ask(changing.url, "rank", "u7", limit=1000).items]
    gone = ask(changing.url, "delete_items", [item, "never-there"])
    assert (gone.deleted, gone.absent) == (1, ["never-there"])
    with pytest.raises(InvalidRequestError, match="topik"):
        ask(changing.url, "upsert_items", [{"id": item, "features": {"topik": 1}}])


@with_both
def test_bundles(changing: RunningService, ask: Ask, other_bundle: Path) -> None:
    """Publish, list, show, verify, diff, activate, roll back, collect, and route to a bundle."""
    url, first = changing.url, changing.host.current_id
    published = ask(url, "publish_bundle", other_bundle)
    second = published.id
    assert second != first
    assert not ask(url, "publish_bundle", other_bundle).is_new
    assert {bundle.id for bundle in ask(url, "list_bundles").bundles} == {first, second}
    assert ask(url, "show_bundle", second).model == "lime-mha"
    assert ask(url, "verify_bundle", second).files == published.files
    assert ask(url, "diff_bundles", first, second).new == second
    compared = ask(url, "compare_bundles", second, first, user_ids=["u7"], deadline_ms=60_000)
    assert (compared.old, compared.new, compared.user.user_id) == (first, second, "u7")
    assert "<html" in ask(url, "show_report", first)
    with pytest.raises(ServiceConflictError):
        ask(url, "activate_bundle", second, expected_current=second)
    assert ask(url, "activate_bundle", second, expected_current=first).current == second
    assert ask(url, "rank", "u7", limit=1).bundle == second
    assert ask(url, "roll_back").current == first
    with pytest.raises(NotFoundError) as caught:
        ask(url, "show_bundle", "20200101-000000-aaaaaaaa")
    assert caught.value.problem.type == "/problems/unknown-bundle"
    routing = {"experiment": "try", "arms": [{"name": "other", "bundle": second, "percent": 100}]}
    assert ask(url, "set_routing", routing).routing.experiment == "try"
    assert ask(url, "rank", "u7", limit=1).arm == "other"
    assert ask(url, "show_routing").routing.arms[0].bundle == second
    assert ask(url, "set_routing", {}).routing.arms == []
    assert ask(url, "collect_bundles", 1).removed in ([], [second])


@pytest.fixture(scope="module")
def other_bundle(dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of another store, as a folder."""
    torch.manual_seed(11)
    ranker = build_ranker({"name": "lime-mha"}, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    made = export(ranker, {"name": "lime-mha"}, dataset, tmp_path_factory.mktemp("other"), max_history=20)
    return made.path


def test_a_busy_service_says_when_to_come_again(own_store: Path) -> None:
    """One slot, nobody may wait, four callers: some see 429, and for how long."""
    options = ServiceOptions(deadline_ms=20_000, queue=0)

    def one(client: Client) -> TooManyRequestsError | None:
        try:
            client.rank("u7")
        except TooManyRequestsError as busy:
            return busy
        return None

    with (
        serving(own_store, options, slots=1) as running,
        Client(running.url, retries=0) as client,
        ThreadPoolExecutor(4) as executor,
    ):
        refused = [busy for busy in executor.map(one, [client] * 80) if busy is not None]
    assert refused
    assert all(busy.retry_after for busy in refused)
