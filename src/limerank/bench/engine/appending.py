"""One event more: a kept state that grows by it, against the user stage over the whole history."""

from __future__ import annotations

import time
from statistics import median

import torch

from limerank.bench.engine.results import Append
from limerank.models.incremental import Events, incremental_user
from limerank.models.serving import prepare_user_stage
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.requests import RequestReader

APPENDED = 64
"""Events that are appended one by one in a round; a round's append is their mean."""


def measure_append(bundle: Bundle, user_id: str, repeats: int) -> Append:
    """The user stage of a user from nothing, and one event more for a state of the same history; on one thread.

    Both begin with rows E that are known; turning the state into what candidates read is part of neither.
    """
    ranker = bundle.ranker
    growing = incremental_user(ranker)
    if growing is None:
        raise ValueError(f"{ranker.name} has no user state that grows")
    reader = RequestReader(bundle, by_row=True)
    stage = prepare_user_stage(ranker, bundle.item_table)
    asked = reader.ask(user_id, {})
    inputs = reader.inputs(asked)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    recompute, append = [], []
    try:
        with torch.inference_mode():
            rows = stage.history(inputs.history.item_of_event, inputs.history.events.indices)
            context = ranker.context_tower(inputs.users, inputs.context)
            events = [Events(row[None]) for row in rows[:APPENDED]]
            for round_number in range(repeats + 1):
                started = time.perf_counter()
                reading = growing.start(Events(rows), context)
                begun = time.perf_counter()
                for event in events:
                    reading.append(event)
                ended = time.perf_counter()
                if round_number:
                    recompute.append(begun - started)
                    append.append((ended - begun) / APPENDED)
    finally:
        torch.set_num_threads(before)
    return Append(
        model=ranker.name,
        history=len(rows),
        recompute_ms=1000 * median(recompute),
        append_us=1e6 * median(append),
        fraction=median(append) / median(recompute),
    )
