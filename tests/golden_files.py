"""Small files of every format version that gloader ever wrote, as they are in ``tests/golden``, and what is in them.

A reader that changes must go on reading these. They are never written anew: whoever raises a version, or adds a feature
that datasets may need, writes one more with the build that is to be released::

    PYTHONPATH=. python tests/golden_files.py 2-typed tests/golden

The contents are sums and remainders, so that no library's random numbers can change them. Those of version 1 were
written by the last build whose version that was, 2-weighted and 2-bytes by the first that wrote version 2 as it stayed,
checkpoint-3 by the first and checkpoint-3-latest by a late one of that version.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.keys.stored_keys import write_keys
from gloader.core.keys import text_chunk
from gloader.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GOLDEN = Path(__file__).parent / "golden"
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
_NODES, _AUTHORS, _DIM, _CLASSES = 12, 7, 300, 3  # rows of 1,200 bytes of float32: some of them cross a page
_MAX_UNPACKED = 2 << 20


def edge_lists(num_sources: int, num_destinations: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``indptr`` and ``indices`` of lists of none to three sources, in ascending order."""
    lists = [sorted({(3 * v + 5 * k) % num_sources for k in range(v % 4)}) for v in range(num_destinations)]
    indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return indptr, np.array([source for each in lists for source in each], np.int64)


def matrix(num_rows: int, dim: int) -> np.ndarray:
    """Return (n, F) float32 rows of eighths, which float16 holds exactly."""
    return ((7 * np.arange(num_rows)[:, None] + 3 * np.arange(dim)) % 23 - 11).astype(np.float32) / 8


def bytes_matrix(num_rows: int, dim: int) -> np.ndarray:
    """Return (n, F) float32 rows, whole numbers times a power of two, which int8 with a scale for each row holds."""
    whole = (5 * np.arange(num_rows)[:, None] + 7 * np.arange(dim)) % 255 - 127
    whole[:, 0] = 127
    return (whole * 0.5 ** (np.arange(num_rows)[:, None] % 3)).astype(np.float32)


def labels() -> np.ndarray:
    """Return (n,) classes, the last node without one."""
    return np.r_[np.arange(_NODES - 1) % _CLASSES, -1].astype(np.int64)


def label_columns() -> np.ndarray:
    """Return (n, 2) float32 labels of 0 and 1, NaN where unknown; the last node has none."""
    columns = (np.arange(2 * _NODES).reshape(_NODES, 2) % 5 < 2).astype(np.float32)
    columns[::4, 1] = np.nan
    columns[-1] = np.nan
    return columns


LABEL_NAMES = ("red", "round")
KEYS = ("", "é", *(f"key {number}" for number in range(_NODES - 2)))
SPLITS = {
    "train": np.array([0, 2, 4, 6, 8, 10], np.int64),
    "valid": np.array([1, 3, 5], np.int64),
    "test": np.array([7, 9], np.int64),
}


def homogeneous(
    path: Path, *, ids: str, dtype: str, features: np.ndarray, extra: bool = False, **options: Any
) -> None:
    """Write a graph of one type; ``extra``: with weights and original ids."""
    indptr, indices = edge_lists(_NODES, _NODES)
    with _writer(path, **options) as writer:
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(len(indices), ids) as out:
            out.append(indices.astype(ids))
        with writer.features(features.shape[1], dtype) as out:
            out.append(features)
        writer.labels(labels())
        writer.splits(**SPLITS)
        if extra:
            writer.original_ids(_original_ids())
            with writer.edge_weight(len(indices)) as out:
                out.append(edge_weight(len(indices)))


def _writer(path: Path, *, part: Any = None) -> Any:
    if part is None:
        return Dataset.create(path, name=path.name, num_nodes=_NODES, num_classes=_CLASSES)
    from gloader.dataset.schema import DatasetSchema
    from gloader.dataset.writer import DatasetWriter  # builds of version 1 wrote no parts

    return DatasetWriter(
        path, schema=DatasetSchema.of_one_type(_NODES), name=path.name, num_classes=_CLASSES, part=part
    )


def _original_ids() -> np.ndarray:
    return np.arange(_NODES, dtype=np.int64)[::-1]


def edge_weight(num_edges: int) -> np.ndarray:
    """Return (E,) float32 weights."""
    return (np.arange(num_edges) % 4 + 1).astype(np.float32) / 4


def edge_time(num_edges: int) -> np.ndarray:
    """Return (E,) times, which ascend."""
    return np.arange(num_edges, dtype=np.int64) * 60 - 120


