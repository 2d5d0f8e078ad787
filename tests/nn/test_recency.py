"""Recency: a bias that falls with age, exact at any date, and the same however much later it is asked for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from limerank.errors import DataError
from limerank.nn.recency import DAY, Recency, days_before_latest

NOW = 1_700_000_000_000
SECOND = 1_000


def test_half_lives_start_between_a_day_and_two_months() -> None:
    """The first head forgets half in a day, the last in 64 days, in equal ratios between; decays are positive."""
    decay = Recency(4).decay().detach()
    half_lives = math.log(2) / decay
    torch.testing.assert_close(half_lives, torch.tensor([1.0, 4.0, 16.0, 64.0]), rtol=1e-4, atol=0)
    torch.testing.assert_close(Recency(1).decay().detach(), torch.tensor([math.log(2)]), rtol=1e-5, atol=0)


def test_decay_stays_positive_whatever_is_learned() -> None:
    recency = Recency(3)
    with torch.no_grad():
        recency.raw.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    decay = recency.decay()
    assert (decay > 0).all()
    assert torch.isfinite(decay).all()
    decay.sum().backward()
    assert recency.raw.grad is not None
    assert (recency.raw.grad > 0).all()


def test_ages_are_days_before_the_users_own_latest_event() -> None:
    """Against a loop; events need not be in order, and a user without events has none."""
    lengths = [3, 0, 1, 4]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    times = NOW + torch.tensor([5, 0, 3, 9, 1, 8, 2, 2]) * DAY // 2
    got = days_before_latest(times, offsets)
    assert got.dtype == torch.float64
    expected: list[float] = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        own = times[start:stop].tolist()
        expected += [(max(own) - time) / DAY for time in own]
    assert got.tolist() == expected


def test_the_bias_is_minus_decay_times_age() -> None:
    recency = Recency(3)
    offsets, times = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 1, 7, 2]) * DAY
    bias = recency(times, offsets)
    assert bias.shape == (5, 3)
    for event, age in enumerate([3, 0, 6, 0, 5]):
        torch.testing.assert_close(bias[event], -recency.decay() * age)


def test_a_second_survives_in_milliseconds_since_1970() -> None:
    """fp32 has steps of 131 seconds at 1.7e12 ms; differences are taken in whole numbers, before any rounding."""
    assert float(torch.tensor(NOW + 60 * SECOND, dtype=torch.float32) - torch.tensor(float(NOW))) != 60 * SECOND
    recency = Recency(1)
    with torch.no_grad():
        recency.raw.fill_(86_400.0)  # one per second
    times = NOW + torch.tensor([0, 1, 2, 60]) * SECOND
    bias = recency(times, torch.tensor([0, 4]))[:, 0]
    torch.testing.assert_close(bias.detach(), torch.tensor([-60.0, -59.0, -58.0, 0.0]), rtol=1e-6, atol=1e-6)
    assert days_before_latest(NOW + torch.tensor([0, 1]), torch.tensor([0, 2]))[0] == 1 / DAY


@pytest.mark.parametrize("shift", [1, -NOW, 10 * 365 * DAY])
def test_moving_all_times_changes_nothing(shift: int) -> None:
    """The bias is against the latest event: `now` is nowhere in it."""
    recency, offsets = Recency(2), torch.tensor([0, 3, 4])
    times = NOW + torch.tensor([0, 5, 2, 7]) * SECOND
    assert torch.equal(recency(times + shift, offsets), recency(times, offsets))


def test_a_later_event_lowers_all_others_alike() -> None:
    """An appended event moves the reference, so every earlier score by the same amount: a softmax does not see it."""
    recency = Recency(2)
    times = NOW + torch.tensor([0, 5, 2, 900]) * 60 * SECOND
    before = recency(times[:3], torch.tensor([0, 3]))
    after = recency(times, torch.tensor([0, 4]))[:3]
    moved = (after - before).detach()
    torch.testing.assert_close(moved, moved[:1].expand_as(moved))
    assert (moved < 0).all()
    torch.testing.assert_close(after.softmax(0), before.softmax(0))


def test_without_times_the_key_is_named() -> None:
    with pytest.raises(DataError, match="key 'model.recency': needs the time of every event"):
        Recency(2)(None, torch.tensor([0, 1]))


def test_no_events_at_all() -> None:
    bias: Tensor = Recency(2)(torch.zeros(0, dtype=torch.long), torch.tensor([0, 0, 0]))
    assert bias.shape == (0, 2)
