"""Figures of README and docs, held against the result files that they come from.

A comment above a table or a paragraph names the file and says where each figure stands in it:

    <!-- figures of experiments/results/2026-11-20-packs.json
    row original order | 64: results[0].A.seconds, results[0].C.seconds
    -->

Four kinds of lines, each ending in expressions that are separated by commas:

- ``text "95 ms to 2 s": a, b`` for words of the paragraph or table below that hold as many numbers;
- ``row FIRST CELLS: a, b`` for the numbers in the rest of that row of the table;
- ``rows EXPRESSION`` names the record of each row, as ``r``, by its cells ``c1``, ``c2``, ...; rows for which it is
  None have lines of their own. ``where NAME = EXPRESSION`` names more of a row. ``c3: a, b`` then gives the numbers
  in the third cell, as many as it has;
- ``let NAME = EXPRESSION`` shortens what follows.

An expression is a path into the file with arithmetic and a few functions; ``_`` is a number that is no measurement. A
number is compared in base units (seconds, bytes, counts; "%" is a hundredth) to the rounding of its digits.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
COMMENT = re.compile(r"<!-- figures of (\S+)\n(.*?)\n-->\n", re.DOTALL)
NO_FIGURES = re.compile(r"<!-- no figures: \S.*-->")
_NUMBER = re.compile(r"(?<![\w.,])(-?\d[\d,]*(?:\.\d+)?)(?: ?(ms|µs|s|min|[KMGT]?B|[kMG]|%)(?![\w]))?")
_MINUTES = re.compile(r"(\d+) min (\d+) s")
_UNITS = {
    "ms": 1e-3, "µs": 1e-6, "s": 1.0, "min": 60.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "k": 1e3, "M": 1e6, "G": 1e9, "%": 1e-2, "": 1.0,
}  # fmt: skip
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """A number of a text, in base units, and how far it may be from what was measured."""

    value: float
    tolerance: float
    text: str

    def is_rounded(self, measured: float) -> bool:
        """Whether ``measured`` rounds to this number."""
        return abs(self.value - measured) <= self.tolerance * (1 + 1e-6) + 1e-12


def numbers_in(text: str) -> list[Shown]:
    """Return the numbers of ``text`` in order."""
    plain = _MINUTES.sub(lambda found: f"{60 * int(found[1]) + int(found[2])} s", text).replace("**", "")
    found = []
    for match in _NUMBER.finditer(plain):
        digits, unit = match[1].replace(",", ""), _UNITS[match[2] or ""]
        places = len(digits.partition(".")[2])
        found.append(Shown(float(digits) * unit, 0.5 * 10**-places * unit, match[0]))
    return found


_ANY = object()  # a number that is no measurement


@cache
def _values_of(file: str) -> Any:
    return json.loads((ROOT / file).read_text())


def find(records: list[dict[str, Any]], *keys_and_values: str) -> dict[str, Any] | None:
    """Return the one record that has these values under these keys; None: there is none."""
    pairs = list(zip(keys_and_values[::2], keys_and_values[1::2], strict=True))
    found = [record for record in records if all(str(record[key]) == value for key, value in pairs)]
    assert len(found) < 2, f"{len(found)} records have {pairs}"
    return found[0] if found else None


_FUNCTIONS = {
    "median": median, "max": max, "min": min, "len": len, "sum": sum, "round": round, "find": find,
    "stdev": stdev,
    "mean": lambda values: sum(values) / len(values),
    "either": lambda first, second: second if first is None else first,
    "load": _values_of,
    "column": lambda records, key: [record[key] for record in records],
    "sizes": lambda values: [abs(value) for value in values],
}  # fmt: skip


class Expressions:
    """Evaluates expressions over the values of a file."""

    def __init__(self, values: Any, names: dict[str, Any]) -> None:
        self._names = {**(values if isinstance(values, dict) else {}), "file": values, "_": _ANY, **names}

    def of(self, text: str) -> list[Any]:
        """Return the values of expressions that are separated by commas."""
        body = ast.parse(f"({text},)", mode="eval").body
        assert isinstance(body, ast.Tuple)
        return [self._value(node) for node in body.elts]

    def with_names(self, **names: Any) -> Expressions:
        """Return the same with more names."""
        return Expressions(None, {**self._names, **names})

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._names[node.id]
            case ast.Attribute():
                holder = self._value(node.value)
                return (
                    None if holder is None else holder[node.attr]
                )  # what was not measured is null in the files
            case ast.Subscript():
                return self._value(node.value)[self._value(node.slice)]
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand)
            case ast.BinOp():
                return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
            case ast.Call(func=ast.Name(id=name)):
                return _FUNCTIONS[name](*map(self._value, node.args))
        raise AssertionError(f"an expression may not have a {type(node).__name__}")


def links_of(document: str) -> Iterator[tuple[str, str, str]]:
    """Yield file, lines and the block of text below of each comment."""
    for match in COMMENT.finditer(document):
        rest = document[match.end() :]
        while above := COMMENT.match(rest):  # several files may speak of one block
            rest = rest[above.end() :]
        yield match[1], match[2], re.split(r"\n\s*\n", rest.lstrip("\n"), maxsplit=1)[0]


def contradictions(document: str) -> list[str]:
    """Return what ``document`` says and its result files do not."""
    found = []
    for file, lines, block in links_of(document):
        values = Expressions(_values_of(file), {})
        for place, shown, measured in _pairs(lines, block, values):
            where = f"{file}, {place}"
            if len(shown) != len(measured):
                found.append(f"{where}: {len(shown)} numbers, {len(measured)} expressions: {shown}")
                continue
            found += [
                f"{where}: {number.text!r} is {value} in the file"
                for number, value in zip(shown, measured, strict=True)
                if value is not _ANY and (value is None or not number.is_rounded(value))
            ]
    return found


def _pairs(lines: str, block: str, values: Expressions) -> Iterator[tuple[str, list[Shown], list[Any]]]:
    """Yield each place of ``block`` that the lines speak of, its numbers and their values."""
    table = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in block.split("\n") if row[:1] == "|"
    ]
    records: list[tuple[list[str], Expressions]] = []
    for line in filter(None, map(str.strip, lines.split("\n"))):
        if name := re.match(r"let (\w+) = (.*)", line):
            values = values.with_names(**{name[1]: values.of(name[2])[0]})
        elif quoted := re.match(r'text "(.*?)": (.*)', line):
            is_there = " ".join(quoted[1].split()) in " ".join(block.split())
            yield line, numbers_in(quoted[1]) if is_there else [], values.of(quoted[2])
        elif row := re.match(r"row (.*): (.*)", line):
            first = [cell.strip() for cell in row[1].split("|")]
            rest = [" | ".join(cells[len(first) :]) for cells in table if cells[: len(first)] == first]
            yield line, numbers_in(rest[0]) if len(rest) == 1 else [], values.of(row[2])
        elif rows := re.match(r"rows (.*)", line):
            records = []
            for cells in table[2:]:
                named = values.with_names(**{f"c{n}": cell for n, cell in enumerate(cells, 1)})
                if (record := named.of(rows[1])[0]) is not None:
                    records.append((cells, named.with_names(r=record)))
            assert records, f"{line}: no row of the table has a record"
        elif more := re.match(r"where (\w+) = (.*)", line):
            records = [(cells, at.with_names(**{more[1]: at.of(more[2])[0]})) for cells, at in records]
        elif column := re.match(r"c(\d+): (.*)", line):
            for cells, named in records:
                numbers = numbers_in(cells[int(column[1]) - 1])
                yield f"{line}, row {cells}", numbers, named.of(column[2])[: len(numbers)]
        else:
            raise AssertionError(f"{line!r} is no line of a comment on figures")


def tables_without_links(document: str) -> list[str]:
    """Return the headers of tables with decimal numbers above which no comment stands."""
    found = []
    for match in re.finditer(r"((?:^.*\n)?)((?:^\|.*(?:\n|\Z))+)", document, re.MULTILINE):
        body = match[2].split("\n", 2)
        above = match[1].strip()
        has_figures = len(body) > 2 and re.search(r"\d\.\d", body[2])
        if has_figures and above != "-->" and not NO_FIGURES.fullmatch(above):
            found.append(body[0])
    return found
