"""Trainable rows of a node type, in a folder that may be larger than memory.

A `NodeEmbedding` has one trained vector for each node of a type. A loader with ``embeddings=`` puts the rows of each
batch into the batch, and `NodeEmbedding.step` trains them. The bits are those of ``torch.nn.Embedding(sparse=True)``
with the same optimizer.

- A row is a node's weights, followed by the optimizer's state for them.
- An embedding table is the folder with the rows. A record is a file of the table that names all of its files at one
  moment: a checkpoint.
- A slot holds one row in memory. All rows of a batch are in slots from their load until the batch's step.
- A leaf is a batch's weights as a tensor that receives a gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Union, cast, get_args

import numpy as np

from gloader.core.flag_values import require_choice
from gloader.core.near_names import near_attributes, near_keywords, nearest
from gloader.core.signals import uninterrupted
from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.dataset.table_file import is_table_file, write_rows, write_table
from gloader.distributed import find_membership
from gloader.errors import ConfigError, StateError
from gloader.pipeline.absent_table import AbsentTable, elsewhere
from gloader.pipeline.embedding_optimizers import (
    OPTIMIZERS,
    RowwiseAdagrad,
    check_same_optimizer,
    optimizer_from,
)
from gloader.pipeline.node_rows import PIECE_ROWS, NodeRows
from gloader.pipeline.open.row_slots import GivenEmbeddings
from gloader.plan.sweep_plan import open_spill
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.embedding.initial_rows import InitialRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import pyarrow as pa
    import torch
    from numpy.typing import NDArray

    from gloader.dataset.tables import NodeTable
    from gloader.pipeline.embedding_optimizers import RowOptimizer
    from gloader.pipeline.embedding_rows import RowStats
    from gloader.ssd_store.os_io import StrPath
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import Delivered


logger = logging.getLogger("gloader")

InitialKind: TypeAlias = Literal["uniform", "normal", "zeros"]  # distribution of the first weights
_MOST_DIM: Final = 1 << 16  # columns: a row is a small part of each buffer


@near_attributes
class NodeEmbedding:
    """One trained vector for each node of a type, on the SSD, with a part of the rows in memory.

    A loader with ``embeddings=`` serves the rows. For each of its batches, call `step` after ``loss.backward()``, or
    `skip`, before the next batch is taken. One loader at a time trains an embedding; others take `frozen`.

    Creating a table writes no rows: a row without a version on the disk is computed from ``seed`` and its number.

    The ranks of a machine, as of torchrun, train one table together. Each makes its embedding with the same arguments,
    and rank 0 opens the table: `pieces`, `export`, `checkpoint` and `forget` are for rank 0 alone. A step takes the sum
    of the gradients of all ranks.

    Parameters
    ----------
    dataset : the dataset with the nodes
    node_type : the node type; None for the only type of a dataset
    dim : D, columns of a vector
    optimizer : `gloader.RowwiseAdagrad`, `gloader.Adagrad` or `gloader.SparseAdam`; default `RowwiseAdagrad()`
    dtype : "float32", the only dtype that stays exact over many steps
    init : the first weights: "uniform" in -1/sqrt(D)..1/sqrt(D), "normal" with this standard deviation, or "zeros".
        A number after a colon replaces 1/sqrt(D), as in "uniform:0.05"
    seed : key of the first weights
    folder : a new folder that keeps the table; None means a temporary folder, which is removed at the end
    cache : bytes of the rows in memory, such as "1GB". Default: the whole table if it fits in a quarter of the loader's
        memory budget, else that quarter

    Raises
    ------
    ConfigError
        A parameter has a value that is not allowed, or the dataset has no such type.
    StoreExistsError
        ``folder`` exists. `open` continues with its table.
    StoreWriteError, SpillError
        The folder cannot be created.
    """

    @near_keywords
    def __init__(  # noqa: PLR0913 - public settings, each a keyword
        self,
        dataset: Dataset,
        node_type: str | None = None,
        *,
        dim: int,
        optimizer: RowOptimizer | None = None,
        dtype: str = "float32",
        init: str = "uniform",
        seed: int = 0,
        folder: StrPath | None = None,
        cache: str | int | None = None,
    ) -> None:
        nodes = _nodes_of(dataset, node_type)
        require_choice("dtype", dtype, ("float32",))
        cache_bytes = None if cache is None else parse_bytes(cache)
        if type(dim) is not int or not 1 <= dim <= _MOST_DIM:
            raise ConfigError(f"dim={dim!r} must be a whole number in 1..{_MOST_DIM}")
        optimizer = _checked_optimizer(RowwiseAdagrad() if optimizer is None else optimizer)
        initial = _initial_rows(init, seed, dim, optimizer.initial_state(dim))
        facts = {
            "dataset": dataset.fingerprint,
            "node_type": nodes.name,
            "dim": dim,
            "dtype": dtype,
            "optimizer": optimizer.facts(),
        }
        if not _has_table():
            absent = AbsentTable(
                num_rows=nodes.num_nodes,
                initial=initial,
                facts=facts,
                folder=None if folder is None else Path(folder),
            )
            self._begin(nodes, absent, optimizer, cache_bytes)
            return
        with uninterrupted():
            temporary, place = None, folder
            if place is None:
                temporary = open_spill(None, None, data_bytes=4 * initial.width * nodes.num_nodes)
                if temporary is None:
                    raise ConfigError(
                        "the temporary folder is in memory or cannot be written, so an embedding has no place there: "
                        "pass folder=, or set GLOADER_SPILL_DIR to a folder on a disk"
                    )
                place = temporary.path / "table"
            try:
                table = EmbeddingTable.create(
                    Path(place),
                    num_rows=nodes.num_nodes,
                    initial=initial,
                    facts=facts,
                )
            except BaseException:
                if temporary is not None:
                    temporary.close()
                raise
            self._begin(nodes, table, optimizer, cache_bytes, temporary)

    def _begin(
        self,
        nodes: NodeTable,
        table: EmbeddingTable | AbsentTable,
        optimizer: RowOptimizer,
        cache_bytes: int | None,
        temporary: SpillFolder | None = None,
    ) -> None:
        """Set every attribute. The constructor and `open` end here."""
        self._nodes = nodes
        self._rows = NodeRows(
            nodes.name,
            table,
            optimizer,
            cache_bytes=cache_bytes,
            fingerprint=table.facts["dataset"],
            temporary=temporary,
        )

    @classmethod
    @near_keywords
    def open(
        cls,
        dataset: Dataset,
        folder: StrPath,
        *,
        record: str | None = None,
        node_type: str | None = None,
        dim: int | None = None,
        optimizer: RowOptimizer | None = None,
        cache: str | int | None = None,
    ) -> Self:
        """Open a kept table at a record, and drop the work after the record.

        Parameters
        ----------
        dataset : the dataset of the table
        folder : the folder of an earlier `NodeEmbedding`
        record : name of the record; None means the newest
        node_type, dim : what the table must have; None takes the table's
        optimizer : the optimizer from now on. It may differ from the table's in its learning rate alone. None takes the
            table's
        cache : as in the constructor

        Raises
        ------
        StateError
            The table is of another dataset, type or optimizer, or has another ``dim``. The message names the field.
        StoreOpenError, FormatError, VersionError, ChecksumError, StoreReadError, TruncatedStoreError
            The folder has no such record, or is damaged.
        StoreLockedError
            Another process has opened the table for training.
        """
        cache_bytes = None if cache is None else parse_bytes(cache)
        with uninterrupted():
            is_ours = _has_table()
            table = EmbeddingTable.open(Path(folder), record=record, is_read_only=not is_ours)
            try:
                nodes, known = _checked_facts(table, dataset, node_type, dim, optimizer)
                embedding = cls.__new__(cls)
                held = table if is_ours else AbsentTable.of(table)
                cls._begin(embedding, nodes, held, known, cache_bytes)
            except BaseException:
                table.close()
                raise
            if not is_ours:
                table.close()
        return embedding

    @property
    def node_type(self) -> str:
        """The node type."""
        return self._nodes.name

    @property
    def num_rows(self) -> int:
        """N, the number of nodes of the type."""
        return self._nodes.num_nodes

    @property
    def dim(self) -> int:
        """D, the number of columns."""
        return self._rows.dim

    @property
    def optimizer(self) -> RowOptimizer:
        """The rule of a step."""
        return self._rows.optimizer

    @property
    def folder(self) -> Path:
        """The folder of the table."""
        if self._rows.stored.folder is None:
            raise elsewhere("folder, which is temporary,")
        return self._rows.stored.folder

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps so far."""
        return self._rows.num_steps

    @property
    def stats(self) -> RowStats:
        """The rows that moved since a loader trains the embedding, and the bytes since it was opened. For rank 0."""
        return self._rows.stats

    def step(self, batch: Delivered) -> None:
        """Train the rows of ``batch`` by one step of the optimizer, with the gradient of the batch's leaf.

        The gradient is ``batch.embedded[node_type].grad``. It may be changed before, for instance clipped.

        Raises
        ------
        StateError
            The batch is not the loader's last one, was stepped or skipped before, or has no gradient.
        ShapeError
            The gradient has another shape than the leaf.
        """
        self._rows.require_trained("step").step(batch)

    def skip(self, batch: Delivered) -> None:
        """Finish ``batch`` without a step: its rows and the number of steps stay as they are.

        Raises
        ------
        StateError
            The batch is not the loader's last one, or was stepped or skipped before.
        """
        self._rows.require_trained("skip").skip(batch)

    def rows(self, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the present weights (M, D) float32 of the nodes ``ids`` (M,), in any order; writes nothing.

        Raises
        ------
        ShapeError
            An id is no node.
        StoreError
            The table cannot be read, or is damaged.
        """
        return self._rows.rows(ids)

    def pieces(self, max_rows: int = PIECE_ROWS) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all present weights in order of their ids, as the first id of a piece and the piece (n, D).

        The table is read sequentially. No step may be made meanwhile.

        Parameters
        ----------
        max_rows : largest n

        Raises
        ------
        ConfigError
            ``max_rows`` is less than 1.
        StoreError
            The table cannot be read, or is damaged.
        """
        return self._rows.pieces(max_rows)

    def checkpoint(self, record: str = "last") -> None:
        """Write all rows that changed, and then the record ``record``; a record of this name is replaced.

        The record is complete or absent, also after a crash. Call it between the step of a batch and the next batch;
        ``loader.state_dict()`` has the position that belongs to it. In the middle of an epoch the changed
        rows that wait for a later batch are written too: up to several times the bytes of the rows in memory.

        Parameters
        ----------
        record : name of the record; several records with different names may exist

        Raises
        ------
        StateError
            The loader's last batch was neither stepped nor skipped, or rank 0 has the table for this rank.
        ConfigError
            The table is temporary, or the name is no file name.
        StoreWriteError
            The disk is full or fails; the earlier records stay as they are.
        """
        self._rows.checkpoint(record)

    def forget(self, record: str) -> None:
        """Remove a record, and the files that only this record needs.

        Raises
        ------
        ConfigError
            There is no such record.
        StoreWriteError
            The file system refuses.
        """
        self._rows.require_open()
        self._rows.stored.forget(record)

    def export(self, path: StrPath, *, max_rows: int = PIECE_ROWS) -> None:
        """Write all present weights to ``path``, piece by piece; the file is complete or absent.

        ``.npy`` has the weights (N, D) float32 in order of the ids. ``.parquet`` and ``.csv`` have a column ``key`` if
        the dataset has keys, else ``id``, and the columns ``d0``, ``d1``, ...

        Raises
        ------
        ConfigError
            The file has another suffix.
        StoreExistsError, StoreWriteError
            ``path`` exists, or cannot be written.
        """
        out = Path(path)
        pieces = (rows for _, rows in self.pieces(max_rows))
        if is_table_file(out):
            write_table(out, self._batches(pieces), coded=[_key_name(self._nodes)])
        elif out.suffix.lower() == ".npy":
            write_rows(out, pieces, (self.num_rows, self.dim), "<f4")
        else:
            raise ConfigError(f"{out}: an embedding is exported to a .npy, .parquet or .csv file")

    def frozen(self) -> FrozenEmbedding:
        """Return a view for loaders that do not train, such as for evaluation."""
        return FrozenEmbedding(self._rows)

    def close(self, *, drop: bool = False) -> None:
        """Close the table, and remove a temporary one. Idempotent. Close the loader first.

        Steps since the last record are lost.

        Parameters
        ----------
        drop : whether these steps are lost without a warning

        Raises
        ------
        StateError
            A loader trains the embedding.
        """
        self._rows.close(drop=drop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return the type, the sizes and the folder."""
        return (
            f"NodeEmbedding({self.node_type!r}, num_rows={self.num_rows:,}, dim={self.dim}, "
            f"optimizer={self.optimizer}, folder={str(self._rows.stored.folder)!r})"
        )

    def _batches(self, pieces: Iterator[NDArray[np.float32]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows as a table: the key or the id in the source, then the columns."""
        import pyarrow as pa

        names = [_key_name(self._nodes), *(f"d{column}" for column in range(self.dim))]
        first = 0
        for piece in pieces:
            ids = np.arange(first, first + len(piece))
            first += len(piece)
            keys = self._nodes.keys_of(ids) if self._nodes.has_keys else self._nodes.original_ids_of(ids)
            columns = [pa.array(keys), *(pa.array(np.ascontiguousarray(column)) for column in piece.T)]
            yield pa.RecordBatch.from_arrays(columns, names=names)


class FrozenEmbedding:
    """A view of a `NodeEmbedding` that never writes. Made by `NodeEmbedding.frozen`.

    A loader with this view puts the rows of each batch into ``batch.embedded`` without a gradient. They are the rows at
    the moment when the batch is handed out. Several loaders may share it.
    """

    def __init__(self, rows: NodeRows) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        """Return the type, the sizes and the folder."""
        return (
            f"FrozenEmbedding({self.node_type!r}, num_rows={self.num_rows:,}, dim={self.dim}, "
            f"folder={str(self._rows.stored.folder)!r})"
        )

    @property
    def node_type(self) -> str:
        """The node type."""
        return self._rows.node_type

    @property
    def num_rows(self) -> int:
        """N."""
        return self._rows.num_rows

    @property
    def dim(self) -> int:
        """D."""
        return self._rows.dim

    def rows(self, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the present weights (M, D) of the nodes ``ids`` (M,); see `NodeEmbedding.rows`."""
        return self._rows.rows(ids)

    def pieces(self, max_rows: int = PIECE_ROWS) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all present weights in order of their ids; see `NodeEmbedding.pieces`."""
        return self._rows.pieces(max_rows)


# What a loader takes as ``embeddings``.
Embeddings: TypeAlias = Union[
    "NodeEmbedding", "FrozenEmbedding", "Mapping[str, NodeEmbedding | FrozenEmbedding]"
]


def given_embeddings(dataset: Dataset, embeddings: Embeddings | None) -> GivenEmbeddings:
    """Return a loader's embeddings, checked.

    Raises
    ------
    ConfigError
        An embedding belongs to another dataset or another type than its key, or is no embedding.
    """
    if embeddings is None:
        return GivenEmbeddings()
    if not isinstance(embeddings, Mapping):
        embeddings = {getattr(embeddings, "node_type", dataset.node_types[0]): embeddings}
    for name, each in embeddings.items():
        if not isinstance(each, NodeEmbedding | FrozenEmbedding):
            raise ConfigError(
                f"embeddings for type {name!r}: {each!r} is no gloader.NodeEmbedding and no frozen view of one"
            )
        if name not in dataset.node_types:
            raise ConfigError(
                f"embeddings for type {name!r}: the dataset has no such node type; it has "
                f"{', '.join(dataset.node_types)}"
            )
        if each.node_type != name:
            raise ConfigError(f"embeddings for type {name!r}: this embedding is of type {each.node_type!r}")
        each._rows.require_dataset(dataset)  # noqa: SLF001 - its own module
    # In the order of the types, so that batches are the same in any order of the mapping.
    ordered = [embeddings[name] for name in dataset.node_types if name in embeddings]
    return GivenEmbeddings(
        trained=tuple(each._rows for each in ordered if isinstance(each, NodeEmbedding)),  # noqa: SLF001
        frozen=tuple(each._rows for each in ordered if isinstance(each, FrozenEmbedding)),  # noqa: SLF001
    )


def _has_table() -> bool:
    """Return whether this process opens an embedding's table: with several ranks only rank 0, for all of them."""
    return find_membership("auto", None, None).rank == 0


def _nodes_of(dataset: Dataset, node_type: str | None) -> NodeTable:
    """Return the nodes of a type. Raises ConfigError if there is no such type, or no dataset."""
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"an embedding takes a dataset, not {dataset!r}: pass gloader.Dataset.open(path) for a path"
        )
    names = dataset.node_types
    if node_type is None and len(names) > 1:
        raise ConfigError(f"the dataset has several node types; pass one of {', '.join(names)}")
    name = names[0] if node_type is None else node_type
    if name not in names:
        near = nearest(str(name), names)
        advice = f"did you mean {near!r}?" if near else f"there are {', '.join(names)}"
        raise ConfigError(f"the dataset has no node type {name!r}; {advice}")
    return dataset.node_tables[name]


def _initial_rows(init: str, seed: int, dim: int, state: tuple[float, ...]) -> InitialRows:
    """Return the formula of the first rows from ``init``, such as "uniform" or "normal:0.1". Pure."""
    kind, _, text = init.partition(":")
    require_choice("init", kind, get_args(InitialKind))
    try:
        scale = float(text) if text else 1 / math.sqrt(dim)
    except ValueError:
        raise ConfigError(f'init={init!r}: {text!r} is no number; write for instance "{kind}:0.05"') from None
    if kind == "zeros":
        if text:
            raise ConfigError(f'init={init!r}: zeros take no number; write "zeros"')
        scale = 0.0
    return InitialRows(seed=seed, dim=dim, kind=cast("InitialKind", kind), scale=scale, state=state)


def _checked_optimizer(optimizer: RowOptimizer) -> RowOptimizer:
    """Return ``optimizer``. Raises ConfigError if it is none."""
    if not isinstance(optimizer, tuple(OPTIMIZERS.values())):
        raise ConfigError(
            f"optimizer={optimizer!r} does not train rows; pass gloader.RowwiseAdagrad(), gloader.Adagrad() or "
            "gloader.SparseAdam()"
        )
    return optimizer


def _checked_facts(
    table: EmbeddingTable,
    dataset: Dataset,
    node_type: str | None,
    dim: int | None,
    optimizer: RowOptimizer | None,
) -> tuple[NodeTable, RowOptimizer]:
    """Return the nodes and the optimizer of an opened table.

    Raises
    ------
    StateError
        A field of the table is not as given.
    """
    facts: Mapping[str, Any] = table.facts
    given = {
        "dataset": dataset.fingerprint,
        "node_type": facts["node_type"] if node_type is None else node_type,
        "dim": facts["dim"] if dim is None else dim,
        "dtype": "float32",
    }
    for name, value in given.items():
        if facts.get(name) != value:
            raise StateError(
                f"{table.folder}: {name} of this embedding is {facts.get(name)!r}, and not {value!r}; open it with the "
                "dataset and the settings that it was made with"
            )
    nodes = _nodes_of(dataset, facts["node_type"])
    if table.num_rows != nodes.num_nodes:
        raise StateError(
            f"{table.folder} has {table.num_rows} rows, and {nodes.name!r} has {nodes.num_nodes} nodes"
        )
    if optimizer is None:
        return nodes, optimizer_from(facts["optimizer"])
    check_same_optimizer(_checked_optimizer(optimizer), facts["optimizer"])
    return nodes, optimizer


def _key_name(nodes: NodeTable) -> str:
    """Return the name of the first column of an exported table."""
    return "key" if nodes.has_keys else "id"
