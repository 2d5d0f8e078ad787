"""MovieLens as GroupLens publishes it: the 100k, 1m (and 10m) and latest (20m, 25m, 32m) layouts, and plain CSV.

The layout is recognized by the files that are there. A rating of 4 or more is a `like`; the rating itself is visible in
histories only. Movies have their id, genres and year; users what the layout tells of them.
"""

from __future__ import annotations

from pathlib import Path

from limerank.data.fetch.download import download
from limerank.data.fetch.unpack import unpack
from limerank.data.fetch.web import Patience, published_md5
from limerank.data.raw.log import RawLog
from limerank.data.sources.folders import check_folder
from limerank.data.sources.lazy_events import column_names, count_lines, lazy_events
from limerank.data.sources.movielens.layouts import LAYOUTS, Layout, scan_csv
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.progress import Progress
from limerank.schema import Feature, Kind, Role, Schema, Task, TimeUnit
from limerank.splits import GlobalTime, LastFraction, Split

HOME = "https://files.grouplens.org/datasets/movielens"
EDITIONS: dict[str, str | None] = {
    "100k": "0e33842e24a9c977be4e0107933c0723",
    "1m": "c4d9eecfca2ab87c1945afe126590906",
    "latest-small": None,  # it changes from time to time; only the checksum published beside it counts
}
SPLITS: dict[str, Split] = {
    "last_fraction": LastFraction(test_fraction=0.2),
    "global_time": GlobalTime(),
}
LICENSE_NOTE = (
    "MovieLens belongs to GroupLens: for research, not for commerce without permission, most editions not to be "
    "redistributed (see the README in the archive); cite Harper and Konstan 2015 (docs/datasets/movielens.md)"
)


def download_movielens(
    edition: str, raw: Path, *, progress: Progress, home: str = HOME, patience: Patience | None = None
) -> Path:
    """Fetch an edition from GroupLens and unpack it below `raw`; nothing is fetched when it is there already."""
    if edition not in EDITIONS:
        raise UsageError(f"--download {edition}: no such edition{did_you_mean(edition, EDITIONS)}")
    folder = raw / f"ml-{edition}"
    if folder.is_dir() and any(folder.iterdir()):
        progress.say(f"{folder} is there already, nothing is downloaded")
        return folder
    url = f"{home}/ml-{edition}.zip"
    published = published_md5(url, progress=progress, patience=patience)
    known = EDITIONS[edition]
    if known is not None and published != known:
        raise DataError(
            f"{url}.md5: says {published}, but the edition this was written for has {known}; "
            "look what changed on the owner's page, then unpack it by hand and give the folder as --raw"
        )
    archive = download(url, raw / f"ml-{edition}.zip", md5=published, progress=progress, patience=patience)
    unpack(archive, folder, progress=progress)
    archive.unlink()
    return folder


def read_movielens(folder: Path, *, positive_from: float = 4.0, split: str = "last_fraction") -> RawLog:
    """Read the edition that lies in `folder`, or in its only subfolder that holds one."""
    if split not in SPLITS:
        raise UsageError(f"--split {split}: no such protocol{did_you_mean(split, SPLITS)}")
    layout, folder = _find_layout(folder)
    ratings, movies_path = _existing(folder, layout.ratings), _existing(folder, layout.movies)
    users_path = _existing(folder, layout.users) if layout.users else None
    assert ratings is not None  # the layout was found by it
    if movies_path is None:
        raise DataError(
            f"{folder / layout.movies}: no such file; the {layout.name} layout has it beside {ratings.name}"
        )
    movies = layout.read_movies(movies_path)
    users = layout.read_users(users_path) if users_path and layout.read_users else None
    features = (
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="year", role=Role.ITEM, kind=Kind.CONTINUOUS),
        Feature(name="genres", role=Role.ITEM, kind=Kind.MULTI_VALUED),
        Feature(name="rating", role=Role.EVENT),
        *(layout.user_features if users is not None else ()),
    )
    schema = Schema(
        time="timestamp",
        time_unit=TimeUnit.SECONDS,
        features=features,
        tasks=(Task(name="like", column="rating", positive_from=positive_from),),
        split=SPLITS[split],
        display="title",
    )
    without = int((movies["genres"].list.len() == 0).sum())
    notes = [LICENSE_NOTE, f"read as the {layout.name} layout of MovieLens"]
    if without:
        notes.append(f"{without} movies have no genre; their list is empty")
    if users is None:
        notes.append("there is no file about the users, so there are no user features")
    if split == "global_time":
        notes.append("many users rate on one day only: split by time, most test rows are of users never seen in train")
    lines = count_lines(ratings)
    rows = lines - bool(layout.header) if lines else None
    return RawLog(
        schema=schema,
        events=(lazy_events(layout.read_ratings(ratings), str(ratings), rows),),
        items=movies,
        users=users,
        origin={"source": "movielens", "layout": layout.name, "protocol": split, "positive_from": positive_from},
        names={"items": str(movies_path), "users": str(users_path or "users")},
        notes=tuple(notes),
    )


def _find_layout(folder: Path) -> tuple[Layout, Path]:
    check_folder(folder, "give the unpacked MovieLens folder, or add --download 100k")
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    for folders in ([folder], subfolders):
        found = [(layout, home) for home in folders for layout in LAYOUTS if _fits(layout, home)]
        if len(found) > 1:
            names = ", ".join(home.name for _, home in found)
            raise DataError(f"{folder}: holds several editions ({names}); give one of them as --raw")
        if found:
            return found[0]
    wanted = "; ".join(
        f"{layout.ratings}" + (f" with {','.join(layout.header)}" if layout.header else "") + f" ({layout.name})"
        for layout in LAYOUTS
    )
    raise DataError(f"{folder}: no MovieLens edition is in it; looked for {wanted}, each also as .gz")


def _fits(layout: Layout, folder: Path) -> bool:
    path = _existing(folder, layout.ratings)
    if path is None:
        return False
    return not layout.header or set(layout.header) <= set(column_names(scan_csv(path), path))


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
