"""The latency study: what is timed is what is served, rows are complete, and what follows from rows is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calling import answer, refusal

from limerank.api.dataset import Dataset
from limerank.batch import Candidates, RequestBatch
from limerank.bench.engine.made_up_store import made_up_dataset, user_with
from limerank.bench.train.results import Spread
from limerank.errors import ConflictError, UsageError
from limerank.progress import Progress
from limerank.study.latency import run as running
from limerank.study.latency.floors import Shape, Work, interact_work, user_work
from limerank.study.latency.goals import CORNERS, are_for, judge
from limerank.study.latency.measure import measure_point, take_turns
from limerank.study.latency.page import fill
from limerank.study.latency.ratios import exponent, growth, ratios, slower
from limerank.study.latency.results import LatencyRow, LatencyStudy, MachinePeaks, Ratio, Slower
from limerank.study.latency.run import run_latency, summarize
from limerank.study.latency.served import (
    Contestant,
    Timed,
    export_untrained,
    interactions,
    open_contestants,
    some_names,
)
from limerank.study.latency.sweeps import AGAINST, MODELS, Plan, Sweep, doubling, quick_plan
from limerank.study.paper_latency import ARCHITECTURES, PAPER_MS, paper_ratio
from limerank.study.results import Made, write_study

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The quick mode of the command, as a user types it, with a ranker that has no formula and no QK width too."""
    out = tmp_path_factory.mktemp("latency")
    return answer("study", "latency", "--quick", "--models", ",".join((*MODELS, "ttsn")), "--out", out), out / "quick"


def row(model: str, sweep: Sweep = "history", **given: Any) -> LatencyRow:
    """A row with made-up figures."""
    values = {
        **{"candidates": 1024, "history": 1024, "qk": 256, "head": True, "threads": 1, "threading": "workers"},
        **{"user_state": "computed", "path": "folded", "user_ms": 1.0, "interact_ms": 2.0, "total_ms": 4.0},
        **{"rounds": 3, "user_floor_ms": 0.1, "interact_floor_ms": 0.1, **given},
    }
    spread = Spread.of([values["total_ms"] / 1000])
    return LatencyRow(sweep=sweep, model=model, spread=spread, **values)


def test_every_ranker_has_a_finite_row_at_every_size(finished: tuple[dict[str, Any], Path]) -> None:
    facts, _ = finished
    plan = quick_plan((*MODELS, "ttsn"))
    seen = {(r["sweep"], r["model"], r["candidates"], r["history"], r["qk"], r["head"]) for r in facts["rows"]}
    for point in plan.points:
        for model in plan.models:
            known = plan.model_section(model, point.qk) is not None
            for head in (True,) if point.whole_catalog else (True, False):
                key = (point.sweep, model, point.candidates, point.history, point.qk, head)
                assert (key in seen) is known, key
    for one in facts["rows"]:
        for name in ("user_ms", "interact_ms", "total_ms", "user_floor_ms", "interact_floor_ms"):
            assert math.isfinite(one[name]), one
        assert one["user_ms"] > 0
        assert one["total_ms"] > one["interact_ms"] > 0
    assert any("ttsn" in caveat for caveat in facts["caveats"])
    assert {peak["threads"] for peak in facts["peaks"]} == {1}
    cached = [r for r in facts["rows"] if r["user_state"] == "cached"]
    assert {r["model"] for r in cached} >= {"lime-mha", "lime-xor"}
    assert {r["history"] for r in cached} == {256}


def test_ratios_are_those_of_the_rows(finished: tuple[dict[str, Any], Path]) -> None:
    facts, _ = finished
    assert {(r["lime"], r["skyline"]) for r in facts["ratios"]} == set(AGAINST.items())
    assert {r["sweep"] for r in facts["ratios"]} == {"candidates", "history", "qk", "catalog", "corner"}
    same = ("sweep", "candidates", "history", "qk", "head", "threads")
    for ratio in facts["ratios"]:
        own = [r for r in facts["rows"] if all(r[name] == ratio[name] for name in same)]
        total = {(r["model"], r["user_state"]): r["total_ms"] for r in own}
        lime, skyline = (ratio["lime"], ratio["lime_state"]), (ratio["skyline"], ratio["skyline_state"])
        assert ratio["ratio"] == pytest.approx(total[skyline] / total[lime])


