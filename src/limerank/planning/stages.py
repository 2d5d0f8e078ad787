"""The formulas of every stage, in the order in which data walks through them: name, unit, formula.

Time is counted in core-seconds, because that is what rates are measured in; a core that is busy all day gives 24
core-hours. Sizes are exact where files have a layout (`assumed.LAYOUT`), upper bounds where the log decides.
"""

from __future__ import annotations

from typing import NamedTuple

Formulas = tuple[tuple[str, str, str], ...]


class Stage(NamedTuple):
    """A stage, its formulas, and which of them are its summary."""

    name: str
    about: str
    formulas: Formulas
    core_hours_per_day: str | None = None
    cores: str | None = None
    memory: str | None = None
    disk: str | None = None
    network: str | None = None
    machines: str | None = None


PREPARE = Stage(
    "prepare",
    "the log to a dataset, once; then a day's events are appended, at the same rate. One process on one machine",
    (
        ("log_events", "event", "events_per_day * days"),
        ("log_requests", "request", "log_events / events_per_request"),
        ("prepare_work", "core*s", "prepare_fixed + prepare_per_event * log_events"),
        ("prepare_hours", "core*h", "prepare_work / seconds_per_hour"),
        ("append_work", "core*s/day", "prepare_per_event * events_per_day"),
        ("append_hours", "core*h/day", "append_work / seconds_per_hour"),
        (
            "dataset_event_bytes",
            "byte/event",
            "width(items) + time_bytes + tasks * label_bytes + (event_features + context_features) * column_bytes",
        ),
        ("dataset_request_bytes", "byte/request", "part_bytes + width(users) + 2 * width(log_events)"),
        ("dataset_id_bytes", "byte", "id_view_bytes + id_text_bytes"),
        (
            "dataset_item_bytes",
            "byte/item",
            "dataset_id_bytes + item_features * column_bytes + vector_numbers * float_bytes",
        ),
        (
            "dataset_user_bytes",
            "byte/user",
            "dataset_id_bytes + user_features * column_bytes + width(log_requests)",
        ),
        (
            "dataset_bytes",
            "byte",
            "log_events * dataset_event_bytes + log_requests * dataset_request_bytes + items * dataset_item_bytes "
            "+ users * dataset_user_bytes",
        ),
        (
            "prepare_memory",
            "byte",
            "prepare_fixed_memory + (items + users) * (prepare_id_memory + id_bytes) "
            "+ log_requests * prepare_request_memory",
        ),
        (
            "prepare_machines",
            "machine",
            "ceil(max(prepare_memory / (machine_memory * fill), dataset_bytes / (machine_disk * fill)))",
        ),
    ),
    core_hours_per_day="append_hours",
    memory="prepare_memory",
    disk="dataset_bytes",
    machines="prepare_machines",
)

_STEPS: Formulas = (
    ("train_requests", "request", "log_requests * epochs"),
    ("train_steps", "step", "train_requests / batch_requests"),
    (
        "train_work",
        "core*s",
        "train_steps * step_fixed + train_requests * (history * step_per_event "
        "+ events_per_request * step_per_candidate)",
    ),
    ("train_cores", "core", "train_work / train_seconds"),
    ("train_hours_per_day", "core*h/day", "train_work / seconds_per_hour / train_every_days"),
    # no memory in it: peaks do not become smaller with more machines
    ("train_machines", "machine", "ceil(train_cores / machine_cores)"),
    ("table_bytes", "byte", "embedding_rows * embedding_width * float_bytes"),
    ("dense_bytes", "byte", "dense_parameters * float_bytes"),
)
_REPLICATED: Formulas = (
    ("train_memory", "byte/machine", "train_processes * (table_bytes * table_copies + dense_bytes * dense_copies)"),
    # every machine gets the rows of all others (training/distributed/gradients.py)
    (
        "lookup_bytes",
        "byte/step",
        "min(batch_requests * (history + events_per_request) * item_features, 2 * embedding_rows) "
        "* (embedding_width * float_bytes + index_bytes) * (train_machines - 1)",
    ),
)
_TORCHREC: Formulas = (
    # the more of two: whole tables in every process before they are cut, or gathered in the first to be saved
    (
        "train_memory",
        "byte/machine",
        "table_bytes * max(train_processes + 1 / train_machines, gathered_copies + piece_copies / train_machines) "
        "+ train_processes * dense_bytes * dense_copies",
    ),
    (
        "lookup_bytes",
        "byte/step",
        "2 * batch_requests * (history + events_per_request) * item_features * embedding_width * float_bytes "
        "* (train_machines - 1) / train_machines",
    ),
)
_TRAFFIC: Formulas = (
    ("train_disk", "byte", "(table_bytes + dense_bytes) * saved_copies + dataset_bytes"),
    ("gradient_bytes", "byte/step", "2 * dense_bytes * (train_machines - 1)"),
    ("train_network", "byte/s", "(gradient_bytes + lookup_bytes) * train_steps / train_seconds"),
)


