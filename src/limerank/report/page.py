"""One self-contained HTML page: text, tables and inline SVG; opens offline, prints well, light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from limerank.tables import is_number

SHORT = 24  # characters of a cell that stay on one line
WORD = 12  # characters of the cells of a column that stays narrow between words
MOST_ROWS = 30  # longer tables scroll below their head


class Page:
    """A page that is filled from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self._contents: list[tuple[str, str, list[tuple[str, str]]]] = []
        self._contents_at = 0
        self._anchors: set[str] = set()

    def chapter(self, title: str) -> None:
        """Start a part that could be a page of its own; headings below it are smaller, and the page has contents."""
        anchor = self._anchor(title)
        if not self._contents:
            self._contents_at = len(self.parts)
        self._contents.append((title, anchor, []))
        self.parts.append(f'<h2 class="chapter" id="{anchor}">{escape(title)}</h2>')

    def heading(self, text: str) -> None:
        """Start a section."""
        if not self._contents:
            self.parts.append(f"<h2>{escape(text)}</h2>")
            return
        title, _, sections = self._contents[-1]
        anchor = self._anchor(f"{title} {text}")
        sections.append((text, anchor))
        self.parts.append(f'<h3 id="{anchor}">{escape(text)}</h3>')

    def paragraph(self, text: str, style: str = "") -> None:
        """Add a paragraph of plain text."""
        self.parts.append(f'<p class="{escape(style)}">{escape(text)}</p>')

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, style: str = "", whole: bool = False
    ) -> None:
        """Add a table that scrolls in its box when it is wide; `style` "words" aligns its cells as text.

        A long one scrolls below its head too, unless it is to be seen `whole`: what nobody scrolls to is not told.
        """
        table = page_table(columns, rows, words=style == "words")
        tall = " tall" * (len(rows) > MOST_ROWS and not whole)
        self.parts.append(f'<div class="wide {escape(style)}{tall}" tabindex="0">{table}</div>')

    def plots(self, pictures: Sequence[tuple[str, str]]) -> None:
        """Add plots side by side, each an SVG and a caption."""
        figures = "".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in pictures)
        self.parts.append(f'<div class="plots drawn">{figures}</div>')

    def charts(self, charts: Sequence[Chart]) -> None:
        """Add charts side by side, each with the table behind it."""
        self.parts.append(f'<div class="plots">{"".join(chart.html() for chart in charts)}</div>')

    def html(self) -> str:
        """The whole page."""
        template = Template((files("limerank.report") / "page.html").read_text(encoding="utf-8"))
        parts = list(self.parts)
        if self._contents:
            parts.insert(self._contents_at, self._table_of_contents())
        return template.substitute(title=escape(self.title), body="\n".join(parts))

    def _table_of_contents(self) -> str:
        items = []
        for title, anchor, sections in self._contents:
            below = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for text, name in sections)
            nested = f"<ul>{below}</ul>" if below else ""
            items.append(f'<li><a href="#{anchor}">{escape(title)}</a>{nested}</li>')
        return f'<nav class="contents" aria-label="Contents"><p>Contents</p><ol>{"".join(items)}</ol></nav>'

    def _anchor(self, text: str) -> str:
        """A name for links inside the page, once only."""
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"
        anchor, number = plain, 1
        while anchor in self._anchors:
            number += 1
            anchor = f"{plain}-{number}"
        self._anchors.add(anchor)
        return anchor


class Chart:
    """A picture, what it shows in words, and its values as a table that opens below it."""

    def __init__(self, svg: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.svg, self.caption, self.columns, self.rows = svg, caption, columns, rows

    def html(self) -> str:
        """The figure; without a picture the table alone, folded behind the caption."""
        table = page_table(self.columns, self.rows)
        if not self.svg:
            return f"<details><summary>{escape(self.caption)}</summary>{table}</details>"
        table = f"<details><summary>as a table</summary>{table}</details>"
        return f"<figure>{self.svg}<figcaption>{escape(self.caption)}{table}</figcaption></figure>"


def page_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, words: bool = False) -> str:
    """A table whose columns of numbers are right-aligned and whose short cells stay on one line.

    One of words is aligned as text and wraps; only columns of single words stay on one line, and take no more room.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    left = [number > 0 and not words and not _numeric(cells, number) for number in range(len(columns))]
    head = "".join(_cell("th", name, ["text"] * aside) for name, aside in zip(columns, left, strict=True))
    narrow = [words and all(len(row[number]) <= WORD for row in cells) for number in range(len(columns))]
    lines = (
        "".join(
            _cell("td", text, ["text"] * aside + ["narrow"] * word + ["long"] * (len(text) > SHORT and not words))
            for text, aside, word in zip(row, left, narrow, strict=True)
        )
        for row in cells
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _numeric(cells: Sequence[Sequence[str]], number: int) -> bool:
    return all(is_number(row[number]) for row in cells)


def _cell(tag: str, text: str, classes: Sequence[str]) -> str:
    style = f' class="{" ".join(classes)}"' if classes else ""
    return f"<{tag}{style}>{escape(text)}</{tag}>"