def test_the_page_says_it_all(finished: tuple[dict[str, Any], Path]) -> None:
    facts, out = finished
    page = (out / "latency.html").read_text()
    for words in ("Where LIME is slower", "How many times faster", "the machine", "paper", "Quick mode"):
        assert words in page
    assert facts["page"] == str(out / "latency.html")
    assert page.count("<svg") >= 8


def test_a_study_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is measured once; a finished study measures nothing again, another commit is refused."""
    plan = Plan(
        models=("lime-mha",), candidates=(8, 16), histories=(8,), qk_widths=(), base_candidates=8, base_history=8,
        width=8, heads=2, links=2, head=4, repeats=1, extras=False,
    )  # fmt: skip
    monkeypatch.setattr("limerank.study.latency.kept.revision", lambda: "one commit")
    measured: list[str] = []
    stop_after = 2

    def until_stopped(point: Any, *others: Any) -> list[LatencyRow]:
        if len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(point.key(1))
        return measure_point(point, *others)

    monkeypatch.setattr(running, "measure_point", until_stopped)
    with pytest.raises(BaseException, match="goes on from there"):
        run_latency(plan, tmp_path, QUIET)
    stop_after = 100
    result = run_latency(plan, tmp_path, QUIET)
    assert measured == [point.key(1) for point in plan.points]
    assert [r.candidates for r in result.rows] == [8, 16, 8]
    assert run_latency(plan, tmp_path, QUIET).rows == result.rows
    assert len(measured) == 3
    monkeypatch.setattr("limerank.study.latency.kept.revision", lambda: "another commit")
    with pytest.raises(ConflictError, match=r"another revision .*--overwrite"):
        run_latency(plan, tmp_path, QUIET)
    assert len(run_latency(plan, tmp_path, QUIET, overwrite=True).rows) == 3
    assert len(measured) == 6


def test_goals_are_judged_by_the_rows() -> None:
    """Rows that reach every goal exactly do; a skyline a little faster misses them all."""

    def rows(times: float) -> list[LatencyRow]:
        found = []
        for one in CORNERS:
            sweep: Sweep = "qk" if one.qk else "corner"
            if one.qk is None and 1024 in (one.candidates, one.history):
                sweep = "history" if one.candidates == 1024 else "candidates"
            size = {"candidates": one.candidates, "history": one.history, "qk": one.qk or 256}
            found.append(row(one.lime, sweep, user_state=one.state, **size, total_ms=1000 / one.least))
            if one.state == "computed":
                found.append(row(AGAINST[one.lime], sweep, **size, total_ms=1000 * times))
        return found

    for times, reached in ((1.001, True), (0.999, False)):
        goals = judge(ratios(rows(times)), [])
        assert len(goals) == len(CORNERS) == 9
        assert {goal.reached for goal in goals} == {reached}
    assert judge(ratios([row("lime-mha", candidates=16), row("mha", candidates=16)]), []) == []


def test_goals_are_for_the_papers_sizes_only() -> None:
    """A narrow ranker has other ratios; it neither reaches the goals nor misses them."""
    assert are_for(Plan())
    assert not are_for(replace(Plan(), width=128, qk_widths=(128,)))
    assert not are_for(quick_plan())


def test_the_same_goal_is_judged_for_both_ways_to_ask() -> None:
    size = {"candidates": 32_768, "history": 1024}
    asked: dict[Sweep, float] = {"candidates": 4.0, "catalog": 1.0}
    found = [
        row(model, sweep, **size, total_ms=ms)
        for sweep, lime_ms in asked.items()
        for model, ms in (("lime-mha", lime_ms), ("mha", 100.0))
    ]
    named, whole = judge(ratios(found), [])
    assert "named candidates" in named.name
    assert not named.reached
    assert "whole catalog" in whole.name
    assert whole.reached


@pytest.mark.parametrize(("lime", "hstu", "reached"), [(1.05, 1.8, True), (1.2, 1.6, False)])
def test_growth_is_part_of_the_goals(lime: float, hstu: float, reached: bool) -> None:
    rows = [
        row(model, history=n, candidates=1024, user_ms=t, interact_ms=n ** (0.01 if reached else 0.2), total_ms=t)
        for model, power in (("lime-xor", lime), ("hstu", hstu))
        for n in doubling(16, 16_384)
        for t in ((n / 16) ** power,)
    ]
    found = {(one.model, one.what): one for one in growth(rows)}
    assert found["hstu", "total"].exponent == pytest.approx(hstu)
    assert (found["hstu", "total"].first, found["hstu", "total"].last) == (4096, 16_384)
    goals = judge([], list(found.values()))
    assert len(goals) == 3
    assert {goal.reached for goal in goals} == {reached}


def test_growth_that_gets_steeper_shows_in_the_last_step() -> None:
    """N + N^2 / 10,000, in whatever order sizes were measured: steeper in the last doubling than over both."""
    times = {n: n + n**2 / 10_000 for n in (16_384, 4096, 8192)}
    rows = [row("hstu", history=n, candidates=1024, user_ms=t, interact_ms=1.0, total_ms=t) for n, t in times.items()]
    found = {one.what: one for one in growth(rows)}
    assert found["total"].last_step == pytest.approx(np.log2(times[16_384] / times[8192]))
    steeper = found["total"].last_step
    assert steeper is not None
    assert steeper > found["total"].exponent + 0.05
    assert found["interact"].last_step == pytest.approx(0)


def test_exponents_of_known_growth() -> None:
    sizes = doubling(16, 32_768)
    assert (sizes[0], sizes[-1], len(sizes)) == (16, 32_768, 12)
    assert exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * len(sizes)) == pytest.approx(0)


def test_where_lime_is_slower_is_found() -> None:
    rows = [row("lime-mha", total_ms=2.0), row("mha", total_ms=1.5), row("lime-xor", total_ms=2.0)]
    rows += [row("hstu", total_ms=9.0), row("mha", history=64, total_ms=0.1)]
    (one,) = slower(rows)
    assert (one.lime, one.skyline, one.lime_ms, one.skyline_ms, one.head) == ("lime-mha", "mha", 2.0, 1.5, True)
    alone = [row("lime-mha", total_ms=2.0, head=False), row("mha", total_ms=1.9, head=False), row("hstu", total_ms=9.0)]
    assert [(found.lime, found.head, found.skyline_ms) for found in slower([*alone, *rows])] == [
        ("lime-mha", True, 1.5),
        ("lime-mha", False, 1.9),
    ]
    assert Slower.model_validate(one.model_dump(exclude={"head"})).head, "files of before"


def test_the_paper_stands_beside_computed_states_only() -> None:
    """It measured no cached one: 6.3x is of both computed."""
    rows = [row(name, sweep="history", history=16_384, total_ms=2.0) for name in ("lime-mha", "mha")]
    rows += [row("lime-mha", sweep="history", history=16_384, total_ms=1.0, user_state="cached")]
    found = {(one.lime_state, one.skyline_state): one.paper for one in ratios(rows)}
    assert found == {("computed", "computed"): pytest.approx(8.55 / 1.36), ("cached", "computed"): None}
    (cached,) = [one for one in ratios(rows) if one.lime_state == "cached"]
    assert Ratio.model_validate({**cached.model_dump(), "paper": 6.3}).paper is None, "files of before"


def test_the_papers_table() -> None:
    """Milliseconds, and the ratios that its own numbers give: 8.2, 5.5, 6.3, 19.6 and 4.4, not 10."""
    assert [len(PAPER_MS[sweep]) for sweep in ("candidates", "history", "qk")] == [12, 11, 9]
    printed = [("candidates", 32_768, 8.2, 5.5), ("history", 16_384, 6.3, 19.6), ("qk", 4_096, 4.4, 4.4)]
    for sweep, size, mha, hstu in printed:
        assert paper_ratio(sweep, size, "mha", "lime-mha") == pytest.approx(mha, abs=0.06)
        assert paper_ratio(sweep, size, "hstu", "lime-xor") == pytest.approx(hstu, abs=0.06)
    assert paper_ratio("candidates", 17, "mha", "lime-mha") is None
    assert paper_ratio("corner", 16_384, "mha", "lime-mha") is None
    assert {name for one in ARCHITECTURES for name in one.rankers} == {"hstu", "sim", "twin", "ttsn", *AGAINST}


def test_floors_count_what_the_formulas_say() -> None:
    """At the paper's industrial sizes (research notes, 4.2 and 4.4): 33k FLOP per cached event, 24.7k a candidate."""
    shape = Shape(1, 1, width=256, qk=256, heads=4, links=32, hidden=96, layers=3, row_bytes=448)
    pool, scored = user_work("lime-mha", shape), interact_work("lime-mha", shape, head=True)
    assert pool is not None
    assert scored is not None
    assert pool.flops == 32_768
    assert scored.flops == 24_576 + 192
    events = [user_work("lime-xor", replace(shape, history=n)) for n in (1, 2)]
    assert events[0] is not None
    assert events[1] is not None
    assert events[1].flops - events[0].flops == pytest.approx(1_081_000, rel=0.01)
    assert user_work("ttsn", shape) is None
    assert Work(2e9, 1e9).least_ms(MachinePeaks(threads=1, gemm_gflops=100, copy_gbytes_per_second=20)) == 50


