"""Specifications of feature columns: the user's wishes for a table's column, and the kind that follows from its type.

`ColumnSpec.parse` reads an entry of ``columns:`` in ``graph.yaml``, such as ``age`` or ``{name: city, as: category}``.
`kind_in` adds the kind of a column that has none. Numbers, bools and lists of numbers have a kind of their own. Texts
and times are refused without one, because several kinds may be meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gloader.convert.options import FILLS, Fill
from gloader.convert.readers.column_names import ALMOST, LISTS, listed
from gloader.core.malformed import shown
from gloader.core.near_names import near_advice
from gloader.dataset.column_values import Place, is_list, is_text, times
from gloader.dataset.encoders import CATEGORIES, KINDS
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.dataset.encoders import EncoderKind, Score

MAX_CATEGORIES: Final = 64  # default number of one-hot columns
MOST_CATEGORIES: Final = 1024  # largest number of one-hot columns: each is 4 bytes in every row
# Default and largest number of values of an index. The values stand in the commit record, which has at most 16 MiB.
MAX_INDEX: Final = 65_536
MOST_INDEX: Final = 200_000
_KEYS: Final = ("name", "as", "max", "top", "at", "to", "missing")
# The keys that belong to some kinds only.
_KEYS_OF: Final = {
    "max": ("category", "index"),
    "top": ("category",),
    "at": ("time",),
    "to": ("quantile",),
}
_EXAMPLE: Final = "write a column's name, or {name: city, as: category}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A column that becomes features, as the user describes it."""

    name: str
    kind: EncoderKind | None = None  # None means the kind of the column's type
    max_values: int | None = None  # largest number of categories, or of values of an index
    top: int | None = None  # number of the most frequent categories that get a column; the others share one
    at: int | None = None  # for times: microseconds since 1970 to which the age is counted
    score: Score = "normal"  # for quantiles
    missing: Fill | None = None  # None means the setting for all columns

    @classmethod
    def parse(cls, entry: object, *, where: str) -> ColumnSpec:
        """Return the column of one entry of ``columns:``: a name, or a mapping with a name. Pure.

        Parameters
        ----------
        entry : such as "age", or {"name": "city", "as": "category", "max": 200}
        where : the file and its entry, for messages

        Raises
        ------
        ConfigError
            The entry is malformed. The message has the allowed keys and values.
        """
        if isinstance(entry, str) and entry:
            return cls(name=entry)
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
            raise ConfigError(f"{where}: {shown(entry)} is no column; {_EXAMPLE}")
        place = f"{where}: column {shown(entry['name'])}"
        for key in entry:
            if key not in _KEYS:
                raise ConfigError(f"{place} has the key {shown(key)}; {near_advice(str(key), _KEYS)}")
        kind = entry.get("as", "category" if "top" in entry else None)
        if kind is not None and kind not in KINDS:
            raise ConfigError(f"{place}: as: {shown(kind)}; {near_advice(str(kind), KINDS)}")
        for key, kinds in _KEYS_OF.items():
            if key in entry and kind not in kinds:
                raise ConfigError(
                    f"{place}: {key}: belongs to {' or '.join(f'as: {each}' for each in kinds)}"
                    + (f", not to as: {kind}" if kind else "; add it")
                )
        if "top" in entry and "max" in entry:
            raise ConfigError(f"{place}: top: and max: contradict each other; give one of them")
        missing = entry.get("missing")
        if missing is not None and missing not in FILLS:
            raise ConfigError(f"{place}: missing: {shown(missing)}; allowed: {', '.join(FILLS)}")
        if missing == "mean" and kind in CATEGORIES:
            raise ConfigError(f"{place}: missing: mean; categories have no mean: write zero or flag")
        score = entry.get("to", "normal")
        if score not in {"normal", "uniform"}:
            raise ConfigError(f"{place}: to: {shown(score)}; allowed: normal, uniform")
        most = MOST_INDEX if kind == "index" else MOST_CATEGORIES
        return cls(
            name=entry["name"],
            kind=cast("EncoderKind | None", kind),
            max_values=_count(entry.get("max"), f"{place}: max:", most),
            top=_count(entry.get("top"), f"{place}: top:", MOST_CATEGORIES - 1),
            at=None if entry.get("at") is None else _time(entry["at"], place),
            score=score,
            missing=cast("Fill | None", missing),
        )

    @classmethod
    def parse_text(cls, text: str, *, where: str) -> ColumnSpec:
        """Return the column in a flag's text: "age", "city:category" or "city:category:flag". Pure.

        Raises ConfigError for other texts.
        """
        name, *words = text.split(":")
        entry: dict[str, object] = {"name": name}
        for word in words:
            key = "missing" if word in FILLS else "as"
            if key in entry:
                raise ConfigError(
                    f"{where}: {shown(text)} gives two words of one kind, {shown(word)} the second"
                )
            entry[key] = word
        return cls.parse(entry, where=where)


