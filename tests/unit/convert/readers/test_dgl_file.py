from __future__ import annotations

import struct
import sys
from typing import Any, NamedTuple

import dgl_files
import numpy as np
import pytest
from dgl_files import DST, EDGE_FEAT, EDGE_TIME, FEAT, LABEL, PARTS, SRC, WEIGHT, E, N
from parser_guard import within_limits

from gloader.convert.options import SourceOptions
from gloader.convert.readers.dgl_file import DglFile, Form
from gloader.convert.registry import open_source
from gloader.convert.source import GraphSource
from gloader.errors import BudgetError, GloaderError, SourceError

UNTYPED = ("pairs", "by_source", "by_destination")


def opened(path, **options):
    return open_source(f"dgl:{path}", SourceOptions(**options))


class Part(NamedTuple):
    """A relation of a source, and the features of a type."""

    edges: Any
    features: Any
    edge_features: Any = None


def drain(source, size):
    """Return each edge with what it has, and the rows, from chunks of ``size``."""
    edges, number = [], 0
    rows = np.concatenate(list(source.edge_features.chunks(size))) if source.edge_features else None
    for chunk in source.edges.chunks(size):
        for i in range(len(chunk.src)):
            edge = (
                int(chunk.src[i]),
                int(chunk.dst[i]),
                None if chunk.weight is None else float(chunk.weight[i]),
                None if chunk.time is None else int(chunk.time[i]),
                None if rows is None else tuple(rows[number].tolist()),
            )
            edges.append(edge)
            number += 1
    return edges, np.concatenate(list(source.features.chunks(size))) if source.features else None


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", UNTYPED)
def test_each_form_is_read_without_dgl(name, size, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    source = opened(dgl_files.written(name, tmp_path))
    edges, rows = drain(source, size)
    expected = zip(SRC, DST, WEIGHT, EDGE_TIME, map(tuple, EDGE_FEAT.tolist()), strict=True)
    assert sorted(edges) == sorted((int(s), int(d), float(w), int(t), f) for s, d, w, t, f in expected)
    assert np.array_equal(rows, FEAT)
    assert rows.dtype == np.float32
    assert np.array_equal(source.labels, LABEL)
    for part, ids in PARTS.items():
        assert np.array_equal(getattr(source.splits, part), ids)
    assert (source.name, source.num_nodes, source.num_classes) == (name, N, 3)


@pytest.mark.parametrize("name", UNTYPED)
def test_what_leaves_the_streams_suits_kernels(name, tmp_path):
    source = opened(dgl_files.written(name, tmp_path))
    (chunk,) = source.edges.chunks(1000)
    (rows,) = source.features.chunks(1000)
    for array in (chunk.src, chunk.dst, chunk.weight, chunk.time, rows, source.labels, source.splits.train):
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.flags.c_contiguous


def test_nothing_of_the_arrays_is_read_at_first(tmp_path):
    path = dgl_files.written("pairs", tmp_path)
    file = DglFile.open(path)
    feat = file.node_columns[0]["feat"]
    assert (feat.shape, feat.dtype) == ((N, 3), np.float32)
    with path.open("r+b") as changed:
        changed.seek(feat.offset)
        changed.write(b"\xff" * feat.num_bytes)
    assert np.isnan(feat.load()).all()
    assert opened(path).resident_bytes == 0


def test_small_columns_are_those_of_one_number_a_node(tmp_path):
    found = DglFile.open(dgl_files.written("by_source", tmp_path)).small_columns()
    assert sorted(found) == ["label", "test_mask", "train_mask", "val_mask"]
    assert np.array_equal(found["label"], LABEL)
    assert np.array_equal(np.flatnonzero(found["val_mask"]), PARTS["valid"])
    assert found["label"].flags.owndata


def test_every_saved_form_is_there(tmp_path):
    file = DglFile.open(dgl_files.written("by_destination", tmp_path))
    forms = file.relations[0]
    assert list(forms) == [Form.BY_SOURCE, Form.BY_DESTINATION]
    assert {each.num_edges for each in forms.values()} == {E}
    assert sorted(file.graph_labels) == ["test_idx", "train_idx", "valid_idx"]
    assert np.array_equal(file.node_columns[0]["feat"].load(), FEAT)  # of bfloat16


def test_version_1_is_read(tmp_path):
    path = tmp_path / "old.bin"
    path.write_bytes(dgl_files.version_1())
    edges, rows = drain(opened(path), 4)
    assert sorted(edges) == sorted(
        (int(s), int(d), float(w), None, None) for s, d, w in zip(SRC, DST, WEIGHT, strict=True)
    )
    assert np.array_equal(rows, FEAT)


@pytest.mark.parametrize(("number", "form"), [(2, Form.BY_SOURCE), (3, Form.BY_DESTINATION)])
def test_the_number_of_one_form_is_what_dgl_0_5_wrote(number, form, tmp_path):
    data = dgl_files.content("by_source")
    assert data.count(struct.pack("<q", 1 << 32 | 2)) == 1
    path = tmp_path / "old.bin"
    path.write_bytes(data.replace(struct.pack("<q", 1 << 32 | 2), struct.pack("<q", number)))
    assert list(DglFile.open(path).relations[0]) == [form]


def test_several_types_are_read_without_dgl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    path = dgl_files.written("typed", tmp_path)
    file = DglFile.open(path)
    assert (file.node_types, file.num_nodes) == (("a", "b"), (N, N + 2))
    assert dict(zip(file.edge_types, file.relations, strict=True)).keys() == {
        ("a", "of", "b"),
        ("a", "to", "a"),
    }
    source = opened(path)
    assert [(nodes.name, nodes.num_nodes) for nodes in source.nodes] == [("a", N), ("b", N + 2)]
    assert source.nodes[1].features is None
    for each in source.relations:
        edges, rows = drain(Part(each.edges, source.nodes[0].features), 3)
        assert sorted(edge[:2] for edge in edges) == sorted(zip(SRC.tolist(), DST.tolist(), strict=True))
        assert np.array_equal(rows, FEAT)
    assert source.labelled == "a"
    assert np.array_equal(source.labels, LABEL)
    assert source.resident_bytes == sum(8 * (count + 1) for count in (N, N + 2))  # offsets of either relation


@pytest.mark.parametrize(
    ("offsets", "ends", "numbers"),
    [
        ([0, 2, 3], [1, 0], [0, 1]),
        ([0, 3, 2], [1, 0], [0, 1]),
        ([1, 2, 2], [1, 0], [0, 1]),
        ([0, 2, 2], [2, 0], [0, 1]),
        ([0, 2, 2], [1, -1], [0, 1]),
        ([0, 2, 2], [1, 0], [1, 1]),
        ([0, 2, 2], [1, 0], [0, 2]),
    ],
)
def test_a_graph_of_types_that_is_none_is_refused(offsets, ends, numbers, tmp_path):
    data, path = dgl_files.content("typed"), tmp_path / "bad.bin"
    old, new = (
        b"".join(dgl_files.array(np.array(each)) for each in arrays)
        for arrays in (([0, 2, 2], [1, 0], [0, 1]), (offsets, ends, numbers))
    )
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(SourceError, match=r"bad\.bin is damaged at byte \d+: its graph of types has offsets"):
        DglFile.open(path)


def test_a_budget_below_a_number_for_each_node_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="has 7 nodes"):
        opened(dgl_files.written("pairs", tmp_path), memory_budget_bytes=40)


