"""KuaiRand-1K on small files of exactly the published layout, with its quirks."""

from __future__ import annotations

import hashlib
import json
import tarfile
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from calling import limerank
from kuairand_files import CHINA, FIRST_DAY, a_month, shown, video_row, write_kuairand

from limerank.data.build.prepare import prepare
from limerank.data.fetch.web import Patience
from limerank.data.raw.log import RawLog
from limerank.data.sources.kuairand import download_kuairand, read_kuairand
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.progress import Progress
from limerank.schema import Role

QUIET = Progress(quiet=True)
HASTY = Patience(attempts=1, pause=0.01, timeout=5)


def events_of(raw: RawLog) -> pl.DataFrame:
    return pl.concat([batch for file in raw.events for batch in file.batches()])


def days_of(dataset: StoredDataset, part: int) -> set[int]:
    """The days of the dataset, from 1, whose requests belong to a part."""
    time = dataset.column("events/time")[dataset.column("requests/start")[:-1].astype(np.int64)]
    day = (np.asarray(time).astype(np.int64) - int(FIRST_DAY.timestamp() * 1000)) // 86_400_000 + 1
    return set(day[dataset.column("requests/part") == part].tolist())


def test_what_becomes_what(tmp_path: Path) -> None:
    time = FIRST_DAY + timedelta(days=1, hours=4, minutes=5)  # Saturday 2022-04-09
    rows = [
        shown(7, 1, time, play_time_ms=36000, is_click=1, is_like=1, long_view=1, tab=4),
        shown(7, 2, time + timedelta(days=20), is_click=0, duration_ms=0),
    ]
    videos = [video_row(1, tag="12,65"), video_row(2, tag=None, video_duration=None, music_type="")]
    raw = read_kuairand(write_kuairand(tmp_path, rows, videos=videos))
    events = events_of(raw)
    assert events.select("user_id", "video_id", "is_click", "is_like", "long_view", "tab").rows() == [
        ("7", "1", "1", "1", "1", "4"),
        ("7", "2", "0", "0", "0", "1"),
    ]
    assert events["watch_ratio"].to_list() == [3.0, None]
    assert events["hour"].to_list() == [4, 4]
    assert events["weekday"].to_list() == [6, 5]
    assert not {"date", "hourmin", "play_time_ms", "duration_ms", "is_rand", "comment_stay_time"} & set(events.columns)
    assert [file.rows for file in raw.events] == [1, 1]
    assert raw.items is not None
    assert raw.items.select("video_id", "author_id", "video_duration", "tag").rows() == [
        ("1", "101", "17200.0", "12,65"),
        ("2", "102", None, None),
    ]
    names = {role: {feature.name for feature in raw.schema.with_role(role)} for role in Role}
    assert len(names[Role.USER]) == 26
    assert "follow_user_num" not in names[Role.USER]
    assert names[Role.EVENT] >= {"is_hate", "is_profile_enter", "watch_ratio"}
    assert names[Role.CONTEXT] == {"hour", "weekday", "tab"}
    assert [task.name for task in raw.schema.tasks] == ["is_click", "long_view"]
    assert any("averages over the whole month" in note for note in raw.notes)


def test_the_hour_is_when_it_was_shown_not_when_it_was_recorded(tmp_path: Path) -> None:
    """In real KuaiRand records, a video shown late in an hour usually bears the next hour, some days the next date."""
    rows = [
        shown(7, 1, datetime(2022, 4, 10, 23, 55, tzinfo=CHINA), date=20220411, hourmin=0),
        shown(7, 1, datetime(2022, 4, 11, 4, 30, tzinfo=CHINA), hourmin=400),
        shown(7, 1, datetime(2022, 4, 11, 23, 58, tzinfo=CHINA), hourmin=2359),
    ]
    folder = write_kuairand(tmp_path, rows)
    assert events_of(read_kuairand(folder)).select("hour", "weekday").rows() == [(23, 7), (4, 1), (23, 1)]
    logged = read_kuairand(folder, clock="logged")
    assert events_of(logged).select("hour", "weekday").rows() == [(0, 1), (4, 1), (23, 1)]
    assert logged.origin["clock"] == "logged"
    assert any("depend a little on the outcome" in note for note in logged.notes)


def test_records_of_one_millisecond_with_other_context_are_other_requests(tmp_path: Path) -> None:
    time = FIRST_DAY + timedelta(hours=5)
    rows = [
        *(shown(7, video, FIRST_DAY + timedelta(days=day)) for day in range(31) for video in (1, 2)),
        shown(7, 1, time, tab=1),
        shown(7, 2, time, tab=2),
        shown(7, 2, time, tab=2, hourmin=600),
    ]
    folder = write_kuairand(tmp_path / "raw", rows)
    dataset = prepare(read_kuairand(folder), tmp_path / "out")
    assert dataset.manifest.counts["requests"] == 31 + 2
    assert sorted(np.diff(dataset.column("requests/start")).tolist()) == [1] + [2] * 32
    logged = prepare(read_kuairand(folder, clock="logged"), tmp_path / "logged")
    assert logged.manifest.counts["requests"] == 31 + 3, "by its record, the last one belongs to another hour"


