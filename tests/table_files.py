"""Columns in random files: text, Parquet or Arrow, in one file or in parts, with the values in random forms and types.

`TableFiles.write` takes columns of plain values, and writes them as another program may have written them. It adds to
the reasons of its `table_worlds.World` if the form that it chose may be refused.
"""

from __future__ import annotations

import csv
import io
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as pafeather
import pyarrow.ipc as paipc
import pyarrow.parquet as paparquet
from table_worlds import World

# Times here have no zone, and are in UTC.
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
TEXT_STYLES = ["csv", "csv", "tsv", "txt"]
TYPED_STYLES = ["parquet", "parquet", "arrow", "arrows", "feather"]
_SEPARATORS = {"csv": [",", ",", ";", "|"], "tsv": ["\t"], "txt": [" "]}
_MISSING = ["", "NA", "nan", "null", "?", "None"]
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@dataclass
class Column:
    """A column as it is meant."""

    name: str
    kind: str  # int, float, text, bool, time, vector, or key: whole numbers, texts or UUIDs
    values: list[Any]  # None where missing; times are datetimes in UTC


@dataclass
class TableFiles:
    """Writes the tables of a world."""

    writer: World
    packs_uuids: bool  # whether typed files have UUIDs as 16 bytes

    def write(
        self, folder: Path, stem: str, columns: list[Column], *, is_text: bool, has_header: bool = True
    ) -> str:
        """Write a table, and return the name of its file, folder or pattern."""
        writer = self.writer
        count = len(columns[0].values)
        if is_text:
            style = writer.pick(TEXT_STYLES if len(columns) > 1 else ["csv"])
            texts = [self._texts(column) for column in columns]
            frames = [
                pd.DataFrame(dict(zip([each.name for each in columns], texts, strict=True)), dtype=object)
            ]
        else:
            style = writer.pick(TYPED_STYLES)
            frames = [pa.table({column.name: self._array(column) for column in columns})]
        cuts = [0, count]
        if writer.chance(0.2):
            # A part may have no rows.
            cuts = sorted([0, count, *writer.random.integers(0, count + 1, writer.pick([1, 2])).tolist()])
        whole = frames[0]
        parts = [
            whole.iloc[first:last] if is_text else whole.slice(first, last - first)
            for first, last in pairwise(cuts)
        ]
        suffix = f".{style}{'.gz' if is_text and writer.chance(0.2) else ''}"
        name = f"{stem}{suffix}"
        names = [name]
        if len(parts) > 1:
            is_folder = writer.chance(0.6)
            name = stem if is_folder else f"{stem}-*{suffix}"
            names = [
                f"{stem}{'/part-' if is_folder else '-'}{number + 8}{suffix}" for number in range(len(parts))
            ]
            if is_folder:
                (folder / stem).mkdir()
                (folder / stem / "_SUCCESS").touch()
        for path, part in zip(names, parts, strict=True):
            if is_text:
                self._write_text(folder / path, part, style, has_header=has_header)
            else:
                self._write_typed(folder / path, part, style)
        self.writer.told.append(f"{name}: {[(each.name, each.kind) for each in columns]}")
        return name

    def _write_text(self, path: Path, frame: pd.DataFrame, style: str, *, has_header: bool) -> None:
        writer = self.writer
        separator = writer.pick(_SEPARATORS[style])
        quoting = writer.pick([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        if style == "txt" and frame.map(lambda value: value == "" or "\t" in value).to_numpy().any():
            quoting = csv.QUOTE_ALL  # nothing between blanks is no field, and a tab is a blank
        text = frame.to_csv(index=False, header=has_header, sep=separator, quoting=quoting)
        lines = text.split("\n")[:-1]
        if any(line.count('"') % 2 for line in lines) or "\r" in text:
            writer.refuse("lines in fields", must=False)
        # What begins like a comment may be one.
        if any(line.lstrip(' "').startswith(("#", "%")) for line in lines):
            writer.refuse("a row like a comment", must=False)
        if any(_is_even(lines, other) for other in ",\t;| " if other != separator):
            writer.refuse("another separator", must=False)
        # Aligned blanks would change the blanks of texts.
        style = "csv" if '"' in text else style
        content = writer._decorated(lines, style, separator, has_header=has_header, path=path)
        path.write_bytes(content)

    def _write_typed(self, path: Path, table: pa.Table, style: str) -> None:
        rows = self.writer.pick([2, 5, 1000])
        if style == "parquet":
            paparquet.write_table(
                table, path, row_group_size=rows, compression=self.writer.pick(["snappy", "zstd"])
            )
        elif style == "feather":
            pafeather.write_feather(
                table, str(path), chunksize=rows, compression=self.writer.pick(["lz4", "zstd"])
            )
        else:
            make = paipc.new_file if style == "arrow" else paipc.new_stream
            with make(path, table.schema) as file:
                file.write_table(table, max_chunksize=rows)

    def _texts(self, column: Column) -> list[str]:
        """Return the values as texts."""
        pick = self.writer.pick
        if column.kind in {"key", "text"}:
            return ["" if value is None else str(value) for value in column.values]
        missing = pick(_MISSING)
        form = {
            "int": str,
            "float": pick([repr, repr, lambda value: f"{value:.12e}", lambda value: f"{value:+.6f}"]),
            "bool": pick([str, lambda value: str(value).lower(), lambda value: str(value).upper()]),
            "time": pick(
                [
                    lambda value: value.isoformat(sep=" "),
                    lambda value: value.isoformat(),
                    lambda value: value.isoformat() + "Z",
                    lambda value: str(seconds_of(value)),
                ]
            ),
        }[column.kind]
        if column.kind in {"int", "float"} and self.writer.chance(0.1):
            bare, form = form, lambda value: f" {bare(value)} "
        return [missing if value is None else form(value) for value in column.values]

    def _array(self, column: Column) -> pa.Array:
        """Return the values in a random type of those that hold them."""
        pick, values = self.writer.pick, column.values
        known = [value for value in values if value is not None]
        kind = column.kind
        if kind == "key":
            kind = "int" if isinstance(known[0], int) else "text"
            if self.packs_uuids and _is_uuid(known[0]):
                return pa.array(
                    [None if each is None else uuid.UUID(each).bytes for each in values], pa.binary(16)
                )
        if kind == "int":
            fitting = [each for each in _INTEGERS if _fits(known, each)]
            return pa.array(values, pick([fitting[-1], *fitting]))
        if kind == "float":
            if (
                all(np.isfinite(known))
                and all(round(value, 3) == value for value in known)
                and self.writer.chance(0.3)
            ):
                return pa.array(
                    [None if each is None else Decimal(str(each)) for each in values], pa.decimal128(18, 6)
                )
            # pandas writes NaN where a value is missing.
            return pa.array(
                [np.nan if each is None else each for each in values] if self.writer.chance(0.5) else values
            )
        if kind == "text":
            array = pa.array(values, pick([pa.string(), pa.string(), pa.large_string()]))
            return array.dictionary_encode() if self.writer.chance(0.3) else array
        if kind == "bool":
            return pa.array(values, pa.bool_())
        if kind == "time":
            if self.writer.chance(0.2):
                return pa.array([None if each is None else seconds_of(each) for each in values], pa.int64())
            zone = pick([None, "UTC", "Europe/Berlin"])
            aware = [each if each is None or zone is None else each.replace(tzinfo=UTC) for each in values]
            return pa.array(aware, pa.timestamp(pick(["s", "ms", "us", "ns"]), tz=zone))
        width = len(known[0])
        inner = pick([pa.float64(), pa.float32()])
        return pa.array(values, pick([pa.list_(inner), pa.list_(inner, width), pa.large_list(inner)]))


def seconds_of(value: datetime) -> int:
    """Return the seconds since 1970 of a time in UTC."""
    return (value - EPOCH) // timedelta(seconds=1)


def _fits(values: list[int], kind: pa.DataType) -> bool:
    limits = np.iinfo(kind.to_pandas_dtype())
    return all(limits.min <= value <= limits.max for value in values)


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 36 and value.count("-") == 4


def _is_even(lines: list[str], separator: str) -> bool:
    """True if another separator divides all lines into equally many fields."""
    counts = {
        len(row) for row in csv.reader(io.StringIO("\n".join(lines), newline=""), delimiter=separator) if row
    }
    return len(counts) == 1 and counts != {1}
