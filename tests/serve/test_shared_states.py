"""States that servers share: a name for everything a state depends on, and bytes that come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bundled import chance_bundle
from hypothesis import given
from hypothesis import strategies as st

from limerank.data.store.dataset import StoredDataset
from limerank.models import UserState, build_ranker
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.serve.overlay.items import Item
from limerank.serve.requests import Event, RequestReader
from limerank.serve.states import UserSource, UserStates
from limerank.serve.states.shared import LARGEST, name_of, packed, unpacked

BUNDLE_EVENTS = 4


class Shelf:
    """A place that several engines share, in this process."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, bytes], bytes] = {}
        self.asked = self.offered = 0

    def find(self, user_id: str, name: bytes) -> UserState | None:
        self.asked += 1
        found = self.held.get((user_id, name))
        return None if found is None else unpacked(found)

    def keep(self, user_id: str, token: bytes, name: bytes, state: UserState) -> None:
        self.offered += 1
        data = packed(state)
        if data is not None:
            self.held[user_id, name] = data


def sharing(engine: Engine, shelf: Shelf, **options: Any) -> Engine:
    """Another engine on the same bundle, that takes short histories for long ones."""
    other = Engine(engine.bundle, threads=1, histories=None, **options)
    other.stages.shared = shelf
    other.stages.users.least_events = BUNDLE_EVENTS
    return other


def source(engine: Engine, version: str | None = None, **options: Any) -> UserSource:
    bundle = engine.bundle
    return UserSource(version or bundle.manifest.id, bundle.ranker, RequestReader(bundle), least_events=4, **options)


def event(engine: Engine, number: int, item: str = "i3", **features: Any) -> Event:
    assert engine.bundle.manifest.watermark is not None
    return Event(item, features, engine.bundle.manifest.watermark + number)


def test_a_name_depends_on_everything_a_state_does(engine: Engine) -> None:
    of = source(engine)

    def named(user: str = "u1", device: str = "phone", events: tuple[Event, ...] = ()) -> bytes:
        found = name_of(of, of.reader.ask(user, {"device": device}, events))
        assert found is not None
        return found

    clicked = (event(engine, 1, clicked=1),)
    others = [
        named(),
        named("u2"),
        named(device="tv"),
        named(events=clicked),
        named(events=(event(engine, 1, clicked=0),)),
        named(events=(event(engine, 1, "i4", clicked=1),)),
        named(events=(*clicked, *clicked)),
    ]
    assert len(set(others)) == len(others)
    assert named(events=clicked) == named(events=(event(engine, 1, clicked=1),)), "the same on every server"
    assert all(len(one) == 32 for one in others)


def test_what_another_server_could_mean_otherwise_has_no_name(engine: Engine) -> None:
    """Items of an overlay, approximations, another bundle; and short histories, which are not worth it."""
    of = source(engine)
    asked = of.reader.ask("u1", {"device": "phone"})
    assert name_of(of, asked) is not None
    assert name_of(of.of_version(f"{of.version}/overlay/3"), asked) is None
    assert name_of(of.of_version(f"{of.version}/stale 0.1"), asked) is None
    of.least_events = asked.count + 1
    assert name_of(of, asked) is None