@pytest.mark.parametrize("compressed", [False, True])
def test_paper_protocol(tmp_path: Path, compressed: bool) -> None:
    folder = write_kuairand(tmp_path / "raw", a_month(), compressed=compressed)
    dataset = prepare(read_kuairand(folder), tmp_path / "out")
    assert dataset.manifest.origin["protocol"] == "paper"
    assert [days_of(dataset, part) for part in range(4)] == [
        set(range(1, 14)),
        {14},
        {30, 31},
        set(range(15, 30)),
    ]
    assert set(dataset.item_ids.to_list()[1:]) == {"1", "2", "30"}, "29 interactions are too few, 30 are enough"
    assert dataset.manifest.dropped["events"] == 29
    users = dataset.column("requests/user")
    first_of_last_user = dataset.column("requests/start")[np.flatnonzero(users == users[-1])[0]]
    history = int(dataset.column("requests/history_end")[-1]) - int(first_of_last_user)
    assert history == 61, "the days between train and test are in the history of a test request"


def test_whole_log_protocol(tmp_path: Path) -> None:
    dataset = prepare(
        read_kuairand(write_kuairand(tmp_path / "raw", a_month()), protocol="whole-log"), tmp_path / "out"
    )
    assert [days_of(dataset, part) for part in range(4)] == [set(range(1, 29)), {29}, {30, 31}, set()]
    assert dataset.manifest.origin["protocol"] == "whole-log"


def test_first_16_days_protocol(tmp_path: Path) -> None:
    raw = read_kuairand(write_kuairand(tmp_path / "raw", a_month()), protocol="first-16-days", minimum_item_events=16)
    dataset = prepare(raw, tmp_path / "out")
    assert [days_of(dataset, part) for part in range(4)] == [set(range(1, 14)), {14}, {15, 16}, set()]
    assert dataset.manifest.counts["events"] == 2 * 2 * 16 + 2 * 16
    raw = read_kuairand(tmp_path / "raw", protocol="first-16-days", minimum_item_events=17)
    assert set(prepare(raw, tmp_path / "less").item_ids.to_list()[1:]) == {"1", "2"}, "only what is read is counted"


def test_encoded_values(tmp_path: Path) -> None:
    videos = [video_row(1, tag="12,65"), video_row(2, tag="65", video_duration=None)]
    videos += [video_row(29), video_row(30, tag=None)]
    dataset = prepare(read_kuairand(write_kuairand(tmp_path / "raw", a_month(), videos=videos)), tmp_path / "out")
    encoders = {encoder.name: encoder for encoder in dataset.encoders.of(Role.ITEM)}
    tags = dataset.item_table.lists[0]
    of_item = {
        name: [encoders["tag"].decode(int(v)) for v in tags.values[tags.offsets[row] : tags.offsets[row + 1]]]
        for row, name in enumerate(dataset.item_ids.to_list())
        if row
    }
    assert of_item == {"1": ["12", "65"], "2": ["65"], "30": []}
    hours = {encoder.name: encoder for encoder in dataset.encoders.of(Role.CONTEXT)}["hour"]
    assert {hours.decode(int(v)) for v in np.unique(dataset.column("events/context.hour"))} == {"1", "23"}
    column = [encoder.name for encoder in dataset.encoders.of(Role.ITEM)].index("video_duration")
    known, unknown = (dataset.item_ids.to_list().index(name) for name in ("1", "2"))
    assert int(dataset.item_table.indices[unknown, column]) == 1
    assert int(dataset.item_table.indices[known, column]) > 1
    streamer = [encoder.name for encoder in dataset.encoders.of(Role.USER)].index("is_live_streamer")
    assert dataset.encoders.of(Role.USER)[streamer].decode(int(dataset.user_table.indices[1, streamer])) == "-124"


def test_the_random_log_is_read_only_on_demand(tmp_path: Path) -> None:
    random = [shown(7, 1, FIRST_DAY + timedelta(days=20, minutes=n), is_rand=1) for n in range(3)]
    folder = write_kuairand(tmp_path / "raw", a_month(), random=random)
    without, included = read_kuairand(folder), read_kuairand(folder, include_random=True)
    assert events_of(included).height == events_of(without).height + 3
    assert (without.origin["random_log"], included.origin["random_log"]) == (False, True)
    assert any("randomly shown" in note for note in without.notes)
    assert not any("randomly shown" in note for note in included.notes)


