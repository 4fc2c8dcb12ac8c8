"""A reader of `dgl.save_graphs` files that does not need DGL.

`DglFile.open` finds each array's byte offset, dtype and shape, and leaves the elements on disk. The source ``dgl:FILE``
then reads them. `DglBytes` reads single values, and checks each against the file's size. `_GraphReader` reads the
parts of the file in order. DGL has written version 2 since its release 0.5. A file of version 2 has these parts:

- a header of 4096 bytes
- the graph labels: arrays that belong to the file, not to a node type or relation
- the graphs, of which this reader takes exactly one
- an index of the graphs' offsets

A graph starts with its *graph of types*, whose nodes are node types and whose edges are relations. Then come each
relation's edges, in one to three forms (`Form`: COO, CSR, CSC), each of which is called a matrix. The *columns* follow:
named arrays with a row per node or edge. A graph of version 1 has no types, and its edges are in CSC form. Most
integers have 8 bytes. Lists begin with their number of entries, and names with their number of bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from math import prod
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.npy_file import MappedFile, StoredArray, raising_source_errors
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import Relation


_ARRAY_MAGIC = 0xDD5E40F096B4A13F  # the signature before an array
_CPU = 1  # DLPack's code for the CPU
# numpy dtypes by DLPack's type code and number of bits. bfloat16 elements are read as uint16.
_DTYPES = {
    **{(0, bits): f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"<f{bits // 8}" for bits in (16, 32, 64)},
    (4, 16): "<u2",
    **{(5, bits): f"<c{bits // 8}" for bits in (64, 128)},
    (6, 8): "|b1",
}
_BFLOAT = 4  # DLPack's type code for bfloat16
_MAX_NDIM = 32  # maximum number of dimensions of an array, as in numpy 1
# Maximum number of bytes per name, and of entries per list. The limits bound the memory that a damaged file can take.
_MAX_NAME_BYTES = 4096
_MAX_ENTRIES = 1 << 14


class DglBytes:
    """Reads a file's values in order. Not thread-safe. The caller owns the file.

    Parameters
    ----------
    file : the file, open for reading
    path : the file's path, for messages
    num_bytes : the file's size

    Raises
    ------
    SourceError
        From every method: the file ends early, or has an invalid value. The message names file, byte and reason.
    """

    def __init__(self, file: IO[bytes], path: Path, num_bytes: int) -> None:
        self._file = file
        self._path = path
        self._mapped = MappedFile(path)
        self.num_bytes = num_bytes
        self.position = 0  # the byte at which the next value begins

    def damaged(self, offset: int, reason: str) -> SourceError:
        """Return the error for the value at byte ``offset`` of the file."""
        return SourceError(
            f"{self._path} is damaged at byte {offset}: {reason}; copy it again, or save it again with dgl.save_graphs"
        )

    def skip_to(self, position: int) -> None:
        """Continue at byte ``position``."""
        if not self.position <= position <= self.num_bytes:
            raise self.damaged(self.position, f"the next part begins at byte {position} of {self.num_bytes}")
        self.position = position

    def whole(self, what: str, *, is_signed: bool = False, num_bytes: int = 8) -> int:
        """Return the next integer, of ``num_bytes`` bytes. In this class, ``what`` is the value's name in messages."""
        return int.from_bytes(self._take(num_bytes, what), "little", signed=is_signed)

    def magic(self, magic: int, what: str) -> None:
        """Read the signature of ``what``. Raise SourceError if it is not ``magic``."""
        offset, signature = self.position, self.whole(f"the signature of {what}")
        if signature != magic:
            raise self.damaged(offset, f"the signature of {what} is {signature:#x}, not {magic:#x}")

    def count(self, what: str) -> int:
        """Return the number of entries in the list that follows.

        An entry has at least 8 bytes. Raise SourceError if the rest of the file is too short for all entries.
        """
        offset, count = self.position, self.whole(f"the number of {what}")
        if count > min(_MAX_ENTRIES, (self.num_bytes - self.position) // 8):
            left = self.num_bytes - self.position
            raise self.damaged(
                offset,
                f"the number of {what} is {count}; {left} bytes are left, and at most {_MAX_ENTRIES} are read",
            )
        return count

    def wholes(self, what: str) -> list[int]:
        """Return the next list of integers."""
        return [self.whole(what, is_signed=True) for _ in range(self.count(what))]

    def text(self, what: str) -> str:
        """Return the next name."""
        offset, length = self.position, self.whole(f"the length of {what}")
        if length > _MAX_NAME_BYTES:
            raise self.damaged(offset, f"{what} has {length} bytes; at most {_MAX_NAME_BYTES} are read")
        data = self._take(length, what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.damaged(offset, f"{what} is no text: {data[:40]!r}") from None

    def texts(self, what: str) -> list[str]:
        """Return the next list of names."""
        return [self.text(f"the name of {what} {number}") for number in range(self.count(what))]

    def columns(self, what: str) -> dict[str, StoredArray]:
        """Return the next list of named arrays."""
        arrays: dict[str, StoredArray] = {}
        for number in range(self.count(what)):
            offset, name = self.position, self.text(f"the name of array {number} of {what}")
            if name in arrays:
                raise self.damaged(offset, f"{name!r} is twice among the {what}")
            arrays[name] = self.array(f"{name!r} of {what}")
        return arrays

    def array(self, what: str) -> StoredArray:
        """Return the next array, without reading its elements."""
        self.magic(_ARRAY_MAGIC, what)
        self.whole(f"the reserved bytes of {what}")
        start = self.position
        # The device (with its index), the number of dimensions, and the dtype, as in DLPack. ``lanes`` is the number of
        # values per element.
        device, _, ndim, kind, bits, lanes = struct.unpack("<iiiBBH", self._take(16, f"the dtype of {what}"))
        name = _DTYPES.get((kind, bits))
        if device != _CPU or lanes != 1 or name is None:
            raise self.damaged(
                start,
                f"{what} has device {device}, dtype code {kind}, {bits} bits and {lanes} lanes; the array must be on "
                "the CPU and have a known dtype",
            )
        if not 0 <= ndim <= _MAX_NDIM:
            raise self.damaged(start, f"{what} has {ndim} dimensions")
        shape = tuple(self.whole(f"the shape of {what}", is_signed=True) for _ in range(ndim))
        dtype, num_bytes = np.dtype(name), self.whole(f"the size of {what}", is_signed=True)
        # numpy limits the size of an empty array too, and takes each dimension of 0 as 1.
        if min(shape, default=0) < 0 or prod(size or 1 for size in shape) * dtype.itemsize >= 2**62:
            raise self.damaged(start, f"{what} has shape {shape}")
        array = StoredArray(
            file=self._mapped, offset=self.position, shape=shape, dtype=dtype, is_bfloat16=kind == _BFLOAT
        )
        if num_bytes != array.num_bytes:
            raise self.damaged(start, f"{what} has {num_bytes} bytes for shape {shape} and dtype {dtype}")
        if num_bytes > self.num_bytes - self.position:
            raise self.damaged(
                start, f"{what} has {num_bytes} bytes, of which {self.num_bytes - self.position} are there"
            )
        self.position += num_bytes
        return array

    def _take(self, count: int, what: str) -> bytes:
        """Return the next ``count`` bytes."""
        self._file.seek(self.position)
        data = self._file.read(count)
        if len(data) < count:
            raise self.damaged(self.position, f"it ends within {what}")
        self.position += count
        return data


# The signatures at the start of a file, a graph, a graph of types, a relation, and a matrix of edges. COO matrices have
# `_PAIRS_MAGIC`. CSR and CSC matrices have `_LISTS_MAGIC`.
_FILE_MAGIC = 0xDD2E4FF046B4A13F
_GRAPH_MAGIC = 0xDD589FBE35224ABF
_TYPES_MAGIC = 0xDD3C5FFE20046ABF
_RELATION_MAGIC = 0xDD2E60F0F6B4A127
_PAIRS_MAGIC = 0xDD61FFD305DFF127
_LISTS_MAGIC = 0xDD6CD31205DFF127
_HEADER_BYTES = 4096  # the size of the file's header
# A relation has a code for its forms. With this bit, the code's other bits are a set of `Form`. Without it, as in DGL
# 0.5, the code is the number of the only form: 1 for PAIRS, 2 for BY_SOURCE, 3 for BY_DESTINATION.
_IS_SET = 1 << 32


class Form(IntFlag):
    """The forms of stored edges, with DGL's codes."""

    PAIRS = 1  # COO: each edge's source and destination
    BY_SOURCE = 2  # CSR: each source's destinations
    BY_DESTINATION = 4  # CSC: each destination's sources


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEdges:
    """A relation's edges in one form."""

    first: StoredArray  # (E,) sources for PAIRS, else (N + 1,) offsets of the lists
    second: StoredArray  # (E,) destinations for PAIRS, else the entries of all lists
    numbers: StoredArray | None  # (E,) each edge's row in the edge columns; None if edge e has row e
    num_sources: int
    num_destinations: int

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return self.second.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DglFile:
    """The structure of a file with one graph: its columns, and its edges in each saved form."""

    path: Path
    node_types: tuple[str, ...]
    num_nodes: tuple[int, ...]  # nodes per type
    edge_types: tuple[Relation, ...]
    relations: tuple[Mapping[Form, StoredEdges], ...]  # edges per relation, by form
    node_columns: tuple[Mapping[str, StoredArray], ...]  # columns per type
    edge_columns: tuple[Mapping[str, StoredArray], ...]  # columns per relation
    graph_labels: Mapping[str, StoredArray]  # arrays that belong to no type

    @classmethod
    def open(cls, path: Path) -> DglFile:
        """Read the file's structure. Array elements are not read.

        Raises
        ------
        SourceError
            The file is missing, damaged or not a DGL file, or does not have exactly one graph.
        """
        if not path.is_file():
            raise SourceError(f"{path} does not exist or is not a file; dgl: takes a file of dgl.save_graphs")
        with raising_source_errors(str(path)), path.open("rb") as file:
            if file.read(8) != _FILE_MAGIC.to_bytes(8, "little"):
                raise SourceError(
                    f"{path} is not a file of dgl.save_graphs: it does not begin with DGL's signature"
                )
            data = DglBytes(file, path, path.stat().st_size)
            data.skip_to(8)
            version, kind = data.whole("its version"), data.whole("the kind of its graphs")
            if (version, kind) not in ((1, 1), (2, 2)):
                raise data.damaged(
                    8, f"it has version {version} and graphs of kind {kind}, which DGL never wrote"
                )
            graph = (
                _GraphReader(data, path).version_2() if version == 2 else _GraphReader(data, path).version_1()
            )
            if data.position != data.num_bytes:
                raise data.damaged(data.position, f"{data.num_bytes - data.position} bytes follow its end")
        return graph

    @property
    def is_homogeneous(self) -> bool:
        """True if the graph has one node type and one relation."""
        return len(self.num_nodes) == len(self.relations) == 1

    def small_columns(self) -> dict[str, NDArray[Any]]:
        """Load a homogeneous graph's columns that have one number per node, such as labels and masks."""
        (columns,) = self.node_columns
        (count,) = self.num_nodes
        return {name: each.load() for name, each in columns.items() if each.shape in ((count,), (count, 1))}


class _GraphReader:
    """Reads a file's graph from ``data``, whose position is after the file's version and kind.

    A parameter ``offset`` is the byte that an error message names.
    """

    def __init__(self, data: DglBytes, path: Path) -> None:
        self._data = data
        self._path = path

    def version_2(self) -> DglFile:
        """Read a graph with types, in the order of the module's docstring, and check that its counts agree."""
        data = self._data
        self._require_one(data.whole("the number of graphs"))
        data.skip_to(_HEADER_BYTES)
        offset, first = data.position, data.whole("the start of its graphs")
        graph_labels = data.columns("labels of graphs")
        if first != data.position:
            raise data.damaged(offset, f"its graphs begin at byte {first}; its labels end at {data.position}")
        data.magic(_GRAPH_MAGIC, "the graph")
        offset, types = data.position, self._types()
        relations = [self._relation() for _ in range(data.count("relations"))]
        num_nodes = tuple(data.wholes("nodes of each type"))
        nodes = [data.columns("node data") for _ in range(data.count("types with node data"))]
        edges = [data.columns("edge data") for _ in range(data.count("relations with edge data"))]
        node_types, names = data.texts("node type"), data.texts("relation")
        of_types = len(num_nodes), len(nodes), len(node_types)
        of_relations = len(relations), len(edges), len(names)
        if {*of_types} != {types.num_sources} or {*of_relations} != {types.num_edges} or min(num_nodes) < 0:
            raise data.damaged(
                offset,
                f"its graph of types has {types.num_sources} types and {types.num_edges} relations; node counts, data "
                f"and names are of {of_types} types; edges, data and names are of {of_relations} relations; the node "
                f"counts are {num_nodes[:8]}",
            )
        edge_types = self._edge_types(offset, types, node_types, names)
        self._require_sizes(offset, dict(zip(node_types, num_nodes, strict=True)), edge_types, relations)
        offset = data.position
        length, starts = data.whole("the size of its index"), data.wholes("graphs in its index")
        if (length, starts, data.whole("the size of its index")) != (16, [first], 16):
            raise data.damaged(
                offset, f"its index has offsets {starts[:8]}; its graph begins at byte {first}"
            )
        graph = DglFile(
            path=self._path,
            node_types=tuple(node_types),
            num_nodes=num_nodes,
            edge_types=edge_types,
            relations=tuple(relations),
            node_columns=tuple(nodes),
            edge_columns=tuple(edges),
            graph_labels=graph_labels,
        )
        return self._checked(offset, graph)

    def version_1(self) -> DglFile:
        """Read a graph without types: counts, graph labels, edges in CSC form, and columns."""
        data = self._data
        data.skip_to(_HEADER_BYTES)
        self._require_one(data.whole("the number of graphs"))
        offset = data.position
        data.wholes("starts of graphs")
        num_nodes, num_edges = data.wholes("nodes of each graph"), data.wholes("edges of each graph")
        graph_labels = data.columns("labels of graphs")
        if len(num_nodes) != 1 or num_nodes[0] < 0:
            raise data.damaged(offset, f"its graph has node counts {num_nodes[:8]}")
        edges = self._lists(num_nodes[0], num_nodes[0])
        if num_edges != [edges.num_edges]:
            raise data.damaged(
                offset, f"its graph has edge counts {num_edges[:8]}; {edges.num_edges} are stored"
            )
        graph = DglFile(
            path=self._path,
            node_types=("_N",),
            num_nodes=(num_nodes[0],),
            edge_types=(("_N", "_E", "_N"),),
            relations=({Form.BY_DESTINATION: edges},),
            node_columns=(data.columns("node data"),),
            edge_columns=(data.columns("edge data"),),
            graph_labels=graph_labels,
        )
        return self._checked(offset, graph)

    def _require_one(self, num_graphs: int) -> None:
        """Raise SourceError unless the file has exactly one graph."""
        if num_graphs != 1:
            raise SourceError(f"{self._path} holds {num_graphs} graphs; save one")

    def _types(self) -> StoredEdges:
        """Return the graph of types. Its nodes are node types, and its edges are relations."""
        data = self._data
        data.magic(_TYPES_MAGIC, "a graph of types")
        offset = data.position
        lists = self._matrix(_LISTS_MAGIC)
        if lists.num_destinations != lists.num_sources or lists.num_sources < 1:
            raise data.damaged(offset, f"a graph of types is {lists.num_sources} x {lists.num_destinations}")
        return lists

    def _relation(self) -> dict[Form, StoredEdges]:
        """Return a relation's edges in each saved form."""
        data = self._data
        data.magic(_RELATION_MAGIC, "a relation")
        offset, code = data.position, data.whole("the forms of a relation")
        data.whole("the forms that a relation may take")
        # The code becomes a set of `Form`. The dictionary translates the numbers of DGL 0.5.
        forms = code ^ _IS_SET if code & _IS_SET else {1: 1, 2: 2, 3: 4}.get(code, 0)
        if not 1 <= forms <= 7:
            raise data.damaged(offset, f"the forms of a relation are {code:#x}")
        by_form: dict[Form, StoredEdges] = {}
        for form in Form:
            if forms & form:
                self._types()  # each form follows a graph of types, which is not needed here
                by_form[form] = self._matrix(_PAIRS_MAGIC if form is Form.PAIRS else _LISTS_MAGIC)
        # A matrix's rows are sources, except in BY_DESTINATION, where they are destinations.
        if Form.BY_DESTINATION in by_form:
            by_form[Form.BY_DESTINATION] = _with_ends_exchanged(by_form[Form.BY_DESTINATION])
        sizes = {(each.num_sources, each.num_destinations, each.num_edges) for each in by_form.values()}
        if len(sizes) != 1:
            raise data.damaged(offset, f"the forms of a relation are of different graphs: {sorted(sizes)}")
        return by_form

    def _matrix(self, magic: int) -> StoredEdges:
        """Return the next matrix of edges: signature, sizes, three arrays and sort flags. Its rows count as sources."""
        data = self._data
        data.magic(magic, "a matrix of edges")
        offset = data.position
        num_columns, num_rows = (
            data.whole(f"the number of {what} of edges", is_signed=True) for what in ("columns", "rows")
        )
        if min(num_rows, num_columns) < 0:
            raise data.damaged(offset, f"a matrix of edges is {num_rows} x {num_columns}")
        is_pairs = magic == _PAIRS_MAGIC
        edges = self._edges(num_rows, num_columns, None if is_pairs else num_rows + 1)
        data.whole("the sort flags of edges", num_bytes=2 if is_pairs else 1)
        return edges

    def _lists(self, num_rows: int, num_columns: int) -> StoredEdges:
        """Return edges in CSC form. The matrix's rows are destinations."""
        return _with_ends_exchanged(self._edges(num_rows, num_columns, num_rows + 1))

    def _edges(self, num_rows: int, num_columns: int, num_offsets: int | None) -> StoredEdges:
        """Return the next three arrays as edges. ``num_offsets`` is the length of the first, or None for pairs."""
        data = self._data
        offset = data.position
        first, second, numbers = (data.array(f"array {number} of the edges") for number in range(3))
        length = second.shape[0] if second.shape else -1
        expected = (length if num_offsets is None else num_offsets,)
        shapes = (first.shape, second.shape, numbers.shape)
        if first.shape != expected or second.shape != (length,) or numbers.shape not in ((0,), (length,)):
            raise data.damaged(
                offset, f"edges of {num_rows} x {num_columns} nodes have arrays of shapes {shapes}"
            )
        if any(each.dtype.kind != "i" for each in (first, second, numbers)):
            raise data.damaged(
                offset, f"edges have ids of dtype {first.dtype}, {second.dtype} and {numbers.dtype}"
            )
        return StoredEdges(
            first=first,
            second=second,
            numbers=numbers if numbers.shape == (length,) and length else None,
            num_sources=num_rows,
            num_destinations=num_columns,
        )

    def _edge_types(
        self, offset: int, types: StoredEdges, node_types: list[str], names: list[str]
    ) -> tuple[Relation, ...]:
        """Return the relations in order. They are the edges of the graph ``types``, which stores them by source."""
        offsets, ends = types.first.load(), types.second.load()
        numbers = np.arange(len(ends)) if types.numbers is None else types.numbers.load()
        is_whole = (
            int(offsets[0]) == 0
            and int(offsets[-1]) == len(ends)
            and bool((np.diff(offsets) >= 0).all())
            and bool(((ends >= 0) & (ends < len(node_types))).all())
            and np.array_equal(np.sort(numbers), np.arange(len(ends)))
        )
        if not is_whole:
            raise self._data.damaged(
                offset, f"its graph of types has offsets {offsets[:8]} and ends {ends[:8]}"
            )
        sources = np.repeat(np.arange(len(node_types)), np.diff(offsets))
        of_number = np.argsort(numbers)  # the position of each relation among the edges of ``types``
        edge_types = tuple(
            (node_types[source], name, node_types[end])
            for source, name, end in zip(sources[of_number], names, ends[of_number], strict=True)
        )
        twice = [each for each in (edge_types, node_types) if len(set(each)) < len(each)]
        if twice:
            raise self._data.damaged(offset, f"a name is twice among {twice[0][:8]}")
        return edge_types

    def _require_sizes(
        self,
        offset: int,
        num_nodes: Mapping[str, int],
        edge_types: tuple[Relation, ...],
        relations: list[dict[Form, StoredEdges]],
    ) -> None:
        """Raise SourceError if a relation's node counts differ from its types' node counts."""
        for (source, name, destination), forms in zip(edge_types, relations, strict=True):
            edges = next(iter(forms.values()))
            stored, declared = (
                (edges.num_sources, edges.num_destinations),
                (num_nodes[source], num_nodes[destination]),
            )
            if stored != declared:
                raise self._data.damaged(
                    offset,
                    f"edges {name!r} are of {stored[0]} and {stored[1]} nodes; {source!r} has {declared[0]}, and "
                    f"{destination!r} {declared[1]}",
                )

    def _checked(self, offset: int, graph: DglFile) -> DglFile:
        """Return the file. Raise SourceError for a column without exactly one row per node or edge."""
        counts = [*graph.num_nodes, *(next(iter(each.values())).num_edges for each in graph.relations)]
        for count, columns in zip(counts, [*graph.node_columns, *graph.edge_columns], strict=True):
            for name, column in columns.items():
                if column.shape[:1] != (count,):
                    raise self._data.damaged(
                        offset,
                        f"{name!r} has shape {column.shape}; it must have {count} rows, one for each node or edge",
                    )
        return graph


def _with_ends_exchanged(edges: StoredEdges) -> StoredEdges:
    """Return the edges with the numbers of sources and destinations exchanged. The arrays stay the same."""
    return StoredEdges(
        first=edges.first,
        second=edges.second,
        numbers=edges.numbers,
        num_sources=edges.num_destinations,
        num_destinations=edges.num_sources,
    )
