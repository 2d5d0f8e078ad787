"""Links: two levels, more links of which some are active, and the context that enters them."""

from __future__ import annotations

import pytest
import torch
from dense_lime import EXACT, contextual, shaken
from torch import Tensor

from limerank.nn.links import ContextMix, Links, LinkSelection, diverse_rows

WIDTH, HEADS = 6, 2


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_links_are_standard_normal() -> None:
    """As the paper's appendix C has them."""
    torch.manual_seed(0)
    embeddings = Links(2000, 32)().detach()
    assert abs(float(embeddings.mean())) < 0.02
    assert abs(float(embeddings.std()) - 1) < 0.02


def test_a_fine_link_is_its_parent_and_an_offset() -> None:
    """Coarse links come first; the children of coarse link p are the fine links i with i % coarse == p."""
    links = Links(6, WIDTH, coarse=3).double()
    everything = links()
    assert everything.shape == (9, WIDTH)
    for parent in range(3):
        assert torch.equal(everything[parent], links.embeddings[parent])
    for fine in range(6):
        assert torch.equal(everything[3 + fine], links.embeddings[fine % 3] + links.embeddings[3 + fine])
    everything[3 + 4].sum().backward()
    assert links.embeddings.grad is not None
    assert links.embeddings.grad.any(1).nonzero()[:, 0].tolist() == [1, 7]


@pytest.mark.parametrize(("count", "coarse"), [(6, 3), (4, 4), (5, 1), (8, 2)])
def test_two_level_weights_against_a_loop(count: int, coarse: int) -> None:
    """A coarse weight is a softmax over the coarse links; a fine one is its parent's times a softmax among siblings."""
    links = Links(count, WIDTH, coarse)
    scores = 3 * draw(HEADS, 7, coarse + count)
    weights = links.weights(scores)
    for head in range(HEADS):
        for item in range(7):
            own = scores[head, item]
            broad = own[:coarse].exp() / own[:coarse].exp().sum()
            for parent in range(coarse):
                torch.testing.assert_close(weights[head, item, parent], broad[parent], **EXACT)
            for fine in range(count):
                siblings = [other for other in range(count) if other % coarse == fine % coarse]
                fraction = own[coarse + fine].exp() / sum(own[coarse + other].exp() for other in siblings)
                torch.testing.assert_close(weights[head, item, coarse + fine], broad[fine % coarse] * fraction, **EXACT)


def test_weights_of_each_level_sum_to_one() -> None:
    """Over the coarse links, over all fine ones, and the children of a coarse link share exactly its weight."""
    links = Links(8, WIDTH, coarse=4)
    weights = links.weights(5 * draw(3, 12))
    broad, fine = weights[:, :4], weights[:, 4:]
    torch.testing.assert_close(broad.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(fine.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(fine.view(3, 2, 4).sum(1), broad)
    single = Links(8, WIDTH)
    torch.testing.assert_close(single.weights(draw(3, 8)), draw(3, 8).softmax(-1))


def test_diverse_rows_are_each_the_farthest_from_those_before() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0], [9.0, 4.0], [0.0, 0.1]])
    assert diverse_rows(rows, 4).tolist() == [rows[index].tolist() for index in (0, 3, 2, 1)]


def test_rows_are_taken_again_with_noise_only_where_no_more_differ() -> None:
    """Seven links from three rows, one of which stands twice: both that differ, then near copies of them in turn."""
    rows = draw(2, WIDTH)[[0, 1, 1]]
    torch.manual_seed(0)
    found = diverse_rows(rows, 7)
    assert torch.equal(found[:2], rows[:2])
    assert len(found.unique(dim=0)) == 7
    assert float((found - rows[[0, 1, 0, 1, 0, 1, 0]]).abs().max()) < 0.5 < float((rows[0] - rows[1]).abs().max())


