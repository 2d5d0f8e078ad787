"""How much room words take in a picture, estimated for the widest fonts that browsers choose (DejaVu Sans, Verdana)."""

from __future__ import annotations

SIZE = 12.0  # of tick labels and names, in the units of the picture; the page's style says the same
LINE = 14.0  # from one line of such text to the next
NARROW, WIDE = frozenset("iljItfr.,:;'|!()[] -"), frozenset("mwMWQ@%&—…\u00d7±≥≤→+=<>#~")
NARROW_EM, NORMAL_EM, CAPITAL_EM, WIDE_EM, FOREIGN_EM = 0.45, 0.66, 0.80, 1.02, 1.1


def text_width(text: str, size: float = SIZE) -> float:
    """An upper estimate, in the units of the picture."""
    return size * sum(map(_em, text))


def fitted(text: str, room: float, size: float = SIZE) -> str:
    """The text, or as much of its beginning as there is room for, and an ellipsis."""
    if text_width(text, size) <= room + 0.01:  # room that was measured by the text itself
        return text
    kept = text
    while kept and text_width(f"{kept}…", size) > room:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def inside(middle: float, text: str, edge: float) -> float:
    """Where the middle of a text must be so that it stays in a picture that ends at `edge`."""
    half = text_width(text) / 2 + 1
    return max(half, min(middle, edge - half))


def _em(character: str) -> float:
    if character in NARROW:
        return NARROW_EM
    if character in WIDE:
        return WIDE_EM
    if character > "\u024f":  # beyond Latin: as wide as the widest
        return FOREIGN_EM
    return CAPITAL_EM if character.isupper() else NORMAL_EM
