"""Explanations of served rankings: they add up, name the right events, and find what links stand for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calling import answer, limerank, refusal

from limerank.api.run import Run
from limerank.batch import Features, Jagged
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.encoders import Encoder
from limerank.errors import UsageError
from limerank.models import build_ranker
from limerank.models.lime import LimeRanker
from limerank.progress import Progress
from limerank.schema import Kind
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import RowType, compute_rows
from limerank.serve.engine import Engine
from limerank.serve.explanation import link_profiles as profiling
from limerank.serve.explanation.explain import CandidateExplanation, explain
from limerank.serve.explanation.link_profiles import link_profiles
from limerank.serve.requests import Event

QUIET = Progress(quiet=True)
HOW_TO = Path(__file__).parents[2] / "docs/how-to/explain-a-ranking.md"
PLANTED_LINK, PLANTED_TOPIC = 3, "topic4"


def served_by(bundle: Bundle, model: dict[str, Any], row_type: RowType = "fp32") -> Engine:
    """An engine on the same catalog and histories, with a ranker of its own."""
    torch.manual_seed(2)
    ranker = build_ranker(model, bundle.encoders.space(), len(bundle.manifest.tasks), "test").eval()
    return Engine(dataclasses.replace(bundle, ranker=ranker, rows=compute_rows(ranker, bundle.item_table, row_type)))


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def total(candidate: CandidateExplanation) -> float:
    links = sum(part.contribution for part in candidate.links)
    return links + candidate.from_item + candidate.from_user + candidate.constant


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "u8"])
def test_terms_add_up_to_what_is_served(runs: dict[str, Run], row_type: RowType, tmp_path: Path) -> None:
    """From stored rows of any type, for both tasks, with context and new events, an unknown item included."""
    engine = Engine(runs["lime-mha"].publish(tmp_path / "store", rows=row_type, quiet=True))
    asked: dict[str, Any] = {
        "context": {"device": "phone", "hour": 20},
        "events": [Event("i7", {"clicked": 1, "watched_fraction": 0.9}), Event("ghost", {"clicked": 0})],
    }
    for place, task in enumerate(engine.bundle.manifest.tasks):
        ranking = engine.answer("u3", ["i1", "i2", "i3", "phantom"], task=task, **asked)
        explanation = explain(engine, "u3", ranking.item_ids, task=task, **asked)
        assert explanation.task == task
        assert explanation.history_used == ranking.history_used
        for candidate, probabilities in zip(explanation.candidates, ranking.probabilities, strict=True):
            assert total(candidate) == pytest.approx(logit(probabilities[place]), abs=1e-5)
            assert candidate.logit == pytest.approx(total(candidate), abs=1e-5)
            assert [part.link for part in candidate.links] != list(range(32))
            assert sorted(part.link for part in candidate.links) == list(range(32))
            sizes = [abs(part.contribution) for part in candidate.links]
            assert sizes == sorted(sizes, reverse=True)
            for part in candidate.links:
                assert part.weight == pytest.approx(np.mean(part.head_weights), abs=1e-6)
                assert part.contribution == pytest.approx(sum(part.head_contributions), abs=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "lime-xor", "links": 8, "select_from": 12},
        {"name": "isab", "context": "after"},
        {"name": "lime-hstu", "links": 12, "coarse_links": 4},
        {"name": "lime-xor", "candidate_activation": "silu"},
    ],
    ids=str,
)
def test_every_lime_ranker_explains(engine: Engine, model: dict[str, Any]) -> None:
    """The largest fractions of a loop over events, per link; links that rest read nothing; profiles name the levels."""
    other = served_by(engine.bundle, model)
    ranker = other.ranker
    assert isinstance(ranker, LimeRanker)
    ranking = other.answer("u5", limit=4)
    explanation = explain(other, "u5", ranking.item_ids, top_events=3, layer="last")
    for candidate, probabilities in zip(explanation.candidates, ranking.probabilities, strict=True):
        assert total(candidate) == pytest.approx(logit(probabilities[0]), abs=1e-5)
    inputs, _ = other.user_inputs("u5", {})
    with torch.inference_mode():
        reads = ranker.history_attention(inputs, "last").abs().mean(2)
    events = len(reads)
    resting = 0
    for link, shown in enumerate(explanation.events):
        if not reads[:, link].any():
            assert shown == []
            resting += 1
            continue
        fractions = reads[:, link] / reads[:, link].sum()
        told = [events - event.position for event in shown]
        assert [event.fraction for event in shown] == pytest.approx(fractions[told].tolist(), rel=1e-4)
        largest = fractions.sort(descending=True).values[:3]
        assert len(set(told)) == len(largest)
        # in order up to the fourth digit of the largest, from where on fractions count as equal
        torch.testing.assert_close(fractions[told], largest, rtol=0, atol=1.1e-4 * float(largest[0]))
    assert resting == (4 if "select_from" in model else 0)
    profiles = link_profiles(other.bundle)
    assert len(profiles) == ranker.options.all_links
    if "coarse_links" in model:
        assert [profile.name for profile in profiles[3:6]] == ["3 (coarse)", "4 (fine, of 0)", "5 (fine, of 1)"]
        assert profiles[-1].parent == 3


def test_events_are_those_of_the_request(engine: Engine) -> None:
    """Names, positions and features of all events, new ones last; only what fits the history is there."""
    new = [Event("i7", {"clicked": 1, "watched_fraction": 0.9}, time=None), Event("ghost", {"clicked": 0})]
    explanation = explain(engine, "u3", ["i1"], events=new, top_events=1000)
    inputs, _ = engine.user_inputs("u3", {}, new)
    table, history = engine.bundle.item_table, inputs.history
    assert explanation.history_used == len(history.item_of_event) == engine.bundle.manifest.max_history
    for shown in explanation.events:
        by_position = {event.position: event for event in shown}
        assert sorted(by_position) == list(range(1, explanation.history_used + 1))
        assert sum(event.fraction for event in shown) == pytest.approx(1, abs=1e-5)
        assert (by_position[1].item, by_position[2].item) == ("ghost", "i7")
        assert by_position[2].features["clicked"] == "1"
        for position, event in by_position.items():
            row = engine.bundle.item_ids.rows_of([event.item])
            named = table.take(torch.from_numpy(row)).indices[0]
            assert torch.equal(named, history.items.indices[history.item_of_event[-position]])
            assert history.times is not None
            assert event.time == int(history.times[-position])


def test_of_equal_events_the_more_recent_stands_first(engine: Engine) -> None:
    repeated = [Event("i7", {"clicked": 1, "watched_fraction": 0.9})] * 4
    explanation = explain(engine, "nobody", ["i1"], events=repeated)
    for shown in explanation.events:
        assert [event.position for event in shown] == [1, 2, 3, 4]
        assert [event.fraction for event in shown] == pytest.approx([0.25] * 4, abs=1e-6)


def test_without_a_history_there_are_no_events(engine: Engine) -> None:
    explanation = explain(engine, "nobody", ["i1", "i2"])
    assert explanation.history_used == 0
    assert explanation.events == [[]] * 32
    probabilities = engine.score(engine.encode_user("nobody"), ["i1", "i2"])
    for candidate, own in zip(explanation.candidates, probabilities, strict=True):
        assert total(candidate) == pytest.approx(logit(own[0]), abs=1e-5)


def test_items_known_only_from_histories_are_named_by_their_features(engine: Engine) -> None:
    """Ready-made histories hold items behind the catalog, which have no id."""
    bundle = engine.bundle
    user = int(bundle.user_ids.rows_of(["u3"])[0])
    item = bundle.histories["item"].clone()
    newest = int(bundle.histories["offsets"][user + 1]) - 1
    item[newest] = bundle.manifest.items
    stranger = bundle.item_table.take(torch.tensor([5]))
    stranger.indices[0, 1:] = 1
    behind = dataclasses.replace(
        bundle, item_table=bundle.item_table.followed_by(stranger), histories={**bundle.histories, "item": item}
    )
    encoder = bundle.encoders.item[0]
    expected = f"{encoder.name}={encoder.decode(int(bundle.item_table.indices[5, 0]))}"
    shown = explain(Engine(behind), "u3", ["i1"], top_events=1000).events[0]
    assert next(event.item for event in shown if event.position == 1) == expected
    assert link_profiles(behind) == link_profiles(bundle)


def planted(dataset: StoredDataset, bundle: Bundle) -> Bundle:
    """T depends on an item's topic only, and one link's key points to one topic; all other links attract alike."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": "lime-mha", "links": 6}, dataset.encoders.space(), 2, "test").eval()
    assert isinstance(ranker, LimeRanker)
    single = [encoder for encoder in dataset.encoders.item if encoder.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    topic = next(place for place, encoder in enumerate(single) if encoder.name == "topic")
    embedding = ranker.item_tower.item_embedding
    first = int(embedding.first_row[topic])
    items = dataset.item_table
    with torch.no_grad():
        kept = embedding.table[first : first + single[topic].size].clone()
        embedding.table.zero_()
        embedding.table[first : first + single[topic].size] = 4 * kept
        for projection in (ranker.candidate_queries, ranker.link_keys):
            projection.linear.weight.copy_(torch.eye(32))
        queries = ranker.candidate_queries.norm(ranker.item_tower.candidates(items))
        has_it = items.indices[:, topic] == single[topic].encode_value(PLANTED_TOPIC)
        ranker.links.embeddings.zero_()
        ranker.links.embeddings[PLANTED_LINK] = queries[has_it].mean(0) - queries[~has_it].mean(0)
    return dataclasses.replace(bundle, ranker=ranker, rows=compute_rows(ranker, items, "fp16"))


def values_of(bundle: Bundle, row: int) -> set[tuple[str, str]]:
    """Every named value of an item, decoded one by one."""
    single, lists = iter(bundle.item_table.indices[row].tolist()), iter(bundle.item_table.lists)
    found = set()
    for encoder in bundle.encoders.item:
        if encoder.kind is Kind.MULTI_VALUED:
            jagged = next(lists)
            indices = jagged.values[int(jagged.offsets[row]) : int(jagged.offsets[row + 1])].tolist()
        else:
            indices = [next(single)]
        found |= {(encoder.name, encoder.decode(index)) for index in indices if index > 1}
    return found


def test_a_planted_topic_is_found(dataset: StoredDataset, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed in blocks; every lift is that of a loop over items, values and links, whatever the block."""
    bundle = planted(dataset, engine.bundle)
    monkeypatch.setattr(profiling, "BLOCK", 48)
    profiles = link_profiles(bundle, top=1000, minimum_items=3)
    rows, _ = bundle.rows.widened()
    items = range(1, bundle.manifest.items)
    has = {row: values_of(bundle, row) for row in items}
    counts = {value: sum(value in own for own in has.values()) for value in set().union(*has.values())}
    for profile in profiles:
        weight = {row: float(rows[row].view(4, 6)[:, profile.link].mean()) for row in items}
        assert profile.weight == pytest.approx(sum(weight.values()) / len(items), rel=1e-4)
        lifts = {}
        for value, count in counts.items():
            fraction = sum(weight[row] for row in items if value in has[row]) / sum(weight.values())
            if count >= 3:
                lifts[value] = fraction / (count / len(items))
        told = {(one.feature, one.value): one for one in profile.attributes}
        assert {value for value, lift in lifts.items() if lift > 1 + 1e-6} <= set(told)
        for value, one in told.items():
            assert one.lift == pytest.approx(lifts[value], rel=1e-4)
            assert one.items == counts[value]
        order = sorted(items, key=lambda row: (-weight[row], row))
        assert [name for name, _ in profile.items] == bundle.item_ids.names_of(np.array(order))
    best = profiles[PLANTED_LINK].attributes[0]
    assert (best.feature, best.value) == ("topic", PLANTED_TOPIC)
    assert best.lift > 2
    assert all(("topic", PLANTED_TOPIC) in has[row] for row in bundle.item_ids.rows_of(
        [name for name, _ in profiles[PLANTED_LINK].items[:10]]
    ).tolist())  # fmt: skip
    monkeypatch.setattr(profiling, "BLOCK", 4096)
    whole = link_profiles(bundle, top=1000, minimum_items=3)
    assert [one.items for one in whole] == [one.items for one in profiles]


def test_a_negative_weight_attracts_nothing(engine: Engine) -> None:
    """With SiLU rows a link's mean weight counts every sign, its attributes only what it attracts."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(engine.bundle.rows.rows.shape, generator=generator).half()
    bundle = dataclasses.replace(engine.bundle, rows=dataclasses.replace(engine.bundle.rows, rows=rows))
    items = range(1, bundle.manifest.items)
    has = {row: values_of(bundle, row) for row in items}
    profile = link_profiles(bundle, top=1000, minimum_items=3)[7]
    weight = {row: float(rows[row].float().view(4, 32)[:, 7].mean()) for row in items}
    attracted = {row: max(own, 0.0) for row, own in weight.items()}
    assert min(weight.values()) < 0
    assert profile.weight == pytest.approx(sum(weight.values()) / len(items), rel=1e-3)
    assert profile.attributes
    for one in profile.attributes:
        with_it = [row for row in items if (one.feature, one.value) in has[row]]
        fraction = sum(attracted[row] for row in with_it) / sum(attracted.values())
        assert one.fraction == pytest.approx(fraction, rel=1e-3)
        assert one.lift == pytest.approx(fraction / (len(with_it) / len(items)), rel=1e-3)


def test_a_value_that_stands_twice_in_a_list_counts_once(engine: Engine) -> None:
    bundle, table = engine.bundle, engine.bundle.item_table
    twice = tuple(Jagged(jagged.values.repeat_interleave(2), jagged.offsets * 2) for jagged in table.lists)
    assert twice
    doubled = dataclasses.replace(bundle, item_table=Features(table.indices, twice, table.vectors))
    assert link_profiles(doubled) == link_profiles(bundle)


def test_rare_values_are_left_out(engine: Engine) -> None:
    few, many = (link_profiles(engine.bundle, top=1000, minimum_items=least) for least in (1, 20))
    assert "item_id" in {one.feature for profile in few for one in profile.attributes}
    assert min(one.items for profile in few for one in profile.attributes) < 5
    assert min(one.items for profile in many for one in profile.attributes) >= 20
    assert min(one.items for profile in link_profiles(engine.bundle, top=1000) for one in profile.attributes) >= 5
    with pytest.raises(UsageError, match="must be at least 1"):
        link_profiles(engine.bundle, top=0)


def test_hashed_values_are_buckets_and_resting_links_attract_nothing(engine: Engine) -> None:
    """A name that was hashed away is a bucket number; a link without weight on any item has no attributes."""
    bundle = engine.bundle
    first, *others = bundle.encoders.item
    hashed = Encoder(name=first.name, kind=Kind.HASHED, buckets=len(first.vocabulary))
    other = dataclasses.replace(bundle, encoders=bundle.encoders.model_copy(update={"item": (hashed, *others)}))
    named = {one.value for profile in link_profiles(other, top=1000, minimum_items=1) for one in profile.attributes
             if one.feature == first.name}  # fmt: skip
    assert named
    assert all(re.fullmatch(r"hash bucket \d+", value) for value in named)
    rows = dataclasses.replace(bundle.rows, rows=bundle.rows.rows.clone())
    rows.rows.view(-1, 4, 32)[:, :, 5] = 0
    (resting,) = (p for p in link_profiles(dataclasses.replace(bundle, rows=rows)) if p.link == 5)
    assert (resting.weight, resting.attributes) == (0, [])


@pytest.mark.parametrize("name", ["pma", "mha", "ttsn"])
def test_other_rankers_have_no_links(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    """One line that names the rankers which have them, exit code 2, from all three ways to ask."""
    runs[name].publish(tmp_path / "store", quiet=True)
    engine = Engine.open(tmp_path / "store")
    with pytest.raises(UsageError, match="only LIME rankers"):
        explain(engine, "u1", ["i1"])
    for command, *options in (["rank", "--user", "u1", "--explain", "1"], ["links"]):
        message = refusal(2, command, tmp_path / "store", *options)
        assert "only LIME rankers (lime-mha, lime-xor, lime-hstu, isab) have links" in message
        assert f"this one is '{name}'" in message
        assert message.count("\n") == 1


def test_a_layer_without_an_explanation_is_refused(store: Path) -> None:
    assert "add --explain N" in refusal(2, "rank", store, "--user", "u1", "--layer", "last")


def test_the_commands(store: Path, engine: Engine) -> None:
    """`rank --explain` shows and prints what `explain` says; `links` what `link_profiles` says."""
    ranked = answer("rank", store, "--user", "u3", "--limit", "5", "--explain", "2", "--layer", "last")
    why = ranked["explanation"]
    assert [candidate["item"] for candidate in why["candidates"]] == [item["id"] for item in ranked["items"][:2]]
    explanation = explain(engine, "u3", [item["id"] for item in ranked["items"][:2]])
    for shown, candidate in zip(why["candidates"], explanation.candidates, strict=True):
        assert shown["logit"] == pytest.approx(candidate.logit, abs=1e-5)
        terms = shown["from_links"] + shown["from_item"] + shown["from_user"] + shown["constant"]
        assert terms == pytest.approx(shown["logit"], abs=1e-5)
    assert len(why["links"]) == 32
    assert [event["item"] for event in why["links"][4]["events"]] == [event.item for event in explanation.events[4]]
    text = limerank("rank", store, "--user", "u3", "--explain", "2").stdout
    best = explanation.candidates[0]
    assert f"1. {best.item}: logit of click {best.logit:+.3f} = links {best.from_links:+.3f}" in text
    top_link = best.links[0]
    assert re.search(
        rf"^ *{top_link.link} +{top_link.weight:.3f} +\{top_link.contribution:+.3f} +i\d+ \d+%", text, re.M
    )
    assert "explanation" not in answer("rank", store, "--user", "u3")
    profiles = link_profiles(engine.bundle, top=3)
    listed = answer("links", store, "--top", "3")
    assert listed["bundle"] == engine.bundle.manifest.id
    assert [[item["id"] for item in link["items"]] for link in listed["links"]] == [
        [name for name, _ in profile.items] for profile in profiles
    ]
    assert listed["links"][7]["attributes"] == [dataclasses.asdict(one) for one in profiles[7].attributes]
    (one,) = answer("links", store, "--top", "3", "--link", "7")["links"]
    assert one == listed["links"][7]
    assert profiles[0].items[0][0] in limerank("links", store).stdout
    assert "nearest item" in limerank("links", store, "--link", "7").stdout
    assert "has the links 0 to 31" in refusal(2, "links", store, "--link", "32")
    with pytest.raises(UsageError, match="no task 'clik'"):
        explain(engine, "u3", ["i1"], task="clik")


def test_the_code_of_the_how_to_runs(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores/demo").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["total"] == pytest.approx(names["best"].logit, abs=1e-5)
    assert len(names["read"]) == 5
    assert names["stands_for"]
