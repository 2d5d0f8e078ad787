"""Kept user states: whatever is asked in whatever order, they are what computing anew gives."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_lime import EXACT, shaken
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError
from limerank.models import RANKERS, build_ranker
from limerank.models.incremental import Events
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.serve.requests import Asked, Event, RequestReader
from limerank.serve.states import StateCounts, UserSource, UserStates
from limerank.serve.states.cache import USER_OVERHEAD
from limerank.serve.states.entry import WHY, Entry, state_bytes

PLENTY = 2**28
SMALL: dict[str, Any] = {"width": 8, "embedding_width": 4, "tower_hidden": 8, "head": [8]}
ENCODINGS = ("none", "position", "recent_position", "calendar", "age")
FORMS: list[dict[str, Any]] = [
    *({"name": name, "encoding": "none"} for name in sorted(RANKERS)),
    *({"name": name, "encoding": encoding} for name in ("lime-mha", "lime-xor", "mamba") for encoding in ENCODINGS[1:]),
    {"name": "lime-mha", "context": "after", "recency": True},
    {"name": "lime-mha", "select_from": 6, "recency": True},
    {"name": "lime-mha", "coarse_links": 2, "value_norm": False},
    {"name": "lime-xor", "activation": "softmax", "context": "after", "layers": 2},
    {"name": "lime-xor", "layers": 1, "output": "concat"},
    {"name": "ttsn", "pooling": "mean", "encoding": "calendar"},
    {"name": "ttsn", "interaction": "dot"},
    {"name": "sasrec", "readout": "last", "encoding": "none"},
    {"name": "mamba", "readout": "state"},
    {"name": "hstu", "relative_bias": "position-time"},
]


def built(form: dict[str, Any], bundle: Bundle) -> UserSource:
    """The user side of a bundle whose ranker is another one, small and in fp64."""
    torch.manual_seed(2)
    fitting = RANKERS[form["name"]].options_type.model_fields
    sizes = {"heads": 2, "links": 4, "rank": 6, "positions": 9, "layers": 2, "state": 3, "recent": 5}
    options = {**SMALL, **{name: size for name, size in sizes.items() if name in fitting}, **form}
    ranker = build_ranker(options, bundle.encoders.space(), len(bundle.manifest.tasks), "test")
    shaken(ranker)
    return UserSource(str(form), ranker, RequestReader(bundle), least_events=0)


class Oracle:
    """Asks kept states and computes the same anew."""

    def __init__(self, source: UserSource, states: UserStates, *, alone: bool = True) -> None:
        self.source, self.states, self.alone = source, states, alone

    def check(self, user_id: str, device: str, events: Sequence[Event], now: int | None = None) -> str:
        asked = self.source.reader.ask(user_id, {"device": device}, events, now)
        known = self.states.knows(self.source, asked)
        found = self.states.encode(self.source, asked)
        if self.alone:  # whoever is short of time is told before what will happen
            assert known == (found.how != "computed")
        with torch.inference_mode():
            expected = self.source.ranker.encode_user(self.source.reader.inputs(asked))
        pairs = zip((*found.state.memory, found.state.head_part), (*expected.memory, expected.head_part), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, **EXACT)
        return found.how


def event(number: int, watermark: int) -> Event:
    """Something that happened: on items known and unknown, with features given and missing, some without a time."""
    features = {"clicked": number % 2} if number % 3 else {}
    return Event(f"i{number % 203}", features, None if number % 4 == 0 else watermark + 3_600_000 * number)


STEP = st.tuples(
    st.sampled_from(["u1", "u2", "nobody"]),
    st.sampled_from(["phone", "tv"]),
    st.sampled_from(["ask", "append", "append", "append", "several", "late", "change", "fewer", "later"]),
    st.integers(0, 1000),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form.values())))
@settings(max_examples=4)
@given(steps=st.lists(STEP, min_size=4, max_size=16), capacity=st.sampled_from([3_000, 30_000, PLENTY]))
def test_kept_states_equal_computed_ones(
    engine: Engine, form: dict[str, Any], steps: list[tuple[str, str, str, int]], capacity: int
) -> None:
    """Interleaved users and contexts, events in any order, full windows, late and corrected events, evictions."""
    source, watermark = source_of(form, engine.bundle), engine.bundle.manifest.watermark
    assert watermark is not None
    oracle, now = Oracle(source, UserStates(capacity)), None
    histories: dict[str, list[Event]] = {"u1": [], "u2": [], "nobody": []}
    for user, device, step, number in steps:
        events = histories[user]
        happened = event(number, watermark)
        match step:
            case "append":
                events.append(happened)
            case "several":
                events.extend(event(number + more, watermark) for more in range(number % 7))
            case "late":
                events.insert(number % (len(events) + 1), happened)
            case "change" if events:
                events[number % len(events)] = happened
            case "fewer" if events:
                del events[number % len(events)]
            case "later":
                now = watermark + 1_000_000 * number
        oracle.check(user, device, events, now)
    counts = oracle.states.counts()
    assert counts.bytes <= capacity
    assert counts.cached + counts.appended + counts.slid + counts.computed.total() == len(steps)
    assert set(counts.computed) <= set(WHY)


_SOURCES: dict[str, UserSource] = {}


def source_of(form: dict[str, Any], bundle: Bundle) -> UserSource:
    return _SOURCES.setdefault(str(form), built(form, bundle))


@cache
def clicks(count: int) -> tuple[Event, ...]:
    return tuple(Event(f"i{number}", {"clicked": 1}) for number in range(count))


def test_the_answer_says_how_the_user_state_came_about(engine: Engine) -> None:
    fresh = Engine(engine.bundle)
    fresh.stages.users.least_events = 0
    assert fresh.answer("u3").user_state == "computed"
    assert fresh.answer("u3").user_state == "cached"
    appended = fresh.answer("u3", events=clicks(1))
    assert appended.user_state == "appended"
    assert fresh.answer("u3", events=clicks(1)).user_state == "cached"
    assert fresh.answer("u3", events=clicks(30)).user_state == "computed", "all of the window is new"
    forgetful = Engine(engine.bundle, states=0)
    plain = forgetful.answer("u3", events=clicks(1))
    assert plain.user_state == forgetful.answer("u3", events=clicks(1)).user_state == "computed"
    assert plain.item_ids == appended.item_ids
    np.testing.assert_allclose(plain.probabilities, appended.probabilities, atol=1e-5)


def test_short_histories_are_read_again_unless_nothing_is_new(engine: Engine) -> None:
    """Also when a history crosses the bound, in which direction ever."""
    source = built({"name": "lime-mha", "encoding": "none"}, engine.bundle)
    source.least_events = 8
    states = UserStates(PLENTY)
    oracle = Oracle(source, states)
    lengths = (0, 0, 7, 8, 9, 9, 7, 7)
    hows = [oracle.check("nobody", "tv", clicks(length)) for length in lengths]
    assert hows == ["computed", "cached", "computed", "computed", "appended", "cached", "computed", "cached"]
    assert states.counts().computed == {"first": 1, "short": 1, "context": 1, "fewer": 1}


def test_why_a_state_was_computed_is_counted(engine: Engine) -> None:
    states = UserStates(PLENTY)
    oracle = Oracle(source_of({"name": "lime-mha", "encoding": "none"}, engine.bundle), states)
    many = list(clicks(15))
    for user, device, events in (
        ("nobody", "tv", many[:4]),  # first
        ("nobody", "tv", many[:4]),  # cached
        ("nobody", "tv", many[:6]),  # appended
        ("nobody", "phone", many[:6]),  # context
        ("nobody", "tv", many[:6]),  # cached: the other context is still there
        ("nobody", "tv", many[:5]),  # fewer
        ("nobody", "tv", [*many[:2], many[9], *many[2:5]]),  # changed: an event arrived late
        ("nobody", "tv", many[:15]),  # changed again
        ("u1", "tv", []),  # first
        ("u1", "tv", many),  # many, and the window slides over all of it
        ("u1", "tv", [*many, *many[:2]]),  # slid
    ):
        oracle.check(user, device, events)
    counts = states.counts()
    assert (counts.cached, counts.appended, counts.slid) == (2, 1, 1)
    assert counts.computed == {"first": 2, "context": 1, "fewer": 1, "changed": 2, "many": 1}


def test_events_without_a_time_happen_when_they_are_asked_for(engine: Engine) -> None:
    """So they are others when they are asked for later, and only rankers that read times care."""
    watermark = engine.bundle.manifest.watermark
    assert watermark is not None
    for form, how in (
        ({"name": "lime-mha", "context": "after", "recency": True}, "computed"),
        ({"name": "ttsn", "pooling": "mean", "encoding": "calendar"}, "computed"),
        ({"name": "ttsn", "encoding": "none"}, "cached"),
    ):
        oracle = Oracle(source_of(form, engine.bundle), UserStates(PLENTY))
        hows = [oracle.check("u1", "tv", clicks(3), watermark + hours * 3_600_000) for hours in (1, 60)]
        assert hows == ["computed", how]


def test_a_state_that_read_the_time_of_its_request_is_not_used_later(engine: Engine) -> None:
    """Ages and a relative bias for time go on while nothing happens; other states are kept."""
    watermark = engine.bundle.manifest.watermark
    assert watermark is not None
    happened = [event(1, watermark)]
    assert happened[0].time is not None
    for form, how in (
        ({"name": "lime-mha", "encoding": "age"}, "computed"),
        ({"name": "hstu", "relative_bias": "time"}, "computed"),
        ({"name": "hstu", "relative_bias": "position"}, "cached"),
    ):
        oracle = Oracle(source_of(form, engine.bundle), UserStates(PLENTY))
        hows = [oracle.check("u1", "tv", happened, watermark + days * 86_400_000) for days in (1, 1, 40)]
        assert hows == ["computed", "cached", how]


def test_rankers_without_a_window_say_why_they_read_again(engine: Engine) -> None:
    for form, why in (
        ({"name": "mamba", "encoding": "none"}, "window"),
        ({"name": "lime-mha", "encoding": "position"}, "window"),
        ({"name": "lime-mha", "encoding": "age"}, "ranker"),
        ({"name": "hstu", "encoding": "none"}, "ranker"),
    ):
        states = UserStates(PLENTY)
        oracle = Oracle(source_of(form, engine.bundle), states)
        full = list(clicks(engine.bundle.manifest.max_history))
        for events in (full, [*full, *clicks(1)]):
            oracle.check("nobody", "tv", events)
        assert states.counts().computed == {"first": 1, why: 1}


def test_bytes_are_counted_and_bound_what_is_held(engine: Engine) -> None:
    """Users asked for longest ago go first; what is held is what is counted."""
    source = source_of({"name": "lime-xor", "encoding": "none"}, engine.bundle)
    asked = source.reader.ask("u1", {"device": "tv"}, clicks(3))
    entry = Entry()
    with torch.inference_mode():
        entry.encode(source, asked)
    (kept,) = entry.kept.values()
    assert kept.reading is not None
    assert kept.context is not None
    arrays = asked.items.nbytes + asked.events.nbytes + asked.context.nbytes
    times = 0 if asked.times is None else asked.times.nbytes
    context = 8 * kept.context.numel()
    assert entry.bytes == state_bytes(kept.state) + kept.reading.bytes + context + arrays + times
    size = entry.bytes + USER_OVERHEAD
    users = [f"nobody{number}" for number in range(6)]
    states = UserStates(3 * size)
    for user in users:
        states.encode(source, source.reader.ask(user, {}, clicks(3)))
    counts = states.counts()
    assert counts.evicted == len(users) - counts.users
    assert counts.bytes <= states.capacity
    assert states.encode(source, source.reader.ask(users[-1], {}, clicks(3))).how == "cached"
    assert states.encode(source, source.reader.ask(users[0], {}, clicks(3))).how == "computed"
    states.forget(user_id=users[0])
    assert states.encode(source, source.reader.ask(users[0], {}, clicks(3))).how == "computed"
    states.forget()
    assert states.counts() == replace(states.counts(), users=0, bytes=0)
    with pytest.raises(ArgumentError, match="0 bytes hold nothing"):
        UserStates(0)


def test_a_state_that_fits_nowhere_is_used_and_not_kept(engine: Engine) -> None:
    tiny = Engine(engine.bundle, states=1)
    assert tiny.states is not None
    assert tiny.answer("u1").item_ids == tiny.answer("u1").item_ids == engine.answer("u1").item_ids
    assert tiny.states.counts() == StateCounts(computed=tiny.states.counts().computed, evicted=2)


def test_states_of_another_bundle_are_never_used(engine: Engine) -> None:
    """Engines may keep states in common; each sees those of its own bundle only."""
    other = replace(engine.bundle, manifest=engine.bundle.manifest.model_copy(update={"id": "another"}))
    states = UserStates(PLENTY)
    first, second = Engine(engine.bundle, states=states), Engine(other, states=states)
    assert [one.answer("u1").user_state for one in (first, second, first)] == ["computed", "computed", "cached"]
    states.forget(version=engine.bundle.manifest.id)
    assert [one.answer("u1").user_state for one in (first, second)] == ["computed", "cached"]


class Slow(UserSource):
    """Reading events takes long enough for other threads to come in between."""

    def events(self, asked: Asked, first: int, stop: int) -> Events:
        time.sleep(0.0005)
        return super().events(asked, first, stop)


def test_eight_threads_get_the_answers_of_one(engine: Engine) -> None:
    """Also when they ask for the same users with different histories, and states are evicted under them."""
    source = source_of({"name": "lime-mha", "encoding": "none"}, engine.bundle)
    requests = [
        (user, list(clicks(length)), device)
        for user in ("u1", "u2", "u3", "nobody")
        for length in range(8)
        for device in ("tv", "phone")
    ] * 4
    random.Random(0).shuffle(requests)
    states = UserStates(60_000)
    slow = Slow(source.version, source.ranker, source.reader, least_events=0)

    def ask(request: tuple[str, list[Event], str]) -> str:
        user, events, device = request
        return Oracle(slow, states, alone=False).check(user, device, events)

    with ThreadPoolExecutor(8) as executor:
        hows = list(executor.map(ask, requests))
    assert set(hows) == {"cached", "appended", "computed"}
    counts = states.counts()
    assert counts.cached + counts.appended + counts.slid + counts.computed.total() == len(requests)
    assert counts.bytes <= states.capacity


def test_an_error_leaves_nothing_half_changed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    source, states = built({"name": "lime-mha", "encoding": "none"}, engine.bundle), UserStates(PLENTY)
    oracle = Oracle(source, states)
    oracle.check("nobody", "tv", clicks(5))
    assert source.grows is not None

    def broken(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(source.grows, "finish", broken)
        with pytest.raises(MemoryError):
            oracle.check("nobody", "tv", clicks(6))
        with pytest.raises(MemoryError):
            oracle.check("u1", "tv", clicks(1))
    assert (states.counts().users, states.counts().bytes) == (0, 0)  # nor users without a size, who would stay for ever
    assert oracle.check("nobody", "tv", clicks(6)) == "computed"


def test_states_are_approximate_only_where_that_was_asked_for(tmp_path: Path, dataset: StoredDataset) -> None:
    """LIME-XOR with a budget says so, is near the exact answer, and shares no state with an exact engine."""
    torch.manual_seed(0)
    model = {"name": "lime-xor", "links": 4}
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "model").eval()
    bundle = export(ranker, model, dataset, tmp_path, max_history=50)
    states = UserStates(2**24)
    with Engine(bundle, states=states, stale_budget=0.5) as stale, Engine(bundle, states=states) as exact:
        for engine in (stale, exact):
            engine.stages.users.least_events = 0
        for count in range(3):
            found, expected = (engine.answer("u3", events=clicks(count)) for engine in (stale, exact))
            assert found.user_state == ("approximate" if count else "computed")
            assert expected.user_state == ("appended" if count else "computed")
            rows = [np.argsort(one.item_ids) for one in (found, expected)]
            np.testing.assert_allclose(
                found.probabilities[rows[0]], expected.probabilities[rows[1]], atol=0.05 if count else 1e-6
            )
    with pytest.raises(ArgumentError, match="stale_budget"):
        Engine(bundle, stale_budget=0.0)
