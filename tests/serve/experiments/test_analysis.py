"""What `limerank ab` computes: exact on logs whose truth is known, and honest about what it cannot know."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from logged import EXPERIMENT, Made, impression, later, routed, simulated

from limerank.errors import DataError
from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.outcome.analysis import analyse
from limerank.serve.experiments.outcome.result import AbResult, Comparison
from limerank.serve.experiments.outcome.shown import overlap_of_counts
from limerank.serve.experiments.records import RankingRecord, ShadowRecord
from limerank.serve.experiments.routing import CONTROL, Arm, Routing, Shadow, assign, write_routing
from limerank.serve.histories.past import Happened


def of(result: AbResult, what: str, kind: str | None = "click") -> Comparison:
    (found,) = [one for one in result.comparisons if (one.what, one.type) == (what, kind)]
    return found


def users_of(routing: Routing, arm: str, count: int) -> list[str]:
    return [user for user in (f"u{number}" for number in range(10_000)) if assign(routing, user) == arm][:count]


def ranked(user: str, request: str, arm: str | None, at: int, **others: object) -> RankingRecord:
    bundle = "b-new" if arm == "new" else "b-old"
    values = {"experiment": None if arm is None else EXPERIMENT, "arm": arm, "milliseconds": {"total": 2.0}} | others
    return RankingRecord(request, at, user, bundle, **values)  # type: ignore[arg-type]


def test_numbers_that_can_be_counted_by_hand(tmp_path: Path) -> None:
    """Two users per arm: joins by request and user, hits, values, users' own events, degraded, latency, bundles."""
    routing = routed(tmp_path)
    at = (routing.since or 0) + 10
    (a, b), (c, d) = (users_of(routing, arm, 2) for arm in ("new", CONTROL))
    made = Made()
    made.records = [
        ranked(a, "r1", "new", at),
        ranked(a, "r2", "new", at + 1, degraded=["user"], milliseconds={"total": 4.0, "user": 1.0}),
        ranked(b, "r3", "new", at),
        ranked(c, "r4", CONTROL, at),
        ranked(d, "r5", CONTROL, at),
        ranked(d, "r6", CONTROL, at),
        ranked(c, "r9", None, at),  # named its bundle: nobody assigned it
    ]
    made.events = [
        Happened(a, "i1", at + 5, type="click", request_id="r1", value=2.0),
        Happened(a, "i2", at + 6, type="click", request_id="r1", value=3.0),  # the same ranking again
        Happened(a, "i3", at + 7, type="click", request_id="r4"),  # somebody else's ranking
        Happened(b, "i1", at + 8, type="click"),  # names none
        Happened(b, "i1", at - 5, type="click"),  # before the first ranking
        Happened(c, "i1", at + 5, type="click", request_id="r4", value=1.0),
        Happened(c, "i1", at + 5, type="click", request_id="r9"),  # not part of the experiment
        Happened("stranger", "i1", at + 5, type="click", request_id="r1"),
        Happened(d, "i1", at + 5, type="buy", request_id="r6", value=10.0),
    ]
    made.write(tmp_path)
    result = analyse(tmp_path, made.since)
    assert (result.experiment, result.running, result.since) == (EXPERIMENT, True, routing.since)
    control, new = result.arms
    assert (control.name, control.percent, control.users, control.rankings) == (CONTROL, 50.0, 2, 3)
    assert (new.name, new.users, new.rankings, new.degraded, new.bundles) == ("new", 2, 3, 1, {"b-new": 3})
    assert new.milliseconds["total"].p50 == 2.0
    assert new.milliseconds["user"].p99 == 1.0
    clicks = new.events["click"]
    assert (clicks.joined, clicks.rankings_with, clicks.by_users) == (2, 1, 4)
    assert (clicks.joined_value, clicks.value_by_users) == (5.0, 5.0)
    assert (control.events["click"].joined, control.events["click"].by_users) == (1, 2)
    assert result.unknown_requests == 2
    for what, control_rate, rate in (("per ranking", 1 / 3, 2 / 3), ("rankings with", 1 / 3, 1 / 3)):
        assert of(result, what).control == pytest.approx(control_rate)
        assert of(result, what).rate == pytest.approx(rate)
    assert (of(result, "per user").control, of(result, "per user").rate) == (1.0, 2.0)
    assert of(result, "per user").relative == 1.0
    assert of(result, "value per ranking").rate == pytest.approx(5 / 3)
    assert of(result, "value per user", "buy").difference == -5.0
    assert of(result, "value per user", "buy").relative == -1.0
    assert of(result, "degraded", None).rate == pytest.approx(1 / 3)
    # by the delta method, by hand: residuals of clicks over rankings are (2 - 2/3 * 2, 0 - 2/3) and (1 - 1/3, 0 - 2/3)
    variance = ((2 / 3) ** 2 * 2) / 1 / 2 / 1.5**2
    half = 1.959964 * np.sqrt(2 * variance)
    assert of(result, "per ranking").low == pytest.approx(1 / 3 - half, rel=1e-6)
    assert of(result, "per ranking").high == pytest.approx(1 / 3 + half, rel=1e-6)
    assert any("fewer than 100 users in control, new" in warning for warning in result.warnings)


