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

from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.pipeline.embedding_optimizers import RowOptimizer
    from gloader.ssd_store.os_io import StrPath
    from gloader.types import Delivered


class NodeEmbedding:
    """One trained vector for each node of a type, on the SSD, with a part of the rows in memory.

    A loader with ``embeddings=`` serves the rows. For each of its batches, call `step` after ``loss.backward()``, or
    `skip`, before the next batch is taken. One loader at a time trains an embedding; others take `frozen`.

    Creating a table writes no rows: a row without a version on the disk is computed from ``seed`` and its number.

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
        raise NotImplementedError

    @classmethod
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
        raise NotImplementedError

    @property
    def node_type(self) -> str:
        """The node type."""
        raise NotImplementedError

    @property
    def num_rows(self) -> int:
        """N, the number of nodes of the type."""
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """D, the number of columns."""
        raise NotImplementedError

    @property
    def optimizer(self) -> RowOptimizer:
        """The rule of a step."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """The folder of the table."""
        raise NotImplementedError

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps so far."""
        raise NotImplementedError

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
        raise NotImplementedError

    def skip(self, batch: Delivered) -> None:
        """Finish ``batch`` without a step: its rows and the number of steps stay as they are.

        Raises
        ------
        StateError
            The batch is not the loader's last one, or was stepped or skipped before.
        """
        raise NotImplementedError

    def rows(self, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the present weights (M, D) float32 of the nodes ``ids`` (M,), in any order; writes nothing.

        Raises
        ------
        ShapeError
            An id is no node.
        StoreError
            The table cannot be read, or is damaged.
        """
        raise NotImplementedError

    def pieces(self, max_rows: int = 1 << 16) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all present weights in order of their ids, as the first id of a piece and the piece (n, D).

        The table is read sequentially. No step may be made meanwhile.

        Parameters
        ----------
        max_rows : largest n
        """
        raise NotImplementedError

    def checkpoint(self, record: str = "last") -> None:
        """Write all rows that changed, and then the record ``record``; a record of this name is replaced.

        The record is complete or absent, also after a crash. Call it between the step of a batch and the next batch;
        ``loader.state_dict()`` has the position that belongs to it.

        Parameters
        ----------
        record : name of the record; several records with different names may exist

        Raises
        ------
        StateError
            The loader's last batch was neither stepped nor skipped.
        ConfigError
            The table is temporary, or the name is no file name.
        StoreWriteError
            The disk is full or fails; the earlier records stay as they are.
        """
        raise NotImplementedError

    def forget(self, record: str) -> None:
        """Remove a record, and the files that only this record needs. No effect without such a record."""
        raise NotImplementedError

    def export(self, path: StrPath, *, max_rows: int = 1 << 16) -> None:
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
        raise NotImplementedError

    def frozen(self) -> FrozenEmbedding:
        """Return a view for loaders that do not train, such as for evaluation."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the table, and remove a temporary one. Idempotent. Close the loader first.

        Steps since the last record are lost.

        Raises
        ------
        StateError
            A loader trains the embedding.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class FrozenEmbedding:
    """A view of a `NodeEmbedding` that never writes. Made by `NodeEmbedding.frozen`.

    A loader with this view puts the rows of each batch into ``batch.embedded`` without a gradient. They are the rows at
    the moment when the batch is handed out. Several loaders may share it.
    """

    def __init__(self, embedding: NodeEmbedding) -> None:
        self._embedding = embedding

    @property
    def node_type(self) -> str:
        """The node type."""
        return self._embedding.node_type

    @property
    def num_rows(self) -> int:
        """N."""
        return self._embedding.num_rows

    @property
    def dim(self) -> int:
        """D."""
        return self._embedding.dim

    def rows(self, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the present weights (M, D) of the nodes ``ids`` (M,); see `NodeEmbedding.rows`."""
        return self._embedding.rows(ids)

    def pieces(self, max_rows: int = 1 << 16) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all present weights in order of their ids; see `NodeEmbedding.pieces`."""
        return self._embedding.pieces(max_rows)


# What a loader takes as ``embeddings``.
Embeddings: TypeAlias = Union[
    "NodeEmbedding", "FrozenEmbedding", "Mapping[str, NodeEmbedding | FrozenEmbedding]"
]
