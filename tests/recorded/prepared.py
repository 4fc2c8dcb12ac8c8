"""Digests of prepared bytes: every file of a dataset directory of each kind, by each way in."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.cli.main import main

from .worlds import (
    CITES,
    COUNTS,
    EDGES,
    NODES,
    RELATIONS,
    WIDTHS,
    WORLDS,
    WRITES,
    draw,
    edges,
    hop_columns,
    matrix,
    one_type,
    one_type_linked,
    parts,
    typed,
    typed_edges,
    typed_linked,
    weights,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A dataset directory, which ``write`` makes at a path."""

    write: Callable[[Path], Any]

    def digests(self, folder: Path) -> dict[str, str]:
        """Return the digest of each array's files, and of the record without the build that wrote it."""
        root = folder / "dataset"
        folder.mkdir(exist_ok=True)
        self.write(root)
        found: dict[str, Any] = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                name = path.relative_to(root).with_suffix("").as_posix()
                if path.name != "dataset.json":
                    found.setdefault(name, hashlib.sha256()).update(path.suffix.encode() + path.read_bytes())
        for name, text in _lasting(root / "dataset.json", folder).items():
            found[name] = hashlib.sha256(text.encode())
        return {name: digest.hexdigest()[:16] for name, digest in found.items()}


def _lasting(path: Path, folder: Path) -> dict[str, str]:
    """Return the record, without the version of the build and its own checksum; and the receipt, a text for people."""
    record = json.loads(path.read_text())
    del record["created_by"], record["checksum"]
    receipt = record["metadata"].pop("receipt", None)
    return {
        name: json.dumps(value).replace(str(folder), "FOLDER")
        for name, value in (("record", record), ("receipt", receipt))
    }


def _in_memory(write: Callable[..., Any], **changes: Any) -> Prepared:
    return Prepared(write=lambda root: write(root, **changes))


def _command(write_source: Callable[[Path], str], *flags: str) -> Prepared:
    """Return what ``gloader prepare`` makes of a source that ``write_source`` writes into a folder, and names."""

    def write(root: Path) -> None:
        source = root.with_name("source")
        source.mkdir()
        spec = write_source(source)
        words = [flag.replace("SOURCE", str(source)) for flag in flags]
        told = StringIO()
        with redirect_stdout(told), redirect_stderr(told):
            status = main(["prepare", spec, str(root), "--memory-budget", "64MB", *words])
        assert status == 0, told.getvalue()

    return Prepared(write=write)


def _arrays(folder: Path) -> str:
    np.save(folder / "edge_index.npy", edges())
    np.save(folder / "edge_weight.npy", weights(EDGES, 5))
    np.save(folder / "edge_time.npy", draw(EDGES, 1_000, 7))
    np.save(folder / "edge_features.npy", matrix(EDGES, 3, 6))
    _node_files(folder)
    return f"npy:{folder}"


def _node_files(folder: Path) -> None:
    np.save(folder / "features.npy", matrix(NODES, 6, 3))
    np.save(folder / "labels.npy", draw(NODES, 3, 4))
    np.savez(folder / "split.npz", **parts(NODES))


def _table(folder: Path) -> str:
    _node_files(folder)
    _write_csv(
        folder / "edges.csv",
        {"src": edges()[0], "dst": edges()[1], "amount": draw(EDGES, 9, 8), "day": draw(EDGES, 1_000, 7)},
    )
    return f"edges:{folder / 'edges.csv'}"


def _tables(folder: Path) -> str:
    lines = ["nodes:"]
    for name, count in COUNTS.items():
        told = [f"num_nodes: {count}"]
        if name in WIDTHS:
            np.save(folder / f"{name}.npy", matrix(count, WIDTHS[name], 60 + WIDTHS[name]))
            told = [f"features: {name}.npy"]
        if name == "paper":
            np.save(folder / "labels.npy", draw(count, 3, 71))
            np.savez(folder / "split.npz", **parts(count))
            told += ["labels: labels.npy", "splits: split.npz"]
        lines.append(f"  {name}: {{{', '.join(told)}}}")
    lines.append("edges:")
    for relation, count in RELATIONS.items():
        name = "_".join(relation)
        columns = dict(zip(("src", "dst"), typed_edges()[relation], strict=True))
        told = [f"file: {name}.csv"]
        if relation == WRITES:
            columns |= {"amount": draw(count, 9, 8), "day": draw(count, 1_000, 7)}
            told += ["features: amount", "time: day"]
        if relation == CITES:
            columns |= {"strength": draw(count, 5, 9)}
            told += ["weight: strength"]
        if count:
            _write_csv(folder / f"{name}.csv", columns)
            lines.append(f"  {':'.join(relation)}: {{{', '.join(told)}}}")
    (folder / "graph.yaml").write_text("\n".join(lines) + "\n")
    return f"tables:{folder}"


def _write_csv(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


_TABLE_FLAGS = (
    "--features",
    "SOURCE/features.npy",
    "--labels",
    "SOURCE/labels.npy",
    "--splits",
    "SOURCE/split.npz",
)
PREPARED: dict[str, Prepared] = {
    # The bytes of sums are not promised to be those of other processors.
    **{
        name: _in_memory(write, **changes)
        for name, (write, changes) in WORLDS.items()
        if write is not hop_columns
    },
    "one type: symmetric": _in_memory(one_type, symmetrize=True, self_loops=True),
    "one type: distinct": _in_memory(one_type, deduplicate=True),
    "one type: random splits": _in_memory(one_type, train=None, valid=None, test=None, seed=3),
    "one type: second part of three": _in_memory(one_type_linked, ranges=(1, 3)),
    "one type: linked and ordered": _in_memory(one_type_linked, order="degree"),
    "one type: edges dealt out": _in_memory(one_type, edge_split=(0.8, 0.1, 0.1), seed=5),
    "one type: edges dealt out by time": _in_memory(
        one_type_linked, links=None, edge_split=(0.8, 0.1, 0.1), edge_split_by="time"
    ),
    "one type: symmetric edges dealt out": _in_memory(one_type, symmetrize=True, edge_split=(0.8, 0.1, 0.1)),
    "typed: bytes": _in_memory(typed, feature_dtype="int8"),
    "typed: symmetric": _in_memory(typed, symmetrize=["cites"], deduplicate=True),
    "typed: reverse relations added": _in_memory(typed, add_reverse=True),
    "typed: second part of three": _in_memory(typed_linked, ranges=(1, 3)),
    "typed: edges dealt out": _in_memory(
        typed, edge_split=(0.8, 0.1, 0.1), edge_split_relation=WRITES, reverse={"writes": "written_by"}
    ),
    "typed: edges dealt out by time": _in_memory(
        typed_linked, links=None, edge_split=(0.8, 0.1, 0.1), edge_split_by="time", edge_split_relation=WRITES
    ),
    "command: arrays": _command(_arrays),
    "command: arrays, ordered": _command(_arrays, "--order", "community", "--dtype", "float16"),
    "command: edge table": _command(
        _table, *_TABLE_FLAGS, "--edge-time", "day", "--edge-features", "amount", "--edge-dtype", "bfloat16"
    ),
    "command: tables": _command(_tables),
    "command: tables, edges dealt out": _command(
        _tables, "--edge-split", "80/10/10", "--edge-split-relation", "writes", "--ranges", "0/2"
    ),
}
