"""A plan: every figure of every stage with its formula, what it asks of machines, and what drives the cost."""

from __future__ import annotations

from pydantic import BaseModel

from limerank.planning.assumed import ASSUMED, KNOWN_ITEMS, LAYOUT, LIMITS, id_text_bytes
from limerank.planning.formula import Figure, Quantity, Sheet
from limerank.planning.lines import Line
from limerank.planning.rates import Machine, RankerRates, Rates
from limerank.planning.stages import Stage, stages
from limerank.planning.workload import Machines, Workload, given

DOUBLED = ("items", "users", "events_per_day", "requests_per_second", "candidates", "history")
"""What a plan says the price of, by doubling it."""


class StagePlan(BaseModel):
    """One stage: its figures, and what it asks for in all; None: nothing of its own."""

    name: str
    about: str
    core_hours_per_day: float | None
    fraction_of_core_hours: float | None
    cores: float | None
    """Busy at the peak, headroom included."""
    memory_bytes: float | None
    disk_bytes: float | None
    network_bytes_per_second: float | None
    machines: float | None
    figures: list[Figure]


class Driver(BaseModel):
    """What a plan asks for when one number of the workload is doubled, against the plan as it is."""

    number: str
    core_hours_times: float
    memory_times: float
    machines_more: float


class Plan(BaseModel):
    """All of it; figures come with the text they were computed by."""

    rates_of: Machine
    rates_quick: bool
    ranker: str
    workload: Workload
    machine: Machines
    stages: list[StagePlan]
    machines: float
    """Of serving and the history store, which run all day, and the most that a job beside them needs."""
    core_hours_per_day: float
    drivers: list[Driver]
    problems: list[str]
    """What does not fit as asked."""
    warnings: list[str]
    """Where a rate is used far beyond what was measured."""
    given: dict[str, Quantity]
    limits: list[str]

    def figure(self, name: str) -> Figure:
        """A figure of any stage by its name."""
        return next(one for stage in self.stages for one in stage.figures if one.name == name)


def make_plan(rates: Rates, ranker: RankerRates, workload: Workload, machines: Machines) -> Plan:
    """The plan of a workload for a ranker whose rates were measured."""
    sheet, parts = _computed(rates, ranker, workload, machines)
    return Plan(
        rates_of=rates.machine,
        rates_quick=rates.quick,
        ranker=ranker.name,
        workload=workload,
        machine=machines,
        stages=parts,
        machines=_machines(parts),
        core_hours_per_day=_core_hours(parts),
        drivers=[_driver(rates, ranker, workload, machines, name, parts) for name in _doubled(workload)],
        problems=_problems(sheet, workload),
        warnings=_warnings(ranker, workload),
        given=sheet.given,
        limits=list(LIMITS),
    )


def user_line(ranker: RankerRates, items: float) -> Line:
    """The user stage with events that engines remember, or, of larger catalogs, compute every time."""
    return ranker.user if items <= KNOWN_ITEMS else ranker.user_computed


def quantities(rates: Rates, ranker: RankerRates, items: float) -> dict[str, Quantity]:
    """What was measured, as quantities that formulas read."""

    def of(value: float, unit: str, about: str) -> Quantity:
        return Quantity(value=value, unit=unit, about=about)

    step, export, user = ranker.training, ranker.export, user_line(ranker, items)
    return {
        "prepare_fixed": of(rates.prepare.fixed, "core*s", "measured: preparing, whatever the log"),
        "prepare_per_event": of(rates.prepare.slope, "core*s/event", "measured: preparing, per event"),
        "store_fixed": of(rates.store_add.fixed, "core*s", "measured: a durable transaction"),
        "store_per_event": of(rates.store_add.slope, "core*s/event", "measured: an event in one"),
        "store_read_fixed": of(rates.store_read.fixed, "core*s/request", "measured: reading a user"),
        "store_read_per_event": of(rates.store_read.slope, "core*s/event", "measured: an event of that user"),
        "store_fixed_bytes": of(rates.store_bytes.fixed, "byte", "measured: an empty store"),
        "store_event_bytes": of(rates.store_bytes.slope, "byte/event", "measured: an event in it"),
        "row_numbers": of(ranker.row_numbers, "1", "of the ranker: numbers of an item row for the interaction"),
        "hidden": of(ranker.hidden, "1", "of the ranker: width of the head's first layer"),
        "dense_parameters": of(ranker.dense_parameters, "1", "of the ranker: parameters besides embedding tables"),
        "embedding_width": of(ranker.embedding_width, "1", "of the ranker: numbers of an embedding"),
        "step_fixed": of(step.fixed, "core*s/step", "measured: a training step, whatever it reads"),
        "step_per_event": of(step.first, "core*s/event", "measured: an event of its histories"),
        "step_per_candidate": of(step.second, "core*s/event", "measured: a candidate of its requests"),
        "export_fixed": of(export.fixed, "core*s", "measured: an export, whatever the catalog"),
        "export_per_item": of(export.slope, "core*s/item", "measured: an item of it"),
        "user_fixed": of(user.fixed, "core*s/request", "measured: a user stage, whatever the history"),
        "user_per_event": of(user.slope, "core*s/event", "measured: an event of it"),
        "interaction_fixed": of(ranker.interaction.fixed, "core*s/request", "measured: behind the user stage"),
        "interaction_per_candidate": of(ranker.interaction.slope, "core*s/candidate", "measured: a candidate"),
        "scan_fixed": of(ranker.scan.fixed, "core*s/request", "measured: a scan, whatever the catalog"),
        "scan_per_item": of(ranker.scan.slope, "core*s/item", "measured: an item of it"),
    }


