"""What every ranker promises, checked for every ranker in the registry."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from dense_lime import EXACT
from torch.nn import functional

import limerank
from limerank.batch import Features, RequestBatch
from limerank.data.batches import RequestLoader, make_history
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.metrics import auc
from limerank.models import RANKERS, Ranker, build_ranker, check_model
from limerank.models.presets import budget_options
from limerank.nn.features import FeatureEmbedding
from limerank.ops.jagged import row_of
from limerank.schema import UNKNOWN_INDEX
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import ScoringPath, score_candidates
from limerank.splits import Part

TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
"""For what is served, in fp32."""
SHARED_FILES = {"--init--", "base", "factorized", "lime", "pooled", "queried", "presets"}


def loader_of(dataset: StoredDataset, part: Part = Part.TEST, max_history: int = 20) -> RequestLoader:
    return RequestLoader(dataset, part, batch_requests=8, max_history=max_history)


@torch.no_grad()
def logits_of(ranker: Ranker, batch: RequestBatch) -> torch.Tensor:
    logits: torch.Tensor = ranker(batch)
    return logits


@pytest.mark.parametrize("max_history", [1, 50])
def test_scores_do_not_depend_on_batch_mates(ranker: Ranker, dataset: StoredDataset, max_history: int) -> None:
    """A request alone scores as it does among others, whose longer histories it is padded to; none has to have any."""
    ranker.double()
    loader = loader_of(dataset, Part.TRAIN, max_history)
    requests = loader.requests[np.argsort(loader.history_lengths(loader.requests))[:: len(loader.requests) // 11]]
    lengths = loader.history_lengths(requests)
    assert lengths.min() == 0 < lengths.max() <= max_history
    together = logits_of(ranker, loader.assemble(requests))
    alone = torch.cat([logits_of(ranker, loader.assemble(requests[i : i + 1])) for i in range(len(requests))])
    torch.testing.assert_close(together, alone, **EXACT)


def test_scores_do_not_depend_on_the_number_of_candidates(ranker: Ranker, dataset: StoredDataset) -> None:
    """Each candidate scored alone gets the score it has among its fellow candidates."""
    ranker.double()
    batch = loader_of(dataset).assemble(loader_of(dataset).requests[:3])
    together = logits_of(ranker, batch)
    request = row_of(batch.candidates.offsets, len(together))
    for candidate in range(len(together)):
        counts = functional.one_hot(request[candidate], len(batch.inputs))
        only = dataclasses.replace(
            batch.candidates,
            item_of_candidate=batch.candidates.item_of_candidate[candidate : candidate + 1],
            offsets=functional.pad(counts.cumsum(0), (1, 0)),
        )
        alone = logits_of(ranker, dataclasses.replace(batch, candidates=only))
        torch.testing.assert_close(alone[0], together[candidate], **EXACT)


def shuffled(batch: RequestBatch) -> RequestBatch:
    """The same batch, the events of each history in another order."""
    history = batch.inputs.history
    generator = torch.Generator().manual_seed(1)
    order = torch.cat(
        [
            start + torch.randperm(int(end - start), generator=generator)
            for start, end in history.offsets.unfold(0, 2, 1)
        ]
    )
    assert not torch.equal(order, torch.arange(len(order)))
    other = dataclasses.replace(history, item_of_event=history.item_of_event[order], events=history.events.take(order))
    return dataclasses.replace(batch, inputs=dataclasses.replace(batch.inputs, history=other))


@pytest.mark.parametrize("name", sorted(RANKERS))
@pytest.mark.parametrize("encoding", ["none", "recent_position"])
def test_order_matters_where_it_is_said_to(dataset: StoredDataset, name: str, encoding: str) -> None:
    """Rankers that are not `ordered` do not see the order; the others do, and with a position encoding all do.

    Except for two towers: they add up all E_j + P_j, which no order changes.
    """
    torch.manual_seed(0)
    few = dict.fromkeys(budget_options(RANKERS[name].options_type), 4)  # so that "the most recent" are not all
    ranker = (
        build_ranker({"name": name, "encoding": encoding, **few}, dataset.encoders.space(), 2, "test").double().eval()
    )
    if ranker.encoding is not None:
        torch.nn.init.normal_(ranker.encoding.table)
    batch = loader_of(dataset).assemble(loader_of(dataset).requests[:4])
    before, after = logits_of(ranker, batch), logits_of(ranker, shuffled(batch))
    if ranker.ordered or (encoding != "none" and ranker.family != "two-tower"):
        assert not torch.allclose(before, after, atol=1e-4)
    else:
        torch.testing.assert_close(after, before, **EXACT)


def test_history_matters(ranker: Ranker, dataset: StoredDataset) -> None:
    batch = loader_of(dataset).assemble(loader_of(dataset).requests[:4])
    events = Features(torch.full_like(batch.inputs.history.events.indices, UNKNOWN_INDEX))
    forgetful = dataclasses.replace(batch.inputs.history, events=events)
    other = dataclasses.replace(batch, inputs=dataclasses.replace(batch.inputs, history=forgetful))
    assert not torch.allclose(logits_of(ranker, other), logits_of(ranker, batch), atol=1e-3)


def test_context_matters(ranker: Ranker, dataset: StoredDataset) -> None:
    batch = loader_of(dataset).assemble(loader_of(dataset).requests[:4])
    context = Features(torch.full_like(batch.inputs.context.indices, 2))
    other = dataclasses.replace(batch, inputs=dataclasses.replace(batch.inputs, context=context))
    assert not torch.allclose(logits_of(ranker, other), logits_of(ranker, batch), atol=1e-3)


def test_empty_history_is_finite_and_says_nothing_of_others(ranker: Ranker, dataset: StoredDataset) -> None:
    """A request without history scores the same alone and next to one that has a history."""
    ranker.double()
    loader = loader_of(dataset, Part.TRAIN)
    lengths = loader.history_lengths(loader.requests)
    empty, full = loader.requests[np.argmin(lengths)], loader.requests[np.argmax(lengths)]
    assert lengths.min() == 0
    alone = logits_of(ranker, loader.assemble(np.array([empty])))
    beside = logits_of(ranker, loader.assemble(np.array([empty, full])))
    assert torch.isfinite(alone).all()
    torch.testing.assert_close(beside[: len(alone)], alone, **EXACT)
    ranker.loss(loader.assemble(np.array([empty, full]))).backward()
    for name, parameter in ranker.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def gradients_of(ranker: Ranker, batch: RequestBatch) -> dict[str, torch.Tensor | None]:
    """Of a sum over candidates, to which each request contributes its own."""
    ranker.zero_grad(set_to_none=True)
    ranker(batch).square().sum().backward()
    return {name: parameter.grad for name, parameter in ranker.named_parameters()}


@pytest.mark.parametrize("kinds", ["cold cold", "cold warm", "warm warm"])
def test_gradients_of_a_batch_are_those_of_its_requests(ranker: Ranker, dataset: StoredDataset, kinds: str) -> None:
    """Whether there is history or not. A weight that has a gradient has one, of zero, in a batch without history too.

    An optimizer passes over weights without a gradient, so processes that share a batch would train something else.
    """
    ranker.double().train()
    for module in ranker.modules():
        if isinstance(module, FeatureEmbedding):
            module.unknown_rate = 0.0
    loader = loader_of(dataset, Part.TRAIN)
    lengths = loader.history_lengths(loader.requests)
    longest, empty = loader.requests[lengths.argsort()[-2:]], loader.requests[lengths == 0][:2]
    requests = {"cold cold": empty, "cold warm": np.array([empty[0], longest[0]]), "warm warm": longest}[kinds]
    together = gradients_of(ranker, loader.assemble(requests))
    shares = [gradients_of(ranker, loader.assemble(requests[i : i + 1])) for i in range(2)]
    learned = {
        name for name, gradient in gradients_of(ranker, loader.assemble(longest)).items() if gradient is not None
    }
    for name, gradient in together.items():
        parts = [share[name] for share in shares]
        assert [one is not None for one in (gradient, *parts)] == [name in learned] * 3, name
        if gradient is not None:
            summed = sum(part for part in parts if part is not None)
            torch.testing.assert_close(gradient, summed, **EXACT, msg=name)


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_weights_are_of_the_type_that_was_asked_for(dataset: StoredDataset, name: str) -> None:
    """All of them: one in float32 among others in float64 rounds what all of them learn."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ranker = build_ranker({"name": name}, dataset.encoders.space(), 2, "test")
    finally:
        torch.set_default_dtype(before)
    assert {parameter.dtype for parameter in ranker.parameters()} == {torch.float64}


