"""Random graphs whose nodes have keys, in random tables with a ``graph.yaml``; what was meant is known beforehand.

`KeyedWorld.make` draws a graph, and `write` its files, by the hand of `table_files.TableFiles`. As in `table_worlds`,
`reasons` says why the graph may be refused, and `faults` why it must be. What the features of a column are is computed
by pandas and numpy alone.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from table_files import EPOCH, Column, TableFiles, seconds_of
from table_worlds import ENDS, STRANGE_ENDS, World

NAMES = [
    "user_id", "id", "name", "sku", "E-mail", "key of user", "a.b", "Kunde", "age", "Age", "score", "member", "city",
    "joined", "Größe, cm", 'say "q"', "y", "class", "t", "label", "fold", "split", "node", "x2", "#no", "nr.", "0x",
    "weights of", "user.id", "True", "é", "e\u0301", "source of", "train", "is_train", "is_valid", "is_test", "None of",
]  # fmt: skip
# Texts that readers of tables take for something else: a number, a missing value, a comment, a field's end.
ODD_TEXTS = [
    "007", "7", "NA", "null", "None", "nan", "1e3", "-", "true", "a,b", 'say "hi"', "ü", "x y", " x", "x ", "#1",
    "x  y", "x\ty", "é", "e\u0301", "\xa0x", "x\u2028y", "%5", "a;b", "a|b", "'", '"', "\\", "1,5", "two\nlines",
    "x\ry", "2020-01-01", "0", "-0", "00", "1.0", "\ufeffx", "Inf", "0x1f", "=1+1", "\u200b",
]  # fmt: skip
CITIES = ["Oslo", "a,b", 'say "hi"', "ü", "x y", "NA", "Rome", "x  y", "null", "rome", " Oslo", "12", "007"]
CLASSES = ["cat", "dog", "a,b", "ü", "NA", "none", "Cat"]
WORDS = {
    "train": ["train", "Train", "training", "TRAIN"],
    "valid": ["valid", "val", "dev", "Validation"],
    "test": ["test", "Test", "testing"],
    "": ["", "none", "-", "unused"],
}
PARTS = ["train", "valid", "test"]
EXTRAS = ["edge_id", "kind", "note", "date", "Größe", "a b"]


@dataclass
class Feature:
    """A column that becomes features: its entry in ``graph.yaml``, and what its features are."""

    column: Column
    entry: Any
    encode: Callable[[np.ndarray], np.ndarray]  # of the mask (n,) of training rows; returns (n, f)


@dataclass
class KeyedWorld:
    """A graph of users, perhaps with items, and the reasons for which it may be refused."""

    writer: World
    keys: list[Any]  # (N,) of the users, in the order of their table
    ends: list[tuple[Any, Any]]  # (E,) keys of both ends
    has_items: bool  # whether destinations are items, and not users
    dangling: str | None
    is_text: tuple[bool, bool, bool]  # whether the tables of users, edges and items are text
    names: list[str]  # names of columns that are still free
    item_keys: list[Any] | None = None  # the table of items; None means that the edges make them
    strangers: set[Any] = field(default_factory=set)  # keys of edges that no user has
    features: list[Feature] = field(default_factory=list)
    edge_features: list[Feature] = field(default_factory=list)
    labels: list[Column] = field(default_factory=list)
    label_kind: str = ""
    parts: list[str] | None = None  # (N,) train, valid, test or ""; None means a random split
    split_times: list[Any] | None = None  # (N,) datetimes, of a split by time
    missing: str | None = None  # what becomes of missing values in the users' columns that do not say it
    weight: list[Any] | None = None  # (E,)
    times: list[Any] | None = None  # (E,) datetimes
    yaml_text: str = ""

    @property
    def reasons(self) -> set[str]:
        return self.writer.reasons

    @property
    def faults(self) -> set[str]:
        return self.writer.faults

    @classmethod
    def make(cls, seed: int) -> KeyedWorld:
        writer = World.make(seed)
        random = writer.random
        num_users, num_edges = int(random.integers(4, 13)), int(random.integers(1, 25))
        pool = _keys(writer, num_users + 2)
        keys, others = pool[:num_users], pool[num_users:]
        world = cls(
            writer=writer,
            keys=keys,
            ends=[],
            has_items=writer.chance(0.3),
            dangling=writer.pick([None, None, "error", "drop", "node"]),
            is_text=(writer.chance(0.6), writer.chance(0.6), writer.chance(0.6)),
            names=random.permutation(NAMES).tolist(),
        )
        items = _keys(writer, 5)
        last = items if world.has_items else keys
        world.ends = [(writer.pick(keys), writer.pick(last)) for _ in range(num_edges)]
        if world.has_items and writer.chance(0.5):
            world.item_keys = items
        if writer.chance(0.15):
            for row in random.choice(num_edges, min(num_edges, 2), replace=False):
                stranger = writer.pick(others)
                world.ends[row] = (stranger, world.ends[row][1])
                world.strangers.add(stranger)
            if world.dangling in {None, "error"}:
                writer.refuse("a key that no node has")
        world._draw_split(num_users)
        world._draw_labels(num_users)
        if world.split_times is not None:
            world.parts = _parts_by_time(world.split_times, world.labels)
        world.missing = writer.pick([None, None, None, "zero", "flag"])
        for _ in range(writer.pick([1, 2, 3])):
            world.features.append(world._feature(num_users, is_text=world.is_text[0]))
        world._draw_edge_columns(num_edges)
        return world

    @property
    def nodes(self) -> list[Any]:
        """Keys of the users, and of the nodes that edges make, in the order of their numbers."""
        made = dict.fromkeys(end for pair in self.ends for end in pair[: 2 - self.has_items])
        return [*self.keys, *(key for key in made if key in self.strangers and self.dangling == "node")]

    @property
    def is_kept(self) -> np.ndarray:
        """(E,) mask of the edges that stay."""
        return np.array(
            [
                self.dangling == "node" or not self.strangers & {*pair[: 2 - self.has_items]}
                for pair in self.ends
            ]
        )

    @property
    def expected_edges(self) -> list[tuple[Any, ...]]:
        """Edges as texts of keys with weight (1 without), time (0 without) and features, sorted."""
        count = len(self.ends)
        weight = np.ones(count) if self.weight is None else self.weight
        time = [0] * count if self.times is None else [seconds_of(each) for each in self.times]
        rows = encoded(self.edge_features, np.ones(count, bool))
        return sorted(
            (str(src), str(dst), float(weight[row]), time[row], *rows[row].tolist())
            for row, (src, dst) in enumerate(self.ends)
            if self.is_kept[row]
        )

    @property
    def items(self) -> list[str]:
        """Keys of the items: the rows of their table, or of the edges in order of first appearance."""
        given = (dst for _, dst in self.ends) if self.item_keys is None else self.item_keys
        return list(dict.fromkeys(map(str, given)))

    def expected_features(self, train: np.ndarray) -> np.ndarray:
        """Return the feature rows (nodes, F), from the ids of training nodes."""
        is_train = np.zeros(len(self.keys), bool)
        is_train[train] = True
        rows = encoded(self.features, is_train)
        return np.concatenate([rows, np.zeros((len(self.nodes) - len(rows), rows.shape[1]), np.float32)])

    def expected_labels(self) -> list[Any]:
        """Return each node's label as a text, "-" where unknown; of several columns a tuple."""
        made = len(self.nodes) - len(self.keys)
        columns = [[_label_text(value) for value in each.values] + ["-"] * made for each in self.labels]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def write(self, folder: Path) -> None:
        """Write the tables and ``graph.yaml``."""
        writer = self.writer
        self._break()
        files = TableFiles(writer=writer, packs_uuids=writer.chance(0.5))
        key = self.names.pop()
        columns = [Column(key, "key", self.keys), *(each.column for each in self.features), *self.labels]
        user: dict[str, Any] = {
            "key": key,
            "columns": [each.entry for each in self.features],
            "labels": self._label_entry(),
            **({} if self.missing is None else {"missing": self.missing}),
        }
        columns += self._split_columns(user)
        columns += [
            Column(self.names.pop(), "text", ["x"] * len(self.keys)) for _ in range(writer.pick([0, 0, 1]))
        ]
        user["file"] = files.write(folder, "users", self._mixed(columns), is_text=self.is_text[0])
        nodes: dict[str, Any] = {"user": user}
        if self.item_keys is not None:
            name = self.names.pop()
            table = self._mixed(
                [Column(name, "key", self.item_keys), Column(self.names.pop(), "text", ["x"] * 5)]
            )
            nodes["item"] = {
                "file": files.write(folder, "items", table, is_text=self.is_text[2]),
                "key": name,
            }
        graph = {
            "nodes": nodes,
            "edges": {"knows": self._write_edges(folder, files)},
            **({} if self.dangling is None else {"dangling": self.dangling}),
        }
        self.yaml_text = yaml.safe_dump(graph, allow_unicode=True, sort_keys=False)
        (folder / "graph.yaml").write_text(self.yaml_text)

    def _write_edges(self, folder: Path, files: TableFiles) -> dict[str, Any]:
        """Write the edges, and return their entry."""
        writer = self.writer
        last_type = "item" if self.has_items else "user"
        first, last = writer.pick([*ENDS, *STRANGE_ENDS])
        columns = [
            Column(first, "key", [src for src, _ in self.ends]),
            Column(last, "key", [dst for _, dst in self.ends]),
        ]
        if (
            all(isinstance(end, int) for pair in self.ends for end in pair)
            and not self.edge_features
            and writer.chance(0.2)
        ):
            return self._write_bare_edges(folder, files, columns, last_type)
        entry: dict[str, Any] = {"src": f"user.{first}", "dst": f"{last_type}.{last}"}
        if self.weight is not None:
            name = writer.pick(["weight", "how much"])
            columns.append(Column(name, "float", self.weight))
            if name == "how much" or writer.chance(0.5):
                entry["weight"] = name
        if self.times is not None:
            entry["time"] = writer.pick(["when", "made"])
            columns.append(Column(entry["time"], "time", self.times))
        columns += [each.column for each in self.edge_features]
        if self.edge_features:
            entry["columns"] = [each.entry for each in self.edge_features]
        for name in writer.random.choice(EXTRAS, int(writer.random.integers(0, 3)), replace=False):
            columns.append(Column(str(name), "text", ["x"] * len(self.ends)))
        if writer.chance(0.03) and not self.is_text[1] and isinstance(self.ends[0][0], int):
            columns[0] = Column(first, "text", [None if src is None else str(src) for src, _ in self.ends])
            # Texts of a text file would be keys of any type.
            if not self.is_text[0] or not self.has_items:
                writer.refuse("keys of two types")
        if writer.chance(0.02):
            entry[writer.pick(["weight", "time"])] = writer.pick([first, last])
            writer.refuse("an end as weight or time")
        return {"file": files.write(folder, "e", self._mixed(columns), is_text=self.is_text[1]), **entry}

    def _write_bare_edges(
        self, folder: Path, files: TableFiles, columns: list[Column], last_type: str
    ) -> dict[str, Any]:
        """Write edges between whole numbers as text without a header; the third column is the weight."""
        self.times = None
        if self.weight is not None:
            columns.append(Column("c2", "float", self.weight))
        name = files.write(folder, "e", columns, is_text=True, has_header=False)
        self.is_text = (self.is_text[0], True, self.is_text[2])
        return {"file": name, "src": "user.c0", "dst": f"{last_type}.c1"}

    def _mixed(self, columns: list[Column]) -> list[Column]:
        return [columns[place] for place in self.writer.random.permutation(len(columns))]

    # --- columns ---

    def _feature(self, count: int, *, is_text: bool, kinds: tuple[str, ...] = (), name: str = "") -> Feature:
        """Draw a column and its encoder."""
        writer, random = self.writer, self.writer.random
        kind = writer.pick(
            kinds or ("int", "int", "float", "float", "text", "text", "time", "bool", "vector")
        )
        if kind == "vector" and is_text:
            kind = "float"
        values: list[Any] = {
            "int": lambda: random.integers(-5, 99, count).tolist(),
            "float": lambda: random.standard_normal(count).round(3).tolist(),
            "text": lambda: [writer.pick(CITIES) for _ in range(count)],
            "time": lambda: [
                EPOCH + timedelta(seconds=int(each)) for each in random.integers(0, 2 * 10**9, count)
            ],
            "bool": lambda: [writer.chance(0.5) for _ in range(count)],
            "vector": (random.integers(-40, 40, (count, 3)) / 8).tolist,
        }[kind]()
        entry: dict[str, Any] = {"name": name or self.names.pop()}
        rule = writer.pick([None, None, "zero", "mean", "flag"])
        rule = "flag" if kind == "text" and rule == "mean" else rule
        if rule is not None:
            entry["missing"] = rule
        elif not name:
            rule = self.missing
        if writer.chance(0.3 if rule else 0.02) and count > 1:
            for row in random.integers(1, count, 2):
                values[row] = None
            if kind == "float" and writer.chance(0.3):
                values[-1] = np.inf
            if rule is None:
                writer.refuse("a missing feature")
            elif self.parts is None or self.split_times is not None:
                writer.refuse("perhaps no value in training rows", must=False)
        if kind in {"int", "float"} and writer.chance(0.015):
            values[0] = 2**24 + 1
            values = [float(each) if kind == "float" and each is not None else each for each in values]
        encode = self._encoder(kind, values, entry, rule)
        column = Column(entry["name"], kind, values)
        return Feature(column, entry["name"] if len(entry) == 1 and writer.chance(0.8) else entry, encode)

    def _encoder(
        self, kind: str, values: list[Any], entry: dict[str, Any], rule: str | None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Choose how a column is encoded, add it to its entry, and return the oracle."""
        writer = self.writer
        if kind == "text":
            entry["as"] = writer.pick(["category", "category", "index"])
            top = writer.pick([None, None, 2]) if entry["as"] == "category" else None
            if top is not None:
                entry["top"] = top
            return lambda is_train: _categories(
                values, is_train, rule, is_index=entry["as"] == "index", top=top
            )
        if kind == "time":
            entry["as"] = "time"
            at = writer.pick([None, "2024-01-31"])
            if at is not None:
                entry["at"] = at
            return lambda is_train: _ages(values, is_train, rule, at)
        is_standard = kind != "bool" and writer.chance(0.3)
        if is_standard:
            entry["as"] = "standard"
        elif any(each == 2**24 + 1 for each in values):
            writer.refuse("a number that float32 rounds")
        return lambda is_train: _numbers(values, is_train, rule, is_standard=is_standard)

    def _draw_edge_columns(self, count: int) -> None:
        """Draw weights, times and features of edges."""
        writer, random = self.writer, self.writer.random
        if writer.chance(0.4):
            self.weight = (random.integers(1, 9, count) / 4).tolist()
        if writer.chance(0.3):
            self.times = [
                EPOCH + timedelta(seconds=int(each)) for each in random.integers(-(10**9), 2 * 10**9, count)
            ]
        if writer.chance(0.4):
            kinds = ("int", "float", "bool") if self.strangers else ("int", "float", "bool", "text")
            for name in ("price", "Size, cm")[: writer.pick([1, 2])]:
                self.edge_features.append(
                    self._feature(count, is_text=self.is_text[1], kinds=kinds, name=name)
                )

    def _draw_split(self, count: int) -> None:
        writer = self.writer
        if writer.chance(0.15):
            days = writer.random.integers(0, 9, count)  # some are equal
            self.split_times = [EPOCH + timedelta(days=int(day)) for day in days]
        elif writer.chance(0.7):
            self.parts = [*PARTS, *(writer.pick([*PARTS, *PARTS, ""]) for _ in range(count - len(PARTS)))]

    def _split_columns(self, user: dict[str, Any]) -> list[Column]:
        """Return the columns of the split, and add it to the users' entry."""
        if self.parts is None:
            return []
        writer, form = self.writer, self.writer.pick(["words", "masks", "folds"])
        name = self.names.pop()
        if self.split_times is not None:
            user["split"] = {"by": "time", "column": name, "shares": "60/20/20"}
            return [Column(name, "time", self.split_times)]
        if form == "words":
            user["split"] = name
            return [Column(name, "text", [writer.pick(WORDS[part]) for part in self.parts])]
        if form == "folds":
            user["split"] = {"column": name, "train": [0, 1], "valid": 2, "test": 3}
            folds = {"train": 0, "valid": 2, "test": 3, "": 9}
            values = [folds[part] for part in self.parts]
            spare = [row for row, part in enumerate(self.parts) if part == "train"]
            if len(spare) > 1:
                values[spare[-1]] = 1
            else:
                user["split"]["train"] = [0]
            is_text = writer.chance(0.4)
            return [
                Column(
                    name, "text" if is_text else "int", [str(each) for each in values] if is_text else values
                )
            ]
        names = [name, self.names.pop(), self.names.pop()]
        user["split"] = dict(zip(PARTS, names, strict=True))
        return [
            Column(each, "bool", [part == other for other in self.parts])
            for each, part in zip(names, PARTS, strict=True)
        ]

    def _draw_labels(self, count: int) -> None:
        """Draw one or two columns of labels; nodes in no part may have none."""
        writer, random = self.writer, self.writer.random
        self.label_kind = writer.pick(
            ["text", "text", "whole", "gaps", "values", "bool", "several", "several bools"]
        )
        bits = [0, 1, *random.integers(0, 2, count - 2).tolist()]
        columns: dict[str, tuple[str, list[Any]]] = {
            "text": ("text", [*CLASSES[:2], *(writer.pick(CLASSES) for _ in range(count - 2))]),
            "whole": ("int", bits),
            "gaps": ("int", [3, 7, *(writer.pick([3, 7, 12]) for _ in range(count - 2))]),
            "values": ("float", (random.standard_normal(count).round(3) + 0.0001).tolist()),
            "bool": ("bool", [bool(each) for each in bits]),
            "several": ("float", (random.standard_normal(count).round(3) + 0.0001).tolist()),
            "several bools": ("int", bits),
        }
        kind, values = columns[self.label_kind]
        is_several = self.label_kind.startswith("several")
        for number in range(1 + is_several):
            known = list(values) if number == 0 else list(reversed(values))
            for row in range(3, count):
                if (self.parts is None or self.parts[row] == "") and writer.chance(0.3):
                    known[row] = None
            self.labels.append(Column(self.names.pop(), kind, known))

    def _label_entry(self) -> Any:
        names = [each.name for each in self.labels]
        return names if len(names) > 1 else self.writer.pick([names[0], names, {"column": names[0]}])

    def _break(self) -> None:
        """Put a fault into the keys, or the values, of some worlds."""
        writer = self.writer
        if not writer.chance(0.12):
            return
        fault = writer.pick(["a key twice", "a user without a key", "an end without a key", "no weight"])
        row = int(writer.random.integers(1, len(self.keys)))
        if fault == "a key twice":
            self.keys = [*self.keys]
            self.keys[row] = self.keys[0]
        elif fault == "a user without a key":
            self.keys = [None if place == row else key for place, key in enumerate(self.keys)]
        elif fault == "an end without a key" and len(self.ends) > 1:
            self.ends[0] = (None, self.ends[0][1])
        elif fault == "no weight" and self.weight is not None:
            self.weight[0] = None
        else:
            return
        writer.refuse(fault)


def _parts_by_time(times: list[Any], labels: list[Column]) -> list[str]:
    """Return the part of each node: of those with a label, the earliest 60 % are train, and the next 20 % valid."""
    is_labelled = [
        any(value is not None for value in row) for row in zip(*(each.values for each in labels), strict=True)
    ]
    rows = pd.Series(times)[is_labelled].sort_values(kind="stable").index
    parts = pd.Series("", index=range(len(times)))
    first, last = round(0.6 * len(rows)), round(0.8 * len(rows))
    parts[rows] = ["train"] * first + ["valid"] * (last - first) + ["test"] * (len(rows) - last)
    return parts.tolist()


def _keys(writer: World, count: int) -> list[Any]:
    """Return different keys of one kind: whole numbers, texts or UUIDs."""
    kind = writer.pick(["small", "large", "signed", "huge", "text", "odd", "odd", "uuid"])
    random = writer.random
    if kind == "small":
        return random.permutation(np.arange(count)).tolist()
    if kind in {"large", "signed", "huge"}:
        # Neighbours beyond 2**53 are one number in float64.
        first = {"large": 2**53, "signed": -int(random.integers(0, 2**62)), "huge": 2**63}[kind]
        return [first + int(each) for each in random.permutation(count)]
    if kind == "text":
        return [f"u{number}" for number in random.permutation(1000)[:count]]
    if kind == "odd":
        known = [
            *random.permutation(ODD_TEXTS)[: count // 2 + 1].tolist(),
            *(f"u{number}" for number in range(count)),
        ]
        return [known[place] for place in random.permutation(count)]
    return [str(uuid.UUID(bytes=random.bytes(16))) for _ in range(count)]


def encoded(features: list[Feature], is_train: np.ndarray) -> np.ndarray:
    """Return the features (n, F) float32 of all columns."""
    rows = [each.encode(is_train).astype(np.float32) for each in features]
    return np.concatenate(rows, axis=1) if rows else np.zeros((len(is_train), 0), np.float32)


def _filled(scaled: np.ndarray, is_missing: np.ndarray, mean: np.ndarray, rule: str | None) -> np.ndarray:
    """Return numbers (n, w) without missing ones; ``mean`` is the mean of the training rows after scaling."""
    if rule in {"mean", "flag"}:
        scaled = np.where(is_missing, mean, scaled)
    scaled = np.where(is_missing, 0, scaled) if rule == "zero" else scaled
    is_flagged = is_missing.any(axis=1, keepdims=True)
    return np.concatenate([scaled, is_flagged], axis=1) if rule == "flag" and is_flagged.any() else scaled


def _numbers(values: list[Any], is_train: np.ndarray, rule: str | None, *, is_standard: bool) -> np.ndarray:
    width = next(len(each) if isinstance(each, list) else 1 for each in values if each is not None)
    table = pd.DataFrame(
        [[np.nan] * width if each is None else each if isinstance(each, list) else [each] for each in values],
        dtype=float,
    ).replace([np.inf, -np.inf], np.nan)
    train = table[is_train]
    mean, deviation = train.mean(), train.std(ddof=0).where(train.nunique() > 1, 1.0)
    scaled = (table - mean) / deviation if is_standard else table
    middle = mean * 0 if is_standard else mean
    return _filled(scaled.to_numpy(), table.isna().to_numpy(), middle.to_numpy(), rule)


def _ages(values: list[Any], is_train: np.ndarray, rule: str | None, at: str | None) -> np.ndarray:
    times = pd.Series(pd.to_datetime(values))
    latest = times[is_train].max() if at is None else pd.Timestamp(at)
    days = (latest - times).dt.total_seconds() / 86400
    mean = np.array([days[is_train].mean()])
    return _filled(days.to_numpy()[:, None], times.isna().to_numpy()[:, None], mean, rule)


def _categories(
    values: list[Any], is_train: np.ndarray, rule: str | None, *, is_index: bool, top: int | None
) -> np.ndarray:
    table = pd.Series(values, dtype=object)
    counts = Counter(table[is_train].dropna())
    names = sorted(counts)
    if all(name.isdigit() for name in names):
        names = sorted(names, key=lambda name: (float(name), name))
    if top is not None:
        names = [name for name in names if name in sorted(names, key=lambda name: -counts[name])[:top]]
    codes = pd.Categorical(table.where(table.isin(names)), categories=names)
    rows = codes.codes[:, None] if is_index else pd.get_dummies(codes).to_numpy()
    is_missing = table.isna().to_numpy()
    if top is not None:
        rows = np.column_stack([rows, (codes.codes < 0) & ~is_missing])
    return np.column_stack([rows, is_missing]) if rule == "flag" and is_missing.any() else rows


def _label_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{np.float32(value):.4f}" if isinstance(value, float) else str(value)