def test_clocks_of_clients_may_be_behind(tmp_path: Path) -> None:
    """An event that names its ranking belongs to it, although it seems to be older; its user is not credited again."""
    routing = routed(tmp_path)
    at, (user, *_) = (routing.since or 0) + 10, users_of(routing, "new", 1)
    made = Made([ranked(user, "r1", "new", at)], [Happened(user, "i1", at - 60_000, type="click", request_id="r1")])
    made.write(tmp_path)
    result = analyse(tmp_path, made.since)
    counts = result.arms[1].events["click"]
    assert (counts.joined, counts.rankings_with, counts.by_users, result.unknown_requests) == (1, 1, 0, 0)


def test_a_lift_is_found_and_none_where_there_is_none(tmp_path: Path) -> None:
    """The rates are those of the events; a real difference of 40 % is clear, and the arms have their users."""
    routing = routed(tmp_path, 30.0)
    made = simulated(routing, 3000, lift=1.4)
    made.write(tmp_path)
    result = analyse(tmp_path, made.since)
    arms = {f"u{number}": assign(routing, f"u{number}") for number in range(3000)}
    clicks = Counter(arms[event.user_id] for event in made.events if event.type == "click")
    rankings = Counter(record.arm for record in made.records if isinstance(record, RankingRecord))
    found = of(result, "per ranking")
    assert found.rate == clicks["new"] / rankings["new"]
    assert found.control == clicks[CONTROL] / rankings[CONTROL]
    assert found.is_clear
    assert found.difference > 0
    shown = of(result, "per ranking", "impression")
    assert (shown.rate, shown.control, shown.is_clear) == (1.0, 1.0, False)
    assert result.sample_ratio is not None
    assert result.sample_ratio.counted == {name: list(arms.values()).count(name) for name in (CONTROL, "new")}
    assert result.sample_ratio.expected == {CONTROL: pytest.approx(2100), "new": pytest.approx(900)}
    assert not result.sample_ratio.mismatch
    assert not result.warnings
    assert [arm.milliseconds["total"].p50 for arm in result.arms] == [2.0, 3.0]
    only = analyse(tmp_path, made.since, types=["click", "share"])
    assert {one.type for one in only.comparisons} == {None, "click", "share"}
    assert of(only, "per user", "share").rate == 0.0


def test_a_sample_ratio_mismatch_is_shouted(tmp_path: Path) -> None:
    """An arm that loses every fifth of its users on the way is not to be believed."""
    made = simulated(routed(tmp_path), 3000)
    kept = [
        record
        for record in made.records
        if not (isinstance(record, RankingRecord) and record.arm == "new" and int(record.user_id[1:]) % 5 == 0)
    ]
    Made(kept).write(tmp_path)
    result = analyse(tmp_path, made.since)
    assert result.sample_ratio is not None
    assert result.sample_ratio.mismatch
    assert result.sample_ratio.probability < 0.001
    assert "sample ratio mismatch" in result.warnings[0]