def test_weights_do_not_overflow() -> None:
    """Scores of 1e4, as an untrained wide ranker may have, give weights and gradients that are numbers."""
    links = Links(4, WIDTH, coarse=2)
    scores = (1e4 * draw(3, 6).float()).requires_grad_()
    weights = links.weights(scores)
    weights.square().sum().backward()
    assert torch.isfinite(weights).all()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_context_is_mixed_in_by_an_mlp_on_the_concatenation() -> None:
    """The split first layer is the layer on [link, E^C]; global links and links of each request alike."""
    torch.manual_seed(0)
    mix = shaken(ContextMix(WIDTH, 4))
    assert isinstance(mix, ContextMix)
    links, context = draw(5, WIDTH), draw(3, 4, seed=1)
    expected = torch.stack([contextual(mix, links, one) for one in context])
    torch.testing.assert_close(mix(links, context), expected, **EXACT)
    own = draw(3, 5, WIDTH, seed=2)
    expected = torch.stack([contextual(mix, rows, one) for rows, one in zip(own, context, strict=True)])
    torch.testing.assert_close(mix(own, context), expected, **EXACT)


def test_contextual_links_start_close_to_the_links() -> None:
    """The residual with a small last layer: what candidates are compared with, nearly."""
    torch.manual_seed(0)
    mix, links = ContextMix(32, 16), torch.randn(8, 32)
    moved = (mix(links, torch.randn(4, 16)) - links).detach()
    assert float(moved.norm()) < 0.2 * 2 * float(links.norm())
    assert float(moved.abs().sum()) > 0


def test_selection_takes_the_best_of_all_links() -> None:
    """Against a sort of the scores; scales are the softmax among the chosen, with mean one."""
    torch.manual_seed(0)
    selection = shaken(LinkSelection(4, select_from=9, active=3))
    assert isinstance(selection, LinkSelection)
    context = draw(5, 4)
    chosen, scale = selection(context)
    assert chosen.shape == scale.shape == (5, 3)
    for request in range(5):
        scores = selection.score.weight @ context[request] + selection.score.bias
        best = scores.argsort(descending=True)[:3]
        assert chosen[request].tolist() == best.tolist()
        torch.testing.assert_close(scale[request], 3 * scores[best].exp() / scores[best].exp().sum(), **EXACT)
        torch.testing.assert_close(scale[request].mean(), torch.ones((), dtype=torch.float64))
    assert len({tuple(sorted(one)) for one in chosen.tolist()}) > 1


def test_spread_puts_values_where_their_links_are() -> None:
    """Zero for links that are not active, scaled values for those that are; gradients reach both."""
    torch.manual_seed(0)
    selection = LinkSelection(4, select_from=9, active=3).double()
    context = draw(5, 4)
    chosen, scale = selection(context)
    values = draw(5, 3, HEADS, 7, seed=3).requires_grad_()
    everywhere = selection.spread(values, chosen, scale)
    assert everywhere.shape == (5, 9, HEADS, 7)
    for request in range(5):
        for link in range(9):
            position = chosen[request].tolist().index(link) if link in chosen[request] else None
            expected = torch.zeros(HEADS, 7, dtype=torch.float64)
            if position is not None:
                expected = scale[request, position] * values[request, position]
            assert torch.equal(everywhere[request, link], expected)
    (everywhere * draw(5, 9, HEADS, 7, seed=4)).sum().backward()
    assert values.grad is not None
    assert values.grad.all()
    assert selection.score.weight.grad is not None
    assert selection.score.weight.grad.any()


def test_a_selection_from_exactly_the_links_activates_all() -> None:
    selection = LinkSelection(4, select_from=5, active=5).double()
    chosen, scale = selection(draw(3, 4))
    assert [sorted(one) for one in chosen.tolist()] == [list(range(5))] * 3
    torch.nn.init.zeros_(selection.score.weight)
    torch.nn.init.zeros_(selection.score.bias)
    chosen, scale = selection(draw(3, 4))
    torch.testing.assert_close(scale, torch.ones(3, 5, dtype=torch.float64))