def link_columns(num_sources: int, indptr: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a link table: two edges of the graph and a pair that is none; no edge leads back."""
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    positions = np.array([0, len(indices) - 1], np.int64)
    held = np.stack([indices[positions], destinations[positions], positions, [-1, -1]], axis=1)
    return {
        "pairs": np.concatenate([held, [[num_sources - 1, 0, -1, -1]]]).astype(np.int64),
        "labels": np.array([1.5, -2.0, 0.25], np.float32),
        "times": np.array([30, 10, 20], np.int64),
        "negatives": np.array([[2, 3], [4, 5], [6, 7]], np.int64),
    }


def _write_links(table: Any, columns: dict[str, np.ndarray]) -> None:
    with table.pairs(3) as out:
        out.append(columns["pairs"])
    with table.labels(3, "float32") as out:
        out.append(columns["labels"])
    with table.times(3) as out:
        out.append(columns["times"])
    with table.negatives(3, 2, "int64") as out:
        out.append(columns["negatives"])


def _read_links(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    values = {name: column for name, column in columns.items() if name != "pairs"}
    return {"edge_index": columns["pairs"][:, :2].T, **values}


def write_linked(path: Path) -> None:
    """Write a graph of one type with features and times of edges, and a link table."""
    indptr, indices = edge_lists(_NODES, _NODES)
    with _writer(path) as writer:
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(len(indices), "int32") as out:
            out.append(indices.astype(np.int32))
        with writer.edge_features(len(indices), 5, "float16") as out:
            out.append(matrix(len(indices), 5))
        with writer.edge_time(len(indices)) as out:
            out.append(edge_time(len(indices)))
        with writer.features(4, "float16") as out:
            out.append(matrix(_NODES, 4))
        writer.labels(labels())
        writer.splits(**SPLITS)
        _write_links(writer.links("held_out"), link_columns(_NODES, indptr, indices))


def write_typed(path: Path) -> None:
    """Write authors without features and papers with; two relations, with weights, features and times, and links."""
    counts = {"author": _AUTHORS, "paper": _NODES}
    with Dataset.create_hetero(
        path, name=path.name, num_nodes=counts, relations=(WRITES, CITES), num_classes=_CLASSES
    ) as writer:
        for relation in (WRITES, CITES):
            indptr, indices = edge_lists(counts[relation[0]], _NODES)
            edges = writer.edges(relation)
            with edges.indptr() as out:
                out.append(indptr)
            with edges.indices(len(indices), "int32") as out:
                out.append(indices.astype(np.int32))
            if relation == WRITES:
                with edges.edge_weight(len(indices)) as out:
                    out.append(edge_weight(len(indices)))
                with edges.edge_features(len(indices), 3, "int8") as out:
                    out.append(bytes_matrix(len(indices), 3))
                _write_links(
                    writer.links("to_come", relation=relation), link_columns(_AUTHORS, indptr, indices)
                )
            else:
                with edges.edge_time(len(indices)) as out:
                    out.append(edge_time(len(indices)))
        papers = writer.nodes("paper")
        with papers.features(6, "bfloat16") as out:
            out.append(matrix(_NODES, 6))
        papers.labels(labels())
        papers.splits(**SPLITS)


def write_part(path: Path) -> None:
    """Write the second half of the rows of a graph of one type."""
    from gloader.core.ids import RangePart

    homogeneous(
        path, ids="int32", dtype="float32", features=matrix(_NODES, _DIM), part=RangePart(part=1, of=2)
    )


def write_columns(path: Path) -> None:
    """Write a graph of one type whose labels are columns of values, with names."""
    indptr, indices = edge_lists(_NODES, _NODES)
    with Dataset.create(path, name=path.name, num_nodes=_NODES, num_classes=2) as writer:
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(len(indices), "int32") as out:
            out.append(indices.astype(np.int32))
        with writer.features(4, "float32") as out:
            out.append(matrix(_NODES, 4))
        writer.labels(label_columns())
        writer.splits(**SPLITS)
        writer.annotate(labels={"kind": "multilabel", "names": list(LABEL_NAMES)})


def write_keyed(path: Path) -> None:
    """Write a graph of one type whose nodes have texts as keys."""
    indptr, indices = edge_lists(_NODES, _NODES)
    with Dataset.create(path, name=path.name, num_nodes=_NODES, num_classes=_CLASSES) as writer:
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(len(indices), "int32") as out:
            out.append(indices.astype(np.int32))
        with writer.features(4, "float32") as out:
            out.append(matrix(_NODES, 4))
        writer.labels(labels())
        writer.splits(**SPLITS)
        write_keys(
            writer.nodes().keys("text"),
            [text_chunk(KEYS)],
            num_bytes=sum(len(key.encode()) for key in KEYS),
            folder=writer.scratch,
            budget_bytes=10**6,
        )


RECOMMENDED = ("author", "likes", "paper")


def row_tables() -> dict[str, dict[str, Any]]:
    """Return two task tables of papers: classes with times and weights, and values without."""
    return {
        "cited.train": {
            "type": "paper",
            "nodes": np.array([3, 1, 3, 11], np.int64),
            "times": np.array([60, -60, 600, 0], np.int64),
            "labels": np.array([0, 1, -1, 1], np.int64),
            "weights": np.array([1, 0.5, 0, 2], np.float32),
            "kind": "classes",
            "names": ("no", "yes"),
            "num_classes": 2,
        },
        "score": {
            "type": "author",
            "nodes": np.array([6, 0], np.int64),
            "labels": np.array([[0.5, np.nan], [-2, 3]], np.float32),
            "kind": "values",
            "num_classes": 2,
        },
    }


def row_time() -> np.ndarray:
    """Return a time for each paper, the third one without."""
    times = np.arange(_NODES, dtype=np.int64) * 60 - 120
    times[2] = -(2**63)
    return times


def write_rows(path: Path) -> None:
    """Write papers with times, two task tables, and pairs of authors and papers that are no edges."""
    indptr, indices = edge_lists(_NODES, _NODES)
    with Dataset.create_hetero(
        path,
        name=path.name,
        num_nodes={"author": _AUTHORS, "paper": _NODES},
        relations=(CITES,),
        num_classes=_CLASSES,
    ) as writer:
        edges = writer.edges(CITES)
        with edges.indptr() as out:
            out.append(indptr)
        with edges.indices(len(indices), "int32") as out:
            out.append(indices.astype(np.int32))
        papers = writer.nodes("paper")
        with papers.features(4, "float32") as out:
            out.append(matrix(_NODES, 4))
        papers.labels(labels())
        papers.splits(**SPLITS)
        with papers.row_time() as out:
            out.append(row_time())
        with writer.links("likes", relation=RECOMMENDED, free=True).pairs(2) as out:
            out.append(np.array([[0, 5, -1, -1], [6, 11, -1, -1]], np.int64))
        for name, table in row_tables().items():
            to = writer.table(
                name,
                node_type=table["type"],
                label_kind=table["kind"],
                num_classes=table["num_classes"],
                label_names=table.get("names"),
            )
            for column in ("nodes", "times", "labels", "weights"):
                if column in table:
                    with getattr(to, column)(len(table["nodes"])) as out:
                        out.append(table[column])


def in_rows() -> dict[str, Any]:
    """Return the arrays that `write_rows` wrote."""
    indptr, indices = edge_lists(_NODES, _NODES)
    pairs = np.array([[0, 6], [5, 11]], np.int64)
    return {
        "num_nodes": {"author": _AUTHORS, "paper": _NODES},
        "features": {"paper": matrix(_NODES, 4)},
        "edges": {CITES: np.stack([indices, np.repeat(np.arange(_NODES), np.diff(indptr))])},
        "edge_weight": {},
        "labels": {"paper": labels()},
        "num_classes": _CLASSES,
        **SPLITS,
        "links": {"likes": {"edge_index": pairs, "relation": RECOMMENDED, "reverse": None, "free": True}},
        "tables": row_tables(),
        "row_time": {"paper": row_time()},
    }


def embedded_rows(first: np.ndarray) -> dict[str, np.ndarray]:
    """Return the (n, 4) float32 rows of each record of `write_embedding`, given the rows by the formula."""
    best, last = first.copy(), matrix(_NODES, 4)
    best[[1, 5, 7]] = matrix(3, 4)
    last[[2, 11]] = 9 + matrix(2, 4)
    return {"best": best, "last": last}


def write_embedding(path: Path) -> None:
    """Write an embedding table: a record with three rows of a run, and one with runs of all rows and of two."""
    from gloader.ssd_store import EmbeddingTable, InitialRows  # earlier builds had none

    initial = InitialRows(seed=7, dim=3, kind="normal", scale=0.5, state=(0.25,))
    with EmbeddingTable.create(path, num_rows=_NODES, initial=initial, facts={"made": "by hand"}) as table:
        table.append(np.array([7, 1, 5]), matrix(3, 4)[[2, 0, 1]])
        table.commit("best", num_steps=1, facts={})
        for ids, rows in ((np.arange(_NODES), matrix(_NODES, 4)), (np.array([2, 11]), 9 + matrix(2, 4))):
            table.append(ids, rows)
            table.commit("last", num_steps=3, facts={"position": [0, 2]})


def _write_weighted(path: Path) -> None:
    homogeneous(path, ids="int32", dtype="float32", features=matrix(_NODES, _DIM), extra=True)


def _write_bytes(path: Path) -> None:
    homogeneous(path, ids="int64", dtype="int8", features=bytes_matrix(_NODES, _DIM))


def in_homogeneous(features: np.ndarray, ids: str) -> dict[str, Any]:
    """Return what `Dataset.to_numpy` must make of a graph of one type."""
    indptr, indices = edge_lists(_NODES, _NODES)
    return {
        "features": features,
        "labels": labels(),
        "indptr": indptr,
        "indices": indices.astype(ids),
        **SPLITS,
    }


def in_weighted() -> dict[str, Any]:
    """Return the arrays that `_write_weighted` wrote."""
    arrays = in_homogeneous(matrix(_NODES, _DIM), "int32")
    return arrays | {"edge_weight": edge_weight(len(arrays["indices"]))}


def in_linked() -> dict[str, Any]:
    """Return the arrays that `write_linked` wrote."""
    arrays = in_homogeneous(matrix(_NODES, 4), "int32")
    columns = link_columns(_NODES, arrays["indptr"], arrays["indices"])
    num_edges = len(arrays["indices"])
    return arrays | {
        "edge_features": matrix(num_edges, 5),
        "edge_time": edge_time(num_edges),
        "links": {"held_out": _read_links(columns)},
    }


def in_typed() -> dict[str, Any]:
    """Return the arrays that `write_typed` wrote."""
    (indptr, indices), (cites, cited) = edge_lists(_AUTHORS, _NODES), edge_lists(_NODES, _NODES)
    columns = link_columns(_AUTHORS, indptr, indices)
    lists = {WRITES: (indptr, indices), CITES: (cites, cited)}
    return {
        "num_nodes": {"author": _AUTHORS, "paper": _NODES},
        "features": {"paper": matrix(_NODES, 6)},
        "edges": {
            relation: np.stack([sources, np.repeat(np.arange(_NODES), np.diff(offsets))])
            for relation, (offsets, sources) in lists.items()
        },
        "edge_weight": {WRITES: edge_weight(len(indices))},
        "labels": {"paper": labels()},
        "num_classes": _CLASSES,
        **SPLITS,
        "edge_features": {WRITES: bytes_matrix(len(indices), 3)},
        "edge_time": {CITES: edge_time(len(cited))},
        "links": {"to_come": {"relation": WRITES, "reverse": None, **_read_links(columns)}},
    }


def in_columns() -> dict[str, Any]:
    """Return the arrays that `write_columns` wrote."""
    arrays = in_homogeneous(matrix(_NODES, 4), "int32")
    return arrays | {"labels": label_columns(), "labels_as": "values", "label_names": LABEL_NAMES}


# By the version and what is special. A part of a dataset has no whole arrays, and an embedding table is no dataset.
WRITERS: Mapping[str, Callable[[Path], None]] = {
    "weighted": _write_weighted,
    "bytes": _write_bytes,
    "linked": write_linked,
    "typed": write_typed,
    "part": write_part,
    "columns": write_columns,
    "keyed": write_keyed,
    "rows": write_rows,
    "embedding": write_embedding,
}
CONTENTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "weighted": in_weighted,
    "bytes": lambda: in_homogeneous(bytes_matrix(_NODES, _DIM), "int64"),
    "linked": in_linked,
    "typed": in_typed,
    "columns": in_columns,
    "keyed": lambda: in_homogeneous(matrix(_NODES, 4), "int32"),
    "rows": in_rows,
}


def pack(folder: Path, archive: Path) -> None:
    """Write the files of ``folder`` as a small archive that says nothing of who wrote it, or when."""
    with tarfile.open(archive, "x:xz", format=tarfile.PAX_FORMAT, preset=9) as out:
        for path in sorted(folder.rglob("*")):
            member = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                out.addfile(member)
            else:
                data = path.read_bytes()
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def unpack(archive: Path, sha256: str, target: Path) -> Path:
    """Unpack a golden file whose bytes are the known ones into ``target``; return the folder that was in it."""
    data = archive.read_bytes()
    assert hashlib.sha256(data).hexdigest() == sha256, f"{archive} is not the golden file that it was"
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        assert sum(member.size for member in opened.getmembers()) < _MAX_UNPACKED
        opened.extractall(target, filter="data")
    return target / archive.name.removesuffix(".tar.xz")


def main() -> None:
    """Write one golden dataset or table, named by its version and what is special, such as 2-typed, into a folder."""
    name, target = sys.argv[1], Path(sys.argv[2])
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        WRITERS[name.partition("-")[2]](Path(scratch) / name)
        pack(Path(scratch) / name, target / f"{name}.tar.xz")
    print(hashlib.sha256((target / f"{name}.tar.xz").read_bytes()).hexdigest(), name)


if __name__ == "__main__":
    main()
