"""MovieLens in every published layout, on small files of exactly that layout; and the real 100k where it is there."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from calling import limerank

from limerank.data.build.prepare import prepare
from limerank.data.fetch.web import Patience
from limerank.data.raw.log import RawLog
from limerank.data.sources.movielens.layouts import GENRES_100K
from limerank.data.sources.movielens.read import download_movielens, read_movielens
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UnavailableError, UsageError
from limerank.metrics import auc
from limerank.progress import Progress
from limerank.schema import Kind, Role

SHARED = Path(__file__).parents[4] / "shared/data/ml-100k"
QUIET = Progress(quiet=True)
HASTY = Patience(attempts=1, pause=0.01, timeout=5)

USERS = [("1", "24", "M", "technician", "85711"), ("2", "53", "F", "other", "T8H1N")]
MOVIES = [
    ("1", "Toy Story (1995)", ["Animation", "Children's", "Comedy"]),
    ("2", 'Monsieur "Hulot", Les Vacances de (1953)', ["Comedy"]),
    ("3", "unknown", []),
    ("4", "Misérables, Les (1995)", ["Drama", "Musical"]),
]
RATINGS = [
    (user, movie, str(1 + (3 * place + int(user)) % 5), str(880_000_000 + 60 * place))
    for user in ("1", "2")
    for place, movie in enumerate(["1", "2", "3", "4", "2", "1", "4", "3", "1", "2"])
]


def write_100k(folder: Path) -> Path:
    """u.data, u.user and u.item as in ml-100k.zip: tabs and bars, Latin-1, 19 genre flags, no header."""
    folder.mkdir(parents=True)
    (folder / "u.data").write_text("".join("\t".join(row) + "\n" for row in RATINGS))
    (folder / "u.user").write_text("".join("|".join(row) + "\n" for row in USERS))
    lines = []
    for movie, title, genres in MOVIES:
        flags = ["1" if genre in genres or (genre == "unknown" and not genres) else "0" for genre in GENRES_100K]
        date = f"01-Jan-{title[-5:-1]}" if title != "unknown" else ""
        lines.append("|".join([movie, title, date, "", "http://us.imdb.com/M/x" if date else "", *flags]) + "\n")
    (folder / "u.item").write_text("".join(lines), encoding="latin-1")
    return folder


def write_1m(folder: Path) -> Path:
    """ratings.dat, users.dat and movies.dat as in ml-1m.zip: '::' between fields, Latin-1, no header."""
    folder.mkdir(parents=True)
    (folder / "ratings.dat").write_text("".join("::".join(row) + "\n" for row in RATINGS))
    rows = [(user, gender, "25", "7", area) for user, _, gender, _, area in USERS]
    (folder / "users.dat").write_text("".join("::".join(row) + "\n" for row in rows))
    lines = [f"{movie}::{title}::{'|'.join(genres)}\n" for movie, title, genres in MOVIES]
    (folder / "movies.dat").write_text("".join(lines), encoding="latin-1")
    return folder


def write_latest(folder: Path) -> Path:
    """ratings.csv and movies.csv as in ml-latest-small.zip: a header, quotes, UTF-8, halves of stars."""
    folder.mkdir(parents=True)
    rows = [("userId", "movieId", "rating", "timestamp"), *((u, m, f"{r}.0", t) for u, m, r, t in RATINGS)]
    (folder / "ratings.csv").write_text("".join(",".join(row) + "\r\n" for row in rows))
    lines = ["movieId,title,genres\r\n"]
    for movie, title, genres in MOVIES:
        quoted = '"' + title.replace('"', '""') + '"' if set(title) & set(',"') else title
        lines.append(f"{movie},{quoted},{'|'.join(genres) or '(no genres listed)'}\r\n")
    (folder / "movies.csv").write_text("".join(lines), encoding="utf-8")
    (folder / "links.csv").write_text("movieId,imdbId,tmdbId\r\n1,0114709,862\r\n")
    (folder / "tags.csv").write_text("userId,movieId,tag,timestamp\r\n2,1,funny,1445714994\r\n")
    return folder


def write_plain(folder: Path) -> Path:
    """ratings, items and users as compressed CSV with a header."""
    folder.mkdir(parents=True)
    tables: dict[str, list[tuple[str, ...]]] = {
        "ratings": [("user_id", "item_id", "rating", "timestamp"), *RATINGS],
        "users": [("user_id", "age", "gender", "occupation", "zip_code"), *USERS],
        "items": [
            ("item_id", "movie_title", "release_year", "genres"),
            *((m, title[0], title[-5:-1] if genres else "unkonwn", " ".join(genres)) for m, title, genres in MOVIES),
        ],
    }
    for name, rows in tables.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt", encoding="utf-8") as handle:
            handle.writelines(",".join(row) + "\n" for row in rows)
    return folder


WRITERS = {"100k": write_100k, "1m": write_1m, "latest": write_latest, "plain csv": write_plain}


@pytest.fixture(params=WRITERS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def events_of(raw: RawLog) -> pl.DataFrame:
    return pl.concat([batch for file in raw.events for batch in file.batches()])


def test_every_layout_says_the_same(layout: str, tmp_path: Path) -> None:
    raw = read_movielens(WRITERS[layout](tmp_path / "ml"))
    assert raw.origin == {
        "source": "movielens",
        "layout": layout,
        "protocol": "last_fraction",
        "positive_from": 4.0,
    }
    events = events_of(raw)
    stars = ".0" if layout == "latest" else ""
    assert events.select("user_id", "item_id", "rating", "timestamp").rows() == [
        (user, movie, rating + stars, time) for user, movie, rating, time in RATINGS
    ]
    assert set(events.columns) == set(raw.events[0].columns)
    assert raw.events[0].rows == (None if layout == "plain csv" else len(RATINGS))
    assert raw.items is not None
    titles = [title[0] if layout == "plain csv" else title for _, title, _ in MOVIES]
    assert raw.items.rows() == [
        ("1", titles[0], "1995", ["Animation", "Children's", "Comedy"]),
        ("2", titles[1], "1953", ["Comedy"]),
        ("3", titles[2], None, []),
        ("4", titles[3], "1995", ["Drama", "Musical"]),
    ]
    assert any("1 movies have no genre" in note for note in raw.notes)
    assert any("not to be redistributed" in note for note in raw.notes)


def test_user_features_are_what_the_layout_tells(layout: str, tmp_path: Path) -> None:
    raw = read_movielens(WRITERS[layout](tmp_path / "ml"))
    features = {feature.name: feature.kind for feature in raw.schema.with_role(Role.USER)}
    if layout == "latest":
        assert features == {}
        assert raw.users is None
        return
    assert list(features) == ["age", "gender", "occupation", "zip_region"]
    assert features["age"] is (Kind.CATEGORICAL if layout == "1m" else Kind.CONTINUOUS)
    assert raw.users is not None
    age, occupation = ("25", "7") if layout == "1m" else ("24", "technician")
    assert raw.users.select("user_id", *features).row(0) == ("1", age, "M", occupation, "8")
    assert raw.users["zip_region"].to_list() == ["8", "T"]


def test_prepared_dataset(layout: str, tmp_path: Path) -> None:
    folder = WRITERS[layout](tmp_path / "raw" / "ml-x").parent  # the folder around an edition will do
    log = prepare(read_movielens(folder), tmp_path / "out")
    assert log.manifest.counts["events"] == 20
    assert log.item_ids.to_list()[1:] == ["1", "2", "3", "4"]
    assert log.item_displays is not None
    assert log.item_displays[1].startswith("T")
    likes = {(u, t): int(r) >= 4 for u, _, r, t in RATINGS}
    part = np.repeat(log.column("requests/part"), np.diff(log.column("requests/start")))
    user = np.repeat(log.column("requests/user"), np.diff(log.column("requests/start")))
    for row, (time, like) in enumerate(
        zip(log.column("events/time").tolist(), log.column("events/label.like").tolist(), strict=True)
    ):
        assert like == likes[log.user_ids[int(user[row])], str(time // 1000)]
    for row in (1, 2):
        assert part[user == row].tolist() == [0] * 7 + [1] + [2] * 2, "the last fifth tests, the tenth before selects"
    genres = log.item_table.lists[0]
    lengths = np.diff(genres.offsets.numpy()).tolist()
    assert lengths[1:] == [3, 1, 0, 2]


def test_options(tmp_path: Path) -> None:
    folder = write_1m(tmp_path / "ml")
    raw = read_movielens(folder, positive_from=5, split="global_time")
    assert raw.schema.tasks[0].positive_from == 5
    assert raw.schema.split.protocol == "global_time"
    assert any("never seen in train" in note for note in raw.notes)
    with pytest.raises(UsageError, match="did you mean 'global_time'"):
        read_movielens(folder, split="global")


def test_what_was_looked_for_is_said(tmp_path: Path) -> None:
    (tmp_path / "ml").mkdir()
    with pytest.raises(DataError, match=r"u\.data \(100k\); ratings\.dat \(1m\); ratings\.csv with userId.*\.gz"):
        read_movielens(tmp_path / "ml")
    with pytest.raises(DataError, match="no such folder"):
        read_movielens(tmp_path / "nowhere")
    write_1m(tmp_path / "ml" / "ml-1m")
    write_100k(tmp_path / "ml" / "ml-100k")
    with pytest.raises(DataError, match="several editions .ml-100k, ml-1m.; give one of them"):
        read_movielens(tmp_path / "ml")


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = write_1m(tmp_path / "ml")
    (folder / "movies.dat").write_text("1::Toy Story (1995)::Comedy\n2::broken\n")
    with pytest.raises(DataError, match=r"movies\.dat, line 2: 2 fields between '::', should be 3"):
        read_movielens(folder)
    (folder / "movies.dat").unlink()
    with pytest.raises(DataError, match=r"movies\.dat: no such file; the 1m layout has it beside ratings\.dat"):
        read_movielens(folder)
    (folder / "ratings.dat").write_text("1:2:3:4\n")
    (folder / "movies.dat").write_text("1::Toy Story (1995)::Comedy\n")
    with pytest.raises(DataError, match=r"ratings\.dat: line 1 should hold user_id, item_id, rating, timestamp"):
        read_movielens(folder)
    latest = write_latest(tmp_path / "latest")
    (latest / "movies.csv").write_text("movieId,titel,genres\n1,x,y\n")
    with pytest.raises(DataError, match=r"movies\.csv: column 'title' is missing; did you mean 'titel'"):
        read_movielens(latest)
    hundred = write_100k(tmp_path / "hundred")
    with (hundred / "u.data").open("a") as handle:
        handle.write("1\t2\t3\t4\t5\n")
    with pytest.raises(DataError, match=r"u\.data: cannot be read"):
        events_of(read_movielens(hundred))


def test_the_command(tmp_path: Path) -> None:
    write_100k(tmp_path / "raw")
    place = ("--raw", tmp_path / "raw", "--out", tmp_path / "out")
    done = limerank("prepare", "movielens", *place, "--positive-from", "5", "--select-on-test", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["events"], facts["items"], facts["users"]) == (20, 4, 2)
    assert any("not to be redistributed" in note for note in facts["notes"])
    log = StoredDataset.open(tmp_path / "out")
    assert log.schema.split.select_on_test
    assert set(np.asarray(log.column("requests/part")).tolist()) == {0, 2}
    assert limerank("prepare", "movielens", *place).returncode == 5, "nothing is replaced unasked"
    assert limerank("prepare", "movielens", *place, "--overwrite").returncode == 0
    refused = limerank("prepare", "movielens", *place, "--overwrite", "--split", "by_time")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "error: --split by_time: no such protocol" in refused.stderr


def publish_archive(served: Path, edition: str, source: Path) -> None:
    archive = served / f"ml-{edition}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(source.iterdir()):
            packed.write(path, f"ml-{edition}/{path.name}")
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    (served / f"ml-{edition}.zip.md5").write_text(f"MD5 (ml-{edition}.zip) = {digest}\n")


def test_download_to_dataset(owners_site: tuple[Path, str], tmp_path: Path) -> None:
    served, home = owners_site
    publish_archive(served, "latest-small", write_latest(tmp_path / "ml"))
    folder = download_movielens("latest-small", tmp_path / "raw", progress=QUIET, home=home, patience=HASTY)
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["ml-latest-small"], "no archive is left"
    assert read_movielens(folder).origin["layout"] == "latest"
    (served / "ml-latest-small.zip").unlink()
    assert download_movielens("latest-small", tmp_path / "raw", progress=QUIET, home=home) == folder, (
        "not fetched twice"
    )


def test_download_refuses_what_it_does_not_know(owners_site: tuple[Path, str], tmp_path: Path) -> None:
    served, home = owners_site
    publish_archive(served, "100k", write_100k(tmp_path / "ml"))
    with pytest.raises(DataError, match="says [0-9a-f]{32}, but the edition this was written for has 0e33842e"):
        download_movielens("100k", tmp_path / "raw", progress=QUIET, home=home, patience=HASTY)
    with pytest.raises(UnavailableError, match="ml-1m.zip.md5: the server answered 404"):
        download_movielens("1m", tmp_path / "raw", progress=QUIET, home=home, patience=HASTY)
    with pytest.raises(UsageError, match="--download 10k: no such edition; did you mean '100k'"):
        download_movielens("10k", tmp_path / "raw", progress=QUIET, home=home)
    assert not (tmp_path / "raw").exists()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    if not SHARED.is_dir():
        pytest.skip(f"the real MovieLens 100k is not in {SHARED}; its licence forbids shipping it")
    return prepare(read_movielens(SHARED), tmp_path_factory.mktemp("ml-100k") / "out")


def test_sanity_floors_of_the_real_log(real: StoredDataset) -> None:
    """Rates counted outside of limerank on the same split: user 0.665, item 0.728, their sum 0.771."""
    ratings = pl.read_csv(SHARED / "ratings.csv.gz")
    counts = real.manifest.counts
    assert (counts["events"], counts["items"], counts["users"]) == (100_000, 1_682, 943)
    assert counts["requests"] == ratings.select("user_id", "timestamp").n_unique()
    per_request = np.diff(real.column("requests/start"))
    tested = np.repeat(real.column("requests/part"), per_request) == 2
    user = np.repeat(real.column("requests/user"), per_request).astype(np.int64)
    item = real.column("events/item").astype(np.int64)
    like = real.column("events/label.like").astype(np.float64)
    assert like.mean() == pytest.approx(0.554, abs=0.001)
    # the floors were counted on 19,633 single rows, 47.8 % of them likes; here ratings of one second stay together
    assert 18_000 < tested.sum() <= 19_633
    assert like[tested].mean() == pytest.approx(0.478, abs=0.015)

    def rate(group: np.ndarray) -> np.ndarray:
        shown = np.bincount(group[~tested], minlength=group.max() + 1)
        liked = np.bincount(group[~tested], weights=like[~tested], minlength=group.max() + 1)
        rates = np.where(shown > 0, liked / np.maximum(shown, 1), like[~tested].mean())
        return np.asarray(rates[group[tested]])

    assert auc(like[tested], rate(user)) == pytest.approx(0.665, abs=0.01)
    assert auc(like[tested], rate(item)) == pytest.approx(0.728, abs=0.01)
    assert auc(like[tested], rate(user) + rate(item)) == pytest.approx(0.771, abs=0.01)
