"""Exact top k at integer speed: rows as bytes, one integer product per block, and a bound that proves the answer."""

from limerank.ops.candidate.integer.bounds import LaterBound
from limerank.ops.candidate.integer.probe import HeadShape, pays_from
from limerank.ops.candidate.integer.product import Product, fast, reference, whole_numbers_are_right
from limerank.ops.candidate.integer.request import IntegerHead
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.integer.top import ExactTop, best_by_integers, integer_logits, most_wanted

__all__ = [
    "ExactTop",
    "HeadShape",
    "IntegerHead",
    "IntegerRows",
    "LaterBound",
    "Product",
    "best_by_integers",
    "fast",
    "integer_logits",
    "most_wanted",
    "pays_from",
    "reference",
    "whole_numbers_are_right",
]