def test_predicting_takes_a_path_with_the_same_scores(ranker: Ranker, dataset: StoredDataset) -> None:
    """Without gradients some rankers multiply in another order; no score changes."""
    ranker.double()
    loader = loader_of(dataset, max_history=50)
    for requests in (loader.requests[:1], loader.requests[:5]):
        batch = loader.assemble(requests)
        torch.testing.assert_close(logits_of(ranker, batch), ranker(batch).detach(), **EXACT)


def test_stored_rows_give_the_scores_of_forward(ranker: Ranker, dataset: StoredDataset) -> None:
    """Every path of serving, over fp32 rows of the whole catalog, against forward; a request without history too."""
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    paths: list[ScoringPath] = ["uncached"] if not ranker.factorized else ["plain"]
    paths += ["folded"] if ranker.foldable else []
    loader = loader_of(dataset, Part.TRAIN)
    lengths = loader.history_lengths(loader.requests)
    items = dataset.column("events/item")
    with torch.inference_mode():
        for position in (np.argmin(lengths), np.argmax(lengths)):
            request = loader.requests[position : position + 1]
            index = torch.from_numpy(items[loader.candidate_rows(request)].astype(np.int64))
            user = ranker.encode_user(loader.user_inputs(request))
            expected = ranker(loader.assemble(request))
            for path in paths:
                served = score_candidates(ranker, user, rows, index, path=path)
                torch.testing.assert_close(served, expected, **TOLERANCE)


