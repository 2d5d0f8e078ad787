"""What a training says: how it begins, a line per epoch, how it ended."""

from __future__ import annotations

from collections.abc import Mapping

from limerank.config import TrainConfig
from limerank.metrics import Metrics
from limerank.progress import duration
from limerank.splits import Part
from limerank.tables import number_text
from limerank.training.run import RunRecord


def epoch_line(
    epoch: int, config: TrainConfig, loss: float, metrics: Mapping[str, Metrics], part: Part, *, best: bool
) -> str:
    """`epoch 2 of 8: train loss 0.5312, validation NE 0.8123 (best so far), AUC 0.7712`; means of several tasks."""
    value, aucs = selection_value(metrics), [metric.auc for metric in metrics.values()]
    auc = "" if None in aucs else f", AUC {sum(filter(None, aucs)) / len(aucs):.4f}"
    means = f"; means of {len(metrics)} tasks" if len(metrics) > 1 else ""
    return (
        f"epoch {epoch} of {config.passes}: train loss {loss:.4f}, {part.value} {selection_name(metrics)} {value:.4f}"
        f"{' (best so far)' if best else ''}{auc}{means}"
    )


def time_line(epoch: int, epochs: int, seconds: float, so_far: float) -> str:
    """`12.3 s, about 1 min left`: the last epoch, and what the others will take if they are like those so far."""
    left = so_far / epoch * (epochs - epoch)
    return f"{seconds:.1f} s" + (f", about {duration(left)} left" if epoch < epochs else "")


def outcome(record: RunRecord, config: TrainConfig) -> str:
    """Whether more epochs may help."""
    if config.order == "time":
        return "one pass in the order of time"
    if record.best_epoch == config.epochs:
        return f"still improving at the last epoch, {record.best_epoch} of {config.epochs}: raise train.epochs"
    best = f"best epoch {record.best_epoch} of {config.epochs}"
    if record.epochs == config.epochs:
        return best
    waited, name = record.epochs - record.best_epoch, selection_name(record.validation)
    return f"stopped early: no better {record.selected_on} {name} for {waited} epoch{'s' * (waited > 1)}; {best}"


def drift(record: RunRecord) -> list[str]:
    """What a run that went on from another gained on the newest requests, and what that one scored on all new ones."""
    if record.continued is None:
        return []
    told = []
    for task, after in record.test.items():
        before, whole = record.continued.before_on_test[task], record.continued.before_on_all[task]
        told.append(
            f"{task} on the newest {record.continued.requests['test']:,} requests: NE {number_text(before.ne)} -> "
            f"{number_text(after.ne)}, AUC {number_text(before.auc)} -> {number_text(after.auc)}; "
            f"{record.continued.run} on all new requests: NE {number_text(whole.ne)}, AUC {number_text(whole.auc)}"
        )
    return told


def selection_name(metrics: Mapping[str, Metrics]) -> str:
    """What `selection_value` is called."""
    return "loss" if any(metric.ne is None for metric in metrics.values()) else "NE"


def selection_value(metrics: Mapping[str, Metrics]) -> float:
    """What early stopping minimizes: the mean NE over tasks (logloss where undefined); infinite if none has one."""
    either = [metric.ne if metric.ne is not None else metric.logloss for metric in metrics.values()]
    values = [value for value in either if value is not None]
    return sum(values) / len(values) if values else float("inf")
