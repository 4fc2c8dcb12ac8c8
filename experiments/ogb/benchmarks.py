"""The rows of the table as values: what is read, how it is trained, how it is scored, and what others published."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EVALUATORS = ("ogb:", "ogb-lsc", "accuracy")
SPLITS = ("valid", "test")


class BenchmarkError(Exception):
    """A row, or the list of rows, cannot be used."""


class DataError(BenchmarkError):
    """The data of a row is not where it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What others reached, in per cent."""

    mean: float
    std: float | None  # None where nobody gives it
    of: str
    differs: str = ""  # where their protocol is not ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One row: a data set, a model, and the value to reach."""

    name: str
    source: str  # of `gloader prepare`
    data: str  # rows with the same text share a prepared dataset
    recipe: Path  # of `gloader train --config`
    evaluator: str
    split: str
    published: Published
    prepare: tuple[str, ...] = ()
    needs: Path | None = None  # None: gloader downloads what is missing
    place: str = ""

    @property
    def prepared_name(self) -> str:
        """The folder of the prepared dataset: another source or other flags are another one."""
        digest = hashlib.sha256(repr((self.source, self.prepare)).encode()).hexdigest()[:8]
        return f"{self.data}-{digest}"

    def require_data(self) -> None:
        """Raise DataError, one line that says what to put where, if the data is not there."""
        if self.needs is not None and not self.needs.exists():
            raise DataError(f"{self.needs} is missing: {self.place}, or name another --root")


def load_benchmarks(path: Path, *, root: Path) -> dict[str, Benchmark]:
    """Return the rows that the YAML file ``path`` lists, in its order; ``root`` holds the data sets.

    Raises
    ------
    BenchmarkError
        An entry has an unknown or missing key, or a value that is not allowed.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: _parse(name, entry, path=path, root=root) for name, entry in content.items()}


def _parse(name: str, entry: Mapping[str, Any], *, path: Path, root: Path) -> Benchmark:
    known = {field.name for field in fields(Benchmark)} - {"name"}
    if unknown := set(entry) - known:
        raise BenchmarkError(
            f"{path}: {name} has the unknown keys {sorted(unknown)}; allowed: {sorted(known)}"
        )
    try:
        benchmark = Benchmark(
            **dict(entry)
            | {
                "name": name,
                "source": entry["source"].format(root=root),
                "recipe": path.parent / entry["recipe"],
                "prepare": tuple(entry.get("prepare", ())),
                "needs": root.__class__(entry["needs"].format(root=root)) if "needs" in entry else None,
                "published": Published(**entry["published"]),
            }
        )
    except (TypeError, KeyError) as error:
        raise BenchmarkError(f"{path}: {name} is not a benchmark: {error}") from error
    _check(benchmark, path)
    return benchmark


def _check(benchmark: Benchmark, path: Path) -> None:
    where = f"{path}: {benchmark.name}"
    if not benchmark.evaluator.startswith(EVALUATORS):
        raise BenchmarkError(
            f"{where} has the evaluator {benchmark.evaluator!r}; allowed: ogb:NAME, ogb-lsc, accuracy"
        )
    if benchmark.split not in SPLITS:
        raise BenchmarkError(f"{where} has the split {benchmark.split!r}; allowed: {', '.join(SPLITS)}")
    if not benchmark.recipe.is_file():
        raise BenchmarkError(f"{where}: the recipe {benchmark.recipe} is missing")
