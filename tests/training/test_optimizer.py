"""Row-sparse updates: the same as dense ones where both are defined, and nothing else is touched."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from limerank.batch import RequestBatch
from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker
from limerank.nn import features
from limerank.nn.features import FeatureEmbedding
from limerank.splits import Part
from limerank.training.optimizer import Optimizer, RowAdam, touched_rows

ROWS, WIDTH, RATE = 12, 3, 0.05


def sparse_gradient(numbers: list[int], seed: int) -> Tensor:
    """A gradient as `embedding` leaves it: rows in any order, some of them several times; no row adds up to nothing."""
    drawn = torch.rand(len(numbers), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = (drawn + 0.5) * torch.tensor([(-1) ** (number + seed) for number in numbers])[:, None]
    return torch.sparse_coo_tensor(torch.tensor([numbers]), values, (ROWS, WIDTH), check_invariants=True)


def table(seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


steps_of_rows = st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=20), min_size=1, max_size=6)


@given(steps_of_rows)
def test_rows_move_as_in_torchs_sparse_adam(steps: list[list[int]]) -> None:
    """Up to where epsilon is added: theirs goes on top before the moments are corrected, Adam's and ours after."""
    ours, theirs = table(), table()
    mine, reference = RowAdam([ours], RATE), torch.optim.SparseAdam([theirs], RATE)
    for number, rows in enumerate(steps):
        ours.grad, theirs.grad = sparse_gradient(rows, number), sparse_gradient(rows, number)
        mine.step()
        with torch.sparse.check_sparse_tensor_invariants():
            reference.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * RATE)


@given(steps_of_rows)
def test_a_dense_gradient_moves_what_the_sparse_one_does(steps: list[list[int]]) -> None:
    """Which of the two an embedding makes depends on the batch; the result does not."""
    first, second = table(), table()
    sparse, dense = (RowAdam([one], RATE, weight_decay=0.1) for one in (first, second))
    for number, rows in enumerate(steps):
        first.grad = sparse_gradient(rows, number)
        second.grad = sparse_gradient(rows, number).to_dense()
        sparse.step()
        dense.step()
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_it_is_adam_when_every_step_touches_every_row(decay: float) -> None:
    ours, theirs = table(), table()
    mine, reference = RowAdam([ours], RATE, decay), torch.optim.Adam([theirs], RATE, weight_decay=decay)
    for number in range(5):
        gradient = sparse_gradient([*range(ROWS), 3, 3], number)
        ours.grad, theirs.grad = gradient, gradient.to_dense()
        mine.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_rows_that_were_not_used_keep_weight_and_moments() -> None:
    """Bit for bit, with weight decay too: a step costs and changes what its batch used."""
    one = table()
    optimizer = RowAdam([one], RATE, weight_decay=0.5)
    one.grad = sparse_gradient([1, 2, 5], 0)
    optimizer.step()
    before = {"weight": one.detach().clone(), **copy.deepcopy(optimizer.state[one])}
    one.grad = sparse_gradient([2], 1)
    optimizer.step()
    others = [row for row in range(ROWS) if row != 2]
    assert torch.equal(one[others], before["weight"][others])
    assert not torch.equal(one[2], before["weight"][2])
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[one][name][others], before[name][others])


def test_touched_rows_are_summed_and_zero_ones_left_out() -> None:
    gradient = torch.sparse_coo_tensor(
        torch.tensor([[4, 1, 4, 7]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0], [0.0, 0.0]]),
        (9, 2),
        check_invariants=True,
    )
    rows, values = touched_rows(gradient)
    assert rows.tolist() == [1, 4]
    assert values.tolist() == [[3.0, 4.0], [11.0, 22.0]]
    assert [one.tolist() for one in touched_rows(gradient.to_dense())] == [rows.tolist(), values.tolist()]