def test_unknown_user_item_and_category_are_finite(ranker: Ranker, dataset: StoredDataset) -> None:
    """Row 0 of every table, all of whose features are 'unknown', is a valid user, candidate and history item."""
    loader = loader_of(dataset)
    batch = loader.assemble(loader.requests[:2])
    unknown = dataset.item_table.take(torch.zeros(1, dtype=torch.long))
    assert (unknown.indices == UNKNOWN_INDEX).all()
    assert len(unknown.lists[0].values) == 0
    history = make_history(
        dataset.item_table,
        np.zeros(3, dtype=np.int64),
        Features(torch.ones(3, 2, dtype=torch.long)),
        np.array([0, 1, 3]),
    )
    inputs = dataclasses.replace(
        batch.inputs, users=dataset.user_table.take(torch.zeros(2, dtype=torch.long)), history=history
    )
    candidates = dataclasses.replace(
        batch.candidates, items=unknown, item_of_candidate=torch.zeros_like(batch.candidates.item_of_candidate)
    )
    assert torch.isfinite(logits_of(ranker, RequestBatch(inputs, candidates, batch.labels))).all()


def test_no_event_feature_is_reachable_from_a_candidate(ranker: Ranker, dataset: StoredDataset) -> None:
    """Changing what happened at the request itself changes no score; the item stage has no input for events at all."""
    loader = loader_of(dataset)
    before = logits_of(ranker, loader.assemble(loader.requests[:4]))
    rows = loader.candidate_rows(loader.requests[:4])
    tampered = loader_of(dataset)
    copies = [np.array(column) for column in tampered.history.events]
    for column in copies:
        column[rows] = UNKNOWN_INDEX
    tampered.history.events = [*copies]
    after = logits_of(ranker, tampered.assemble(loader.requests[:4]))
    assert torch.equal(before, after)
    event_names = {encoder.name for encoder in dataset.encoders.event}
    item_names = {
        feature.name for feature in ranker.item_tower.item_embedding.single + ranker.item_tower.item_embedding.lists
    }
    assert not event_names & item_names
    with pytest.raises(ValueError, match="this embedding has"):
        ranker.encode_items(Features(torch.ones(2, len(event_names), dtype=torch.long)))


