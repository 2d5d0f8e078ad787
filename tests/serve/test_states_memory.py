"""Kept states count all the memory that they keep alive, also where a tensor is a view of something larger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from test_states import FORMS, built, clicks

from limerank.serve.engine import Engine
from limerank.serve.states.entry import Entry

OFFSETS = 16
"""Bytes of the one small tensor of a state that is not counted: where its history begins and ends."""


def memory_behind(root: object, known: Iterable[object]) -> dict[int, int]:
    """Bytes by address of all memory that tensors behind an object keep alive; what is known is not looked into."""
    seen, found, waiting = {id(one) for one in known}, dict[int, int](), [root]
    while waiting:
        one: Any = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif hasattr(one, "__dict__") and not callable(one):
            waiting += one.__dict__.values()
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form.values())))
def test_what_is_counted_is_at_least_what_is_held(engine: Engine, form: dict[str, Any]) -> None:
    source, entry = built(form, engine.bundle), Entry()
    for events in (30, 31, 50):
        asked = source.reader.ask("u1", {"device": "tv"}, clicks(events))
        with torch.inference_mode():
            entry.encode(source, asked)
        everybodys = memory_behind([source.grows, *source.ranker.parameters(), *source.ranker.buffers()], [])
        own = memory_behind(entry.kept, [source, source.ranker, source.grows])
        held = sum(size for address, size in own.items() if address not in everybodys)
        assert held <= sum(kept.bytes for kept in entry.kept.values()) + OFFSETS
