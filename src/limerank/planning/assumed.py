"""Numbers that are neither measured nor asked for: layouts of files, and what is assumed, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from limerank.planning.formula import Quantity

LONGEST_INLINE_ID = 12
"""Bytes of an id that a dataset's table of ids holds without a place for its text elsewhere (Arrow's string views)."""

KNOWN_ITEMS = 2**24
"""Items of a catalog up to which an engine keeps what it reads of events, with four ways in which they can happen: its
table has 2^28 bytes (`limerank.models.serving.events`), four of which every pair of item and way takes."""


def _is(value: float, unit: str, about: str) -> Quantity:
    return Quantity(value=value, unit=unit, about=about)


LAYOUT: Mapping[str, Quantity] = {
    "seconds_per_day": _is(86_400, "s/day", "a day"),
    "seconds_per_hour": _is(3600, "s/h", "an hour"),
    "one_core": _is(1, "core", "a request has one core of each machine that works on it"),
    "time_bytes": _is(8, "byte/event", "time of an event, in datasets and bundles"),
    "label_bytes": _is(1, "byte/event", "label of one task in a dataset"),
    "column_bytes": _is(1, "byte", "a feature of up to 255 values in a dataset; larger ones take 2 or 4"),
    "part_bytes": _is(1, "byte/request", "which part a request belongs to"),
    "id_view_bytes": _is(16, "byte", "an id in a dataset, besides the text of one longer than 12 bytes"),
    "index_bytes": _is(8, "byte", "an encoded feature of an item or a user in a bundle; a pointer; a hash"),
    "float_bytes": _is(4, "byte", "a number of a vector, a weight or a gradient"),
    "history_number_bytes": _is(4, "byte/event", "the item or a feature of an event of a bundle's history"),
    "wire_number_bytes": _is(8, "byte/candidate", "a row number or a score of the best on its way between machines"),
    "step_bytes": _is(
        1, "byte/candidate", "the step to a named row from the one before; it may take two, and four at most"
    ),
}
"""What files hold; tests compare it with real datasets and bundles."""

ASSUMED: Mapping[str, Quantity] = {
    "prepare_fixed_memory": _is(1e9, "byte", "batches and sort buffers of `prepare`, whatever the log"),
    "prepare_id_memory": _is(64, "byte", "of each distinct id while `prepare` reads, besides its text"),
    "prepare_request_memory": _is(30, "byte/request", "of each request while the split is computed"),
    "table_copies": _is(
        5, "1", "of an embedding table in a process: weights, Adam's two moments, up to two where weights are checked"
    ),
    "dense_copies": _is(6, "1", "of other parameters in a process: the same and gradients"),
    "gathered_copies": _is(
        4, "1", "of an embedding table in the first process of TorchRec that saves: whole weights and moments, pieces"
    ),
    "piece_copies": _is(3, "1", "of an embedding table in all processes of TorchRec together: weights and moments"),
    "saved_copies": _is(
        8, "1", "of weights on disk: a checkpoint with Adam's moments, the one before it, and the best weights of both"
    ),
    "shard_items": _is(65_536, "item/core", "items whose rows an export holds per core"),
    "events_per_transaction": _is(64, "event", "that the history store writes together at the peak"),
    "service_memory": _is(2e9, "byte/machine", "of a serving machine for programs, kept user states and buffers"),
}
"""What nobody measured here."""

LIMITS = (
    "Network latency, stragglers and the time until a failed machine is missed are not in it: rates are of one process "
    "on one machine, and network figures are bytes, not milliseconds.",
    "Work on several machines, and on the cores of each, is counted as if it were divided without loss (efficiency 1); "
    "`limerank bench cluster` measures what two processes lose.",
    "A disk's time to sync is not in the history store's cores: one writer commits for all, and a slow disk commits "
    "fewer, larger transactions.",
    "GPUs are not in it: rates are of CPU cores, and on a GPU training and the user stage are other numbers.",
    "HTTP is not in it: reading a long list of candidates and answering it takes time of its own; `limerank bench "
    "serve` measures it.",
    "Kept user states are not in it: who asks again within minutes skips most of the user stage, so cores are what a "
    "cold cache takes.",
    "Queueing is that of random arrivals at cores that are busy a given fraction of the time (M/M/1): mean time = work "
    "/ (1 - utilization). Tails are longer than means.",
    "Activations are not in the memory of training: they grow with the requests of a step and their histories.",
    "An index (faiss) is not in it: retrieval is an exact scan, or somebody else's.",
)
"""What a plan does not know; every plan says so."""


def id_text_bytes(id_bytes: float) -> Quantity:
    """Of an id in a dataset: text that does not fit into its view."""
    return _is(id_bytes if id_bytes > LONGEST_INLINE_ID else 0.0, "byte", "text of an id that is longer than 12 bytes")
