"""The interaction network: layers of each task for itself, as modules and as plain layers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.nn.head import InteractionHead, TaskLayer
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import score_candidates
from limerank.splits import Part

TASKS = 3


def head(task_hidden: tuple[int, ...]) -> InteractionHead:
    torch.manual_seed(0)
    return InteractionHead(
        interaction_width=4, item_width=4, user_width=2, hidden=(8, 6), tasks=TASKS, task_hidden=task_hidden
    )


@pytest.mark.parametrize("task_hidden", [(), (5,), (5, 4)])
def test_each_task_is_a_network_of_its_own_behind_the_shared_layers(task_hidden: tuple[int, ...]) -> None:
    """The logits equal those of one MLP per task, written out, and of the plain layers that serving gets."""
    module, first = head(task_hidden), torch.randn(7, 8)
    shared = functional.relu(module.later[0](functional.relu(first)))
    own = module.later[1](shared).view(7, TASKS, -1)
    columns = []
    for task in range(TASKS):
        rows = own[:, task]
        for layer in module.of_tasks:
            assert isinstance(layer, TaskLayer)
            rows = functional.relu(rows) @ layer.weight[task].T + layer.bias[task]
        columns.append(rows)
    expected = torch.cat(columns, 1)
    assert expected.shape == (7, TASKS)
    torch.testing.assert_close(module.after_first(first), expected)
    plain = first
    for weight, bias in module.later_layers():
        plain = functional.relu(plain) @ weight.T + bias
    torch.testing.assert_close(plain, expected)


def test_a_task_does_not_train_the_layers_of_another() -> None:
    module = head((5,))
    module.after_first(torch.randn(9, 8))[:, 1].sum().backward()
    (layer,) = module.of_tasks
    assert isinstance(layer, TaskLayer)
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum((1, 2)).gt(0).tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["lime-mha", "mha"])
def test_a_ranker_with_task_heads_serves_what_it_trains(dataset: StoredDataset, name: str) -> None:
    """Item rows and the plain layers give the scores of forward, folded and not."""
    model = {"name": name, "head": [12, 10], "task_head": [6]}
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20)
    batch = loader.assemble(loader.requests[:1])
    rows = compute_rows(ranker, batch.candidates.items, "fp32")
    with torch.inference_mode():
        user = ranker.encode_user(batch.inputs)
        for path in ("folded", "plain") if ranker.foldable else ("uncached",):
            served = score_candidates(ranker, user, rows, batch.candidates.item_of_candidate, path=path)
            torch.testing.assert_close(served, ranker(batch), rtol=1e-5, atol=1e-5)
