"""Small files of exactly KuaiRand-1K's published layout, for tests of its reader and of what rests on it."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

CHINA = timezone(timedelta(hours=8))
FIRST_DAY = datetime(2022, 4, 8, tzinfo=CHINA)
LOG_COLUMNS = [
    "user_id",
    "video_id",
    "date",
    "hourmin",
    "time_ms",
    "is_click",
    "is_like",
    "is_follow",
    "is_comment",
    "is_forward",
    "is_hate",
    "long_view",
    "play_time_ms",
    "duration_ms",
    "profile_stay_time",
    "comment_stay_time",
    "is_profile_enter",
    "is_rand",
    "tab",
]
USER_COLUMNS = (
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,follow_user_num,"
    "follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,friend_user_num_range,register_days,"
    "register_days_range," + ",".join(f"onehot_feat{number}" for number in range(18))
).split(",")
VIDEO_COLUMNS = [
    "video_id",
    "author_id",
    "video_type",
    "upload_dt",
    "upload_type",
    "visible_status",
    "video_duration",
    "server_width",
    "server_height",
    "music_id",
    "music_type",
    "tag",
]
Row = dict[str, object]


def shown(user: int, video: int, time: datetime, **changes: object) -> Row:
    """One row of a log; the record is written in the hour in which the video is shown."""
    values: Row = dict.fromkeys(LOG_COLUMNS, 0)
    return {
        **values,
        "user_id": user,
        "video_id": video,
        "date": time.strftime("%Y%m%d"),
        "hourmin": time.hour * 100,
        "time_ms": int(time.timestamp() * 1000),
        "is_click": (user + video + time.day) % 2,
        "play_time_ms": 3000,
        "duration_ms": 12000,
        "tab": 1,
        **changes,
    }


def user_row(user: int) -> Row:
    values: Row = {**dict.fromkeys(USER_COLUMNS, 0), **{f"onehot_feat{n}": "1.0" for n in (4, *range(12, 18))}}
    ranges = {"follow_user_num_range": "(10,50]", "fans_user_num_range": "[10,100)", "register_days_range": "730+"}
    return {**values, "user_id": user, "user_active_degree": "full_active", "is_live_streamer": -124, **ranges}


def video_row(video: int, **changes: object) -> Row:
    values: Row = dict.fromkeys(VIDEO_COLUMNS, 1)
    texts = {"video_type": "NORMAL", "upload_dt": "2022-03-01", "upload_type": "ShortImport"}
    return {**values, "video_id": video, "author_id": 100 + video, **texts, "video_duration": 17200.0, **changes}


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row], compressed: bool) -> None:
    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return f'"{text}"' if "," in text else text

    lines = [",".join(columns), *(",".join(cell(row[column]) for column in columns) for row in rows)]
    text = "\n".join(lines) + "\n"
    if compressed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def write_kuairand(
    folder: Path,
    events: Sequence[Row],
    *,
    random: Sequence[Row] = (),
    users: Sequence[Row] | None = None,
    videos: Sequence[Row] | None = None,
    compressed: bool = False,
) -> Path:
    """`KuaiRand-1K/data` below `folder`: two standard logs cut at 22 April, the random log and the features."""
    data = folder / "KuaiRand-1K" / "data"
    data.mkdir(parents=True)
    both = [*events, *random]
    users = users or [user_row(user) for user in sorted({int(str(row["user_id"])) for row in both})]
    videos = videos or [video_row(video) for video in sorted({int(str(row["video_id"])) for row in both})]
    second = int((FIRST_DAY + timedelta(days=14)).timestamp() * 1000)
    for name, columns, rows in (
        ("log_standard_4_08_to_4_21_1k", LOG_COLUMNS, [r for r in events if int(str(r["time_ms"])) < second]),
        ("log_standard_4_22_to_5_08_1k", LOG_COLUMNS, [r for r in events if int(str(r["time_ms"])) >= second]),
        ("log_random_4_22_to_5_08_1k", LOG_COLUMNS, random),
        ("user_features_1k", USER_COLUMNS, users),
        ("video_features_basic_1k", VIDEO_COLUMNS, videos),
    ):
        write_csv(data / f"{name}.csv", columns, rows, compressed)
    (data / "video_features_statistic_1k.csv").write_text("video_id,counts,show_cnt\n1,66,75.212\n")
    (folder / "KuaiRand-1K" / "load_data_1k.py").write_text("")
    return folder


def a_month() -> list[Row]:
    """Two users see videos 1 and 2 on each of 31 days at 23:00; videos 29 and 30 are shown so often in all."""
    rows = [
        shown(user, video, FIRST_DAY + timedelta(days=day, hours=23, minutes=video))
        for user in (7, 8)
        for day in range(31)
        for video in (1, 2)
    ]
    for often in (29, 30):
        rows += [shown(7, often, FIRST_DAY + timedelta(days=n, hours=1, seconds=often)) for n in range(often)]
    return rows
