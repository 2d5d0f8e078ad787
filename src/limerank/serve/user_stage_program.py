"""The user stage as a `torch.export` program: one request, a history of any length, no Python in it.

    inputs, _ = engine.user_inputs("u42", {})                              # an example that has a history
    program = export_user_stage(engine.ranker, inputs)
    torch.export.save(program, "user-stage.pt2")
    state = torch.export.load("user-stage.pt2").module()(other_inputs)     # a UserState

Whoever loads a program must have imported this module: it tells torch how `UserInputs` and `UserState` are built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection, register_dataclass
from torch.fx.experimental import _config as shape_config

from limerank.batch import Features, History, Jagged, UserInputs
from limerank.errors import ArgumentError
from limerank.models.base import Ranker, UserState

for _container in (Jagged, Features, History, UserInputs, UserState):
    register_dataclass(_container, serialized_type_name=f"limerank.{_container.__name__}")


class _UserStage(nn.Module):
    """`forward` is what torch.export exports."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, inputs: UserInputs) -> UserState:
        return self.ranker.encode_user(inputs)


def export_user_stage(ranker: Ranker, example: UserInputs) -> ExportedProgram:
    """`encode_user` of one request for predicting; how many events, distinct items and list values it has stays free.

    The example says which features there are. Its history must not be empty. Other histories may be.
    """
    if len(example) != 1 or not example.history.item_of_event.shape[0]:
        raise ArgumentError("the user stage is exported with one request that has a history")
    own = _copied(example)
    shapes: Any = ShapesCollection()
    # the rows of `users` and `context` are requests, of which there is one; the offsets of the history belong to it too
    for tensor in (*_jagged_values(own.users), *_jagged_values(own.context), *_all_but_offsets(own.history)):
        shapes[tensor] = {0: Dim.DYNAMIC}
    # without this torch takes lengths of 0 and 1 for constants, and refuses every shorter history
    any_length = shape_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with torch.no_grad(), any_length:
        program = torch.export.export(_UserStage(ranker.eval()), (own,), dynamic_shapes=shapes)
    # they are saved by pickle, and nothing that is loaded may run code
    program.example_inputs = None
    return program


def _all_but_offsets(history: History) -> Iterator[Tensor]:
    for features in (history.items, history.events):
        yield features.indices
        yield from features.vectors
        yield from (jagged.offsets for jagged in features.lists)
        yield from _jagged_values(features)
    yield history.item_of_event
    if history.times is not None:
        yield history.times


def _jagged_values(features: Features) -> Iterator[Tensor]:
    return (jagged.values for jagged in features.lists)


def _copied(value: Any) -> Any:
    """The same inputs, in which no tensor stands twice: shapes are assigned to tensors, not to places."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(_copied(one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(_copied(getattr(value, field.name)) for field in fields(value)))
    return value