def test_the_folder_its_parent_or_its_data(tmp_path: Path) -> None:
    write_kuairand(tmp_path, [shown(7, 1, FIRST_DAY)])
    for folder in (tmp_path, tmp_path / "KuaiRand-1K", tmp_path / "KuaiRand-1K" / "data"):
        assert events_of(read_kuairand(folder)).height == 1
    with pytest.raises(DataError, match=r"elsewhere: no such folder; give the unpacked KuaiRand-1K folder"):
        read_kuairand(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(DataError, match=r"holds no log_standard_4_08_to_4_21_1k\.csv.*--download"):
        read_kuairand(tmp_path / "elsewhere")
    (tmp_path / "KuaiRand-1K" / "data" / "user_features_1k.csv").unlink()
    with pytest.raises(DataError, match=r"user_features_1k\.csv: no such file"):
        read_kuairand(tmp_path)


def test_tasks_and_choices(tmp_path: Path) -> None:
    folder = write_kuairand(tmp_path, [shown(7, 1, FIRST_DAY)])
    raw = read_kuairand(folder, tasks=("long_view", "is_like"))
    assert [task.name for task in raw.schema.tasks] == ["long_view", "is_like"]
    with pytest.raises(UsageError, match="--tasks is_liked: no such feedback; did you mean 'is_like'"):
        read_kuairand(folder, tasks=("is_liked",))
    with pytest.raises(UsageError, match="at least one"):
        read_kuairand(folder, tasks=())
    with pytest.raises(UsageError, match="each once"):
        read_kuairand(folder, tasks=("is_click", "is_click"))
    with pytest.raises(UsageError, match="--protocol papers: no such choice; did you mean 'paper'"):
        read_kuairand(folder, protocol="papers")
    with pytest.raises(UsageError, match="--clock"):
        read_kuairand(folder, clock="sun")


def test_wrong_values_are_named(tmp_path: Path) -> None:
    folder = write_kuairand(tmp_path / "a", [shown(7, 1, FIRST_DAY, play_time_ms="long")])
    with pytest.raises(DataError, match=r"log_standard_4_08_to_4_21_1k\.csv: cannot be read .*play_time_ms"):
        events_of(read_kuairand(folder))
    folder = write_kuairand(tmp_path / "b", [shown(7, 1, FIRST_DAY, hourmin=2460)])
    with pytest.raises(DataError, match="column 'hourmin' has the hour 24; it should be HHMM"):
        events_of(read_kuairand(folder, clock="logged"))
    folder = write_kuairand(tmp_path / "c", [shown(7, 1, FIRST_DAY)])
    log = folder / "KuaiRand-1K" / "data" / "log_standard_4_08_to_4_21_1k.csv"
    log.write_text(log.read_text().replace("long_view", "longview"))
    with pytest.raises(DataError, match="column 'long_view' is missing; did you mean 'longview'"):
        read_kuairand(folder)


def test_the_command(tmp_path: Path) -> None:
    write_kuairand(tmp_path / "raw", a_month())
    folders = ("--raw", tmp_path / "raw", "--out", tmp_path / "out")
    done = limerank(
        "prepare", "kuairand-1k", *folders, "--protocol", "whole-log", "--tasks", "long_view, is_like", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == 2 * 2 * 31 + 30
    dataset = StoredDataset.open(tmp_path / "out")
    assert [task.name for task in dataset.schema.tasks] == ["long_view", "is_like"]
    assert dataset.manifest.origin["protocol"] == "whole-log"
    shown_notes = limerank("prepare", "kuairand-1k", *folders, "--overwrite").stderr
    assert "note: protocol paper: the first 14 days train" in shown_notes
    refused = limerank("prepare", "kuairand-1k", "--raw", tmp_path / "nowhere", "--out", tmp_path / "other")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)


def test_download_to_dataset(owners_site: tuple[Path, str], tmp_path: Path) -> None:
    served, home = owners_site
    source = write_kuairand(tmp_path / "made", a_month())
    with tarfile.open(served / "content", "w:gz") as archive:
        archive.add(source / "KuaiRand-1K", "KuaiRand-1K")
    digest = hashlib.md5((served / "content").read_bytes()).hexdigest()
    entry = {"id": "x", "key": "KuaiRand-1K.tar.gz", "size": 1, "checksum": f"md5:{digest}"}
    other = {"id": "y", "key": "KuaiRand-Pure.tar.gz", "size": 1, "checksum": "md5:0"}
    described = {"id": 1, "files": [other, {**entry, "links": {"self": f"{home}/content"}}]}
    (served / "record").write_text(json.dumps(described))
    fetch = partial(download_kuairand, progress=QUIET, record=f"{home}/record", patience=HASTY)
    folder = fetch(tmp_path / "raw", md5=digest)
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["KuaiRand-1K"]
    assert not (folder / "data" / "video_features_statistic_1k.csv").exists(), "3 GB that are not needed"
    assert events_of(read_kuairand(tmp_path / "raw")).height == len(a_month())
    (served / "content").unlink()
    assert fetch(tmp_path / "raw") == folder, "not fetched twice"
    with pytest.raises(DataError, match=f"has the MD5 {digest}, but the file this was written for has 6b0b9c82"):
        fetch(tmp_path / "again")
    for text in ("<html>", "{}", '{"files": [{"key": "other"}]}', '{"files": [{"key": "KuaiRand-1K.tar.gz"}]}'):
        (served / "record").write_text(text)
        with pytest.raises(DataError, match="does not describe a file KuaiRand-1K.tar.gz; download it in a browser"):
            fetch(tmp_path / "again")
    assert not (tmp_path / "again").exists()
