"""The whole walk on built-in data: simulate, train three rankers, export, rank, click, rank again, report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from limerank import files
from limerank.api.dataset import Dataset
from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.errors import ConflictError, require_extra
from limerank.progress import Progress
from limerank.serve.engine import Engine
from limerank.serve.ranking import Ranking
from limerank.serve.requests import Event
from limerank.study.accuracy.gaps import BASELINE, SKYLINE, gap_closed
from limerank.study.latency.direct import Latency, Peaks, compare, contestants, measure_peaks, sweep
from limerank.study.trainings import run_folder
from limerank.training.parallel import Job, train_all
from limerank.training.run import FinishedRun

LIME = "lime-mha"
MODELS = (BASELINE, SKYLINE, LIME)
MARKER = ".limerank-quickstart"
TASK = "click"
SPEED_CANDIDATES = 10_000
CANDIDATE_SWEEP = (100, 1_000, 10_000, 30_000)
HISTORY_SWEEP = (64, 256, 1024, 4096)
CONTEXT = {"device": "phone", "hour": 20}
CLICK = {"clicked": 1, "watched_fraction": 0.97}


def quickstart_training() -> TrainConfig:
    """How the quickstart trains each ranker; `limerank study accuracy` trains longer."""
    return TrainConfig(epochs=3)


@dataclass(frozen=True)
class ClickStory:
    """One user's ranking before and after one click."""

    user_id: str
    clicked_item: str
    topic: str
    before: dict[str, int]
    after: dict[str, int]
    topic_of: dict[str, str]
    first: Ranking
    second: Ranking

    def movers(self, count: int) -> list[tuple[str, str, int, int]]:
        """The items that climbed most into the new top tenth: item, topic, rank before, rank after."""
        top = self.second.item_ids[: max(1, len(self.second.item_ids) // 10)]
        moved = sorted(top, key=lambda item: self.after[item] - self.before[item])
        return [(item, self.topic_of[item], self.before[item], self.after[item]) for item in moved[:count]]

    def mean_rank(self, ranks: dict[str, int]) -> float:
        """The mean rank of the clicked topic's items, the clicked one left out."""
        same = [i for i, topic in self.topic_of.items() if topic == self.topic and i != self.clicked_item]
        return float(np.mean([ranks[item] for item in same]))


@dataclass(frozen=True)
class QuickstartResult:
    """Everything the walk found, for the summary, the report and `--json`."""

    folder: Path
    dataset: Dataset
    runs: dict[str, Run]
    peaks: Peaks
    at_size: dict[str, Latency]
    by_candidates: list[Latency]
    by_history: list[Latency]
    bundle_id: str
    story: ClickStory

    @property
    def gap_closed(self) -> float | None:
        """The fraction of the TTSN-to-MHA gap in NE that LIME-MHA closes."""
        baseline, skyline, lime = (self.runs[name].record.test[TASK] for name in MODELS)
        return gap_closed(baseline, skyline, lime)

    @property
    def speedup(self) -> float:
        """MHA skyline's time over LIME-MHA's, user stage included, at SPEED_CANDIDATES candidates."""
        return self.at_size[SKYLINE].total_ms / self.at_size[LIME].total_ms

    def speedup_by_history(self) -> dict[int, float]:
        """The same ratio at each history length of the sweep."""
        total = {(entry.model, entry.history): entry.total_ms for entry in self.by_history}
        return {length: total[SKYLINE, length] / total[LIME, length] for length in HISTORY_SWEEP}

    def facts(self, report: Path) -> dict[str, Any]:
        """The one JSON object of `limerank quickstart --json`."""
        story = self.story
        return {
            "models": {
                name: {
                    **run.record.test[TASK].model_dump(include={"auc", "ne", "gauc"}),
                    "user_ms": round(self.at_size[name].user_ms, 4),
                    "us_per_candidate": round(self.at_size[name].us_per_candidate, 4),
                    "train_seconds": run.record.train_seconds,
                }
                for name, run in self.runs.items()
            },
            "oracle": self.runs[LIME].record.oracle[TASK].model_dump(include={"auc", "ne", "gauc"}),
            "gap_closed": self.gap_closed,
            "speedup_vs_mha": round(self.speedup, 3),
            "speedup_by_history": {str(n): round(ratio, 3) for n, ratio in self.speedup_by_history().items()},
            "speed_measured_at": {"candidates": SPEED_CANDIDATES, "history": self.at_size[LIME].history},
            "machine": self.peaks.model_dump(),
            "bundle": self.bundle_id,
            "store": str(self.folder / "store"),
            "report": str(report),
            "moved_after_click": {
                "user": story.user_id,
                "clicked": story.clicked_item,
                "topic": story.topic,
                "topic_mean_rank_before": round(story.mean_rank(story.before), 1),
                "topic_mean_rank_after": round(story.mean_rank(story.after), 1),
                "items": [
                    {"item": item, "topic": topic, "before": before, "after": after}
                    for item, topic, before, after in story.movers(10)
                ],
            },
        }


def run_quickstart(folder: Path, progress: Progress, seed: int = 1, workers: int | None = None) -> QuickstartResult:
    """Do the walk inside `folder`; what an earlier quickstart left there is removed first."""
    require_extra("matplotlib", "report")
    _claim(folder)
    training = quickstart_training()
    progress.say("1/5  simulating an exposure log with known click probabilities")
    dataset = Dataset.build(simulate(SimulatedConfig()), out=folder / "dataset", overwrite=True, quiet=True)
    counts = dataset.manifest.counts
    progress.say(f"     {counts['events']:,} events of {counts['users']:,} users on {counts['items']:,} items")
    progress.say("2/5  training three rankers on the same data, sizes and seed")
    jobs = [
        Job(
            RunConfig(dataset=dataset.path, model={"name": name}, train=training, seed=seed),
            run_folder(folder / "runs", name, seed),
            overwrite=True,
        )
        for name in (LIME, SKYLINE, BASELINE)  # the longest first
    ]

    def finished(run: FinishedRun) -> None:
        test = run.record.test[TASK]
        progress.say(
            f"     {run.record.model}: AUC {test.auc:.4f}, NE {test.ne:.4f} in {run.record.train_seconds:.0f} s"
        )

    trained = {run.record.model: Run.of(run) for run in train_all(jobs, progress, finished, workers)}
    runs = {name: trained[name] for name in MODELS}
    progress.say("3/5  measuring latency, contestants interleaved in this process")
    entries = contestants({name: run.ranker(dataset) for name, run in runs.items()}, dataset)
    peaks = measure_peaks()
    at_size = compare(entries, dataset, history=training.max_history, candidates=SPEED_CANDIDATES, repeats=15)
    with progress.bar("latency", len(CANDIDATE_SWEEP) + len(HISTORY_SWEEP)) as bar:
        by_candidates, by_history = sweep(
            entries,
            dataset,
            candidates=CANDIDATE_SWEEP,
            histories=HISTORY_SWEEP,
            base_candidates=SPEED_CANDIDATES,
            base_history=training.max_history,
            repeats=3,
            done=bar.advance,
        )
    progress.say("4/5  offline stage: item rows for the whole catalog, published as a verified bundle")
    bundle = runs[LIME].publish(folder / "store", quiet=progress.quiet)
    progress.say("5/5  ranking for one user, feeding one click, ranking again")
    story = tell_click_story(Engine(bundle))
    return QuickstartResult(
        folder=folder,
        dataset=dataset,
        runs=runs,
        peaks=peaks,
        at_size={latency.model: latency for latency in at_size},
        by_candidates=by_candidates,
        by_history=by_history,
        bundle_id=bundle.manifest.id,
        story=story,
    )


def tell_click_story(engine: Engine) -> ClickStory:
    """Rank the catalog for a user, let them click the best item of a topic new to them, and rank again.

    Of several new topics it is the one whose items climb most: a story, not a measurement.
    """
    bundle = engine.bundle
    topics = topics_by_row(engine)
    user_row = _user_with_a_new_topic(engine, topics)
    user_id = bundle.user_ids.names_of([user_row])[0]
    first = engine.answer(user_id, context=CONTEXT)
    first = engine.answer(user_id, context=CONTEXT)  # timed again, warm
    topic_encoder = next(e for e in bundle.encoders.item if e.name == "topic")
    topic_of_rank = topics[bundle.item_ids.rows_of(first.item_ids)]
    topic_of = {
        item: topic_encoder.decode(int(topic)) for item, topic in zip(first.item_ids, topic_of_rank, strict=True)
    }
    before = {item: position for position, item in enumerate(first.item_ids, 1)}

    def story(topic: int) -> ClickStory:
        clicked = first.item_ids[int(np.flatnonzero(topic_of_rank == topic)[0])]
        second = engine.answer(user_id, context=CONTEXT, events=[Event(clicked, dict(CLICK))])
        after = {item: position for position, item in enumerate(second.item_ids, 1)}
        return ClickStory(user_id, clicked, topic_of[clicked], before, after, topic_of, first, second)

    known = topics[_history_rows(engine, user_row)]
    stories = [story(int(topic)) for topic in np.unique(topic_of_rank[~np.isin(topic_of_rank, known)])]
    return max(stories, key=lambda one: one.mean_rank(one.before) - one.mean_rank(one.after))


def topics_by_row(engine: Engine) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The encoded topic of every item row."""
    position = [encoder.name for encoder in engine.bundle.encoders.item].index("topic")
    topics: np.ndarray[Any, np.dtype[np.int64]] = engine.bundle.item_table.indices[:, position].numpy()
    return topics


def _history_rows(engine: Engine, user_row: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    offsets = engine.bundle.histories["offsets"]
    rows: np.ndarray[Any, np.dtype[np.int32]] = engine.bundle.histories["item"][
        offsets[user_row] : offsets[user_row + 1]
    ].numpy()
    return rows


def _user_with_a_new_topic(engine: Engine, topics: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """A user with a fair history to whom at least one topic of the catalog is still new."""
    lengths = engine.bundle.histories["offsets"].diff().numpy()
    every = np.unique(topics[1:])
    for user_row in np.argsort(np.abs(lengths - 40), kind="stable"):
        if user_row and len(np.setdiff1d(every, topics[_history_rows(engine, int(user_row))])):
            return int(user_row)
    return int(np.argmin(np.where(lengths > 0, lengths, lengths.max() + 1)))


def _claim(folder: Path) -> None:
    """Take an empty folder, or one that an earlier quickstart made; never somebody else's files."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise ConflictError(f"{folder} is not empty and was not made by quickstart; choose another --out")
    for part in ("dataset", "runs", "store"):
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / MARKER, "limerank quickstart may replace what is in this folder\n")