def training(embeddings: str) -> Stage:
    """Every process has all embedding tables, or TorchRec cuts them up."""
    cut = embeddings == "torchrec"
    return Stage(
        "training",
        "passes over the log, data-parallel; "
        + (
            "TorchRec divides embedding tables, but each process makes them whole, and the first gathers them to save"
            if cut
            else "every process holds all embedding tables and their moments"
        ),
        _STEPS + (_TORCHREC if cut else _REPLICATED) + _TRAFFIC,
        core_hours_per_day="train_hours_per_day",
        cores="train_cores",
        memory="train_memory",
        disk="train_disk",
        network="train_network",
        machines="train_machines",
    )


EXPORT = Stage(
    "offline item stage",
    "item rows of the whole catalog, published as a bundle",
    (
        ("export_work", "core*s", "export_fixed + export_per_item * items"),
        ("export_cores", "core", "export_work / export_seconds"),
        ("export_hours_per_day", "core*h/day", "export_work / seconds_per_hour / export_every_days"),
        (
            "row_bytes",
            "byte/item",
            "row_numbers * row_number_bytes + hidden * head_part_bytes + row_scale_bytes",
        ),
        ("rows_bytes", "byte", "(items + 1) * row_bytes"),
        (
            "item_tables_bytes",
            "byte",
            "(items + 1) * (item_features * index_bytes + vector_numbers * float_bytes) "
            "+ items * (id_bytes + 2 * index_bytes + max(4, width(items)))",
        ),
        (
            "user_tables_bytes",
            "byte",
            "(users + 1) * user_features * index_bytes + users * (id_bytes + 2 * index_bytes + max(4, width(users)))",
        ),
        ("history_events", "event", "min(users * history, log_events)"),
        (
            "histories_bytes",
            "byte",
            "history_events * (history_number_bytes + event_features * history_number_bytes + time_bytes) "
            "+ users * index_bytes",
        ),
        ("seen_bytes", "byte", "log_events * history_number_bytes + users * index_bytes"),
        (
            "bundle_bytes",
            "byte",
            "rows_bytes + item_tables_bytes + user_tables_bytes + histories_bytes + seen_bytes + table_bytes "
            "+ dense_bytes",
        ),
        ("export_disk", "byte", "bundle_bytes * kept_bundles"),
        (
            "export_memory",
            "byte",
            "table_bytes + dense_bytes + (items + users) * 2 * index_bytes "
            "+ ceil(export_cores) * shard_items * row_bytes",
        ),
        (
            "export_machines",
            "machine",
            "ceil(max(export_cores / machine_cores, export_memory / (machine_memory * fill)))",
        ),
        ("export_network", "byte/s", "rows_bytes / export_seconds"),
    ),
    core_hours_per_day="export_hours_per_day",
    cores="export_cores",
    memory="export_memory",
    disk="export_disk",
    network="export_network",
    machines="export_machines",
)

HISTORIES = Stage(
    "history store",
    "events of the last days: written durably, read by every request. One writer, counted as the "
    "embedded store; Redis or Valkey hold it in memory, and take a few times the bytes",
    (
        ("peak_events", "event/s", "events_per_day / seconds_per_day * peak_factor"),
        ("store_seconds_per_event", "core*s/event", "store_fixed / events_per_transaction + store_per_event"),
        ("store_write_cores", "core", "peak_events * store_seconds_per_event"),
        ("recent_events", "event/request", "min(history, events_per_day * export_every_days / users)"),
        ("store_read_work", "core*s/request", "store_read_fixed + store_read_per_event * recent_events"),
        ("store_read_cores", "core", "requests_per_second * store_read_work"),
        ("store_cores", "core", "(store_write_cores + store_read_cores) / utilization"),
        (
            "store_hours_per_day",
            "core*h/day",
            "(store_write_cores + store_read_cores) / peak_factor * seconds_per_day / seconds_per_hour",
        ),
        ("stored_events", "event", "min(users * history, events_per_day * store_days)"),
        ("store_bytes", "byte", "store_fixed_bytes + stored_events * store_event_bytes"),
        ("store_network", "byte/s", "(peak_events + requests_per_second * recent_events) * store_event_bytes"),
        ("store_machines", "machine", "1 + spare"),
    ),
    core_hours_per_day="store_hours_per_day",
    cores="store_cores",
    memory="store_bytes",
    disk="store_bytes",
    network="store_network",
    machines="store_machines",
)

