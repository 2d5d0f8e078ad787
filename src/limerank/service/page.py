"""The interface as a page: made from the OpenAPI document, without a script, readable offline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

Json = dict[str, Any]
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 code { font-size: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
details { margin: .5rem 0; }
.method { font-weight: 700; }
.scope { float: right; font-weight: 400; opacity: .75; font-size: .85rem; }
"""


def page(document: Json) -> str:
    """The whole page."""
    title = escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"{_text(document['info']['description'])}"
        f'<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{''.join(_operations(document))}<h2>Bodies</h2>{''.join(_schemas(document))}</body></html>"
    )


def _operations(document: Json) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    yield _operation(document, path, method, operation)


def _operation(document: Json, path: str, method: str, operation: Json) -> str:
    scopes = {scope for one in operation.get("security", ()) for found in one.values() for scope in found}
    scope = f'<span class="scope">scope: {escape(", ".join(sorted(scopes)))}</span>' if scopes else ""
    parts = [
        f'<h3 id="{escape(operation["operationId"])}"><code><span class="method">{method.upper()}</span> '
        f"{escape(path)}</code>{scope}</h3>",
        _text(operation["summary"]),
        _text(operation["description"]),
    ]
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}</td>"
            f"<td>{_inline(one['description'])}</td></tr>"
            for one in operation["parameters"]
        )
        parts.append(f"<table>{rows}</table>")
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: <code>{escape(media)}</code>, {_type(content['schema'])}</p>")
        for example in content.get("examples", {}).values():
            parts.append(f"<pre>{escape(json.dumps(example['value'], indent=2))}</pre>")
    parts.append(
        f"<details><summary>Answers</summary><table>{''.join(_answers(document, operation))}</table></details>"
    )
    return "".join(parts)


def _answers(document: Json, operation: Json) -> Iterator[str]:
    for status, given in operation["responses"].items():
        named = given.get("$ref", "").rpartition("/")[2]
        response = document["components"]["responses"][named] if named else given
        media, content = next(iter(response["content"].items()))
        yield (
            f"<tr><td>{status}</td><td>{_text(response['description'])}</td>"
            f"<td>{_type(content['schema'])} <code>{escape(media)}</code></td></tr>"
        )


def _schemas(document: Json) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        required = set(schema.get("required", ()))
        rows = "".join(
            f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' (optional)'}</td>"
            f"<td>{_type(one)}</td><td>{_inline(one.get('description', ''))}</td></tr>"
            for field, one in schema.get("properties", {}).items()
        )
        yield (
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"{_text(schema.get('description', ''))}<table>{rows}</table></details>"
        )


def _type(schema: Json) -> str:
    """A type in a few words, with a link to what it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("format") or schema.get("type") or "anything"))


def _text(text: str) -> str:
    """Paragraphs and lists."""
    paragraphs = (one.strip() for one in re.split(r"\n\n+", text) if one.strip())
    return "".join(f"<p>{_inline(one)}</p>" for one in paragraphs)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False)).replace("\n- ", "<br>")
