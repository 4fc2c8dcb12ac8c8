"""Random graphs whose nodes have keys, in random tables with a ``graph.yaml``; what was meant is known beforehand.

`KeyedWorld.make` draws a graph, and `write` its files, by the hand of `table_worlds.World`. As there, `reasons` says
why the graph may be refused, and `faults` why it must be.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from table_worlds import EDGE_EXTRAS, ENDS, STRANGE_ENDS, World

KEY_NAMES = ["user_id", "id", "name", "sku", "user", "E-mail", "key of user", "a.b", "Kunde"]
# Texts that readers of tables take for something else: a number, a missing value, a comment, a field's end.
ODD_KEYS = [
    "007", "7", "NA", "null", "None", "nan", "1e3", "-", "true", "a,b", 'say "hi"', "ü", "x y", " x", "x ", "#1"
]  # fmt: skip
CITIES = ["Oslo", "a,b", 'say "hi"', "ü", "x y", "NA2", "Rome"]
CLASSES = ["cat", "dog", "a,b", "ü"]
PARTS = ["train", "valid", "test"]


@dataclass
class KeyedWorld:
    """A graph of users, perhaps with items that have no table, and the reasons for which it may be refused."""

    writer: World
    keys: list[Any]  # (N,) of the users, in the order of their table
    columns: pd.DataFrame  # (N, ...) the users' other columns
    ends: list[tuple[Any, Any]]  # (E,) keys of both ends
    weight: np.ndarray | None  # (E,)
    has_items: bool  # whether destinations are items, and not users
    has_split: bool
    dangling: str | None
    strangers: set[Any] = field(default_factory=set)  # keys of edges that no user has
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
            columns=_columns(writer, num_users),
            ends=[],
            weight=random.integers(1, 9, num_edges) / 4 if writer.chance(0.4) else None,
            has_items=writer.chance(0.3),
            has_split=writer.chance(0.6),
            dangling=writer.pick([None, None, "error", "drop", "node"]),
        )
        items = _keys(writer, 5)
        last = items if world.has_items else keys
        world.ends = [(writer.pick(keys), writer.pick(last)) for _ in range(num_edges)]
        if writer.chance(0.25):
            for row in random.choice(num_edges, min(num_edges, 2), replace=False):
                stranger = writer.pick(others)
                world.ends[row] = (stranger, world.ends[row][1])
                world.strangers.add(stranger)
            if world.dangling in {None, "error"}:
                writer.refuse("a key that no node has")
        return world

    @property
    def nodes(self) -> list[Any]:
        """Keys of the users, and of the nodes that edges make, in the order of their numbers."""
        made = dict.fromkeys(end for pair in self.ends for end in pair[: 2 - self.has_items])
        return [*self.keys, *(key for key in made if key in self.strangers and self.dangling == "node")]

    @property
    def expected_edges(self) -> list[tuple[str, str, float]]:
        """Edges as texts of keys with their weights (1 without), sorted."""
        weight = np.ones(len(self.ends)) if self.weight is None else self.weight
        return sorted(
            (str(src), str(dst), float(value))
            for (src, dst), value in zip(self.ends, weight, strict=True)
            if self.dangling == "node" or not self.strangers & {src, dst}
        )

    @property
    def items(self) -> list[str]:
        """Keys of the items in order of first appearance, over the rows that stay."""
        return list(dict.fromkeys(str(dst) for _, dst in self.ends))

    def expected_features(self) -> np.ndarray:
        """Return the feature rows (nodes, F) float32: numbers, bools, and a column for each city of a training row."""
        table = self.columns
        parts = [table[name].astype(np.float32) for name in ("age", "score", "member") if name in table]
        if self.has_split:
            train = table["fold"] == "train"
            parts += [
                (table["city"] == city).astype(np.float32) for city in sorted(set(table["city"][train]))
            ]
        rows = np.stack(parts, axis=1).astype(np.float32)
        return np.concatenate([rows, np.zeros((len(self.nodes) - len(rows), rows.shape[1]), np.float32)])

    def expected_labels(self) -> list[str]:
        """Return each node's label as a text; "-" where unknown."""
        texts = [_text_of(value) for value in self.columns["label"]]
        return texts + ["-"] * (len(self.nodes) - len(texts))

    def write(self, folder: Path) -> None:
        """Write the tables and ``graph.yaml``."""
        writer = self.writer
        self._break()
        key_name = writer.pick(KEY_NAMES)
        users = self.columns.copy()
        users.insert(int(writer.random.integers(users.shape[1] + 1)), key_name, self.keys)
        users = users[list(writer.random.permutation(users.columns))]
        first, last = writer.pick([*ENDS, *STRANGE_ENDS])
        edges = pd.DataFrame({first: [src for src, _ in self.ends], last: [dst for _, dst in self.ends]})
        for name in writer.random.choice(EDGE_EXTRAS, int(writer.random.integers(0, 3)), replace=False):
            edges[str(name)] = "x"
        entry = {"src": f"user.{first}", "dst": f"{'item' if self.has_items else 'user'}.{last}"}
        if self.weight is not None:
            name = writer.pick(["weight", "how much"])
            edges[name] = self.weight
            if name == "how much" or writer.chance(0.5):
                entry["weight"] = name
        edges = edges[list(writer.random.permutation(edges.columns))]
        names = [name for name in ("age", "score", "member") if name in users]
        columns: list[Any] = [*names, *([{"name": "city", "as": "category"}] if self.has_split else [])]
        user = {
            "file": self._written(folder, "users", users),
            "key": key_name,
            "columns": columns,
            "labels": "label",
            **({"split": "fold"} if self.has_split else {}),
        }
        graph = {
            "nodes": {"user": user},
            "edges": {"knows": {"file": self._written(folder, "e", edges), **entry}},
            **({} if self.dangling is None else {"dangling": self.dangling}),
        }
        self.yaml_text = yaml.safe_dump(graph, allow_unicode=True, sort_keys=False)
        (folder / "graph.yaml").write_text(self.yaml_text)

    def _written(self, folder: Path, stem: str, frame: pd.DataFrame) -> str:
        style = self.writer.pick(["csv", "csv", "tsv", "parquet"])
        path = self.writer._write(folder, stem, frame, style, True, first_is_index=False)
        return path.name

    def _break(self) -> None:
        """Put a fault into the keys of some worlds."""
        writer = self.writer
        if not writer.chance(0.15):
            return
        fault = writer.pick(
            ["a key twice", "a user without a key", "an end without a key", "a number missing"]
        )
        row = int(writer.random.integers(1, len(self.keys)))
        if fault == "a key twice":
            self.keys = [*self.keys]
            self.keys[row] = self.keys[0]
        elif fault == "a user without a key":
            self.keys = [None if place == row else key for place, key in enumerate(self.keys)]
        elif fault == "an end without a key":
            self.ends = [
                (None, dst) if place == 0 else (src, dst) for place, (src, dst) in enumerate(self.ends)
            ]
        else:
            self.columns = self.columns.astype({"age": float})
            self.columns.loc[row, "age"] = np.nan
        writer.refuse(fault)