def column_specs(entries: object, *, where: str) -> tuple[ColumnSpec, ...]:
    """Return the columns of ``columns:``: a list of entries, or a mapping from a kind to columns. Pure.

    Raises ConfigError for a malformed entry, an empty list, or a column that is named twice with one kind.
    """
    if isinstance(entries, dict):
        entries = [
            {"name": name, "as": kind}
            for kind, names in entries.items()
            for name in (names if isinstance(names, list) else [names])
        ]
    if isinstance(entries, str):
        entries = [entries]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}: columns: {shown(entries)}; it is a list: {_EXAMPLE}")
    specs = tuple(ColumnSpec.parse(entry, where=where) for entry in entries)
    seen: set[tuple[str, object]] = set()
    for each in specs:
        if (each.name, each.kind) in seen:
            raise ConfigError(f"{where}: columns: {shown(each.name)} stands there twice; leave one out")
        seen.add((each.name, each.kind))
    return specs


def kind_in(spec: ColumnSpec, table: NumberTable) -> ColumnSpec:
    """Return ``spec`` with the kind that it has for a table: its own, or the one of the column's type. Pure.

    Raises
    ------
    SourceError
        The table has no such column, or the kind does not fit its type, or the type has several possible kinds.
    """
    if spec.name not in table.names:
        raise SourceError(
            f"{table.path} has no column {shown(spec.name)}: {near_advice(spec.name, table.names)}"
            if len(table.names) <= 20
            else f"{table.path} has no column {shown(spec.name)}; its columns are {listed(table.names)}"
        )
    kind = spec.kind or _default_kind(spec, table)
    _require_fitting(kind, spec, table)
    if kind in CATEGORIES and spec.missing == "mean":
        raise SourceError(
            f"{table.path}: column {shown(spec.name)}: categories have no mean for missing values"
        )
    return replace(spec, kind=kind)


def _default_kind(spec: ColumnSpec, table: NumberTable) -> EncoderKind:
    """Return the kind of a column's type. Raises SourceError for types with several possible kinds."""
    import pyarrow as pa

    kind, arrow = table.kind(spec.name), table.arrow_type(spec.name)
    place = f"{table.path}: column {shown(spec.name)}"
    if kind == ALMOST:
        raise SourceError(
            f"{place} holds text that is almost a number, such as '[0.1, 0.2]', '1,5' or '7%'. Write plain numbers, or "
            "name its kind: {name: " + spec.name + ", as: category}"
        )
    if kind.startswith(LISTS):
        return "vector"
    if kind == "bool" or pa.types.is_boolean(arrow):
        return "bool"
    if kind in {"integer", "number"}:
        return "number"
    if kind == "empty":
        raise SourceError(
            f"{place} has no values in its first rows, so its kind is unknown: name it with as:"
        )
    if pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        raise SourceError(
            f"{place} holds times ({arrow}): take their age with {{name: {spec.name}, as: time}}, or leave the column "
            "out"
        )
    if is_text(arrow):
        raise SourceError(
            f"{place} holds texts. Name their kind: {{name: {spec.name}, as: category}}, or as: time for dates, or "
            "as: index for an embedding; or leave the column out"
        )
    raise SourceError(f"{place} has type {arrow}, which cannot be a feature; leave the column out")


def _require_fitting(kind: EncoderKind, spec: ColumnSpec, table: NumberTable) -> None:
    """Raise SourceError for a kind that does not fit the column's type."""
    import pyarrow as pa

    arrow = table.arrow_type(spec.name)
    is_wide = table.width(spec.name) > 1 or is_list(arrow)
    place = f"{table.path}: column {shown(spec.name)} has type {arrow}"
    if kind == "vector" and not is_wide:
        raise SourceError(f"{place}; as: vector is for lists of numbers (Parquet or Arrow files)")
    if is_wide and kind not in {"number", "standard", "vector"}:
        raise SourceError(f"{place}; lists of numbers are as: vector or as: standard, not as: {kind}")
    if kind in CATEGORIES and (pa.types.is_boolean(arrow) or table.kind(spec.name) == "bool"):
        raise SourceError(f"{place} of true and false; such a column is as: bool")


def _count(value: object, place: str, most: int) -> int | None:
    """Return a number of values, or None if there is none. Raises ConfigError unless it is in 1..``most``."""
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{place} {shown(value)}; it is a whole number in 1..{most:,}")
    return value


def _time(value: Any, place: str) -> int:
    """Return the microseconds since 1970 of a time in a YAML file: a date, a text, or seconds."""
    import pyarrow as pa

    error = ConfigError(
        f"{place}: at: {shown(value)}; it is a date such as 2024-01-31, or a number of seconds since 1970"
    )
    try:
        column = pa.array([value])
        read = times(column, place=Place(where=place, column="at", error=ConfigError))
    except (pa.ArrowInvalid, pa.ArrowTypeError, ConfigError) as failure:
        raise error from failure
    if read.is_missing[0]:
        raise error
    return int(read.values[0])


def microseconds_text(value: int) -> str:
    """Return a time in microseconds since 1970 as text, such as "2024-01-31" or "2024-01-31 12:30:00". Pure."""
    text = str(np.datetime64(value, "us")).replace("T", " ")
    return text.removesuffix(".000000").removesuffix(" 00:00:00")
