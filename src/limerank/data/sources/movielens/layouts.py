"""How the editions of MovieLens are laid out: their files, and how each is read."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from limerank.errors import DataError, did_you_mean
from limerank.schema import Feature, Kind, Role

GENRES_100K = tuple(
    "unknown Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy "  # noqa: SIM905
    "Film-Noir Horror Musical Mystery Romance Sci-Fi Thriller War Western".split()
)
NO_GENRE = ("(no genres listed)", "unknown")
RATING_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
YEAR = re.compile(r"\d{4}")
YEAR_IN_TITLE = re.compile(r"\((\d{4})[^)]*\)\s*$")


@dataclass(frozen=True)
class Layout:
    """How one edition is laid out: its files, and how each is read."""

    name: str
    ratings: str
    movies: str
    users: str | None
    read_ratings: Callable[[Path], pl.LazyFrame]
    read_movies: Callable[[Path], pl.DataFrame]
    read_users: Callable[[Path], pl.DataFrame] | None = None
    header: tuple[str, ...] = ()
    """Columns the ratings file must have, where files of the same name differ between editions."""
    user_features: tuple[Feature, ...] = ()


def scan_csv(path: Path) -> pl.LazyFrame:
    """The columns of a CSV file, as text."""
    return pl.scan_csv(path, infer_schema=False)


def _scan_plain_lines(path: Path, columns: Sequence[str], separator: str) -> pl.LazyFrame:
    """A file without header and quotes; columns named '' are dropped."""
    names = [name or f"between_{number}" for number, name in enumerate(columns)]
    lines = pl.scan_csv(
        path, separator=separator, has_header=False, quote_char=None, infer_schema=False, new_columns=names
    )
    try:
        found = lines.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError):
        found = []  # empty, or fewer fields than names
    if found != names:
        raise DataError(
            f"{path}: line 1 should hold {', '.join(RATING_COLUMNS)}, as the owner publishes it; check that it is whole"
        )
    return lines.select(RATING_COLUMNS)


def _read_lines(path: Path, separator: str, columns: int) -> list[list[str]]:
    """The lines of a small Latin-1 file, split; older editions are older than UTF-8."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as broken:
        raise DataError(f"{path}: cannot be read ({broken}); check that it is whole") from None
    rows = []
    for number, line in enumerate(
        data.decode("latin-1").split("\n"), start=1
    ):  # splitlines() knows odd ones in Latin-1
        if not line.strip():
            continue
        fields = line.rstrip("\r").split(separator)
        if len(fields) != columns:
            raise DataError(f"{path}, line {number}: {len(fields)} fields between '{separator}', should be {columns}")
        rows.append(fields)
    return rows


def _movies(
    ids: Sequence[str], titles: Sequence[str | None], years: Sequence[str | None], genres: Sequence[Sequence[str]]
) -> pl.DataFrame:
    told = [[genre for genre in of_one if genre and genre not in NO_GENRE] for of_one in genres]
    return pl.DataFrame(
        {"item_id": ids, "title": titles, "year": years, "genres": told},
        schema={"item_id": pl.String, "title": pl.String, "year": pl.String, "genres": pl.List(pl.String)},
    )


def _year_of(title: str | None) -> str | None:
    found = YEAR_IN_TITLE.search(title or "")
    return found.group(1) if found else None


def _movies_100k(path: Path) -> pl.DataFrame:
    rows = _read_lines(path, "|", 5 + len(GENRES_100K))
    flagged = [[genre for genre, flag in zip(GENRES_100K, row[5:], strict=True) if flag == "1"] for row in rows]
    years = [row[2][-4:] if row[2][-4:].isdecimal() else _year_of(row[1]) for row in rows]
    return _movies([row[0] for row in rows], [row[1] for row in rows], years, flagged)


def _users_100k(path: Path) -> pl.DataFrame:
    rows = _read_lines(path, "|", 5)
    return _users([row[0] for row in rows], *([row[field] for row in rows] for field in (1, 2, 3, 4)))


def _movies_1m(path: Path) -> pl.DataFrame:
    rows = _read_lines(path, "::", 3)
    ids, titles, genres = ([row[field] for row in rows] for field in range(3))
    return _movies(ids, titles, list(map(_year_of, titles)), [listed.split("|") for listed in genres])