def sheet_of(rates: Rates, ranker: RankerRates, workload: Workload, machines: Machines) -> Sheet:
    """All that is given, nothing computed yet."""
    of_ids = {"id_text_bytes": id_text_bytes(workload.id_bytes)}
    return Sheet(
        {**given(workload, machines), **quantities(rates, ranker, workload.items), **LAYOUT, **ASSUMED, **of_ids}
    )


def _computed(
    rates: Rates, ranker: RankerRates, workload: Workload, machines: Machines
) -> tuple[Sheet, list[StagePlan]]:
    sheet, known = sheet_of(rates, ranker, workload, machines), stages(workload.retrieval, workload.embeddings)
    figures = {stage.name: [sheet.put(*formula) for formula in stage.formulas] for stage in known}
    hours = {stage.name: _value(sheet, stage.core_hours_per_day) for stage in known}
    total = sum(value for value in hours.values() if value is not None)
    return sheet, [_summary(sheet, stage, figures[stage.name], hours[stage.name], total) for stage in known]


def _summary(sheet: Sheet, stage: Stage, figures: list[Figure], hours: float | None, total: float) -> StagePlan:
    return StagePlan(
        name=stage.name,
        about=stage.about,
        core_hours_per_day=hours,
        fraction_of_core_hours=None if hours is None else hours / total,
        cores=_value(sheet, stage.cores),
        memory_bytes=_value(sheet, stage.memory),
        disk_bytes=_value(sheet, stage.disk),
        network_bytes_per_second=_value(sheet, stage.network),
        machines=_value(sheet, stage.machines),
        figures=figures,
    )


def _value(sheet: Sheet, name: str | None) -> float | None:
    return None if name is None else sheet[name]


def _machines(parts: list[StagePlan]) -> float:
    """Serving and the store run all day; jobs run one after the other, on as many as the largest of them needs."""
    asked = {part.name: part.machines or 0.0 for part in parts}
    all_day = asked.pop("serving") + asked.pop("history store")
    return all_day + max(asked.values())


def _core_hours(parts: list[StagePlan]) -> float:
    return sum(part.core_hours_per_day or 0.0 for part in parts)


def _memory(parts: list[StagePlan]) -> float:
    return sum(part.memory_bytes or 0.0 for part in parts if part.machines is not None)


def _doubled(workload: Workload) -> list[str]:
    """Candidates are not asked for by a scan, and cannot be more than there are items."""
    fixed = workload.retrieval == "scan" or 2 * workload.candidates > workload.items
    return [name for name in DOUBLED if not (name == "candidates" and fixed)]


def _driver(
    rates: Rates, ranker: RankerRates, workload: Workload, machines: Machines, name: str, parts: list[StagePlan]
) -> Driver:
    changed = workload.model_copy(update={name: 2 * getattr(workload, name)})
    _, doubled = _computed(rates, ranker, changed, machines)
    return Driver(
        number=name,
        core_hours_times=_core_hours(doubled) / _core_hours(parts),
        memory_times=_memory(doubled) / _memory(parts),
        machines_more=_machines(doubled) - _machines(parts),
    )


