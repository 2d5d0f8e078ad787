"""One self-contained HTML page: text, tables and inline SVG; opens offline, prints well."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template


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

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table."""
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def plots(self, pictures: Sequence[tuple[str, str]]) -> None:
        """Add plots side by side, each an SVG and a caption."""
        figures = "".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in pictures)
        self.parts.append(f'<div class="plots">{figures}</div>')

    def html(self) -> str:
        """The whole page."""
        template = Template((files("limerank.report") / "page.html").read_text(encoding="utf-8"))
        return template.substitute(title=escape(self.title), body="\n".join(self.parts))
