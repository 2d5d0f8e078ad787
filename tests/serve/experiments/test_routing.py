"""Routing: what may be said, that files are whole, and that assignments stick, are uniform and independent."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from limerank.errors import ArgumentError, BundleError, LimerankError
from limerank.serve.bundles.store import BundleStore
from limerank.serve.experiments.routing import (
    CONTROL,
    Arm,
    Routing,
    Shadow,
    assign,
    check_bundles,
    point_of,
    ranges,
    read_routing,
    read_routings,
    write_routing,
)

USERS = 100_000
NEVER = 1e-6  # of a fixed draw: a test that fails says more than bad luck


def routing(*percents: float, experiment: str = "exp7") -> Routing:
    return Routing(
        experiment=experiment, arms=tuple(Arm(name=f"a{n}", bundle=f"b{n}", percent=p) for n, p in enumerate(percents))
    )


percents = st.lists(st.floats(0, 100), min_size=1, max_size=6).map(
    lambda parts: [part * 100 / max(100.0, sum(parts)) for part in parts]
)
users = st.lists(st.text(max_size=20), min_size=1, max_size=50)


@given(percents, users)
def test_every_user_has_one_arm_that_is_there(parts: list[float], ids: list[str]) -> None:
    """Ranges lie in [0, 1] and do not overlap; a user has the arm whose range holds its point, the same every time."""
    made = routing(*parts)
    owned = sorted((low, high) for _, low, high in ranges(made) if low < high)
    assert all(0 <= low <= high <= 1 for low, high in owned)
    assert all(high <= low for (_, high), (low, _) in pairwise(owned))
    for user in ids:
        arm = assign(made, user)
        assert arm == assign(Routing.model_validate_json(made.model_dump_json()), user)
        point = point_of("exp7", user)
        assert [arm] == [name for name, low, high in ranges(made) if low <= point < high] or arm == CONTROL


@given(percents, users, st.data())
def test_raising_an_arm_keeps_its_users(parts: list[float], ids: list[str], data: st.DataObject) -> None:
    """For any number of arms; with at most two, nobody leaves any arm: new users come from control alone."""
    chosen = data.draw(st.integers(0, len(parts) - 1))
    more = data.draw(st.floats(0, max(0.0, 100 - sum(parts))))
    raised = [part + more * (number == chosen) for number, part in enumerate(parts)]
    before, after = routing(*parts), routing(*raised)
    for user in ids:
        old, new = assign(before, user), assign(after, user)
        if old == f"a{chosen}" or (len(parts) <= 2 and old != CONTROL):
            assert new == old
        if len(parts) <= 2 and new != old:
            assert (old, new) == (CONTROL, f"a{chosen}")


@given(percents, users)
def test_adding_an_arm_at_the_end_or_emptying_one_moves_nobody_else(parts: list[float], ids: list[str]) -> None:
    """A new arm takes from control only; the last arm at 0 percent gives its users back to control."""
    before, after = routing(*parts[:-1], 0.0), routing(*parts)
    for user in ids:
        old, new = assign(before, user), assign(after, user)
        assert new in (old, f"a{len(parts) - 1}")
        assert new == old or old == CONTROL


def test_assignments_are_uniform_and_independent_between_experiments() -> None:
    """100,000 users: arms have their percents, points are uniform, and one experiment says nothing of another."""
    ids = [f"u{number}" for number in range(USERS)]
    made = routing(5.0, 20.0, 12.5)
    arms = [assign(made, user) for user in ids]
    expected = made.percents()
    counted = [arms.count(name) for name in expected]
    assert stats.chisquare(counted, [percent / 100 * USERS for percent in expected.values()]).pvalue > NEVER
    points = {name: np.array([point_of(name, user) for user in ids]) for name in ("exp7", "exp8", "7exp")}
    for own in points.values():
        assert stats.kstest(own, "uniform").pvalue > NEVER
    for first, second in (("exp7", "exp8"), ("exp7", "7exp"), ("exp8", "7exp")):
        table = np.histogram2d(points[first], points[second], bins=20, range=[[0, 1], [0, 1]])[0]
        assert stats.chi2_contingency(table).pvalue > NEVER


def test_assignments_never_change_between_versions() -> None:
    """Experiments outlive releases: these points are part of the format."""
    assert [round(point_of("exp7", user), 6) for user in ("u1", "u2", "", "Ωmega")] == [
        0.410223,
        0.320683,
        0.892748,
        0.66643,
    ]
    assert point_of("a", "bc") != point_of("ab", "c")
    assert 0 <= point_of("exp7", "\ud800") < 1  # ids may hold what UTF-8 cannot


@settings(max_examples=25)
@given(percents)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, parts: list[float]) -> None:
    store = tmp_path_factory.mktemp("store")
    assert read_routing(store) == Routing()
    written = write_routing(store, routing(*parts))
    assert written.since is not None
    assert read_routing(store) == written


def test_earlier_routings_are_remembered(tmp_path: Path) -> None:
    """With the times since which they held, each later than the one before; the same routing again changes nothing."""
    first = write_routing(tmp_path, routing(5.0))
    assert write_routing(tmp_path, routing(5.0)) == first
    second = write_routing(tmp_path, routing(50.0))
    third = write_routing(tmp_path, Routing())
    assert read_routings(tmp_path) == [first, second, third]
    times = [one.since or 0 for one in (first, second, third)]
    assert times == sorted(set(times))


def test_a_damaged_file_is_named_and_can_be_cleared(tmp_path: Path) -> None:
    for broken in ("", "{", "[]", '{"current": {"experiment": 5}}', '{"format": 2}', '{"extra": 1}'):
        (tmp_path / "routing.json").write_text(broken)
        with pytest.raises(BundleError, match=r"routing\.json"):
            read_routing(tmp_path)
        with pytest.raises(BundleError, match=r"routing\.json"):
            write_routing(tmp_path, routing(5.0))
        write_routing(tmp_path, Routing())
        assert read_routing(tmp_path).arms == ()


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """While one thread replaces the routing, another reads nothing but whole ones."""
    seen, done = set(), threading.Event()

    def write() -> None:
        for number in range(60):
            write_routing(tmp_path, routing(*[1.0] * (1 + number % 16)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen.add(len(read_routing(tmp_path).arms))
    writer.join()
    assert seen <= set(range(17))
    assert len(json.loads((tmp_path / "routing.json").read_text())["earlier"]) == 59


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"arms": [{"name": "new", "bundle": "b", "percent": 5}]}, "arms need an experiment"),
        ({"experiment": "e", "arms": [{"name": "control", "bundle": "b", "percent": 5}]}, "'control' is the arm of"),
        ({"experiment": "e", "arms": [{"name": "a", "bundle": "b", "percent": 5}] * 2}, "two arms have the same name"),
        ({"experiment": "e", "arms": [{"name": "a", "bundle": "b", "percent": 101}]}, "less than or equal to 100"),
        ({"experiment": "e", "arms": [{"name": "a", "bundle": "b", "percent": -1}]}, "greater than or equal to 0"),
        ({"experiment": "e", "arms": [{"name": "a", "bundle": "b", "percent": float("nan")}]}, "percent"),
        (
            {
                "experiment": "e",
                "arms": [{"name": "a", "bundle": "b", "percent": 60}, {"name": "c", "bundle": "b", "percent": 41}],
            },
            "101 percent together",
        ),
        ({"experiment": "a b"}, "pattern"),
        ({"experiment": "x" * 65}, "at most 64"),
        ({"experiment": "e\n"}, "pattern"),
        ({"shadows": [{"bundle": "b", "sample": 0}]}, "greater than 0"),
        ({"shadows": [{"bundle": "b", "sample": 0.1}] * 2}, "two shadows have the same bundle"),
        ({"shadow": []}, "did you mean 'shadows'"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, object], said: str) -> None:
    """In one line that names the key."""
    with pytest.raises(ArgumentError, match=said) as refused:
        Routing(**values)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_bundles_must_be_in_the_store(store: Path) -> None:
    opened = BundleStore.open(store)
    current = opened.current_id()
    assert current is not None
    check_bundles(opened, Routing(experiment="e", arms=(Arm(name="same", bundle=current, percent=5.0),)))
    for bundle in ("../..", "nowhere", f"{current}.unfinished"):
        with pytest.raises(LimerankError, match="no bundle"):
            check_bundles(opened, Routing(shadows=(Shadow(bundle=bundle, sample=0.1),)))


def test_which_bundles_have_to_be_served() -> None:
    """Those of arms that have users, and shadows; and rankings are logged while any of it runs."""
    shadows = (Shadow(bundle="b0", sample=0.1), Shadow(bundle="b9", sample=1.0))
    made = routing(5.0, 0.0).model_copy(update={"shadows": shadows})
    assert made.bundles() == ["b0", "b9"]
    assert made.bundle_of("a1") == "b1"
    assert made.bundle_of(CONTROL) is None
    assert made.percents() == {CONTROL: 95.0, "a0": 5.0, "a1": 0.0}
    assert made.is_logged
    assert Routing(shadows=shadows).is_logged
    assert not Routing().is_logged
