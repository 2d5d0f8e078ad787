"""Where a CSV file goes wrong: polars says what, reading it again line by line says where."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from limerank.data.raw import ROWS_PER_BATCH

SAMPLED_BYTES = 2**18


def find_bad_line(path: Path, separator: str, quote: str | None) -> str | None:
    """Read a CSV file again, slowly, to say in which line it goes wrong and how; None if nothing is found."""
    line_number = 0

    def text_lines() -> Iterator[str]:
        nonlocal line_number
        for line_number, line in enumerate(_raw_lines(path), start=1):  # noqa: B007 (told to the except below)
            yield line.decode("utf-8")

    if quote is None:
        reader = csv.reader(text_lines(), delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)
    else:
        reader = csv.reader(text_lines(), delimiter=separator, quotechar=quote, strict=True)
    begins, width = 1, 0
    try:
        for fields in reader:
            width = width or len(fields)
            if len(fields) > width:
                return (
                    f"line {begins}: {len(fields)} fields, but the header has {width}; "
                    f"quote fields that hold the separator {separator!r}, or set tables.separator"
                )
            begins = reader.line_num + 1
    except UnicodeDecodeError as bad:
        byte = bad.object[bad.start]
        return f"line {line_number}: byte 0x{byte:02x} is not UTF-8; convert the file: iconv -f latin1 -t utf-8"
    except csv.Error as bad:
        return f"line {begins}: {bad}; close the quote that opens here, or set tables.quote: null"
    except (OSError, EOFError, pl.exceptions.PolarsError):
        return None
    return None


def estimated_lines(path: Path) -> int | None:
    """About how many lines a file has, from its size and its beginning; None where the beginning cannot be unpacked."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        beginning = handle.read(SAMPLED_BYTES)
    lines = beginning
    if path.name.lower().endswith(".gz"):
        try:
            lines = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(beginning)
        except zlib.error:
            return None
    elif path.name.lower().endswith(".zst"):
        return None
    return round(lines.count(b"\n") * size / len(beginning)) if beginning else 0


def _raw_lines(path: Path) -> Iterator[bytes]:
    name = path.name.lower()
    if name.endswith(".zst"):  # the standard library of Python 3.11 cannot read it; polars can, if it is UTF-8
        for batch in pl.scan_lines(path, glob=False).collect_batches(chunk_size=ROWS_PER_BATCH):
            for line in batch.to_series(0):
                yield f"{line}\n".encode()
        return
    with gzip.open(path, "rb") if name.endswith(".gz") else path.open("rb") as handle:
        yield from handle