@given(numbers=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 99), damaged=st.booleans())
def test_bytes_come_back_as_they_were(numbers: list[int], seed: int, damaged: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory = tuple(torch.randn(1, number, 3, generator=generator).transpose(1, 2) for number in numbers)
    state = UserState(memory, torch.randn(1, 7, generator=generator))
    data = packed(state)
    assert data is not None
    if damaged:
        place = seed % len(data)
        assert unpacked(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None
        return
    back = unpacked(data)
    assert back is not None
    assert len(back.memory) == len(memory)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(back.memory, memory, strict=True))
    assert torch.equal(back.head_part, state.head_part)


def test_states_that_are_no_few_numbers_stay() -> None:
    """A skyline's state is its history."""
    head = torch.zeros(1, 4)
    assert packed(UserState((torch.zeros(3, 2),), head, offsets=torch.tensor([0, 3]))) is None
    assert packed(UserState((torch.zeros(LARGEST // 4 + 1),), head)) is None
    assert unpacked(b"") is None


def test_a_second_engine_finds_what_the_first_computed(engine: Engine) -> None:
    """The same bits, without reading the history; a new event is somebody's turn again."""
    shelf = Shelf()
    one, two = sharing(engine, shelf), sharing(engine, shelf)
    context = {"device": "phone"}
    first = one.answer("u1", context=context)
    assert first.user_state == "computed"
    second = two.answer("u1", context=context)
    assert second.user_state == "cached"
    assert second.item_ids == first.item_ids
    assert (second.probabilities == first.probabilities).all()
    assert two.states is not None
    assert (two.states.counts().shared, two.states.counts().cached) == (1, 0)
    two.answer("u1", context=context)
    assert two.states.counts().cached == 1, "now it is its own"
    happened = [event(engine, 5, clicked=1)]
    assert one.answer("u1", events=happened, context=context).user_state == "appended"
    assert two.answer("u1", events=happened, context=context).user_state == "cached"
    assert two.answer("u1", events=2 * happened, context=context).user_state == "computed"
    assert two.answer("u1", context={"device": "tv"}).user_state == "computed"
    held = len(shelf.held)
    assert one.answer("u1", history=happened * 9, context=context).user_state == "computed"
    assert len(shelf.held) == held, "a history that came with the request is nobody's"


def test_new_items_and_approximations_are_not_shared(dataset: StoredDataset, tmp_path: Any) -> None:
    shelf = Shelf()
    bundle = chance_bundle("lime-xor", dataset, tmp_path / "store")
    with Engine(bundle, threads=1) as live:
        live.upsert([Item("brand-new", {"topic": "topic1", "creator": None, "duration_s": None, "tags": []})])
        live.stages.shared, live.stages.users.least_events = shelf, BUNDLE_EVENTS
        live.answer("u1", events=[Event("brand-new")])
        assert not shelf.held
        stale = sharing(live, shelf, stale_budget=0.1)
        stale.answer("u1")
        assert not shelf.held
        live.answer("u1")
        assert len(shelf.held) == 1


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "ttsn", "mha", "hstu", "sasrec"])
def test_rankers_of_every_kind(dataset: StoredDataset, tmp_path: Any, name: str) -> None:
    """Those whose state is a few numbers share it, skylines do not, and no answer differs."""
    bundle, shelf = chance_bundle(name, dataset, tmp_path / "store"), Shelf()
    with Engine(bundle, threads=1) as engine:
        answers = [sharing(engine, shelf).answer("u1", limit=50) for _ in range(2)]
    jagged = name in ("mha", "hstu", "sasrec")
    if jagged:
        assert (shelf.asked, shelf.offered) == (0, 0), "nothing to be found is not looked for"
    assert [one.user_state for one in answers] == ["computed", "computed" if jagged else "cached"]
    assert bool(shelf.held) == (not jagged)
    assert answers[0].item_ids == answers[1].item_ids
    assert (answers[0].probabilities == answers[1].probabilities).all()


def test_a_deadline_uses_what_another_server_left(engine: Engine) -> None:
    """After a restart there is no time to read a long history, and the whole state is a question away."""
    shelf = Shelf()
    one, two = sharing(engine, shelf), sharing(engine, shelf)
    whole = one.answer("u1", limit=5)
    two.stages.cost.observe(whole.history_used, 10_000.0)  # as if that took ten seconds
    answer = two.answer("u1", limit=5, deadline_ms=2_000)
    assert (answer.user_state, answer.degraded, answer.history_used) == ("cached", [], whole.history_used)
    assert (answer.probabilities == whole.probabilities).all()
    other = two.answer("u2", limit=5, deadline_ms=2_000)
    assert other.degraded, "of whom nobody left anything"


def test_another_version_computes_for_itself(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user stage computes may change with it."""
    shelf = Shelf()
    sharing(engine, shelf).answer("u1")
    monkeypatch.setattr("limerank.serve.states.shared.__version__", "99.0")
    assert sharing(engine, shelf).answer("u1").user_state == "computed"


def test_who_reads_the_time_of_the_request_has_nothing_to_share(dataset: StoredDataset, tmp_path: Any) -> None:
    model = {"name": "lime-mha", "encoding": "age"}
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    bundle, shelf = export(ranker, model, dataset, tmp_path / "store", max_history=20), Shelf()
    with Engine(bundle, threads=1, histories=None) as engine:
        sharing(engine, shelf).answer("u1")
    assert (shelf.asked, shelf.offered) == (0, 0)


def test_states_that_are_shared_are_kept_by_count(engine: Engine) -> None:
    """A state that another server made takes room like any other."""
    shelf = Shelf()
    sharing(engine, shelf).answer("u1")
    other = sharing(engine, shelf)
    assert other.answer("u1").user_state == "cached"
    assert isinstance(other.states, UserStates)
    assert other.states.counts().bytes > 0