def fields(data):
    """Return the positions of whole numbers of a graph: lengths, counts, shapes and sizes are all among them."""
    return [at for at in range(4096, len(data) - 7) if int.from_bytes(data[at : at + 8], "little") < 2**16]


def read(path):
    """Read a file to its end."""
    source = opened(path, memory_budget_bytes=10**8)
    parts = [source]
    if isinstance(source, GraphSource):
        features = next((nodes.features for nodes in source.nodes if nodes.features), None)
        parts = [Part(each.edges, features, each.edge_features) for each in source.relations]
    for part in parts:
        drain(part, 4)


def use(path, what):
    """Read a file as far as it goes: it ends well, or with an error that names it."""
    message = path.name
    try:
        with within_limits(what, num_bytes=30 * 10**6):
            read(path)
    except GloaderError as error:
        message = str(error)
    assert path.name in message, what


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    data, path = dgl_files.content("pairs"), tmp_path / "cut.bin"
    opened(dgl_files.written("pairs", tmp_path))
    for size in [*range(0, 32, 3), 4000, *range(4096, len(data))]:
        path.write_bytes(data[:size])
        with pytest.raises(
            SourceError, match=r"cut\.bin (is damaged at byte \d+|is not a file of dgl|holds)"
        ):
            DglFile.open(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(SourceError, match=rf"at byte {len(data)}: 1 bytes follow its end; copy it again"):
        DglFile.open(path)


@pytest.mark.parametrize("name", ["pairs", "by_destination", "typed"])
def test_lengths_that_are_not_the_files_are_refused(name, tmp_path):
    data, path = dgl_files.content(name), tmp_path / "huge.bin"
    for number, at in enumerate(fields(data)[::7]):
        value = (2**64 - 1, 2**63 - 1, 2**40, 2**32, 2**20)[number % 5]
        path.write_bytes(data[:at] + struct.pack("<Q", value) + data[at + 8 :])
        use(path, f"{value} at byte {at}")


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("pairs", struct.pack("<QQ", 2, 2), struct.pack("<QQ", 3, 2), "version 3 and graphs of kind 2"),
        ("pairs", struct.pack("<QQQ", 2, 2, 1), struct.pack("<QQQ", 2, 2, 5), "holds 5 graphs; save one"),
        ("pairs", b"feat", b"\xff\xfe\xfd\xfc", "is no text"),
        ("pairs", struct.pack("<iBBH", 2, 2, 32, 1), struct.pack("<iBBH", 2, 2, 33, 1), "33 bits"),
        ("pairs", struct.pack("<iBBH", 2, 2, 32, 1), struct.pack("<iBBH", 99, 2, 32, 1), "99 dimensions"),
        ("pairs", struct.pack("<qq", N, 3), struct.pack("<qq", -N, -3), r"shape \(-7, -3\)"),
        ("pairs", struct.pack("<qq", N, 3), struct.pack("<qq", 3, N), "it must have 7 rows"),
        (
            "pairs",
            struct.pack("<q", 1 << 32 | 1),
            struct.pack("<q", 1 << 32 | 8),
            "the forms of a relation are",
        ),
        (
            "pairs",
            struct.pack("<qqq", N, 3, 84),
            struct.pack("<qqq", N, 3, 80),
            r"80 bytes for shape \(7, 3\)",
        ),
        ("pairs", struct.pack("<qqq", N, 3, 84), struct.pack("<qqq", 700, 3, 8400), "8400 bytes, of which"),
        (
            "pairs",
            struct.pack("<Q", 4) + b"feat",
            struct.pack("<Q", 5000) + b"feat",
            "has 5000 bytes; at most 4096",
        ),
        (
            "pairs",
            struct.pack("<QQ", 1, 5),
            struct.pack("<QQ", 1, 1 << 40),
            f"is {1 << 40}; .* bytes are left",
        ),
        ("typed", struct.pack("<qq", N + 2, N), struct.pack("<qq", N + 1, N), "are of different graphs"),
        (
            "typed",
            struct.pack("<QQQ", 2, N, N + 2),
            struct.pack("<QQQ", 2, N + 2, N),
            "edges 'of' are of 7 and 9 nodes; 'a' has 9, and 'b' 7",
        ),
        ("typed", b"\1\0\0\0\0\0\0\0b", b"\1\0\0\0\0\0\0\0a", "a name is twice among"),
        (
            "pairs",
            struct.pack("<qq", N, N),
            struct.pack("<qq", N + 1, N + 1),
            "edges '_E' are of 8 and 8 nodes",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name, old, new, text, tmp_path):
    data, path = dgl_files.content(name), tmp_path / "bad.bin"
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(SourceError, match=rf"bad\.bin (is damaged at byte \d+: .*|)({text})"):
        DglFile.open(path)


def test_offsets_and_numbers_of_edges_are_checked(tmp_path):
    path = dgl_files.written("by_destination", tmp_path)
    lists = DglFile.open(path).relations[0][Form.BY_DESTINATION]
    data = path.read_bytes()
    for stored, value, text in (
        (lists.first, -1, "offsets must start with 0"),
        (lists.numbers, E, r"edge 0 has number 10; numbers are 0\.\.9"),
        (lists.numbers, -1, "edge 0 has number -1"),
    ):
        at = stored.offset
        path.write_bytes(data[:at] + struct.pack("<i", value) + data[at + 4 :])
        with pytest.raises(SourceError, match=rf"is damaged at byte {at}.*{text}"):
            opened(path)


def fuzz(folder, name, chances):
    """Flip, overwrite, delete and insert bytes of a file."""
    data, path = dgl_files.content(name), folder / "fuzzed.bin"
    read(dgl_files.written(name, folder))  # imports, and compiles, what that needs
    for seed in chances:
        chance = np.random.default_rng(seed)
        changed = bytearray(data)
        for _ in range(int(chance.integers(1, 4))):
            at, how = int(chance.integers(4096, len(changed))), int(chance.integers(4))
            if how == 0:
                changed[at] ^= 1 << int(chance.integers(8))
            elif how == 1:
                changed[at : at + 8] = chance.choice([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 33)])
            elif how == 2:
                del changed[at : at + int(chance.integers(1, 9))]
            else:
                changed[at:at] = changed[at : at + 8]
        path.write_bytes(changed)
        use(path, f"seed {seed} of {name}")


@pytest.mark.parametrize("name", dgl_files.NAMES)
def test_damaged_files_are_refused_or_read(name, tmp_path):
    fuzz(tmp_path, name, range(60))


@pytest.mark.long
@pytest.mark.parametrize("name", dgl_files.NAMES)
def test_many_damaged_files_are_refused_or_read(name, tmp_path):
    fuzz(tmp_path, name, range(100, 6000))
