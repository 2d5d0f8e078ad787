"""What MkDocs does not know about this repository: links that lead out of docs/, and fields described in the code.

Pages link as they do in the repository, so that they can be read there. The changelog and the examples are pages of the
site too; any other file that a page links to is taken along as it is. A link to nothing is left for MkDocs to refuse.
Where a page says `<!-- operations of NAME.json -->`, the site has the operations of that OpenAPI document.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, ExprCall, ExprKeyword, Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SCRIPTS = "examples/*.py"
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
LIMITS = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")
OPERATIONS = re.compile(r"^<!-- operations of (\S+) -->$", re.MULTILINE)
PIPE = re.compile(r"(?<=`)[^`\n]*\\\|[^`\n]*(?=`)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    root = Path(config.docs_dir).parent
    for name in PAGES:
        if (root / name).is_file():
            files.append(File.generated(config, name, abs_src_path=str(root / name)))
    for path in sorted(root.glob(SCRIPTS)):
        uri = path.relative_to(root).with_suffix(".md").as_posix()
        code = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, uri, content=code))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the same files in the site; and GitHub escapes pipes in the code of tables, MkDocs does not."""
    docs, here = Path(config.docs_dir), posixpath.dirname(page.file.src_uri)
    folder = docs.parent if page.file.src_uri in PAGES else docs / here
    markdown = OPERATIONS.sub(lambda found: operations(json.loads((folder / found[1]).read_text())), markdown)

    def in_site(link: re.Match[str]) -> str:
        target = (folder / link[0]).resolve()
        if not target.is_file() or not target.is_relative_to(docs.parent):
            return link[0]
        return posixpath.relpath(_uri(target, config, files), here or ".")

    return PIPE.sub(lambda code: code[0].replace("\\|", "|"), LINK.sub(in_site, markdown))


def _uri(target: Path, config: MkDocsConfig, files: Files) -> str:
    """The name in the site of a file of the repository."""
    docs = Path(config.docs_dir)
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    outside = target.relative_to(docs.parent)
    if outside.match(SCRIPTS):
        return outside.with_suffix(".md").as_posix()
    if files.get_file_from_path(outside.as_posix()) is None:
        files.append(File.generated(config, outside.as_posix(), abs_src_path=str(target)))
    return outside.as_posix()


def operations(document: dict[str, Any]) -> str:
    """An OpenAPI document as sections: one for each operation, then one for each body."""
    lines = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += [f"### {method.upper()} {path}", "", operation["summary"], ""]
            if operation.get("description"):
                lines += [operation["description"], ""]
            lines += [f"- {one['name']} ({one['in']}): {one.get('description', '')}" for one in _parameters(operation)]
            if "requestBody" in operation:
                lines.append(f"- body: {_content(operation['requestBody'])}")
            for status, answer in operation["responses"].items():
                if "$ref" not in answer:
                    lines.append(f"- {status}: {answer['description']} {_content(answer)}".rstrip())
            problems = [status for status, answer in operation["responses"].items() if "$ref" in answer]
            lines += [f"- problems: {', '.join(problems)}"] if problems else []
            lines.append("")
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", schema.get("description", ""), ""]
        if "properties" in schema:
            required = schema.get("required", [])
            lines += ["| field | type | default | |", "|---|---|---|---|"]
            for field, what in schema["properties"].items():
                default = "required" if field in required else f"`{json.dumps(what.get('default'))}`"
                said = what.get("description", "").replace("|", "\\|").replace("\n", " ")
                lines.append(f"| {field} | {_type(what)} | {default} | {said} |")
            lines.append("")
    return "\n".join(lines)


def _parameters(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in operation.get("parameters", []) if "name" in one]


def _content(said: dict[str, Any]) -> str:
    return ", ".join(f"`{kind}` {_type(what.get('schema', {}))}" for kind, what in said.get("content", {}).items())


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to those that have sections."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema.get("anyOf", schema.get("oneOf", [])))))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    limits = [f"{name} {schema[name]}" for name in LIMITS if name in schema]
    said = schema.get("format", schema.get("type", "anything"))
    return f"{said} ({', '.join(limits)})" if limits else str(said)


class Fields(Extension):
    """A field `x: int = Field(default=1, description="...")` is shown as `x: int = 1` with its description."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Called by griffe for everything that has a value."""
        attr.labels -= {"class-attribute", "instance-attribute"}  # which every field is
        call = attr.value
        if not isinstance(call, ExprCall) or str(call.function) != "Field":
            return
        given = {one.name: one.value for one in call.arguments if isinstance(one, ExprKeyword)}
        attr.value = given.get("default")
        if "description" in given:
            attr.docstring = Docstring(ast.literal_eval(str(given["description"])), parent=attr)
