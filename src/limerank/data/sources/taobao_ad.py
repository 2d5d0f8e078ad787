"""TaobaoAd_x1: ad impressions of eight days with ready-made histories of category, brand and action.

The files are `train.csv` and `test.csv` as the RecZoo collection publishes them; the facts: docs/datasets/taobao-ad.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.folders import check_folder
from limerank.data.sources.lazy_events import column_names, lazy_events
from limerank.errors import DataError, did_you_mean
from limerank.progress import Progress
from limerank.schema import Feature, Histories, Kind, Role, Schema, Task
from limerank.splits import ByColumn

if TYPE_CHECKING:
    from limerank.data.store.dataset import StoredDataset

COLUMNS = (
    "clk", "btag_his", "cate_his", "brand_his", "userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level",
    "pvalue_level", "shopping_level", "occupation", "new_user_class_level", "adgroup_id", "cate_id", "campaign_id",
    "customer", "brand", "price", "pid", "btag",
)  # fmt: skip
USER_FEATURES = COLUMNS[4:13]
ITEM_FEATURES = ("adgroup_id", "cate_id", "campaign_id", "customer", "brand")
LISTS = {"cate_id": "cate_his", "brand": "brand_his"}
ACTIONS = {"btag": "btag_his"}
SEPARATOR = "^"
PART = "__part"
MINIMUM_COUNT = 10
MAX_HISTORY = 50
SHORTEST_ROW = 2 * len(COLUMNS) - 3  # bytes: one per value and separator, with all three histories empty
BYTES_AT_ONCE = 1 << 24

PUBLISHED_SIZES = {
    "userid": 403_958, "adgroup_id": 246_851, "cate_id": 11_330, "campaign_id": 191_771, "customer": 132_136,
    "brand": 308_870, "cms_segid": 99, "cms_group_id": 15, "final_gender_code": 4, "age_level": 9, "pvalue_level": 6,
    "shopping_level": 5, "occupation": 4, "new_user_class_level": 7, "pid": 4, "btag": 6,
}  # fmt: skip
"""Vocabulary sizes, padding and unknown included, in the public log of DIN (categories from 10 occurrences on)."""


@dataclass(frozen=True)
class Published:
    """What the owner says of one file."""

    rows: int
    md5: str


PUBLISHED = {
    "train": Published(21_929_911, "eaabfc8629f23519b04593e26c7522fc"),
    "test": Published(3_099_515, "f5ae6197e52385496d46e2867c1c8da1"),
}


def taobao_schema() -> Schema:
    """What the columns of TaobaoAd_x1 mean."""

    def categorical(role: Role, *names: str) -> list[Feature]:
        return [Feature(name=name, role=role, minimum_count=MINIMUM_COUNT) for name in names]

    return Schema(
        user_id="userid",
        item_id="adgroup_id",
        time=None,
        features=(
            *categorical(Role.ITEM, *ITEM_FEATURES),
            Feature(name="price", role=Role.ITEM, kind=Kind.CONTINUOUS),
            *categorical(Role.EVENT, *ACTIONS),
            *categorical(Role.USER, *USER_FEATURES),
            *categorical(Role.CONTEXT, "pid"),
        ),
        tasks=(Task(name="clk"),),
        split=ByColumn(column=PART),
        max_history=MAX_HISTORY,
        histories=Histories(items=LISTS, events=ACTIONS, separator=SEPARATOR),
    )


def read_taobao_ad(
    folder: Path, *, verify: bool = True, align: bool = False, progress: Progress | None = None
) -> RawLog:
    """Read `train.csv` and `test.csv` of a folder.

    With `verify`, files that can be the official ones are compared with what was published. With `align`, the lists
    of one history may differ in length: they are lined up at their newest end and filled with missing values.
    """
    fix = "put train.csv and test.csv of TaobaoAd_x1 into one folder"
    check_folder(folder, fix)
    paths = {part: folder / f"{part}.csv" for part in PUBLISHED}
    for path in paths.values():
        if not path.is_file():
            raise DataError(f"{path}: no such file; {fix}")
    notes = [
        "the candidate's 'btag' is ignored: it is 1 in every row; as an event feature it comes from 'btag_his' only",
        "'pid' (the place of the ad) is context: in the item tower it would make item rows depend on the request",
        "there are no times: without --select-on-test, 10 % of the training requests, drawn with a fixed seed, select",
        "histories have no ad ids, so their elements are pairs of category and brand; the last one counts as newest",
    ]
    if align:
        notes.append("lists of different length are lined up at their newest end")
    shown = progress or Progress(quiet=True)
    checked = {part: _check_file(path, part, verify, shown, notes) for part, path in paths.items()}
    rows = {part: PUBLISHED[part].rows if checked[part].rows_match else None for part in paths}
    events = tuple(_event_file(path, part, align, rows[part], notes) for part, path in paths.items())
    origin: dict[str, Any] = {
        "source": "taobao-ad",
        "official": all(found.md5_matches for found in checked.values()),
        "official_rows": all(found.rows_match for found in checked.values()),
    }
    return RawLog(taobao_schema(), events, None, None, origin, notes=tuple(dict.fromkeys(notes)))


def compare_with_published(log: StoredDataset) -> list[str]:
    """One line per vocabulary of a prepared dataset: as published, or a warning that names the difference.

    Published sizes count all training rows, so they can be met only where no validation part was carved from them.
    """
    if log.manifest.origin.get("official_rows") is not True:
        return []
    sizes = {encoder.name: encoder.size for role in Role for encoder in log.encoders.of(role)}
    carved = not log.schema.split.select_on_test
    lines = []
    for name, published in PUBLISHED_SIZES.items():
        ours = sizes[name]
        if ours == published:
            lines.append(f"vocabulary of {name}: {ours:,}, as published")
        elif carved and ours < published:
            lines.append(
                f"vocabulary of {name}: {ours:,} of {published:,} published, which count the rows held out here too"
            )
        else:
            lines.append(f"WARNING: vocabulary of {name}: {ours:,}, published are {published:,}")
    return lines


@dataclass(frozen=True)
class _Checked:
    md5_matches: bool = False
    rows_match: bool = False


def _check_file(path: Path, part: str, verify: bool, progress: Progress, notes: list[str]) -> _Checked:
    """Compare a file with the published one; a file too small to be it is not hashed."""
    published = PUBLISHED[part]
    if path.stat().st_size < published.rows * SHORTEST_ROW:
        notes.append(f"{path.name} is not the official file: it is too small for {published.rows:,} rows")
        return _Checked()
    if not verify:
        notes.append(f"{path.name} was not compared with the published file (--no-verify)")
        return _Checked()
    md5, rows = _md5_and_rows(path, progress)
    for what, found, expected in (("md5", md5, published.md5), ("rows", f"{rows:,}", f"{published.rows:,}")):
        if found == expected:
            notes.append(f"{path.name}: {what} {found}, as published")
        else:
            notes.append(f"WARNING: {path.name}: {what} {found}, published is {expected}")
    return _Checked(md5 == published.md5, rows == published.rows)


def _md5_and_rows(path: Path, progress: Progress) -> tuple[str, int]:
    digest = hashlib.md5(usedforsecurity=False)
    lines, ended = 0, False
    with path.open("rb") as handle, progress.bar(f"md5 of {path.name} (MB)", path.stat().st_size >> 20) as bar:
        while block := handle.read(BYTES_AT_ONCE):
            digest.update(block)
            lines += block.count(b"\n")
            bar.advance(len(block) >> 20)
            ended = block.endswith(b"\n")
    return digest.hexdigest(), lines - 1 if ended else lines  # the header is a line too


def _event_file(path: Path, part: str, align: bool, rows: int | None, notes: list[str]) -> EventFile:
    lazy = pl.scan_csv(path, infer_schema=False)
    names = column_names(lazy, path)
    for column in COLUMNS:
        if column not in names:
            raise DataError(f"{path}: column '{column}' is missing{did_you_mean(column, names)}")
        if f"{column}_duplicated_0" in names:
            raise DataError(f"{path}: column '{column}' is there twice; keep one")
    extra = [name for name in names if name not in COLUMNS]
    if extra:
        notes.append(f"columns that TaobaoAd_x1 does not have are ignored: {', '.join(extra)}")
    chosen = lazy.select(*COLUMNS[:-1], pl.lit(part).alias(PART))
    file = lazy_events(chosen, str(path), rows)
    return replace(file, batches=lambda: map(_align, file.batches())) if align else file


def _align(batch: pl.DataFrame) -> pl.DataFrame:
    """Lists of one row filled to the same length at their old end."""
    names = (*LISTS.values(), *ACTIONS.values())
    split = batch.with_columns(
        pl.when(pl.col(name).fill_null("") != "")
        .then(pl.col(name).str.split(SEPARATOR))
        .otherwise(pl.lit([], pl.List(pl.String)))
        .alias(name)
        for name in names
    )
    longest = pl.max_horizontal(pl.col(name).list.len() for name in names)
    return split.with_columns(
        pl.concat_list(pl.lit("").repeat_by(longest - pl.col(name).list.len()), name).alias(name) for name in names
    )
