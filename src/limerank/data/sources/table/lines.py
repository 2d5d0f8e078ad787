"""Where a CSV file goes wrong: polars says what, reading it again line by line says where."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from limerank.data.raw.log import ROWS_PER_BATCH

SAMPLED_BYTES = 2**18


def find_bad_line(path: Path, separator: str, quote: str | None) -> str | None:
    """Read a CSV file again, slowly, to say in which line it goes wrong and how; None if nothing is found."""
    line_number = 0

    def text_lines() -> Iterator[str]:
        nonlocal line_number
        for line_number, line in enumerate(raw_lines(path), start=1):  # noqa: B007 (told to the except below)
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


def find_short_line(path: Path, separator: str, quote: str | None) -> str | None:
    """A line with fewer fields than the header, at the beginning or at the very end of a file.

    Polars fills such lines with missing values, so a file that is cut off would pass. The middle is not looked at.
    """
    beginning = _unpacked_beginning(path)
    if beginning is None:
        return None
    options: dict[str, Any] = {"delimiter": separator, "strict": True}
    options |= {"quoting": csv.QUOTE_NONE} if quote is None else {"quotechar": quote}
    width = begins = 0
    try:
        reader = csv.reader(beginning.decode("utf-8").splitlines(keepends=True)[:-1], **options)
        for fields in reader:
            width = width or len(fields)
            if 0 < len(fields) < width:
                return f"line {begins + 1}: {len(fields)} fields, but the header has {width}; complete or remove it"
            begins = reader.line_num
    except (UnicodeDecodeError, csv.Error):
        return None  # polars reports these while it reads
    last = _last_line(path)
    if width and last and (quote is None or quote not in last):
        fields = last.split(separator)
        if len(fields) < width:
            return f"last line: {len(fields)} fields, but the header has {width}; the file is cut off, copy it again"
    return None


def _last_line(path: Path) -> str:
    """The last line of a plain file that has more than its beginning."""
    size = path.stat().st_size
    if path.name.lower().endswith((".gz", ".zst")) or size == 0:
        return ""
    with path.open("rb") as handle:
        handle.seek(max(0, size - SAMPLED_BYTES // 4))
        lines = handle.read().rstrip(b"\r\n").splitlines()
    return lines[-1].decode("utf-8", errors="replace") if len(lines) > 1 else ""


def estimated_lines(path: Path) -> int | None:
    """About how many lines a file has, from its size and its beginning; None where the beginning cannot be unpacked."""
    lines = _unpacked_beginning(path)
    size = path.stat().st_size
    read = min(size, SAMPLED_BYTES)
    return None if lines is None else round(lines.count(b"\n") * size / read) if read else 0


def _unpacked_beginning(path: Path) -> bytes | None:
    with path.open("rb") as handle:
        beginning = handle.read(SAMPLED_BYTES)
    if path.name.lower().endswith(".gz"):
        try:
            return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(beginning)
        except zlib.error:
            return None
    return None if path.name.lower().endswith(".zst") else beginning


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as they are, unpacked."""
    name = path.name.lower()
    if name.endswith(".zst"):  # the standard library of Python 3.11 cannot read it; polars can, if it is UTF-8
        for batch in pl.scan_lines(path, glob=False).collect_batches(chunk_size=ROWS_PER_BATCH):
            for line in batch.to_series(0):
                yield f"{line}\n".encode()
        return
    with gzip.open(path, "rb") if name.endswith(".gz") else path.open("rb") as handle:
        yield from handle
