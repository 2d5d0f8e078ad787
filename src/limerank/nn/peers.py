"""Who holds the rest of a batch. Alone, nobody does; when several processes share each batch, they are asked.

What is computed over a whole batch, such as the number of labels that a mean divides by, goes through here. A module
that does so has an attribute `peers`, which a training on several processes sets (limerank.training.distributed).
"""

from __future__ import annotations

from torch import Tensor


class Peers:
    """Nobody else: this process holds the whole batch."""

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of this tensor over all who share the batch; gradients flow back to all of them."""
        return tensor

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows [n, ...] of all who share the batch, one's own first; gradients flow back to whose rows they are."""
        return tensor

    def agreed(self, tensor: Tensor) -> Tensor:
        """One value for all who share the batch: what the first of them drew."""
        return tensor


NOBODY = Peers()