def test_after_a_change_only_what_follows_is_read(tmp_path: Path) -> None:
    """Raising the percent moves users: by default the time since then is read; all of it says that it mixes."""
    first = simulated(routed(tmp_path, 5.0), 400)
    later()
    second_routing = routed(tmp_path, 50.0)
    second = simulated(second_routing, 400, seed=2)
    whole = Made(first.records + second.records, first.events + second.events)
    whole.write(tmp_path)
    result = analyse(tmp_path, whole.since)
    assert result.since == second_routing.since
    assert sum(arm.rankings for arm in result.arms) == len(second.records)
    assert result.users_left_out == 0
    assert result.sample_ratio is not None
    assert any("only rankings since the last change" in warning for warning in result.warnings)
    mixed = analyse(tmp_path, whole.since, since=0)
    assert mixed.users_left_out > 100
    assert mixed.sample_ratio is None
    assert sum(arm.users for arm in mixed.arms) == 400 - mixed.users_left_out
    assert any("arms were changed 1 times" in warning for warning in mixed.warnings)
    before = analyse(tmp_path, whole.since, since=0, until=second_routing.since)
    assert sum(arm.rankings for arm in before.arms) == len(first.records)
    assert before.sample_ratio is not None
    assert before.sample_ratio.expected[CONTROL] == pytest.approx(380)


def test_who_has_not_heard_of_a_change_is_not_counted_after_it(tmp_path: Path) -> None:
    """A process may route by the old percents for a second: its rankings belong to the time before."""
    old = routed(tmp_path, 5.0)
    later()
    new = routed(tmp_path, 95.0)
    at = (new.since or 0) + 1
    user = next(user for user in users_of(new, "new", 200) if assign(old, user) == CONTROL)
    before = ranked(user, "r1", CONTROL, at, routed=old.since)
    Made([before, ranked(user, "r2", "new", at + 1, routed=new.since)]).write(tmp_path)
    result = analyse(tmp_path, lambda _: [])
    assert result.users_left_out == 0
    assert {arm.name: arm.rankings for arm in result.arms} == {CONTROL: 0, "new": 1}
    assert analyse(tmp_path, lambda _: [], since=0).users_left_out == 1


def test_shadows_and_ended_experiments_are_read(tmp_path: Path) -> None:
    """A change of shadows is no change of arms; when all is over the newest experiment is read."""
    routing = routed(tmp_path)
    made = simulated(routing, 200)
    later()
    changed = write_routing(tmp_path, routing.model_copy(update={"shadows": (Shadow(bundle="b-new", sample=0.5),)}))
    at = (changed.since or 0) + 1
    for number, overlap in enumerate((0.2, 0.4, None)):
        made.records.append(
            ShadowRecord(f"s{number}", at, "u1", "b-old", "b-new", overlap, 0.5, 10, 0.5, 0.01, 2.0, 1.0 + number)
        )
    made.write(tmp_path)
    later()
    write_routing(tmp_path, Routing())
    result = analyse(tmp_path, made.since)
    assert (result.experiment, result.running) == (EXPERIMENT, False)
    assert result.since == routing.since
    (shadow,) = result.shadows
    assert (shadow.bundle, shadow.answered_by, shadow.rankings) == ("b-new", "b-old", 3)
    assert shadow.overlap_10 == pytest.approx(0.3)
    assert (shadow.shadow_ms.p50, shadow.answer_ms.p50) == (2.0, 2.0)


