"""One self-contained HTML page: text, tables and inline SVG; opens offline, prints well, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from limerank.tables import html_table


class Page:
    """A page that is filled from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        """Start a section."""
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, style: str = "") -> None:
        """Add a paragraph of plain text."""
        self.parts.append(f'<p class="{escape(style)}">{escape(text)}</p>')

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, style: str = "") -> None:
        """Add a table; `style` "words" aligns its cells as text."""
        self.parts.append(f'<div class="wide {escape(style)}">{html_table(columns, rows)}</div>')

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
        return template.substitute(title=escape(self.title), body="\n".join(self.parts))


class Chart:
    """A picture, what it shows in words, and its values as a table that opens below it."""

    def __init__(self, svg: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.svg, self.caption, self.columns, self.rows = svg, caption, columns, rows

    def html(self) -> str:
        """The figure."""
        table = f"<details><summary>as a table</summary>{html_table(self.columns, self.rows)}</details>"
        return f"<figure>{self.svg}<figcaption>{escape(self.caption)}{table}</figcaption></figure>"