def test_every_parameter_receives_gradient(ranker: Ranker, dataset: StoredDataset) -> None:
    batch = loader_of(dataset).assemble(loader_of(dataset).requests[:16])
    ranker.train()
    ranker.loss(batch).backward()
    for name, parameter in ranker.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_overfits_a_few_requests(ranker: Ranker, dataset: StoredDataset) -> None:
    """64 requests can be learned by heart: the optimizer reaches every part of the ranker."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=64, max_history=20)
    batch = loader.assemble(loader.requests[-64:])
    labels = batch.labels[:, 0].double().numpy()
    optimizer = torch.optim.Adam(ranker.parameters(), lr=0.01)
    reached = None
    for _ in range(6):
        for _ in range(25):
            optimizer.zero_grad()
            ranker.train().loss(batch).backward()
            optimizer.step()
        ranker.eval()
        reached = auc(labels, logits_of(ranker, batch)[:, 0].double().numpy())
        if reached is not None and reached > 0.99:
            break
    assert reached is not None
    assert reached > 0.99


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_options_round_trip(name: str) -> None:
    """A model section becomes options, options become a model section, through YAML, and nothing is lost."""
    for section in ({}, {"width": 64, "head": [32, 16], "encoding": "position", "unknown_rate": 0.0}):
        kind, options = check_model({"name": name, **section}, "c.yaml")
        assert kind is RANKERS[name]
        dumped = {"name": name, **options.model_dump(mode="json")}
        read = yaml.safe_load(yaml.safe_dump(dumped, sort_keys=False))
        assert read == dumped
        assert check_model(read, "c.yaml") == (kind, options)
        assert {key: dumped[key] for key in section} == section


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_a_misspelled_option_suggests_the_near_one(name: str) -> None:
    for option in RANKERS[name].options_type.model_fields:
        wrong = option + option[-1]
        with pytest.raises(UsageError) as refused:
            check_model({"name": name, wrong: 3}, "c.yaml")
        assert str(refused.value) == f"c.yaml, model '{name}': unknown key '{wrong}'; did you mean '{option}'?"


def test_a_mistake_in_a_model_section_says_which() -> None:
    with pytest.raises(UsageError, match="key 'model.name': no ranker 'lime-mah'; did you mean 'lime-mha'?"):
        check_model({"name": "lime-mah"}, "c.yaml")
    with pytest.raises(UsageError, match="no ranker"):
        check_model({"name": ["mha"]}, "c.yaml")
    with pytest.raises(UsageError, match="key 'head.0': Input should be greater than 0"):
        check_model({"name": "mha", "head": [0]}, "c.yaml")
    with pytest.raises(UsageError, match="width 30 cannot be split into 4 heads"):
        check_model({"name": "mha", "width": 30}, "c.yaml")


def test_item_side_parameters_are_exactly_those_rows_depend_on(ranker: Ranker, dataset: StoredDataset) -> None:
    """Moving one of them changes rows; moving any other parameter or buffer of real numbers changes none."""
    items = dataset.item_table.take(torch.arange(50))
    before = ranker.encode_items(items)
    named = ranker.item_side_parameters()
    assert named
    numbers = [*ranker.named_parameters(), *ranker.named_buffers()]
    for name, parameter in ((name, one) for name, one in numbers if one.is_floating_point()):
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter))
        after = ranker.encode_items(items)
        changed = not (torch.equal(before.rows, after.rows) and torch.equal(before.head_part, after.head_part))
        assert changed == (name in named), name
        with torch.no_grad():
            parameter.copy_(kept)


def test_every_ranker_is_registered_under_its_own_name(dataset: StoredDataset) -> None:
    for name, kind in RANKERS.items():
        assert kind.name == name
        assert isinstance(build_ranker({"name": name}, dataset.encoders.space(), 1, "here"), kind)
    models = Path(limerank.__file__).parent / "models"
    assert {p.stem.replace("_", "-") for p in models.glob("*.py")} - SHARED_FILES == set(RANKERS)


def test_every_ranker_has_options_of_its_own_called_as_it_is_written() -> None:
    """`LimeMHA(links=16)` says which ranker is meant: LimeMHARanker, and no other."""
    assert len({kind.options_type for kind in RANKERS.values()}) == len(RANKERS)
    for kind in RANKERS.values():
        assert kind.__name__ == f"{kind.options_type.__name__}Ranker"
        assert kind.options_type.__module__ == kind.__module__
        assert (kind.options_type.__doc__ or "").startswith("Options of ")


def test_unknown_is_trained(dataset: StoredDataset) -> None:
    """In training some indices become 'unknown', so its embedding receives gradient; when predicting none do."""
    embedding = FeatureEmbedding(dataset.encoders.space().item, 4, unknown_rate=0.5)
    items = dataset.item_table.take(torch.arange(1, 100))
    torch.manual_seed(0)
    first, second = embedding(items), embedding(items)
    assert not torch.equal(first, second)
    embedding.eval()
    torch.testing.assert_close(embedding(items), embedding(items), rtol=0, atol=0)
    embedding.train()
    embedding(items).sum().backward()
    assert embedding.table.grad is not None
    assert embedding.table.grad[UNKNOWN_INDEX].abs().sum() > 0