def _keys(writer: World, count: int) -> list[Any]:
    """Return different keys of one kind: whole numbers, texts or UUIDs."""
    kind = writer.pick(["small", "large", "text", "odd", "uuid"])
    random = writer.random
    if kind == "small":
        return random.permutation(np.arange(count)).tolist()
    if kind == "large":
        # Neighbours beyond 2**53 are one number in float64.
        return (random.permutation(np.arange(count)) + int(random.integers(2**53, 2**62))).tolist()
    if kind == "text":
        return [f"u{number}" for number in random.permutation(1000)[:count]]
    if kind == "odd":
        return [*random.permutation(ODD_KEYS)[:count].tolist(), *(f"u{number}" for number in range(count))][
            :count
        ]
    return [str(uuid.UUID(bytes=random.bytes(16))) for _ in range(count)]


def _columns(writer: World, num_users: int) -> pd.DataFrame:
    """Return the users' columns: numbers, a city, a label and a fold."""
    random = writer.random
    columns: dict[str, Any] = {"age": random.integers(-5, 99, num_users)}
    if writer.chance(0.5):
        columns["score"] = random.standard_normal(num_users).round(3)
    if writer.chance(0.5):
        columns["member"] = random.random(num_users) < 0.5
    columns["city"] = [writer.pick(CITIES) for _ in range(num_users)]
    kind = writer.pick(["text", "whole", "values"])
    columns["label"] = {
        "text": [*CLASSES[:2], *(writer.pick(CLASSES) for _ in range(num_users - 2))],
        "whole": [0, 1, *random.integers(0, 2, num_users - 2)],
        "values": random.standard_normal(num_users).round(3) + 0.0001,
    }[kind]
    columns["fold"] = [*PARTS, *(writer.pick(PARTS) for _ in range(num_users - len(PARTS)))]
    return pd.DataFrame(columns)


def _text_of(value: Any) -> str:
    return f"{np.float32(value):.4f}" if isinstance(value, float) else str(value)
