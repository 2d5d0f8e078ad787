"""Kept states of users whose stored events come in any order: what is reused is what would be computed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from limerank.api.dataset import Dataset
from limerank.models import build_ranker
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.serve.histories.past import Event, Happened
from limerank.serve.histories.store import HistoryStore
from limerank.serve.overlay.items import Item

CANDIDATES = [*(f"i{number}" for number in range(60)), "new"]
USERS = ["u1", "u2", "newcomer"]
STEPS, MINUTE = 60, 60_000


@pytest.mark.parametrize(
    "options", [{"name": "lime-mha"}, {"name": "lime-mha", "encoding": "age"}, {"name": "lime-xor"}], ids=str
)
def test_kept_states_answer_as_none_would(options: dict[str, Any], dataset: Dataset, tmp_path: Path) -> None:
    """New, late, repeated and trimmed events, erasures, upserts, and requests of all kinds, by chance."""
    torch.manual_seed(5)
    ranker = build_ranker(options, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    with torch.no_grad():  # starting weights are small: probabilities must differ by more than rounding
        for parameter in ranker.parameters():
            parameter.mul_(1.4)
    bundle = export(ranker.eval(), options, dataset, tmp_path / "store", max_history=12, row_type="fp32", threads=1)
    end, chance = bundle.manifest.watermark or 0, random.Random(8)

    def item() -> str:
        return chance.choice(["i1", "i2", f"i{chance.randrange(190)}", "new"])

    def happened(user: str, step: int) -> Happened:
        late = chance.random() < 0.3
        time = end - chance.randrange(10**9) if late else end + step * MINUTE
        return Happened(user, item(), time, chance.choice([{}, {"watched_fraction": chance.random()}]))

    def request(step: int) -> dict[str, Any]:
        asked: dict[str, Any] = {"exclude_seen": chance.random() < 0.3}
        if chance.random() < 0.2:
            asked["events"] = [Event(item(), {}, chance.choice([None, end + step]))]
        if chance.random() < 0.1:
            asked["history"] = [Event(item(), {}, end + step)]
        return asked

    nothing_known = {one.name: None for one in bundle.encoders.item if one.name != "item_id"}
    stores = [HistoryStore.open(tmp_path / "store", cap=24) for _ in range(2)]
    ways: set[str] = set()
    with (
        Engine(bundle, states=2**24, histories=stores[0], threads=1) as keeping,
        Engine(bundle, states=0, histories=stores[1], threads=1) as plain,
    ):
        keeping.stages.users.least_events = 2  # so that states of short histories grow, too
        for step in range(STEPS):
            user, chosen = chance.choice(USERS), chance.random()
            if chosen < 0.4:
                keeping.add_events([happened(user, step) for _ in range(chance.choice([1, 1, 4]))])
            elif chosen < 0.43:
                keeping.erase_user(user)
            elif chosen < 0.45:
                keeping.upsert([Item("new", nothing_known)])
            asked = request(step)
            ours, wanted = (engine.answer(user, CANDIDATES, **asked) for engine in (keeping, plain))
            ways.add(ours.user_state)
            assert sorted(ours.item_ids) == sorted(wanted.item_ids)
            one, other = (ranking.probabilities[np.argsort(ranking.item_ids)] for ranking in (ours, wanted))
            np.testing.assert_allclose(one, other, atol=1e-5, err_msg=f"step {step}: {ours.user_state}, {asked}")
            assert (ours.history_used, ours.history_as_of) == (wanted.history_used, wanted.history_as_of)
            assert ours.known_user == wanted.known_user
    assert ways >= ({"computed", "cached"} if options.get("encoding") == "age" else {"computed", "cached", "appended"})