def test_turns_are_taken_in_rounds_and_the_better_way_counts() -> None:
    """What takes seconds is asked less often, and its first answer counts; of two ways the faster one is reported."""
    order: list[str] = []

    def taking(name: str, ms: float) -> Callable[[], Timed]:
        return lambda: order.append(name) or Timed(1, 1, ms, "plain", "computed")  # type: ignore[func-returns-value]

    def contestant(model: str, threading: Any) -> Contestant:
        return Contestant(model, None, threading)  # type: ignore[arg-type]

    group = [
        (contestant("a", "workers"), taking("a", 30.0)),
        (contestant("a", "torch"), taking("a torch", 25.0)),
        (contestant("b", "workers"), taking("b", 9_000.0)),
        (contestant("b", "torch"), taking("b torch", 9_500.0)),
        (contestant("c", "workers"), taking("c", 1.0)),
    ]
    found = take_turns(group, repeats=3)
    assert {model: (one.threading, len(answers)) for model, (one, answers) in found.items()} == {
        "a": ("torch", 3),
        "b": ("workers", 2),
        "c": ("workers", 15),
    }
    before = ["a", "a", "a torch", "a torch", "b", "b torch", "c", "c"]  # a cold call alone tells nothing
    assert order[:12] == [*before, "a", "a torch", "b", "c"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Fifty items, and a user with forty events."""
    return made_up_dataset(tmp_path_factory.mktemp("made-up") / "data", 50, [40])


def test_candidates_of_a_sweep_are_named_at_its_last_size_too(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for all items, an engine looks up no name: such a request is no point of the same curve."""
    plan = replace(quick_plan(["ttsn"]), candidates=(8, 50), base_candidates=8, base_history=40, histories=(40,))
    section = plan.model_section("ttsn", plan.width)
    assert section is not None
    bundle = export_untrained(dataset, section, tmp_path / "store")
    asked: dict[str, list[int | None]] = {}

    def ask(one: Contestant, history: int, names: list[str] | None) -> Timed:
        asked.setdefault(sweep, []).append(None if names is None else len(set(names)))
        return Timed(1, 1, 3, "plain", "computed")

    monkeypatch.setattr(Contestant, "ask", ask)
    peaks = MachinePeaks(threads=1, gemm_gflops=100, copy_gbytes_per_second=20)
    with open_contestants({"ttsn": bundle}, 1) as contestants:
        for point in plan.base_points():
            sweep = point.sweep
            measure_point(point, contestants(), replace(plan, extras=False), 1, peaks)
    assert set(asked["candidates"]) == {8, 50}
    assert set(asked["catalog"]) == set(asked["corner"]) == {None}
    assert len(some_names(bundle, 50)) == 50
    sizes = [(point.sweep, point.candidates) for point in Plan().base_points() if point.whole_catalog]
    assert sizes == [("catalog", 32_768), ("corner", 32_768)]


@pytest.mark.parametrize(
    ("model", "qk"),
    [("lime-mha", 32), ("lime-mha", 256), ("lime-xor", 32), ("lime-xor", 64), ("mha", 64), ("hstu", 64), ("sim", 32)],
)
def test_what_is_timed_is_what_was_trained(model: str, qk: int, dataset: Dataset, tmp_path: Path) -> None:
    """The engine's probabilities are those of `Ranker.forward`, and the interactions without the head are its own."""
    section = quick_plan().model_section(model, qk)
    assert section is not None
    bundle = export_untrained(dataset, section, tmp_path / "store")
    with open_contestants({model: bundle}, 2) as contestants, torch.inference_mode():
        for one in contestants():
            engine, ranker = one.engine, one.engine.ranker
            inputs, known = engine.user_inputs(user_with(40), {})
            assert known
            rows = torch.arange(1, bundle.manifest.items)
            offsets = torch.tensor([0, len(rows)])
            batch = RequestBatch(inputs, Candidates(bundle.item_table, rows, offsets), torch.zeros(len(rows), 1))
            expected = torch.sigmoid(ranker(batch))[:, 0]
            ranking = engine.answer(user_with(40))
            served = dict(zip(ranking.item_ids, ranking.probabilities[:, 0].tolist(), strict=True))
            names = bundle.item_ids.names_of(rows.numpy())
            assert [served[name] for name in names] == pytest.approx(expected.tolist(), abs=2e-3)
            kept: list[torch.Tensor] = []
            interactions(engine, one.state(40), rows, kept)
            user, items = ranker.encode_user(inputs), ranker.encode_items(bundle.item_table).take(rows)
            own = ranker.interact(user, items, offsets)
            assert torch.allclose(torch.cat(kept), own, atol=5e-3 * float(own.abs().max()))


def test_the_command_refuses_what_cannot_be_measured(tmp_path: Path) -> None:
    assert "cannot be split" in refusal(2, "study", "latency", "--qk", "6", "--out", tmp_path)
    assert "--history" in refusal(2, "study", "latency", "--history", "0", "--out", tmp_path)
    assert "did you mean 'mha'" in refusal(2, "study", "latency", "--models", "mhaa", "--out", tmp_path)
    with pytest.raises(UsageError, match="4 heads"):
        Plan(width=30)


def test_more_threads_than_cores_are_told(finished: tuple[dict[str, Any], Path]) -> None:
    facts, _ = finished
    made = Made.model_validate(facts["made"])
    for threads, told in (((1,), False), ((1, 4096), True)):
        plan = replace(quick_plan(MODELS), threads=threads)
        found = summarize(plan, [row("mha")], [], made, (0.5, 0.5, 0.5)).caveats
        assert any("Threads 4096: more than there are cores" in caveat for caveat in found) is told


def test_a_study_without_skylines_has_a_page(tmp_path: Path, finished: tuple[dict[str, Any], Path]) -> None:
    """No ratios, nothing slower, no goals: the page says so and is not empty."""
    facts, _ = finished
    rows = [one for one in facts["rows"] if one["model"] == "ttsn"]
    empty = {"rows": rows, "ratios": [], "growth": [], "slower": [], "goals": [], "models": ["ttsn"]}
    result = LatencyStudy.model_validate({**{k: v for k, v in facts.items() if k not in ("result", "report")}, **empty})
    _, page = write_study(result, tmp_path, fill, "latency")
    assert "At no size that was measured" in page.read_text()
