"""Small tables for people: as text with aligned columns, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def text_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns two spaces apart; those of numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [bool(cells) and all(is_number(row[number]) for row in cells) for number in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, [list(columns), *cells]))


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same for a notebook; every cell is escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def number_text(value: float | None) -> str:
    """Four decimals, or a dash where a metric is undefined."""
    return "-" if value is None else f"{value:.4f}"


def is_number(cell: object) -> bool:
    """Whether a cell reads as a number, with its unit or spread; an empty one may be."""
    text = str(cell).strip().rstrip("%x").split("±")[0]
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text in ("", "-")
    return True
