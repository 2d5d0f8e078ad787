"""Exact top k at integer speed: rows as bytes, one integer product per block, and a bound that proves the answer."""

from limerank.ops.candidate.integer.bounds import LaterBound
from limerank.ops.candidate.integer.product import Product, fast, reference, whole_numbers_are_right
from limerank.ops.candidate.integer.request import IntegerHead
from limerank.ops.candidate.integer.rows import IntegerRows
from limerank.ops.candidate.integer.top import ExactTop, best_by_integers, block_rows

__all__ = [
    "ExactTop",
    "IntegerHead",
    "IntegerRows",
    "LaterBound",
    "Product",
    "best_by_integers",
    "block_rows",
    "fast",
    "reference",
    "whole_numbers_are_right",
]
