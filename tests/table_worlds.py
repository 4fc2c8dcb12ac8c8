"""Random graphs in random tables, written with pandas; what was meant is known before a file is written.

`World.make` draws a graph, and `World.write` its files: names, orders, headers, index columns, byte order marks,
comments, blanks, quotes, missing values and broken ids. `reasons` says why a table may be refused, `faults` why it
must be; without a reason it has to be read, and to be read as it was meant.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

ENDS = [
    ("src", "dst"), ("source", "target"), ("from", "to"), ("u", "v"), ("src_id", "dst_id"), ("FromNodeId", "ToNodeId"),
    ("head", "tail"), ("subject", "object"), (":START_ID(User)", ":END_ID(Item)"), ("node1", "node2"), ("id_1", "id_2"),
    ("Source", "Destination"), ("SRC", "DST"), ("source_id", "target_id"), ("node_1", "node_2"), ("row", "col"),
]  # fmt: skip
STRANGE_ENDS = [
    ("user", "movie"),
    ("a", "b"),
    ("user_id", "item_id"),
    ("time", "amount"),
    ("x", "from_where"),
]
EDGE_EXTRAS = ["edge_id", "relation", "kind", "note", "date", "stars:int", ":TYPE"]
IDS = ["id", "node_id", "nid", "node", "index", "vid", "NodeID", "Id", "key", "movieId:ID(Movie)", "paper_id"]
NODE_EXTRAS = ["city", "joined"]
TEXTS = ["red", "a,b", 'say "hi"', "ü", "x y", "#1", ""]


@dataclass
class World:
    """A graph, and the reasons for which its files may be refused."""

    src: np.ndarray  # (E,)
    dst: np.ndarray  # (E,)
    weight: np.ndarray | None  # (E,)
    features: pd.DataFrame  # (N, F), a row per node in the order of the nodes
    labels: np.ndarray  # (N,)
    random: np.random.Generator
    reasons: set[str] = field(default_factory=set)
    faults: set[str] = field(default_factory=set)  # those that must be refused
    edge_path: Path = Path()
    feature_path: Path = Path()
    label_path: Path = Path()
    told: list[str] = field(default_factory=list)  # how the files were written, for messages

    @classmethod
    def make(cls, seed: int) -> World:
        random = np.random.default_rng(seed)
        num_nodes, num_edges = int(random.integers(3, 13)), int(random.integers(1, 25))
        features = {}
        for number in range(int(random.integers(1, 5))):
            kind = random.choice(["float", "float", "int", "bool"])
            features[f"f{number}"] = {
                "float": random.standard_normal(num_nodes).round(3),
                "int": random.integers(-5, 40, num_nodes),
                "bool": random.random(num_nodes) < 0.5,
            }[str(kind)]
        return cls(
            src=random.integers(0, num_nodes, num_edges),
            dst=random.integers(0, num_nodes, num_edges),
            weight=random.integers(1, 9, num_edges) / 4 if random.random() < 0.4 else None,
            features=pd.DataFrame(features),
            labels=random.integers(0, 3, num_nodes),
            random=random,
        )

    @property
    def expected(self) -> tuple[list[tuple[int, int, float]], np.ndarray, np.ndarray]:
        """Edges with weights (1 without), features (N, F) float32, labels (N,)."""
        weight = np.ones(len(self.src)) if self.weight is None else self.weight
        edges = sorted(zip(self.src.tolist(), self.dst.tolist(), weight.tolist(), strict=True))
        return edges, self.features.astype(np.float32).to_numpy(), self.labels

    def write(self, folder: Path) -> None:
        """Write the files of the graph."""
        self._write_edges(folder)
        self._write_features(folder)
        self._write_labels(folder)

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def pick(self, values):
        return values[int(self.random.integers(len(values)))]

    def refuse(self, reason: str, *, must: bool = True) -> None:
        self.reasons.add(reason)
        if must:
            self.faults.add(reason)

    def _write_edges(self, folder: Path) -> None:
        style = self.pick(["csv", "csv", "csv", "tsv", "txt", "parquet"])
        has_header = style == "parquet" or self.chance(0.7)
        ends = self.pick(ENDS)
        if has_header and self.chance(0.12):
            ends = self.pick(STRANGE_ENDS)
            self.refuse("unknown ends")
        if self.chance(0.2):
            ends = tuple(self.pick([name.upper(), name.lower(), name.title()]) for name in ends)
        table = {ends[0]: self.src, ends[1]: self.dst}
        if self.weight is not None:
            table[self.pick(["weight", "Weight", "w", "edge_weight"])] = self.weight
        frame = pd.DataFrame(table)
        if has_header:
            for name in self.random.choice(EDGE_EXTRAS, int(self.random.integers(0, 3)), replace=False):
                frame[str(name)] = self._extra(str(name), len(frame))
            frame = frame[list(self.random.permutation(frame.columns))]
        elif self.weight is None and self.chance(0.4):
            frame["extra"] = [self.pick(["friend", "{}", "2015-01-01", "None"])] * len(frame)
        elif self.weight is not None and self.chance(0.2):
            # Of four columns without names the third is not the weight.
            frame["extra"], self.weight = "x", None
        if self.chance(0.06):
            name = ends[int(self.random.integers(2))]
            frame[name] = frame[name].astype(object)
            frame.loc[int(self.random.integers(len(frame))), name] = self.pick([None, "x7", 1.5, "-"])
            if style == "parquet":
                frame[name] = frame[name].astype(str)
            self.refuse("broken end")
            # Its first line may then be no row, and no header.
        self.edge_path = self._write(folder, "e", frame, style, has_header, first_is_index=has_header)

    def _extra(self, name: str, count: int):
        if name in {"kind", "note"}:
            return [self.pick(TEXTS) for _ in range(count)]
        if name == "date":
            return ["2020-01-31"] * count
        return self.random.integers(0, 4, count)

    def _write_features(self, folder: Path) -> None:
        style = self.pick(["csv", "csv", "tsv", "parquet", "txt"])
        frame = self.features.copy()
        num_nodes = len(frame)
        has_header = style == "parquet" or self.chance(0.8)
        if self.chance(0.25):
            frame.columns = pd.Index([str(i) for i in range(frame.shape[1])])
            if has_header and style != "parquet":
                self.refuse("numbers as names", must=False)
        if self.chance(0.08):
            row, column = int(self.random.integers(num_nodes)), int(self.random.integers(frame.shape[1]))
            frame = frame.astype(object)
            frame.iloc[row, column] = None
            self.refuse("missing value")
        if has_header and self.chance(0.3):
            name = self.pick(NODE_EXTRAS)
            texts = self._extra("note", num_nodes)
            frame.insert(int(self.random.integers(frame.shape[1] + 1)), name, texts)
            if not any(texts):
                self.refuse("a column of nothing", must=False)
        is_joined = has_header and self.chance(0.6)
        if is_joined:
            frame = self._with_ids(frame, style)
        elif has_header:
            frame = frame.reset_index(drop=True)
        elif self.chance(0.15):
            frame.insert(0, "id", np.arange(num_nodes))
            frame = frame.iloc[self.random.permutation(num_nodes)]
            self.refuse("ids without a header")
        if not has_header:
            # What has no names may seem to be ids, or the numbers of columns.
            self.refuse("no names", must=False)
        self.feature_path = self._write(folder, "x", frame, style, has_header, first_is_index=not is_joined)

    def _with_ids(self, frame: pd.DataFrame, style: str) -> pd.DataFrame:
        """Return the table with a column of ids, or an index, its rows in another order."""
        num_nodes = len(frame)
        ids = np.arange(num_nodes)
        fault = self.pick(["", "", "", "", "", "from 1", "twice", "text", "large"])
        if fault:
            self.refuse(f"ids {fault}")
        shown: np.ndarray = {
            "from 1": ids + 1,
            "twice": np.where(ids == num_nodes - 1, 0, ids),
            "text": np.array([f"n{i}" for i in ids], object),
            "large": ids * 1000,
        }.get(fault, ids)
        name = self.pick([*IDS, None])
        if name is None:
            frame = frame.set_axis(pd.Index(shown, name=self.pick([None, None, "node"])))
        else:
            frame.insert(int(self.random.integers(frame.shape[1] + 1)), name, shown)
        if self.chance(0.85):
            frame = frame.iloc[self.random.permutation(num_nodes)]
        return frame

    def _write_labels(self, folder: Path) -> None:
        if self.chance(0.3):
            self.label_path = folder / "y.npy"
            np.save(self.label_path, self.labels)
            return
        style = self.pick(["csv", "parquet"])
        frame = pd.DataFrame({self.pick(["label", "y", "Label", "class"]): self.labels})
        has_header = style == "parquet" or self.chance(0.8)
        is_joined = has_header and self.chance(0.5)
        if is_joined:
            frame = self._with_ids(frame, style)
        self.label_path = self._write(folder, "y", frame, style, has_header, first_is_index=not is_joined)

    def _write(
        self,
        folder: Path,
        stem: str,
        frame: pd.DataFrame,
        style: str,
        has_header: bool,
        *,
        first_is_index: bool,
    ) -> Path:
        """Write a table; an index that says something is kept, and one that counts may be."""
        keeps_index = not isinstance(frame.index, pd.RangeIndex) and has_header
        if first_is_index and has_header and self.chance(0.2):
            keeps_index = True
        if frame.shape[1] == 1 and not keeps_index and style in {"tsv", "txt"}:
            style = "csv"
        self.told.append(f"{stem}: {style}, header {has_header}, index {keeps_index}, {list(frame.columns)}")
        if self.chance(0.15) and len(frame) > 1:
            (folder / stem).mkdir()
            cut = int(self.random.integers(1, len(frame)))
            for number, part in enumerate((frame.iloc[:cut], frame.iloc[cut:])):
                name = f"part-{number:05d}.{style}"
                self._write_file(folder / stem / name, part, style, has_header, keeps_index)
            (folder / stem / "_SUCCESS").touch()
            self.refuse("parts", must=False)
            return folder / stem
        zipped = style != "parquet" and self.chance(0.2)
        path = folder / f"{stem}.{style}{'.gz' if zipped else ''}"
        self._write_file(path, frame, style, has_header, keeps_index)
        return path

    def _write_file(
        self, path: Path, frame: pd.DataFrame, style: str, has_header: bool, keeps_index: bool
    ) -> None:
        if style == "parquet":
            frame.to_parquet(path, index=None if keeps_index else False)
            return
        separator = {"csv": self.pick([",", ",", ";", "|"]), "tsv": "\t", "txt": " "}[style]
        quoting = self.pick([0, 0, 0, 1])  # what needs it, or all
        text = frame.to_csv(index=keeps_index, header=has_header, sep=separator, quoting=quoting)
        lines = text.split("\n")[:-1]
        if any(line.count('"') % 2 for line in lines):
            self.refuse("lines in fields", must=False)
        path.write_bytes(self._decorated(lines, style, separator, has_header=has_header, path=path))

    def _decorated(
        self, lines: list[str], style: str, separator: str, *, has_header: bool, path: Path
    ) -> bytes:
        first = has_header
        if style == "txt":
            if any(field == "" for line in lines for field in line.split(separator)):
                self.refuse("nothing between blanks", must=False)
            elif self.chance(0.4):
                gaps = ["  "] if '"' in "".join(lines) else ["  ", " \t"]
                lines = [self.pick(["", " "]) + line.replace(" ", self.pick(gaps)) for line in lines]
        if self.chance(0.15):
            mark = self.pick(["#", "%"])
            lines = [f"{mark} made by hand: {len(lines)} lines, all of them", *lines]
            first += 1
        if self.chance(0.1):
            lines.append(self.pick(["# the end", "% 3", "#"]))
            self.refuse("a comment among text", must=False)
        if self.chance(0.1):
            at = int(self.random.integers(first, len(lines) + 1))
            lines.insert(at, self.pick(["", "  "]))
        if any(line.lstrip(' "').startswith("#") for line in lines[first:]):
            self.refuse("a row like a comment", must=False)
        end = self.pick(["\n", "\n", "\r\n"])
        text = end.join(lines) + (end if self.chance(0.8) else "")
        mark_bytes = b"\xef\xbb\xbf" if self.chance(0.15) else b""
        content = mark_bytes + text.encode()
        return gzip.compress(content) if path.suffix == ".gz" else content
