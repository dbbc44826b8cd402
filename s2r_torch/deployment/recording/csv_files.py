"""Tables in CSV files, as loggers, spreadsheets and people write them; errors name the line."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from s2r_torch.deployment.recording.columns import Columns, damaged
from s2r_torch.errors import RecordingError
from s2r_torch.text import printable

COMMENTS = ("#", "%", "//")
SEPARATOR = ["sep=", ""]  # the line `sep=,`, by which spreadsheets are told
WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
WIDE |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def require() -> None:
    """Nothing beyond Python is needed."""


def read(path: Path) -> Columns:
    """The columns of a CSV file, all of them text; bytes that are no UTF-8 only matter in cells that are needed."""
    text, encoding = _decoded(path)
    rows, lines = _rows(text, path)
    if not rows:
        raise RecordingError(
            expected=f"rows in {printable(path)}", got="blank lines only", cause="a logger that never wrote"
        )
    if rows[0] == SEPARATOR and len(rows) > 1:
        rows, lines = rows[1:], lines[1:]
    header = [name.strip() for name in rows[0]]
    _check_header(header, lines[0], encoding)
    if text[-1] not in "\r\n":
        raise RecordingError(
            expected=f"a line break at the end of line {lines[-1]}",
            got="the end of the file",
            cause="the file was cut short, or is still being written; if that row is whole, add the line break",
        )
    for row, line in zip(rows[1:], lines[1:], strict=True):
        _check_width(row, header, line, last=line == lines[-1])

    def load(name: str) -> np.ndarray:
        i = header.index(name)
        column = np.empty(len(rows) - 1, dtype=object)
        column[:] = [row[i].strip() for row in rows[1:]]
        return column

    return Columns(tuple(header), len(rows) - 1, load, np.asarray(lines[1:], dtype=np.int64))


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a table; NaN becomes an empty cell."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    path.write_bytes(lines_of([columns, *rows]))


def lines_of(rows: Iterable[Iterable[object]], line_break: str = "\n") -> bytes:
    """Rows of cells as lines of a CSV file; NaN becomes an empty cell, and every number reads back bit for bit."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=line_break).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _cell(value: object) -> str:
    """Shortest text that reads back as the same number; empty for NaN."""
    return "" if value != value else repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _decoded(path: Path) -> tuple[str, str]:
    """The text of a file, and its encoding; bytes that are no UTF-8 are kept as surrogates."""
    data = path.read_bytes()
    for mark, encoding in WIDE.items():
        if data.startswith(mark):
            try:
                return data.decode(encoding), encoding
            except UnicodeDecodeError as error:
                raise damaged(path, f"{encoding.upper()} that breaks off ({error.reason})") from error
    zero = data.find(b"\0")
    if zero >= 0:
        if data[:400].count(0) > len(data[:400]) // 4 and b"e\0p\0i\0" in data[:400].lower():
            raise damaged(path, "UTF-16 without a byte order mark", "a Windows program; save it as UTF-8")
        line = data.count(b"\n", 0, zero) + 1
        cause = "NUL bytes, as after a power cut; remove them and the line that they cut"
        raise damaged(path, f"NUL bytes from line {line} on", cause)
    return data.decode("utf-8-sig", "surrogateescape"), "utf-8"


def _rows(text: str, path: Path) -> tuple[list[list[str]], list[int]]:
    """The rows that are not blank, and the line that each begins at."""
    rows, lines, line = [], [], 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(len(text))  # for the whole process
    try:
        for row in reader:
            if any(map(str.strip, row)):
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        first = text.lstrip().partition("\n")[0]
        if "," not in first:
            _check_header([first], 1, "utf-8")
        raise damaged(path, f"{error} at line {line}", "a quotation mark that is not closed, or a stray one") from error
    finally:
        csv.field_size_limit(limit)
    return rows, lines


def _check_header(header: list[str], line: int, encoding: str) -> None:
    if header[0].startswith(COMMENTS):
        raise RecordingError(
            expected=f"the names of the columns at line {line}",
            got=printable(",".join(header), 60),
            cause="comments before the header; remove them",
        )
    if len(header) == 1 and {*";\t|"} & {*header[0]}:
        wide = "" if encoding == "utf-8" else f" in {encoding.upper()}"
        raise RecordingError(
            expected="columns separated by commas",
            got=f"{printable(header[0], 60)!r}{wide} at line {line}",
            cause="a program that separates by semicolons, tabs or bars",
        )


def _check_width(row: list[str], header: list[str], line: int, last: bool) -> None:
    """Raises RecordingError unless a row has the header's columns; unnamed ones at its end may be missing or empty."""
    if len(row) == len(header):
        return
    named = max((i + 1 for i, name in enumerate(header) if name), default=0)
    if named < len(header) and len(row) >= named and not any(map(str.strip, row[named:])):
        return
    if row[0].lstrip().startswith(COMMENTS):
        cause = "a comment among the rows; remove it"
    elif len(row) < len(header):
        cause = "the file was cut short, or is still being written" if last else "a lost comma, or a row that was cut"
    elif not any(map(str.strip, row[len(header) :])):
        cause = "a stray comma at the end of the line"
    else:
        cause = "a stray comma, or a decimal comma"
    raise RecordingError(expected=f"{len(header)} columns at line {line}", got=str(len(row)), cause=cause)