def _problems(sheet: Sheet, workload: Workload) -> list[str]:
    found = []
    room = sheet["machine_memory"] * sheet["fill"]
    budget = sheet["latency_goal"] * (1 - sheet["utilization"])
    if sheet["user_work"] > budget:
        found.append(
            f"the latency goal is {1000 * sheet['latency_goal']:,.3g} ms, but the user stage alone takes "
            f"{1000 * sheet['user_work'] / (1 - sheet['utilization']):,.3g} ms at this utilization: read a shorter "
            "history, keep user states, or lower --utilization"
        )
    elif sheet["response_seconds"] > sheet["latency_goal"]:
        found.append(f"a ranking takes {1000 * sheet['response_seconds']:,.3g} ms, which is more than the latency goal")
    if sheet["user_memory"] > 0.9 * room:
        found.append(
            f"embedding tables of {sheet['table_bytes'] / 1e9:,.0f} GB do not fit the memory of a serving machine: "
            "take larger machines, or embed fewer ids (--assume embedding_rows)"
        )
    if sheet["store_bytes"] > room or sheet["store_write_cores"] > sheet["utilization"]:
        found.append(
            "a history store is one server with one writer, but at the peak writing takes "
            f"{sheet['store_write_cores']:,.3g} cores, and {sheet['store_bytes'] / 1e9:,.0f} GB are kept: divide users "
            "among several stores, store fewer events, or keep fewer days (--assume store_days)"
        )
    elif sheet["store_cores"] > sheet["machine_cores"]:
        found.append(
            f"a history store is one server, but reading and writing takes {sheet['store_cores']:,.0f} cores at the "
            "peak: divide users among several stores, or keep user states so that histories are read less often"
        )
    if sheet["train_memory"] > room:
        found.append(_training_too_large(sheet, workload))
    processes = sheet["train_machines"] * sheet["train_processes"]
    if processes > sheet["batch_requests"]:
        found.append(
            f"a training on {sheet['train_machines']:,.0f} machines cannot share steps of "
            f"{sheet['batch_requests']:,.0f} requests among {processes:,.0f} processes: train longer (--assume "
            "train_hours), or in larger steps (--assume batch_requests)"
        )
    for stage, disk in (("training", "train_disk"), ("export", "export_disk"), ("serving", "serving_disk")):
        if sheet[disk] > sheet["machine_disk"]:
            found.append(
                f"{stage} needs {sheet[disk] / 1e9:,.0f} GB of disk on a machine that has "
                f"{sheet['machine_disk'] / 1e9:,.0f} GB: take larger disks (--disk-gb)"
            )
    if sheet["prepare_machines"] > 1:
        found.append(
            f"`prepare` is one process, and a log of {sheet['days']:,.0f} days does not fit one of these machines: "
            "prepare fewer days (--assume days), or one machine with more memory and disk"
        )
    if sheet["append_work"] > sheet["seconds_per_day"]:
        found.append(
            f"appending a day's events takes {sheet['append_hours']:,.0f} hours of one core: sample the log or "
            "divide it by user"
        )
    return found


def _training_too_large(sheet: Sheet, workload: Workload) -> str:
    processes = sheet["train_processes"]
    if workload.embeddings == "torchrec":
        why = "each process makes whole tables before TorchRec cuts them, and the first gathers them to be saved"
    else:
        why = "each process holds whole tables and their moments, and up to two copies more where weights are checked"
    fewer = "fewer processes on each (--assume train_processes), " if processes > 1 else ""
    return (
        f"a training takes {sheet['train_memory'] / 1e9:,.0f} GB of one machine's memory at its peak, with "
        f"{processes:,.0f} {'processes' if processes > 1 else 'process'} on it: {why}, on however many machines: take "
        f"larger machines for training, {fewer}or embed fewer ids (--assume embedding_rows)"
    )


def _warnings(ranker: RankerRates, workload: Workload) -> list[str]:
    asked = [
        ("user stage", user_line(ranker, workload.items), workload.history, "events"),
        ("interaction", ranker.interaction, workload.candidates, "candidates"),
    ]
    if workload.retrieval == "scan":
        asked[1] = ("scan", ranker.scan, workload.items, "items")
    return [
        f"{name}: measured up to {max(line.sizes):,} {what}, asked for {size:,.0f}"
        for name, line, size, what in asked
        if line.is_far(size)
    ]
