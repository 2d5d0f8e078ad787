"""ISAB: induced set attention with links as inducing points, the sequential cousin of LIME-XOR."""

from __future__ import annotations

from pydantic import Field

from limerank.models.lime_xor import LimeXOR, LimeXORRanker


class ISAB(LimeXOR):
    """Options of ISAB: those of LIME-XOR."""

    layers: int = Field(default=3, ge=1, description="n, layers; history meets history from the second on")


class ISABRanker(LimeXORRanker):
    """LIME-XOR in Gauss-Seidel order: links read the history, then the history reads the links as they are now.

    Set Transformer's ISAB updates in this order. History meets history one layer earlier than in LIME-XOR, at the same
    FLOP; but a layer is two passes over the history, and no row of its first layer can be kept for later.
    """

    name = "isab"
    options_type = ISAB
    options: ISAB
    order = "gauss-seidel"
