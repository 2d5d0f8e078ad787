"""What is written in a picture and where, by the same estimate of its size that the charts use."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

from limerank.report.text import SIZE, text_width

ROUNDING = 0.25  # coordinates are written with one decimal


class Box(NamedTuple):
    text: str
    style: str
    left: float
    top: float
    right: float
    bottom: float


def picture_of(chart: str) -> ElementTree.Element:
    """The only picture with a role; everything else is legend and words."""
    (picture,) = [svg for svg in ElementTree.fromstring(f"<div>{chart}</div>").iter("svg") if svg.get("role") == "img"]
    return picture


def size_of(chart: str) -> tuple[float, float]:
    _, _, width, height = map(float, picture_of(chart).attrib["viewBox"].split())
    return width, height


def written(chart: str) -> list[Box]:
    return [_box(text) for text in picture_of(chart).iter("text")]


def _box(text: ElementTree.Element) -> Box:
    words, style = text.text or "", text.get("class", "")
    width = text_width(words)
    moved = re.fullmatch(r"translate\(([-\d.]+) ([-\d.]+)\) rotate\(-90\)", text.get("transform", ""))
    if moved:
        across, middle = map(float, moved.groups())
        return Box(words, style, across - 0.8 * SIZE, middle - width / 2, across + 0.2 * SIZE, middle + width / 2)
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    left = x - {"middle": width / 2, "end": width}.get(text.get("text-anchor", ""), 0.0)
    return Box(words, style, left, y - 0.8 * SIZE, left + width, y + 0.2 * SIZE)


def check_words(chart: str) -> list[Box]:
    """Nothing that is written leaves the picture or touches something else that is written."""
    width, height = size_of(chart)
    boxes = written(chart)
    for box in boxes:
        assert box.left >= -ROUNDING, box
        assert box.right <= width + ROUNDING, box
        assert box.top >= -ROUNDING, box
        assert box.bottom <= height + ROUNDING, box
    for one, other in combinations(boxes, 2):
        apart = (
            one.right <= other.left + ROUNDING
            or other.right <= one.left + ROUNDING
            or one.bottom <= other.top + ROUNDING
            or other.bottom <= one.top + ROUNDING
        )
        assert apart, (one, other)
    return boxes
