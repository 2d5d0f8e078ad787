"""KuaiRand-1K from its raw CSV files: named split protocols, rare videos dropped, nothing that leaks.

The files' own `date` and `hourmin` say when the server wrote the record, minutes after the video was shown and
depending on what the user did meanwhile. So hour and weekday come from `time_ms` in China's time by default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl

from limerank.data.fetch.download import download
from limerank.data.fetch.unpack import unpack
from limerank.data.fetch.web import Patience, fetch_text
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.folders import check_folder
from limerank.data.sources.lazy_events import column_names, count_lines, lazy_events
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.progress import Progress
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.splits import Days

RECORD = "https://zenodo.org/api/records/10439422"
ARCHIVE = "KuaiRand-1K.tar.gz"
ARCHIVE_MD5 = "6b0b9c8222d67fcd4c676218edca3f1f"  # also on the owner's page

STANDARD_LOGS = ("log_standard_4_08_to_4_21_1k.csv", "log_standard_4_22_to_5_08_1k.csv")
RANDOM_LOG = "log_random_4_22_to_5_08_1k.csv"
USERS = "user_features_1k.csv"
VIDEOS = "video_features_basic_1k.csv"
STATISTICS = "video_features_statistic_1k.csv"

UTC_OFFSET_HOURS = 8
FIRST_DAY = datetime(2022, 4, 8, tzinfo=timezone(timedelta(hours=UTC_OFFSET_HOURS)))
FLAGS = (
    "is_click",
    "is_like",
    "is_follow",
    "is_comment",
    "is_forward",
    "is_hate",
    "long_view",
    "is_profile_enter",
)
DEFAULT_TASKS = ("is_click", "long_view")
CLOCKS = ("time_ms", "logged")
LOG_COLUMNS = ("user_id", "video_id", "date", "hourmin", "time_ms", *FLAGS, "play_time_ms", "duration_ms", "tab")
VIDEO_COLUMNS = (
    "video_id",
    "author_id",
    "video_type",
    "upload_type",
    "music_id",
    "music_type",
    "video_duration",
    "tag",
)
USER_COLUMNS = (
    "user_active_degree",
    "is_lowactive_period",
    "is_live_streamer",
    "is_video_author",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
    *(f"onehot_feat{number}" for number in range(18)),
)


@dataclass(frozen=True)
class Protocol:
    """How the 31 days of the log are used."""

    split: Days
    days_read: int | None = None
    """Only the events of so many first days are read."""


def _days(train_days: int | None) -> Days:
    return Days(train_days=train_days, validation_days=1, test_days=2, utc_offset_hours=UTC_OFFSET_HOURS)


PROTOCOLS = {
    "paper": Protocol(_days(14)),
    "whole-log": Protocol(_days(None)),
    "first-16-days": Protocol(_days(14), days_read=16),
}


def download_kuairand(
    raw: Path, *, progress: Progress, record: str = RECORD, md5: str = ARCHIVE_MD5, patience: Patience | None = None
) -> Path:
    """Fetch KuaiRand-1K from its Zenodo record and unpack it below `raw`, without the 3 GB of statistics."""
    folder = raw / "KuaiRand-1K"
    if folder.is_dir() and any(folder.iterdir()):
        progress.say(f"{folder} is there already, nothing is downloaded")
        return folder
    url, published = _published_archive(record, fetch_text(record, progress=progress, patience=patience))
    if published != md5:
        raise DataError(
            f"{record}: {ARCHIVE} has the MD5 {published}, but the file this was written for has {md5}; "
            "look what changed on the owner's page, then unpack it by hand and give the folder as --raw"
        )
    archive = download(url, raw / ARCHIVE, md5=md5, progress=progress, patience=patience)
    unpack(archive, folder, progress=progress, leave_out={STATISTICS})
    archive.unlink()
    return folder


def _published_archive(record: str, text: str) -> tuple[str, str]:
    """Address and MD5 of the archive in the description of a Zenodo record."""
    try:
        files: list[dict[str, Any]] = json.loads(text)["files"]
        entry = next(file for file in files if file["key"] == ARCHIVE)
        algorithm, _, digest = entry["checksum"].partition(":")
        url = entry["links"]["self"]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise DataError(
            f"{record}: does not describe a file {ARCHIVE}; download it in a browser, unpack it and give it as --raw"
        ) from None
    if algorithm != "md5" or not isinstance(url, str):
        raise DataError(
            f"{record}: {ARCHIVE} has no MD5 checksum; download it in a browser, unpack it and give it as --raw"
        )
    return url, digest.lower()


def read_kuairand(
    folder: Path,
    *,
    protocol: str = "paper",
    tasks: Sequence[str] = DEFAULT_TASKS,
    include_random: bool = False,
    minimum_item_events: int = 30,
    clock: str = "time_ms",
) -> RawLog:
    """Read KuaiRand-1K from the unpacked archive: the folder, its parent or its `data` folder."""
    for option, value, known in (("--protocol", protocol, list(PROTOCOLS)), ("--clock", clock, list(CLOCKS))):
        if value not in known:
            raise UsageError(f"{option} {value}: no such choice{did_you_mean(value, known)}")
    for task in tasks:
        if task not in FLAGS:
            raise UsageError(f"--tasks {task}: no such feedback{did_you_mean(task, FLAGS)}")
    if not tasks or len(set(tasks)) < len(tasks):
        raise UsageError(f"--tasks {','.join(tasks)}: name at least one feedback, and each once")
    chosen = PROTOCOLS[protocol]
    data = _find_data(folder)
    logs = (*STANDARD_LOGS, *([RANDOM_LOG] if include_random else []))
    videos, users = _existing(data, VIDEOS), _existing(data, USERS)
    schema = Schema(
        user_id="user_id",
        item_id="video_id",
        time="time_ms",
        # two records may share user and millisecond and still come from different parts of the app
        request_id="request",
        features=_features(),
        tasks=tuple(Task(name=task) for task in tasks),
        split=chosen.split,
        minimum_item_events=minimum_item_events,
    )
    return RawLog(
        schema=schema,
        events=tuple(_events(_existing(data, log), chosen.days_read, clock) for log in logs),
        items=_table(videos, VIDEO_COLUMNS),
        users=_table(users, ("user_id", *USER_COLUMNS)),
        origin={
            "source": "kuairand-1k",
            "protocol": protocol,
            "clock": clock,
            "random_log": include_random,
            "minimum_item_events": minimum_item_events,
        },
        names={"items": str(videos), "users": str(users)},
        notes=_notes(protocol, include_random, minimum_item_events, clock),
    )


def _features() -> tuple[Feature, ...]:
    return (
        *(Feature(name=name, role=Role.ITEM) for name in VIDEO_COLUMNS if name not in ("video_duration", "tag")),
        Feature(name="video_duration", role=Role.ITEM, kind=Kind.CONTINUOUS),
        Feature(name="tag", role=Role.ITEM, kind=Kind.MULTI_VALUED, separator=","),
        *(Feature(name=name, role=Role.EVENT) for name in FLAGS),
        Feature(name="watch_ratio", role=Role.EVENT, kind=Kind.CONTINUOUS),
        *(Feature(name=name, role=Role.USER) for name in USER_COLUMNS),
        *(Feature(name=name, role=Role.CONTEXT) for name in ("hour", "weekday", "tab")),
    )


def _notes(protocol: str, include_random: bool, minimum: int, clock: str) -> tuple[str, ...]:
    notes = [
        f"protocol {protocol}: {PROTOCOL_NOTES[protocol]}",
        f"videos with fewer than {minimum} interactions are dropped, as if they had never been shown",
        "statistic features are left out: they are averages over the whole month, the test days included",
    ]
    if not include_random:
        notes.append("the log of randomly shown videos is left out; --include-random reads it too")
    if clock == "logged":
        notes.append("hour and weekday are those of the record (hourmin, date), which depend a little on the outcome")
    return tuple(notes)


PROTOCOL_NOTES = {
    "paper": "the first 14 days train, the 14th selects, the last 2 days test, the days between are history only",
    "whole-log": "everything before the last 2 days trains, the day before them selects, the last 2 days test",
    "first-16-days": "the first 14 days train, the 14th selects, days 15 and 16 test, later events are not read",
}


def _find_data(folder: Path) -> Path:
    check_folder(folder, "give the unpacked KuaiRand-1K folder, or add --download")
    tried = [folder, folder / "data", folder / "KuaiRand-1K" / "data", folder / "KuaiRand-1K"]
    for data in tried:
        if any((data / name).is_file() for name in _spellings(STANDARD_LOGS[0])):
            return data
    where = ", ".join(str(data) for data in tried)
    raise DataError(f"{folder}: holds no {STANDARD_LOGS[0]} (or .gz); looked in {where}; --download fetches it")


def _spellings(name: str) -> tuple[str, ...]:
    return (name, f"{name}.gz", f"{name}.zst")


def _existing(folder: Path, name: str) -> Path:
    for spelling in _spellings(name):
        if (folder / spelling).is_file():
            return folder / spelling
    raise DataError(f"{folder / name}: no such file (nor .gz); KuaiRand-1K has it beside {STANDARD_LOGS[0]}")


def _scan(path: Path, columns: Sequence[str]) -> pl.LazyFrame:
    table = pl.scan_csv(path, infer_schema=False)
    found = column_names(table, path)
    for column in columns:
        if column not in found:
            raise DataError(f"{path}: column '{column}' is missing{did_you_mean(column, found)}")
    return table.select(columns)


def _table(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    try:
        return _scan(path, columns).collect()
    except (pl.exceptions.PolarsError, OSError) as broken:
        raise DataError(f"{path}: cannot be read as a table ({str(broken).splitlines()[0]})") from None


def _events(path: Path, days_read: int | None, clock: str) -> EventFile:
    log = _scan(path, LOG_COLUMNS).with_columns(
        **_clock_features(clock),
        watch_ratio=pl.when(pl.col("duration_ms").cast(pl.Float64) > 0).then(
            pl.col("play_time_ms").cast(pl.Float64) / pl.col("duration_ms").cast(pl.Float64)
        ),
    )
    if days_read is not None:
        end = int((FIRST_DAY + timedelta(days=days_read)).timestamp() * 1000)
        log = log.filter((pl.col("time_ms").cast(pl.Int64) < end) | pl.col("time_ms").is_null())
    kept = ["user_id", "video_id", "time_ms", *FLAGS, "watch_ratio", "hour", "weekday", "tab"]
    context = ("hour", "weekday", "tab") if clock == "logged" else ("tab",)  # logged hours do not follow from the time
    log = log.with_columns(request=pl.concat_str("time_ms", *context, separator="-", ignore_nulls=True))
    kept.append("request")
    lines = count_lines(path) if days_read is None else None
    rows = lines - 1 if lines else None  # the first is the header
    return lazy_events(log.select(kept), str(path), rows, _check_hours)


def _clock_features(clock: str) -> dict[str, pl.Expr]:
    """Hour and weekday (Monday is 1), of the showing or of its record."""
    if clock == "logged":
        return {
            "hour": pl.col("hourmin").cast(pl.Int64) // 100,  # HHMM as a number: 400 is 04:00
            "weekday": pl.col("date").str.to_date("%Y%m%d").dt.weekday(),
        }
    hours = pl.col("time_ms").cast(pl.Int64) // 3_600_000 + UTC_OFFSET_HOURS
    return {"hour": hours % 24, "weekday": (hours // 24 + 3) % 7 + 1}  # 1970 began on a Thursday


def _check_hours(batch: pl.DataFrame, name: str) -> None:
    latest = batch["hour"].max()
    if isinstance(latest, int) and latest > 23:
        raise DataError(f"{name}: column 'hourmin' has the hour {latest}; it should be HHMM as a number, 400 for 04:00")