def _users_1m(path: Path) -> pl.DataFrame:
    rows = _read_lines(path, "::", 5)
    return _users([row[0] for row in rows], *([row[field] for row in rows] for field in (2, 1, 3, 4)))


def _users(
    ids: Sequence[str], ages: Sequence[str], genders: Sequence[str], occupations: Sequence[str], zips: Sequence[str]
) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"user_id": ids, "age": ages, "gender": genders, "occupation": occupations, "zip_code": zips},
        schema=dict.fromkeys(("user_id", "age", "gender", "occupation", "zip_code"), pl.String),
    )
    return _with_region(frame)


def _with_region(users: pl.DataFrame) -> pl.DataFrame:
    """A whole zip code is almost a user id; its first sign is the region."""
    return users.with_columns(zip_region=pl.col("zip_code").str.slice(0, 1))


def _ratings_latest(path: Path) -> pl.LazyFrame:
    return scan_csv(path).rename({"userId": "user_id", "movieId": "item_id"})


def _movies_latest(path: Path) -> pl.DataFrame:
    table = _table(path, ("movieId", "title", "genres"))
    titles = table["title"].to_list()
    genres = [(listed or "").split("|") for listed in table["genres"]]
    return _movies(table["movieId"].to_list(), titles, list(map(_year_of, titles)), genres)


def _movies_plain(path: Path) -> pl.DataFrame:
    table = _table(path, ("item_id", "genres"))
    named = next((name for name in ("movie_title", "title") if name in table.columns), None)
    titles = [None] * table.height if named is None else table[named].to_list()
    told = table["release_year"] if "release_year" in table.columns else titles
    # other writings than 1995 occur, such as 'unknown' misspelt
    years = [
        year if year and YEAR.fullmatch(year) else _year_of(title) for year, title in zip(told, titles, strict=True)
    ]
    genres = [(listed or "").split(" ") for listed in table["genres"]]
    return _movies(table["item_id"].to_list(), titles, years, genres)


def _users_plain(path: Path) -> pl.DataFrame:
    return _with_region(_table(path, ("user_id", "age", "gender", "occupation", "zip_code")))


def _table(path: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    try:
        table = scan_csv(path).collect()
    except (pl.exceptions.PolarsError, OSError) as broken:
        raise DataError(f"{path}: cannot be read as a table ({str(broken).splitlines()[0]})") from None
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{path}: column '{column}' is missing{did_you_mean(column, table.columns)}")
    return table


_OLD_STYLE_USER = (
    Feature(name="gender", role=Role.USER),
    Feature(name="occupation", role=Role.USER),
    Feature(name="zip_region", role=Role.USER),
)
_AGE_IN_YEARS = Feature(name="age", role=Role.USER, kind=Kind.CONTINUOUS)
_AGE_GROUP = Feature(name="age", role=Role.USER)

LAYOUTS = (
    Layout(
        name="100k",
        ratings="u.data",
        movies="u.item",
        users="u.user",
        read_ratings=lambda path: _scan_plain_lines(path, RATING_COLUMNS, "\t"),
        read_movies=_movies_100k,
        read_users=_users_100k,
        user_features=(_AGE_IN_YEARS, *_OLD_STYLE_USER),
    ),
    Layout(
        name="1m",
        ratings="ratings.dat",
        movies="movies.dat",
        users="users.dat",
        # polars separates by one sign only, so '::' is read as an empty column between two colons
        read_ratings=lambda path: _scan_plain_lines(
            path, ("user_id", "", "item_id", "", "rating", "", "timestamp"), ":"
        ),
        read_movies=_movies_1m,
        read_users=_users_1m,
        user_features=(_AGE_GROUP, *_OLD_STYLE_USER),
    ),
    Layout(
        name="latest",
        ratings="ratings.csv",
        movies="movies.csv",
        users=None,
        read_ratings=_ratings_latest,
        read_movies=_movies_latest,
        header=("userId", "movieId", "rating", "timestamp"),
    ),
    Layout(
        name="plain csv",
        ratings="ratings.csv",
        movies="items.csv",
        users="users.csv",
        read_ratings=scan_csv,
        read_movies=_movies_plain,
        read_users=_users_plain,
        header=RATING_COLUMNS,
        user_features=(_AGE_IN_YEARS, *_OLD_STYLE_USER),
    ),
)
