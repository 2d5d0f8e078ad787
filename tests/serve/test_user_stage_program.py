"""The exported user stage computes what the ranker computes, for every ranker and histories of any length."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from limerank.batch import UserInputs
from limerank.bench.made_up import BUILT_IN, random_request
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError
from limerank.models import Ranker, UserState, build_ranker
from limerank.serve.engine import Engine
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part

PAGE = Path(__file__).parents[2] / "docs/how-to/serve-a-ranking.md"


def assert_same(got: UserState, expected: UserState) -> None:
    assert isinstance(got, UserState)
    torch.testing.assert_close((got.memory, got.head_part), (expected.memory, expected.head_part), rtol=1e-5, atol=1e-5)
    assert (got.offsets is None) == (expected.offsets is None)
    if got.offsets is not None and expected.offsets is not None:
        assert torch.equal(got.offsets, expected.offsets)


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # of torch, about weights that are not on the CPU
def test_the_user_stage_is_exported_with_a_free_history(ranker: Ranker, dataset: StoredDataset) -> None:
    """One program, made from one request, then saved and loaded, runs others: other lengths, items and lists."""

    def inputs_of(request: int, length: int) -> UserInputs:
        loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=length)
        return loader.user_inputs(np.array([request]))

    requests = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=1).requests
    last, first = int(requests[-1]), int(requests[0])
    program = export_user_stage(ranker, inputs_of(last, 5))
    file = io.BytesIO()
    torch.export.save(program, file)
    assert program.example_inputs is None  # torch.export.load would unpickle them
    file.seek(0)
    stage = torch.export.load(file).module()
    for request, length in ((last, 1), (last, 2), (last, 7), (last, 20), (first, 0)):
        inputs = inputs_of(request, max(length, 1))
        assert inputs.history.item_of_event.shape[0] == length
        with torch.no_grad():
            expected = ranker.encode_user(inputs)
        assert_same(stage(inputs), expected)


def test_only_one_request_with_a_history_is_an_example(dataset: StoredDataset) -> None:
    ranker = build_ranker({"name": "ttsn"}, dataset.encoders.space(), 1, "test")
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=5)
    for requests in (loader.requests[-2:], loader.requests[np.argmin(loader.history_lengths(loader.requests))][None]):
        with pytest.raises(ArgumentError, match="one request that has a history"):
            export_user_stage(ranker, loader.user_inputs(requests))


def test_times_are_free_too() -> None:
    """An encoding that reads times is part of the program."""
    ranker = build_ranker({"name": "mha", "encoding": "age"}, BUILT_IN, 1, "test").eval()
    program = export_user_stage(ranker, random_request(BUILT_IN, 5))
    inputs = random_request(BUILT_IN, 11, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(inputs).memory, ranker.encode_user(inputs).memory)


@pytest.mark.filterwarnings("ignore:No complete tensor found")
def test_the_how_to_runs_as_it_stands(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the engine that its first lines open, and users and devices of the simulated log."""
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "torch.export" in b)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"engine": engine}
    exec(block, names)
    with torch.no_grad():
        assert_same(names["state"], engine.ranker.encode_user(names["other"]))
