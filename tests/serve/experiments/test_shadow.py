"""Shadows: they agree where they should, take only what is left over, and harm nobody."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from limerank.api.run import Run
from limerank.errors import BundleError
from limerank.serve.engine import Engine
from limerank.serve.experiments.agreement import Agreement, agreement, kendall_tau, overlap
from limerank.serve.experiments.log import RankingLog
from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.routing import Routing, Shadow
from limerank.serve.experiments.shadow import Shadows
from limerank.serve.ranking import Ranking


@dataclass(frozen=True)
class Lent:
    engine: Engine


class SmallHost:
    """Engines by bundle, as a host lends them."""

    def __init__(self, engines: dict[str, Engine], sample: float = 1.0) -> None:
        self.engines = engines
        self.routing = Routing(shadows=tuple(Shadow(bundle=bundle, sample=sample) for bundle in engines))

    @contextmanager
    def lease(self, user_id: str | None = None, bundle: str | None = None) -> Iterator[Lent]:
        if bundle not in self.engines:
            raise BundleError(f"bundle '{bundle}' is not served")
        yield Lent(self.engines[bundle])


@pytest.fixture(scope="module")
def other(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The same catalog, another ranker."""
    folder = tmp_path_factory.mktemp("shadow") / "store"
    runs["ttsn"].publish(folder, quiet=True)
    return Engine.open(folder)


def ranked(engine: Engine) -> Ranking:
    return engine.answer("u1", limit=120)


def test_two_engines_are_compared(engine: Engine, other: Engine, tmp_path: Path) -> None:
    """Against the same numbers computed the long way; the log and the metrics are told them."""
    told: list[tuple[str, Agreement, float]] = []
    log = RankingLog.open(tmp_path)
    shadow_id = other.bundle.manifest.id
    host = SmallHost({shadow_id: other})
    shadows = Shadows(host, log, on_agreement=lambda *values: told.append(values))
    answer, second = ranked(engine), ranked(other)
    assert shadows.consider(ranked, answer, request_id="r1", user_id="u1") == 1
    assert shadows.flush()
    shadows.close()
    log.close()
    common = set(answer.item_ids) & set(second.item_ids)
    assert 1 < len(common) < 120
    expected = Agreement(
        len(set(answer.item_ids[:10]) & set(second.item_ids[:10])) / 10,
        len(set(answer.item_ids[:100]) & set(second.item_ids[:100])) / 100,
        len(common),
        float(stats.kendalltau(*([one.item_ids.index(i) for i in common] for one in (answer, second))).statistic),
        float(np.mean([abs(score_of(answer, item) - score_of(second, item)) for item in common])),
    )
    ((bundle, found, took),) = told
    assert bundle == shadow_id
    assert took > 0
    assert (found.overlap_10, found.overlap_100, found.common) == (
        expected.overlap_10,
        expected.overlap_100,
        expected.common,
    )
    assert found.tau == pytest.approx(expected.tau)
    assert found.score_difference == pytest.approx(expected.score_difference)
    with closing(sqlite3.connect(LogFile.path_of(tmp_path))) as connection:
        ((*names, overlap_10, tau),) = connection.execute(
            "SELECT request_id, answered_by, bundle, overlap_10, tau FROM shadows"
        )
    assert names == ["r1", answer.bundle, shadow_id]
    assert (overlap_10, tau) == (found.overlap_10, found.tau)


def score_of(ranking: Ranking, item: str) -> np.ndarray:
    row: np.ndarray = ranking.probabilities[ranking.item_ids.index(item)].astype(np.float64)
    return row


def test_an_engine_agrees_with_itself(engine: Engine) -> None:
    answer = ranked(engine)
    assert agreement(answer, answer) == Agreement(1.0, 1.0, 120, 1.0, 0.0)
    backwards = replace(answer, item_ids=answer.item_ids[::-1])
    assert agreement(answer, backwards).tau == -1.0
    nothing = replace(answer, item_ids=[], probabilities=answer.probabilities[:0])
    assert agreement(answer, nothing) == Agreement(0.0, 0.0, 0, None, None)
    assert agreement(nothing, nothing) == Agreement(None, None, 0, None, None)
    strange = replace(answer, tasks=["another"])
    assert agreement(answer, strange).score_difference is None


