"""Link tables: written whole or not at all, read as they were written, else refused in one sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from forking import in_child
from linked import (
    BOUGHT,
    BUYS,
    ONLY,
    LinkArrays,
    edge_arrays,
    link_arrays,
    write_link_table,
    write_linked,
    write_linked_types,
)

from gloader.dataset import Dataset
from gloader.dataset.verify import verified_tables, verify_dataset
from gloader.errors import ConfigError, FormatError, GraphError, ShapeError, StoreError, VersionError
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.dataset.link_table import LinkTable

COUNT = 3000  # pairs of 24 pages
# Nothing held; pairs, labels and times; all of it.
MEMORIES = {"disk": 0, "partly": 32 * COUNT + 12 * COUNT, "ram": 10**9}


def arrays_of_one(count: int = COUNT, **settings: Any) -> LinkArrays:
    return link_arrays(count, num_destinations=40, num_reverses=300, **settings)


@pytest.fixture(scope="module", name="arrays")
def _arrays() -> LinkArrays:
    return arrays_of_one()


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory, arrays: LinkArrays) -> Dataset:
    path = tmp_path_factory.mktemp("links") / "d"
    return write_linked(path, {"train": arrays, "valid": link_arrays(0, num_destinations=40)})


@pytest.fixture(name="table")
def _table(dataset: Dataset) -> LinkTable:
    return dataset.link_table("train")


@pytest.mark.parametrize("max_bytes", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("io", ["auto", "threads", "buffered"])
def test_rows_are_read_as_they_were_written(
    table: LinkTable, arrays: LinkArrays, max_bytes: int, io: Any
) -> None:
    rng = np.random.default_rng(1)
    with table.open(max_bytes=max_bytes, io=io) as links:
        assert (links.num_rows, links.relation, links.reverse_relation) == (COUNT, ONLY, ONLY)
        for rows in (
            rng.integers(0, COUNT, 1000),  # in any order, with repeats
            np.arange(COUNT),
            np.array([COUNT - 1, 0], dtype=np.int32),
            np.empty(0, np.int64),
        ):
            arrays.require(links.read(rows), rows)


def test_what_a_table_is_can_be_told_without_reading_it(dataset: Dataset, arrays: LinkArrays) -> None:
    table = dataset.link_table("train")
    assert list(dataset.link_tables) == ["train", "valid"]
    assert (table.name, table.num_rows, table.relation, table.reverse_relation) == (
        "train",
        COUNT,
        ONLY,
        ONLY,
    )
    assert (table.has_labels, table.label_dtype, table.has_times, table.negatives_per_row) == (
        True,
        "float32",
        True,
        3,
    )
    assert (table.num_bytes, table.negative_bytes) == ((32 + 4 + 8) * COUNT, 12 * COUNT)
    assert table.in_graph == np.count_nonzero(arrays.pairs[:, 2] >= 0) > 0


def test_a_table_of_no_rows_is_one(dataset: Dataset) -> None:
    for max_bytes in (0, 10**6):
        with dataset.link_table("valid").open(max_bytes=max_bytes) as links:
            found = links.read(np.empty(0, np.int64))
            assert found.negatives is not None
            assert (found.sources.shape, found.negatives.shape) == ((0,), (0, 3))
            with pytest.raises(
                ShapeError, match=r"links 'valid': rows must be in 0\.\.-1; these are not: \[0\]"
            ):
                links.read(np.array([0]))


def test_memory_is_what_it_may_be(table: LinkTable) -> None:
    held = {}
    for name, max_bytes in MEMORIES.items():
        with table.open(max_bytes=max_bytes) as links:
            held[name] = links.held_bytes
    bounce, checksums = 2 * 2**20, 8 * (24 + 3 + 6 + 9)
    assert held == {"disk": bounce + checksums, "partly": 44 * COUNT + bounce + 8 * 9, "ram": 56 * COUNT}
    # Columns of which a row is a page read as well, for fewer bytes, are held before the pairs.
    for max_bytes, expected in (
        (44 * COUNT - 1, 12 * COUNT + bounce + 8 * (24 + 9)),
        (12 * COUNT - 1, 4 * COUNT + bounce + 8 * (24 + 6 + 9)),
        (4 * COUNT - 1, held["disk"]),
    ):
        with table.open(max_bytes=max_bytes) as links:
            assert links.held_bytes == expected


@pytest.mark.parametrize("max_bytes", MEMORIES.values(), ids=MEMORIES)
def test_rows_that_are_none_are_refused(table: LinkTable, max_bytes: int) -> None:
    with table.open(max_bytes=max_bytes) as links:
        with pytest.raises(
            ShapeError, match=r"links 'train': rows must be in 0\.\.2999; these are not: \[3000, -1\]"
        ):
            links.read(np.array([5, 3000, -1]))
        with pytest.raises(
            ShapeError, match="rows of links 'train' have dtype float64; they must be integers"
        ):
            links.read(np.array([0.5]))
    with pytest.raises(StoreError, match="links 'train': the table is closed; open it again"):
        links.read(np.array([0]))
    links.close()


def test_threads_read_at_once(table: LinkTable, arrays: LinkArrays) -> None:
    wrong: list[BaseException] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(20):
                rows = rng.integers(0, COUNT, 500)
                arrays.require(links.read(rows), rows)
        except BaseException as error:
            wrong.append(error)

    with table.open(max_bytes=0) as links:
        threads = [Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_a_forked_child_reads_beside_its_parent(table: LinkTable, arrays: LinkArrays, max_bytes: int) -> None:
    rows = np.arange(0, COUNT, 7)
    with table.open(max_bytes=max_bytes) as links:

        def act() -> None:
            arrays.require(links.read(rows), rows)
            links.close()

        assert in_child(act) == 0
        arrays.require(links.read(rows), rows)


def test_nothing_is_left_open(table: LinkTable) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    with table.open(max_bytes=0):
        assert len(os.listdir("/proc/self/fd")) > before  # noqa: PTH208
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("negatives", ["int32", "int64"])
@pytest.mark.parametrize("k", [1, 7, 1500, 33_000])  # rows of 4 bytes to more than most reads are long
def test_negatives_of_any_number_are_read(tmp_path: Path, negatives: str, k: int) -> None:
    arrays = arrays_of_one(60, k=k, negatives=negatives, labels="int64")
    table = write_linked(tmp_path / "d", {"a": arrays}).link_table("a")
    rows = np.random.default_rng(0).integers(0, 60, 100)
    for max_bytes in (0, 10**9):
        with table.open(max_bytes=max_bytes) as links:
            arrays.require(links.read(rows), rows)


def test_tables_of_several_types_count_ids_within_them(tmp_path: Path) -> None:
    train, back = link_arrays(50), replace(link_arrays(30, labels=None, k=0), times=None)
    back.pairs[:, :2] = back.pairs[:, 1::-1]  # items on the left
    back.pairs[:, 2:] = -1
    dataset = write_linked_types(
        tmp_path / "d", {"train": (BUYS, BOUGHT, train), "back": (BOUGHT, None, back)}
    )
    for name, arrays in (("train", train), ("back", back)):
        with dataset.link_table(name).open(max_bytes=0) as links:
            arrays.require(links.read(np.arange(len(arrays.pairs))), np.arange(len(arrays.pairs)))
    table = dataset.link_table("back")
    assert (table.relation, table.reverse_relation, table.in_graph) == (BOUGHT, None, 0)
    assert (table.has_labels, table.label_dtype, table.has_times, table.negatives_per_row) == (
        False,
        None,
        False,
        0,
    )


def test_an_unknown_table_is_told_with_those_there_are(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"has no edges 'tests' to predict; it has 'train', 'valid'"):
        dataset.link_table("tests")
    with pytest.raises(
        KeyError, match="'tests' is no link table of this dataset; there are 'train', 'valid'"
    ):
        dataset.link_tables["tests"]
    without = write_linked(tmp_path / "d", {})
    assert list(without.link_tables) == []
    with pytest.raises(ConfigError, match=r"it has none; `gloader prepare --edge-split` makes some"):
        without.link_table("train")


COLUMNS = {"source": 40, "destination": 40, "position": 300, "reverse position": 300}


@pytest.mark.reliability("M2")
@pytest.mark.parametrize("column", range(4), ids=COLUMNS)
@pytest.mark.parametrize("value", [-(2**63), -2, -1, 0, "limit", 2**63 - 1])
def test_pairs_that_cannot_be_are_told_by_file_and_row(tmp_path: Path, column: int, value: Any) -> None:
    """Bytes are as they were written; read from disk, from memory, by verify: all say the same."""
    noun, limit = list(COLUMNS.items())[column]
    arrays = arrays_of_one(500)
    number = limit if value == "limit" else value
    arrays.pairs[333, column] = number
    dataset = write_linked(tmp_path / "d", {"train": arrays})
    table = dataset.link_table("train")
    if (column >= 2 and number == -1) or number == 0:
        assert verify_dataset(dataset.root).is_ok
        return
    what = "is not a node" if column < 2 else "must be of an edge, in 0..299, or -1"
    message = f"pairs, row 333: {noun} {number} {what}"
    (problem,) = verify_dataset(dataset.root).problems
    assert problem.file == "links/train/pairs.npy"
    assert message in problem.message
    with pytest.raises(FormatError, match=rf"links/train/pairs\.npy: {message}".replace("..", r"\.\.")):
        table.open(max_bytes=10**9)
    with table.open(max_bytes=0) as links:
        with pytest.raises(FormatError, match=rf"links/train/pairs\.npy: {message}".replace("..", r"\.\.")):
            links.read(np.array([499, 333, 0]))
        rows = np.array([499, 0])
        arrays.require(links.read(rows), rows)


@pytest.mark.reliability("M2")
@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("labels", 77, np.nan, "labels, row 77: nan is not a finite number"),
        ("labels", 77, np.inf, "labels, row 77: inf is not a finite number"),
        ("negatives", (77, 2), -1, r"negatives, row 77: destination -1 is not a node: it must be in 0\.\.39"),
        ("negatives", (77, 0), 40, "negatives, row 77: destination 40 is not a node"),
    ],
)
def test_other_values_that_cannot_be_are_told_by_file_and_row(
    tmp_path: Path, name: str, at: Any, value: float, message: str
) -> None:
    arrays = arrays_of_one(500)
    getattr(arrays, name)[at] = value
    dataset = write_linked(tmp_path / "d", {"train": arrays})
    (problem,) = verify_dataset(dataset.root).problems
    assert problem.file == f"links/train/{name}.npy"
    with pytest.raises(FormatError, match=rf"{name}\.npy: {message}"):
        dataset.link_table("train").open(max_bytes=10**9)
    with (
        dataset.link_table("train").open(max_bytes=0) as links,
        pytest.raises(FormatError, match=rf"{name}\.npy: {message}"),
    ):
        links.read(np.array([4, 77]))


def test_a_reverse_without_a_relation_for_it_is_refused(tmp_path: Path) -> None:
    dataset = write_linked_types(tmp_path / "d", {"train": (BUYS, None, link_arrays(20))})
    with pytest.raises(
        FormatError, match=r"row \d+: reverse position \d+ must be -1, which means no such edge"
    ):
        dataset.link_table("train").open(max_bytes=10**9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: t.labels(7, "int64"),
            "links 'a': labels has 7 rows, and pairs has 5; it must have one for each pair",
        ),
        (lambda t: t.times(4), "links 'a': times has 4 rows, and pairs has 5"),
        (lambda t: t.negatives(6, 2, "int32"), "links 'a': negatives has 6 rows, and pairs has 5"),
        (
            lambda t: t.negatives(5, 0, "int32"),
            r"negatives has shape \(5, 0\); it must be \(n, k\), with k of",
        ),
        (
            lambda t: t.labels(5, "float64"),
            "links 'a': labels cannot be float64; they must be int64 or float32",
        ),
        (lambda t: t.negatives(5, 2, "int16"), "negatives cannot be int16; they must be int32 or int64"),
    ],
)
@pytest.mark.reliability("M3")
def test_a_column_of_another_length_or_dtype_is_refused_where_it_is_written(
    tmp_path: Path, call: Any, message: str
) -> None:
    def write() -> None:
        with Dataset.create(tmp_path / "d", name="d", num_nodes=9, num_classes=2) as writer:
            table = writer.links("a")
            table.pairs(5)
            call(table)

    with pytest.raises(ShapeError, match=message):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.reliability("M3")
def test_labels_before_pairs_are_held_to_them(tmp_path: Path) -> None:
    with (
        pytest.raises(ShapeError, match="links 'a': labels has 7 rows, and pairs has 5"),
        Dataset.create(tmp_path / "d", name="d", num_nodes=9, num_classes=2) as writer,
    ):
        table = writer.links("a")
        table.labels(7, "int64")
        table.pairs(5)


def test_a_table_without_pairs_stops_the_commit(tmp_path: Path) -> None:
    def write() -> None:
        with Dataset.create_hetero(
            tmp_path / "d", name="d", num_nodes={"a": 3}, relations=[("a", "r", "a")], num_classes=1
        ) as writer:
            edges = edge_arrays(3, 3, 5)
            with writer.edges(("a", "r", "a")).indptr() as column:
                column.append(edges.indptr)
            with writer.edges(("a", "r", "a")).indices(5, "int32") as column:
                column.append(edges.indices)
            writer.nodes("a").labels(np.zeros(3, np.int64))
            writer.nodes("a").splits(train=np.arange(1), valid=np.arange(1), test=np.arange(1))
            with writer.links("late").times(0):
                pass

    with pytest.raises(ShapeError, match="links 'late': its pairs were not written"):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "relation", "reverse", "message"),
    [
        ("a/b", BUYS, None, "links 'a/b': a name has 1 to 100 of the characters"),
        ("a__b", BUYS, None, "links 'a__b': a name has"),
        ("..", BUYS, None, r"links '\.\.': a name has"),
        (
            "x",
            ("a", "b", "c"),
            None,
            "links 'x': there is no relation a:b:c; there are user:buys:item, item:rev_b",
        ),
        ("x", BUYS, ("a", "b", "c"), "links 'x': there is no relation a:b:c"),
        (
            "x",
            BUYS,
            BUYS,
            "user:buys:item does not lead back along user:buys:item; the reverse goes from 'item' to",
        ),
        (
            "x",
            None,
            None,
            "links 'x' need a relation; there are user:buys:item, item:rev_buys:user",
        ),
        ("Train", BUYS, None, "links 'Train': the dataset has the link table 'train' already"),
    ],
)
def test_tables_that_cannot_be_are_refused_where_they_are_begun(
    tmp_path: Path, name: str, relation: Any, reverse: Any, message: str
) -> None:
    with (
        pytest.raises(GraphError, match=message),
        Dataset.create_hetero(
            tmp_path / "d",
            name="d",
            num_nodes={"user": 2, "item": 2},
            relations=[BUYS, BOUGHT],
            num_classes=1,
        ) as writer,
    ):
        writer.links("train", relation=BUYS)
        writer.links(name, relation=relation, reverse=reverse)
    assert not list(tmp_path.iterdir())


def changed(path: Path, **changes: Any) -> Dataset:
    """Open the dataset with a record of which what is said of links, or arrays, are others."""
    manifest = load_manifest(path, DATASET_MANIFEST)
    features = changes.pop("features", manifest.required_features)
    metadata = {**manifest.metadata, **changes.pop("metadata", {})}
    arrays = dict(manifest.arrays)
    for name, fields in changes.items():
        if fields is None:
            del arrays[name]
        else:
            arrays[name] = replace(arrays.get(name, next(iter(arrays.values()))), name=name, **fields)
    return Dataset(path, replace(manifest, metadata=metadata, arrays=arrays, required_features=features))


def entry(**changes: Any) -> dict[str, Any]:
    """Return a record of "train" that says ``changes``, and one of "valid"."""
    said = {"relation": "node:to:node", "reverse": None, "in_graph": 0}
    return {"metadata": {"links": {"train": {**said, **changes}, "valid": said}}}


def only(name: str) -> dict[str, Any]:
    return {"metadata": {"links": {name: entry()["metadata"]["links"]["valid"]}}}


@pytest.mark.reliability("M4")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"links": None}}, "'links' must list relation, reverse and in_graph of each table"),
        ({"metadata": {"links": []}}, "'links' must list"),
        ({"metadata": {"links": {"train": 3}}}, "links 'train': it must have relation, reverse and in_graph"),
        ({"metadata": {"links": {"train": {}}}}, "links 'train': it must have"),
        (entry(more=1), "links 'train': it must have"),
        (entry(relation="a:b:c"), "'a:b:c' is no relation of the dataset; there are node:to:node"),
        (entry(relation=[1]), "is no relation of the dataset"),
        (entry(reverse=3), "is no relation of the dataset"),
        (entry(in_graph=-1), "in_graph is -1; it must be a number of rows"),
        (entry(in_graph=True), "in_graph is True; it must be"),
        (entry(in_graph=COUNT + 1), "in_graph is 3001; there are 3000 rows"),
        (
            {"metadata": {"links": {"a__b": entry()["metadata"]["links"]["train"]}}},
            "links 'a__b': a name has",
        ),
        (only("train"), "array 'links/valid/labels' belongs to no link table in the record"),
        ({"links/train/x": {}}, "array 'links/train/x' belongs to no link table"),
        ({"links/other/pairs": {}}, "array 'links/other/pairs' belongs to no link table"),
        ({"links/train/pairs": None}, "links 'train': the array links/train/pairs is missing"),
        ({"links/train/pairs": {"shape": (COUNT, 3)}}, r"pairs has shape \(3000, 3\); it must be \(n, 4\)"),
        ({"links/train/pairs": {"shape": (COUNT,)}}, r"pairs has shape \(3000,\); it must be \(n, 4\)"),
        ({"links/train/pairs": {"dtype": "int32"}}, "links 'train': pairs has dtype int32; it must be int64"),
        ({"links/train/labels": {"shape": (9,)}}, "links 'train': labels has 9 rows, and pairs has 3000"),
        (
            {"links/train/labels": {"shape": (COUNT, 1)}},
            r"labels has shape \(3000, 1\); it must have one dimension",
        ),
        ({"links/train/labels": {"dtype": "int32"}}, "labels has dtype int32; it must be int64 or float32"),
        ({"links/train/times": {"dtype": "float32"}}, "times has dtype float32; it must be int64"),
        (
            {"links/train/negatives": {"shape": (COUNT,)}},
            r"negatives has shape \(3000,\); it must be \(n, k\)",
        ),
    ],
)
def test_a_record_of_links_that_contradicts_itself_is_refused(
    dataset: Dataset, changes: Any, message: str
) -> None:
    changed(dataset.root)
    with pytest.raises(FormatError, match=message):
        changed(dataset.root, **changes)


def test_what_somebody_noted_as_links_before_there_were_any_is_no_table(tmp_path: Path) -> None:
    dataset = write_linked(tmp_path / "d", {}, metadata={"links": "https://example.org"})
    assert dataset.metadata["links"] == "https://example.org"
    assert list(dataset.link_tables) == []


def test_an_older_build_refuses_link_tables_by_name(dataset: Dataset, monkeypatch: Any) -> None:
    older = frozenset({"int8-row-scale", "array-folders", "edge-columns"})
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", older)
    with pytest.raises(
        VersionError, match=r"needs features \['link-tables'\] that this build .* use a newer build"
    ):
        Dataset.open(dataset.root)


@pytest.mark.parametrize("change", ["pairs", "relation", "reverse", "name", "labels"])
def test_the_fingerprint_is_that_of_the_links_too(tmp_path: Path, change: str) -> None:
    same = ("a", "r", "a")
    relations = [same, ("a", "s", "a")]

    def written(folder: str, **changes: Any) -> str:
        arrays = arrays_of_one(20, k=0)
        arrays.pairs[:] = -1
        arrays.pairs[:, :2] = 0
        if changes.get("pairs"):
            arrays.pairs[3, 0] = 1
        with Dataset.create_hetero(
            tmp_path / folder, name="d", num_nodes={"a": 3}, relations=relations, num_classes=1
        ) as writer:
            for relation in relations:
                with writer.edges(relation).indptr() as column:
                    column.append(np.zeros(4, np.int64))
                with writer.edges(relation).indices(0, "int32") as column:
                    column.append(np.zeros(0, np.int32))
            writer.nodes("a").labels(np.zeros(3, np.int64))
            writer.nodes("a").splits(train=np.arange(1), valid=np.arange(1), test=np.arange(1))
            table = writer.links(
                changes.get("name", "t"),
                relation=changes.get("relation", same),
                reverse=changes.get("reverse"),
            )
            write_link_table(table, replace(arrays, labels=None) if changes.get("labels") else arrays)
        return Dataset.open(tmp_path / folder).fingerprint

    others = {"pairs": True, "relation": relations[1], "reverse": same, "name": "u", "labels": True}
    assert written("a") == written("b") != written("c", **{change: others[change]})


@pytest.mark.reliability("M1")
def test_verify_reads_every_file_of_a_link_table_and_of_edge_columns(dataset: Dataset) -> None:
    root = dataset.root
    assert verify_dataset(root).is_ok
    files = [
        path
        for path in sorted(root.rglob("*"))
        if path.suffix in {".npy", ".pages"} and (path.parent.name == "train" or "edge_" in path.name)
    ]
    assert len(files) == 2 * (4 + 2)
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[:4100] + bytes([data[4100] ^ 4]) + data[4101:])
        report = verify_dataset(root)
        assert {problem.file for problem in report.problems} == {str(file.relative_to(root))}
        tables = {table.table: table.num_problems for table in verified_tables(report)}
        assert tables == {"links train": int(file.parent.name == "train"), "links valid": 0}
        file.write_bytes(data)


def test_verify_counts_the_rows_in_the_graph(tmp_path: Path) -> None:
    arrays = arrays_of_one(30)

    write_linked(tmp_path / "d", {"train": arrays})
    manifest = load_manifest(tmp_path / "d", DATASET_MANIFEST)
    said = {"train": {**manifest.metadata["links"]["train"], "in_graph": 3}}
    record = replace(manifest, metadata={**manifest.metadata, "links": said})
    (tmp_path / "d" / DATASET_MANIFEST).write_bytes(record.to_bytes())
    (problem,) = verify_dataset(tmp_path / "d").problems
    said_of_them = "rows have a position; the commit record says 3"
    assert said_of_them in problem.message
    with pytest.raises(FormatError, match=said_of_them):
        Dataset.open(tmp_path / "d").link_table("train").open(max_bytes=10**9)


def test_a_dataset_with_links_that_is_replaced_is_told_from_damage(tmp_path: Path) -> None:
    before = write_linked(tmp_path / "d", {"train": arrays_of_one()}).link_table("train")
    # The second has the table of the first, and is another dataset.
    for tables in ({"train": arrays_of_one(seed=3)}, {"train": arrays_of_one(), "more": arrays_of_one()}):
        write_linked(tmp_path / "d", tables, overwrite=True)
        for max_bytes in MEMORIES.values():
            with pytest.raises(OSError, match="the store was replaced after it was opened"):
                before.open(max_bytes=max_bytes)


def test_what_is_open_is_read_on_when_the_dataset_is_replaced(tmp_path: Path) -> None:
    arrays = arrays_of_one()
    with write_linked(tmp_path / "d", {"train": arrays}).link_table("train").open(max_bytes=0) as links:
        write_linked(tmp_path / "d", {"train": arrays_of_one(seed=3)}, overwrite=True)
        arrays.require(links.read(np.arange(COUNT)), np.arange(COUNT))


def test_arrays_of_links_in_memory_are_those_that_were_written(dataset: Dataset, arrays: LinkArrays) -> None:
    found = dataset.to_numpy()["links"]
    np.testing.assert_array_equal(found["train"].pop("edge_index"), arrays.pairs[:, :2].T)
    assert found["train"].keys() == {"labels", "times", "negatives"}
    np.testing.assert_array_equal(found["train"]["negatives"], arrays.negatives)
    assert found["valid"]["edge_index"].shape == (2, 0)


def test_folders_of_links_are_written_nowhere_else(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "d", manifest_name=DATASET_MANIFEST) as directory:
        for name in (
            "links/../x",
            "links/a/b/c",
            "links/a__b/x",
            "links/x",
            "Links/a/x",
            "links//x",
            "links/a/",
        ):
            with pytest.raises(FormatError, match="array name"):
                directory.array(name, dtype="int64", shape=(1,))
    assert not list(tmp_path.iterdir())


RECOMMEND = ("user", "likes", "item")


def free_arrays(count: int = 20) -> LinkArrays:
    arrays = link_arrays(count, labels=None, k=0)
    arrays.pairs[:, 2:] = -1
    return arrays


def write_free(path: Path, arrays: LinkArrays, **given: Any) -> Dataset:
    dataset = write_linked_types(path / "plain", {})
    with Dataset.create_hetero(
        path / "d",
        name="d",
        num_nodes={name: table.num_nodes for name, table in dataset.node_tables.items()},
        relations=[],
        num_classes=1,
    ) as writer:
        nobody = np.empty(0, np.int64)
        writer.nodes("item").labels(np.full(25, -1))
        writer.nodes("item").splits(train=nobody, valid=nobody, test=nobody)
        write_link_table(writer.links("train", **{"relation": RECOMMEND, "free": True, **given}), arrays)
    return Dataset.open(path / "d")


def test_pairs_that_are_no_edges_may_have_a_relation_that_the_graph_does_not_have(tmp_path: Path) -> None:
    arrays = free_arrays()
    dataset = write_free(tmp_path, arrays)
    table = dataset.link_table("train")
    assert (table.relation, table.reverse_relation, table.in_graph) == (RECOMMEND, None, 0)
    assert "free-links" in load_manifest(dataset.root, DATASET_MANIFEST).required_features
    with table.open(max_bytes=0) as links:
        arrays.require(links.read(np.arange(20)), np.arange(20))
    assert verify_dataset(dataset.root).is_ok


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"free": False}, "links 'train': there is no relation user:likes:item; there are none"),
        ({"relation": ("user", "likes", "shop")}, "there is no relation user:likes:shop"),
        ({"relation": ("user", "a__b", "item")}, "there is no relation user:a__b:item"),
        ({"reverse": ("item", "liked", "user")}, "there is no relation user:likes:item"),
    ],
)
def test_a_free_relation_is_between_two_types_and_has_no_reverse(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        write_free(tmp_path, free_arrays(), **given)


def test_a_free_table_has_no_positions(tmp_path: Path) -> None:
    arrays = free_arrays()
    arrays.pairs[7, 2] = 0
    dataset = write_free(tmp_path, arrays)
    with pytest.raises(FormatError, match="row 7: position 0 must be -1, which means no such edge"):
        dataset.link_table("train").open(max_bytes=0).read(np.arange(20))


def test_a_record_of_free_links_must_name_their_feature(tmp_path: Path) -> None:
    dataset = write_free(tmp_path, free_arrays())
    manifest = load_manifest(dataset.root, DATASET_MANIFEST)
    features = tuple(name for name in manifest.required_features if name != "free-links")
    (dataset.root / DATASET_MANIFEST).write_bytes(replace(manifest, required_features=features).to_bytes())
    with pytest.raises(FormatError, match="'user:likes:item' is no relation of the dataset; there are none"):
        Dataset.open(dataset.root)
