"""All studies by their names, and several of their results joined into one page.

A study is a package here with a result type `<Name>Study` in its `results` and `fill` and `TITLE` in its `page`; it is
found by that, and imported when one of its results is opened.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from limerank import __version__, files
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.report.page import Page
from limerank.study.results import StudyResult, fill_whole
from limerank.typed import validate

PACKAGE, MODULES = "limerank.study", ("results", "page")
FIX = "name the JSON file that a `limerank study` command wrote"
TITLE = "limerank studies"
UNREAD = ", in a format that is no longer read; run the study again on its log"
# keys that only results of these have, and the commands that make them
OTHERS = {
    "verdicts": f"the result of an older `limerank study accuracy`{UNREAD}",
    "by_candidates": f"the result of an older `limerank study latency`{UNREAD}",
    "held": "a result of the soak, not of a study",
    "gemm_gflops": "a result of `limerank bench`, not of a study",
    "peaks": "a result of `limerank bench`, not of a study",
    "processor": "a result of `limerank bench`, not of a study",
    "torch": "a result of `limerank bench`, not of a study",
    "data_fingerprint": "the record of a run: `limerank runs report` makes its page",
    "error": "what a command printed when it failed",
}


class Study(NamedTuple):
    """Where a study is; nothing of it is imported yet."""

    name: str
    package: str

    def result_type(self) -> type[StudyResult]:
        """What its JSON file holds."""
        found: type[StudyResult] = getattr(import_module(f"{self.package}.results"), f"{self.name.capitalize()}Study")
        if not issubclass(found, StudyResult):
            raise TypeError(f"{found} is no StudyResult")
        return found

    def fill(self) -> Callable[[Page, Any], None]:
        """What writes its page, all but how it was made."""
        writer: Callable[[Page, Any], None] = import_module(f"{self.package}.page").fill
        return writer

    def title(self) -> str:
        """The title of its page."""
        return str(import_module(f"{self.package}.page").TITLE)


def studies() -> dict[str, Study]:
    """The studies of this version by name."""
    package = import_module(PACKAGE)
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    found = {name: Study(name, f"{PACKAGE}.{name}") for name in sorted(names)}
    return {name: study for name, study in found.items() if all(find_spec(f"{study.package}.{p}") for p in MODULES)}


STUDIES: dict[str, Study] = studies()


class Opened(NamedTuple):
    """A result with the file it came from."""

    path: Path
    study: Study
    result: StudyResult


def open_result(path: Path, known: Mapping[str, Study] | None = None) -> Opened:
    """Read a study's JSON file; an error says what the file is instead."""
    known = STUDIES if known is None else known
    if path.is_dir():
        inside = ", ".join(str(path / f"{name}.json") for name in known if (path / f"{name}.json").is_file())
        raise UsageError(f"{path}: is a folder; {f'name its results: {inside}' if inside else FIX}")
    value = files.read_json(path, DataError, FIX)
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a JSON {_kind(value)}, not a study's result; {FIX}")
    name = value.get("study")
    if not isinstance(name, str):
        what = next((words for key, words in OTHERS.items() if key in value), None)
        keys = ", ".join(map(str, list(value)[:5])) or "nothing"
        raise DataError(f"{path}: is {what}" if what else f"{path}: is no study's result (it has {keys}); {FIX}")
    made_by = _version_of(value)
    if name not in known:
        newer = f"; limerank {made_by} made it, this is {__version__}" if made_by not in (None, __version__) else ""
        raise DataError(f"{path}: a study '{name}', which this version does not have{newer}{did_you_mean(name, known)}")
    versions = f"limerank {made_by or 'of an unknown version'} made it, this is {__version__}"
    where = f"{path}: not a result of this version's study '{name}' ({versions}); run the study again"
    return Opened(path, known[name], validate(known[name].result_type(), value, where, DataError))


def join(opened: Sequence[Opened], title: str | None = None) -> Page:
    """One page: what is in it, then every study as it stands on its own page, with how it was made."""
    titles = [one.study.title() for one in opened]
    page = Page(title or (titles[0] if len(titles) == 1 else TITLE))
    if len(opened) == 1:
        _fill(page, opened[0])
        return page
    if any(one.result.made.quick for one in opened):
        page.paragraph("Some of this was made in quick mode, which shows that it works and nothing else.", "warning")
    chapters = [
        heading if titles.count(heading) == 1 else f"{heading}: {name}"
        for heading, name in zip(titles, short_names([one.path for one in opened]), strict=True)
    ]
    rows = [_summary(chapter, one) for chapter, one in zip(chapters, opened, strict=True)]
    page.table(["study", "file", "made", "seconds", "seeds", "revision"], rows)
    for chapter, one in zip(chapters, opened, strict=True):
        page.chapter(chapter)
        _fill(page, one)
    return page


def _fill(page: Page, opened: Opened) -> None:
    fill_whole(page, opened.result, opened.study.fill())


def _summary(chapter: str, opened: Opened) -> list[str]:
    made = opened.result.made
    day, _, clock = made.started.partition("T")
    return [
        chapter,
        str(opened.path),
        f"{day} {clock[:5]}{' (quick)' * made.quick}",
        f"{made.seconds:,.0f}",
        ", ".join(map(str, made.seeds)) or "-",
        (made.revision or "-")[:12],
    ]


def short_names(paths: Sequence[Path]) -> list[str]:
    """As much of the end of each path as tells it from the others."""
    parts = [path.absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, paths))


def _kind(value: object) -> str:
    names = {list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return names.get(type(value), "null")


def _version_of(value: Mapping[str, Any]) -> str | None:
    made = value.get("made")
    versions = made.get("versions") if isinstance(made, dict) else None
    found = versions.get("limerank") if isinstance(versions, dict) else None
    return found if isinstance(found, str) else None