def test_tau_is_kendalls() -> None:
    chance = np.random.default_rng(3)
    for count in (2, 3, 10, 200):
        positions = chance.permutation(count)
        expected = stats.kendalltau(np.arange(count), positions).statistic
        assert kendall_tau(positions) == pytest.approx(expected)
    assert kendall_tau(np.zeros(1, dtype=np.int64)) is None


def test_overlap_of_short_lists() -> None:
    """A shadow that finds less than the answer agrees less; a list that is short on both sides can agree wholly."""
    assert overlap(["a", "b"], ["b", "a"], 10) == 1.0
    assert overlap(["a", "b", "c", "d"], ["a"], 10) == 0.25
    assert overlap(["a", "b"], ["b", "c"], 1) == 0.0


def test_shadows_are_dropped_first(engine: Engine, other: Engine) -> None:
    """When the service is busy, when too many wait, and when it became busy meanwhile; all are counted."""
    busy = threading.Event()
    going, release = threading.Event(), threading.Event()
    answer = ranked(engine)
    shadows = Shadows(SmallHost({other.bundle.manifest.id: other}), None, idle=lambda: not busy.is_set(), waiting=2)

    def slow(lent: Engine) -> Ranking:
        going.set()
        assert release.wait(30)
        return ranked(lent)

    def consider() -> int:
        return shadows.consider(slow, answer, request_id="r", user_id="u1")

    busy.set()
    assert consider() == 0
    busy.clear()
    assert consider() == 1
    assert going.wait(30)
    assert [consider() for _ in range(4)] == [1, 1, 0, 0]
    busy.set()
    release.set()
    assert shadows.flush()
    assert (shadows.ranked, shadows.dropped, shadows.failed) == (1, 5, 0)
    shadows.close()
    busy.clear()
    assert consider() == 0


def test_requests_are_sampled(engine: Engine, other: Engine) -> None:
    """A fraction of them; never by the bundle that answered, and never when there is no shadow."""
    answer, shadow_id = ranked(engine), other.bundle.manifest.id
    shadows = Shadows(SmallHost({shadow_id: other}, 0.25), None, seed=1, waiting=5000)
    taken = sum(shadows.consider(lambda _: answer, answer, request_id="r", user_id="u") for _ in range(2000))
    assert 430 <= taken <= 570  # 3.6 standard deviations around 500
    assert shadows.flush()
    assert shadows.ranked == taken
    assert shadows.consider(ranked, replace(answer, bundle=shadow_id), request_id="r", user_id="u") == 0
    shadows.close()
    none = Shadows(SmallHost({}), None)
    assert none.consider(ranked, answer, request_id="r", user_id="u") == 0
    assert none.flush()
    none.close()


def test_a_shadow_that_fails_is_counted(engine: Engine, other: Engine) -> None:
    """With what it said; the next one is tried all the same."""
    answer, shadow_id = ranked(engine), other.bundle.manifest.id
    shadows = Shadows(SmallHost({shadow_id: other}), None)
    shadows.consider(lambda lent: lent.answer("u1", ["i1"], task="nothing"), answer, request_id="r", user_id="u1")
    shadows.consider(lambda _: 1 // 0, answer, request_id="r", user_id="u1")  # type: ignore[arg-type, return-value]
    assert shadows.flush()
    assert f"shadow {shadow_id}" in str(shadows.problem)
    shadows.consider(ranked, answer, request_id="r", user_id="u1")
    assert shadows.flush()
    assert (shadows.ranked, shadows.failed, shadows.problem) == (1, 2, None)
    shadows.close()


def test_a_shadow_that_ends_meanwhile_is_dropped(engine: Engine, other: Engine) -> None:
    """The routing changed between the answer and the shadow's turn: that is no failure."""
    host = SmallHost({other.bundle.manifest.id: other})
    shadows, going = Shadows(host, None), threading.Event()

    def slow(lent: Engine) -> Ranking:
        assert going.wait(30)
        return ranked(lent)

    for _ in range(2):
        shadows.consider(slow, ranked(engine), request_id="r", user_id="u1")
    while shadows._background.waiting > 1:
        time.sleep(0.001)
    host.engines.clear()
    going.set()
    assert shadows.flush()
    assert (shadows.ranked, shadows.dropped, shadows.failed) == (1, 1, 0)
    shadows.close()
