"""What is wanted: the user's numbers, checked, each with its unit and meaning; and the machines it shall run on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from limerank.planning.formula import Quantity
from limerank.typed import Typed

MOST = 1e15
"""Nothing is counted beyond it."""
RowTypes = Literal["fp16", "fp32", "u8"]
ROW_BYTES: dict[str, tuple[int, int, int]] = {"fp32": (4, 4, 0), "fp16": (2, 2, 0), "u8": (1, 2, 4)}
"""Bytes of a number of the interaction, of one of the head part, and of a scale (`limerank.ops.candidate`)."""


def _count(default: float | None, unit: str, about: str, least: float = 1) -> Any:
    """A number that is asked for, or has a default."""
    given = ... if default is None else float(default)
    return Field(default=given, ge=least, le=MOST, description=about, json_schema_extra={"unit": unit})


class Workload(Typed):
    """A log, its traffic and its goals."""

    items: float = _count(None, "item", "items of the catalog")
    users: float = _count(None, "user", "users with a history")
    events_per_day: float = _count(None, "event/day", "events of all users")
    requests_per_second: float = _count(None, "request/s", "rankings asked for, at the peak of a day", 1e-6)
    candidates: float = _count(1000, "candidate/request", "items to score in a request")
    history: float = _count(256, "event/request", "events of a history that are read")
    latency_ms: float = _count(100, "ms", "the goal for the mean time of a ranking, queue included", 1e-3)
    retrieval: Literal["elsewhere", "scan"] = Field(
        default="elsewhere", description="candidates are given, or the whole catalog is scored in every request"
    )
    days: float = _count(30, "day", "days of the log that training reads", 1e-3)
    epochs: float = _count(1, "1", "passes over them")
    events_per_request: float = _count(10, "event/request", "events of the log that were shown in one request")
    batch_requests: float = _count(64, "request/step", "requests of a training step")
    train_hours: float = _count(24, "h", "hours a training may take", 1e-3)
    train_processes: float = _count(1, "process/machine", "processes of a training on a machine, which share its cores")
    embeddings: Literal["replicated", "torchrec"] = Field(
        default="replicated", description="every process of a training has all embedding tables, or TorchRec cuts them"
    )
    train_every_days: float = _count(1, "day", "days from one training to the next", 1e-3)
    export_hours: float = _count(2, "h", "hours an export may take", 1e-3)
    export_every_days: float = _count(1, "day", "days from one export to the next", 1e-3)
    store_days: float = _count(7, "day", "days that the history store keeps; exports know what is older", 1e-3)
    peak_factor: float = _count(3, "1", "events and requests at the peak of a day against their mean")
    top: float = _count(100, "candidate/request", "the best that are answered")
    tasks: float = _count(1, "1", "probabilities per candidate")
    embedding_rows: float | None = Field(
        default=None, ge=1, le=MOST, description="values of all features that are embedded; default: items + users"
    )
    item_features: float = _count(2, "1", "encoded features of an item that are no vectors", 0)
    vector_numbers: float = _count(0, "1", "numbers of an item's vectors", 0)
    user_features: float = _count(1, "1", "encoded features of a user", 0)
    event_features: float = _count(1, "1", "encoded features of an event", 0)
    context_features: float = _count(1, "1", "encoded features of a request", 0)
    id_bytes: float = _count(12, "byte", "mean length of an id")
    kept_bundles: float = _count(2, "1", "bundles on disk: the active one and those to roll back to")
    row_type: RowTypes = Field(default="fp16", description="precision of item rows")

    @model_validator(mode="after")
    def _makes_sense(self) -> Workload:
        if self.retrieval == "elsewhere" and self.candidates > self.items:
            raise ValueError(f"candidates {self.candidates:,.0f} are more than the {self.items:,.0f} items there are")
        if self.top > self.items:
            raise ValueError(f"top {self.top:,.0f} is more than the {self.items:,.0f} items there are")
        return self


class Machines(Typed):
    """What one machine has, and how full it may be."""

    cores: float = _count(None, "core/machine", "cores of one machine")
    memory_gb: float = _count(None, "GB", "memory of one machine", 0.1)
    disk_gb: float = _count(1000, "GB", "disk of one machine", 0.1)
    utilization: float = Field(
        default=0.6, gt=0, lt=1, description="fraction of a core's time that requests may take; the rest is headroom"
    )
    fill: float = Field(default=0.8, gt=0, le=1, description="fraction of memory and disk that is planned with")
    spare: float = Field(default=1.0, ge=0, le=100, description="machines of each group that may fail: N + spare")


def given(workload: Workload, machines: Machines) -> dict[str, Quantity]:
    """All numbers as quantities, in base units: seconds, bytes, fractions."""
    found: dict[str, Quantity] = {}
    for name, field in type(workload).model_fields.items():
        value = getattr(workload, name)
        if isinstance(value, float) and isinstance(field.json_schema_extra, dict):
            unit = str(field.json_schema_extra["unit"])
            found[name] = Quantity(value=value, unit=unit, about=field.description or "")
    for name, new, factor, unit in (
        ("latency_ms", "latency_goal", 1e-3, "s"),
        ("train_hours", "train_seconds", 3600, "s"),
        ("export_hours", "export_seconds", 3600, "s"),
    ):
        old = found.pop(name)
        found[new] = Quantity(value=old.value * factor, unit=unit, about=old.about)
    rows = workload.items + workload.users if workload.embedding_rows is None else workload.embedding_rows
    number, part, scale = ROW_BYTES[workload.row_type]

    def put(name: str, value: float, unit: str, about: str) -> None:
        found[name] = Quantity(value=value, unit=unit, about=about)

    put("embedding_rows", rows, "1", "rows of all embedding tables")
    put("row_number_bytes", number, "byte", "of a number of an item row")
    put("head_part_bytes", part, "byte", "of a number of the head part")
    put("row_scale_bytes", scale, "byte", "of the scale of a u8 row")
    put("machine_cores", machines.cores, "core/machine", "cores of one machine")
    put("machine_memory", machines.memory_gb * 1e9, "byte/machine", "memory of one machine")
    put("machine_disk", machines.disk_gb * 1e9, "byte/machine", "disk of one machine")
    put("utilization", machines.utilization, "1", "fraction of a core's time that requests may take")
    put("fill", machines.fill, "1", "fraction of memory and disk that is planned with")
    put("spare", machines.spare, "machine", "machines of each group that may fail")
    return found