USER = Stage(
    "user stage",
    "once per request, linear in the history for LIME; can run while candidates are retrieved",
    (
        ("user_work", "core*s/request", "user_fixed + user_per_event * history"),
        ("user_cores", "core", "requests_per_second * user_work / utilization"),
        (
            "user_hours_per_day",
            "core*h/day",
            "requests_per_second / peak_factor * user_work * seconds_per_day / seconds_per_hour",
        ),
        ("user_memory", "byte/machine", "service_memory + table_bytes + dense_bytes"),
    ),
    core_hours_per_day="user_hours_per_day",
    cores="user_cores",
    memory="user_memory",
)

_CANDIDATES: Formulas = (
    ("interaction_work", "core*s/request", "interaction_fixed + interaction_per_candidate * candidates"),
    # rows travel as steps from one to the next (serve/sharded/row_steps.py)
    (
        "named_bytes",
        "byte/request",
        "candidates * step_bytes * min(1 + items / candidates / 255, 2 + 2 * items / candidates / 65535, 4)",
    ),
    ("rows_instead", "byte/request", "candidates * row_bytes"),
)
_CATALOG: Formulas = (
    ("interaction_work", "core*s/request", "scan_fixed + scan_per_item * items"),
    ("named_bytes", "byte/request", "0 * step_bytes"),
    ("rows_instead", "byte/request", "rows_bytes"),
)
_WORK: Formulas = (
    ("interaction_cores", "core", "requests_per_second * interaction_work / utilization"),
    (
        "interaction_hours_per_day",
        "core*h/day",
        "requests_per_second / peak_factor * interaction_work * seconds_per_day / seconds_per_hour",
    ),
    ("resident_bytes", "byte", "rows_bytes + item_tables_bytes"),
)

SERVING = Stage(
    "serving",
    "user stage and scores on one group of machines; item rows are divided into shards if memory or time ask for it. "
    "Every machine has the whole store on its disk",
    (
        ("room_for_rows", "byte/machine", "max(machine_memory * fill - user_memory, machine_memory * fill / 10)"),
        ("shards_for_memory", "1", "ceil(resident_bytes / room_for_rows)"),
        ("time_left", "s", "max(latency_goal * (1 - utilization) - user_work / one_core, latency_goal / 10)"),
        ("shards_for_latency", "1", "ceil(interaction_work / one_core / time_left)"),
        ("shards", "1", "max(shards_for_memory, shards_for_latency)"),
        ("response_seconds", "s", "(user_work + interaction_work / shards) / one_core / (1 - utilization)"),
        ("serving_cores", "core", "user_cores + interaction_cores"),
        ("serving_memory", "byte", "resident_bytes + shards * user_memory"),
        ("serving_machines", "machine", "shards * (ceil(serving_cores / machine_cores / shards) + spare)"),
        # a scorer maps its slice out of the file of all rows
        ("serving_disk", "byte/machine", "bundle_bytes * kept_bundles"),
        ("folded_bytes", "byte/request", "(row_numbers + 1) * hidden * float_bytes"),
        (
            "request_bytes",
            "byte/request",
            "shards * (folded_bytes + top * (1 + tasks) * wire_number_bytes) + named_bytes",
        ),
        ("fraction_of_rows", "1", "request_bytes / rows_instead"),
        ("serving_network", "byte/s", "requests_per_second * request_bytes"),
    ),
    cores="serving_cores",
    memory="serving_memory",
    disk="serving_disk",
    network="serving_network",
    machines="serving_machines",
)


def interaction(retrieval: str) -> Stage:
    """Candidates that are given, or the whole catalog."""
    scan = retrieval == "scan"
    return Stage(
        "retrieval by scan" if scan else "interaction",
        "the whole catalog is scored in every request, exactly"
        if scan
        else "candidates come from elsewhere; their rows are looked up and scored",
        (_CATALOG if scan else _CANDIDATES) + _WORK,
        core_hours_per_day="interaction_hours_per_day",
        cores="interaction_cores",
        memory="resident_bytes",
    )


def stages(retrieval: str, embeddings: str) -> list[Stage]:
    """All of them, each resting on those before it."""
    return [PREPARE, training(embeddings), EXPORT, HISTORIES, USER, interaction(retrieval), SERVING]