def test_only_shadows(tmp_path: Path) -> None:
    """Without an experiment there are no arms, and no complaint about them."""
    write_routing(tmp_path, Routing(shadows=(Shadow(bundle="b", sample=1.0),)))
    with closing(LogFile.open(tmp_path)) as log:
        log.write([ShadowRecord("s", 2**41, "u1", "a", "b", 1.0, 1.0, 10, None, None, 2.0, 1.0)])
    result = analyse(tmp_path, lambda _: [])
    assert (result.experiment, result.arms, result.comparisons, result.warnings) == (None, [], [], [])
    assert result.shadows[0].tau is None


def test_what_arms_show(tmp_path: Path) -> None:
    """Alike arms overlap as much as control does with itself; one that shows other items does not."""
    for name, same in (("same", True), ("other", False)):
        store = tmp_path / name
        store.mkdir()
        made = simulated(routed(store, 20.0), 1500, same_items=same)
        made.write(store)
        shown = analyse(store, made.since).shown
        assert [one.depth for one in shown] == [1, 5, 10, 20]
        for one in shown:
            assert 0.75 < one.chance <= 1
            assert (abs(one.overlap - one.chance) < 0.05) == same
            assert (one.overlap < 0.01) != same
    assert overlap_of_counts(Counter(a=1, b=3), Counter(b=1, c=1)) == 0.5
    assert overlap_of_counts(Counter(), Counter(b=1)) == 0.0


def test_what_to_doubt(tmp_path: Path) -> None:
    """No events, no request ids, empty arms, and bundles that changed under an arm are said."""
    routing = routed(tmp_path)
    made = simulated(routing, 300)
    made.write(tmp_path)
    assert "no events of these users are stored" in analyse(tmp_path, lambda _: []).warnings[-1]
    nameless = [Happened("u1", "i1", (routing.since or 0) + 5, type="click")]
    assert "no event names a logged ranking" in analyse(tmp_path, lambda _: nameless).warnings[-1]
    with closing(LogFile.open(tmp_path)) as log:
        user = users_of(routing, "new", 1)[0]
        log.write([RankingRecord("x", (routing.since or 0) + 9, user, "b-old", "rank", EXPERIMENT, "new")])
    warnings = analyse(tmp_path, made.since).warnings
    assert "several bundles answered users of new: b-new, b-old" in warnings
    later()
    arms = (Arm(name="new", bundle="b-new", percent=5.0),)
    write_routing(tmp_path, Routing(experiment="nobody", arms=arms))
    empty = analyse(tmp_path, made.since)
    assert empty.experiment == "nobody"
    assert "no users in control, new" in empty.warnings
    assert empty.comparisons == []
    with pytest.raises(DataError, match=r"--experiment exp8: no such experiment was logged; did you mean 'exp7'\?"):
        analyse(tmp_path, made.since, experiment="exp8")
    assert analyse(tmp_path, made.since, experiment=EXPERIMENT).arms[0].users > 0


def test_reading_goes_through_many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come some at a time: none is lost or read twice at the seams."""
    made = simulated(routed(tmp_path), 150)
    made.write(tmp_path)
    whole = analyse(tmp_path, made.since)
    monkeypatch.setattr("limerank.serve.experiments.outcome.reading.ROWS_AT_ONCE", 7)
    assert analyse(tmp_path, made.since) == whole


def test_erased_users_are_in_no_number(tmp_path: Path) -> None:
    """Neither rankings nor events of theirs count, whatever the history store still has."""
    made = simulated(routed(tmp_path), 200)
    made.events.append(impression("u7", "i1", 2**42, "u7-0"))
    made.write(tmp_path)
    before = analyse(tmp_path, made.since)
    with closing(LogFile.open(tmp_path)) as log:
        deleted = log.erase("u7", 2**41)
    after = analyse(tmp_path, made.since)
    assert sum(arm.users for arm in after.arms) == sum(arm.users for arm in before.arms) - 1
    assert sum(arm.rankings for arm in after.arms) == sum(arm.rankings for arm in before.arms) - deleted
    shown = [sum(arm.events["impression"].by_users for arm in one.arms) for one in (before, after)]
    assert shown[0] - shown[1] == deleted + 1