@pytest.mark.parametrize("numbers", [[4], [4, 4], [4, 7]])
def test_rows_whose_gradient_is_zero_stay_where_they_are(numbers: list[int]) -> None:
    """A single one as well, which torch takes for summed already: their momentum is for steps that use them."""
    one = table()
    optimizer = RowAdam([one], RATE, weight_decay=0.5)
    one.grad = sparse_gradient([4, 7], 0)
    optimizer.step()
    before = one.detach().clone()
    listed = nn.functional.embedding(torch.tensor(numbers), one, sparse=True)
    (one.grad,) = torch.autograd.grad((listed * 0).sum(), [one])
    assert one.grad._nnz() == len(numbers)
    assert touched_rows(one.grad)[0].tolist() == []
    optimizer.step()
    assert torch.equal(one, before)


@pytest.fixture(autouse=True, scope="module")
def tables_are_large() -> Iterator[None]:
    """As tables are in earnest: gradients of the small ones here would be dense for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "ROWS_PER_NUMBER", 1)
        yield


def ranker_and_batch(dataset: StoredDataset) -> tuple[Ranker, RequestBatch]:
    """Both in fp64; the batch uses fewer rows than the tables have."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": "lime-mha", "unknown_rate": 0.0}, dataset.encoders.space(), 2, "test").double()
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=4, max_history=10)
    longest = loader.history_lengths(loader.requests).argsort()[-4:]
    return ranker.train(), loader.assemble(loader.requests[longest]).map(to_double)


def to_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def test_a_rankers_sparse_gradients_are_its_dense_ones(dataset: StoredDataset) -> None:
    """The tables' gradients are sparse where a batch uses fewer rows than there are, and equal."""
    ranker, batch = ranker_and_batch(dataset)
    gradients = {}
    for updates in ("dense", "sparse"):
        Optimizer(ranker, TrainConfig(embedding_updates=updates))
        ranker.zero_grad()
        ranker.loss(batch).backward()
        gradients[updates] = {name: parameter.grad for name, parameter in ranker.named_parameters()}
    kinds = {name for name, gradient in gradients["sparse"].items() if gradient is not None and gradient.is_sparse}
    assert kinds >= {"item_tower.item_embedding.table", "context_tower.user_embedding.table"}
    for name, gradient in gradients["dense"].items():
        assert gradient is not None
        other = gradients["sparse"][name]
        assert other is not None
        torch.testing.assert_close(other.to_dense(), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("most", [1e-3, 1e3])
def test_clipping_sees_sparse_gradients_as_torch_sees_dense_ones(dataset: StoredDataset, most: float) -> None:
    """The norm before, and all gradients after; the same row several times counts as one."""
    ranker, batch = ranker_and_batch(dataset)
    other = copy.deepcopy(ranker)
    sparse = Optimizer(ranker, TrainConfig())
    Optimizer(other, TrainConfig(embedding_updates="dense"))
    ranker.loss(batch).backward()
    other.loss(batch).backward()
    norm = sparse.clip(most)
    assert float(norm) == pytest.approx(float(nn.utils.clip_grad_norm_(other.parameters(), most)), rel=1e-9)
    for mine, theirs in zip(ranker.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.to_dense(), theirs.grad, rtol=1e-5, atol=1e-12)


def test_embeddings_have_settings_of_their_own(dataset: StoredDataset) -> None:
    """A learning rate of the tables alone moves them alone at that rate; the first step of Adam shows it."""
    ranker, batch = ranker_and_batch(dataset)
    before = {name: parameter.detach().clone() for name, parameter in ranker.named_parameters()}
    optimizer = Optimizer(ranker, TrainConfig(learning_rate=1e-4, embedding_learning_rate=1e-2))
    ranker.loss(batch).backward()
    optimizer.step(0.5)
    tables = {f"{name}.table" for name, module in ranker.named_modules() if isinstance(module, FeatureEmbedding)}
    for name, parameter in ranker.named_parameters():
        moved = float((parameter - before[name]).detach().abs().max())
        assert moved < 0.5e-2 * 1.01 if name in tables else moved < 0.5e-4 * 1.01, name
        assert name not in tables or moved > 0.5e-2 * 0.9, name
