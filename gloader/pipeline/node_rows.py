"""The rows of an embedding wherever they are: in the table, or in the slots of the loader that trains them.

An embedding is the trained rows of a node type. An embedding table is the folder with all rows. A record is a file of
the table that names all of its files at one moment. A slot holds one row in memory.
"""

from __future__ import annotations

import logging
import os
import weakref
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.core.ids import as_ids, outside
from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.errors import ConfigError, GloaderError, ShapeError, StateError
from gloader.pipeline.absent_table import AbsentTable, elsewhere
from gloader.pipeline.embedding_rows import RowStats
from gloader.ssd_store.embedding.embedding_record import record_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.pipeline.embedding_optimizers import RowOptimizer
    from gloader.pipeline.trained_embedding import TrainedEmbedding
    from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
    from gloader.ssd_store.spill.folder import SpillFolder

logger = logging.getLogger("gloader")

PIECE_ROWS: Final = 1 << 14  # rows that are read at once


class NodeRows:
    """The rows of a node type's embedding. Owns the table, and its temporary folder, until `close`.

    Parameters
    ----------
    node_type : the node type
    stored : the table; on a rank that does not load its form alone
    optimizer : the rule of a step
    cache_bytes : requested bytes of the rows in memory; None for the default
    fingerprint : that of the dataset; None means any dataset with as many nodes
    temporary : the temporary folder with the table; None if the table is kept
    """

    def __init__(
        self,
        node_type: str,
        stored: EmbeddingTable | AbsentTable,
        optimizer: RowOptimizer,
        *,
        cache_bytes: int | None = None,
        fingerprint: str | None = None,
        temporary: SpillFolder | None = None,
    ) -> None:
        self.node_type = node_type
        self.stored = stored
        self.optimizer = optimizer
        self.cache_bytes = cache_bytes
        self._fingerprint = fingerprint
        self._is_temporary = temporary is not None
        self._num_steps = stored.num_steps
        self._recorded_steps = stored.num_steps  # at the last record
        self._is_lost = False  # whether a failed run left the table without some of its rows
        self._trained: TrainedEmbedding | None = None  # serves the rows while a loader trains them
        self._finalizer = weakref.finalize(self, _release, os.getpid(), stored, temporary)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.stored.num_rows

    @property
    def dim(self) -> int:
        """D."""
        return self.stored.initial.dim

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps so far."""
        return self._num_steps if self._trained is None else self._trained.rows.num_steps

    @property
    def table(self) -> EmbeddingTable:
        """The stored rows, without the changes in slots; StateError on a rank without the table."""
        self.require_open()
        if isinstance(self.stored, AbsentTable):
            raise elsewhere("table")
        return self.stored

    @property
    def facts(self) -> dict[str, Any]:
        """The values that ranks must have in common to train the embedding together, as JSON."""
        return {
            **self.stored.facts,
            "initial": asdict(self.stored.initial),
            "num_steps": self.num_steps,
            "cache": self.cache_bytes,
        }

    @property
    def stats(self) -> RowStats:
        """The present counts; see `gloader.NodeEmbedding.stats`."""
        moved, counts = (
            (self.table, RowStats())
            if self._trained is None
            else (self._trained.rows, self._trained.rows.counts)
        )
        return replace(counts, bytes_read=moved.bytes_read, bytes_written=moved.bytes_written)

    def require_open(self) -> None:
        """Raise StateError if the rows are closed or lost."""
        if self._is_lost:
            raise StateError(
                f"rows of the embedding of {self.node_type!r} were lost when a run failed; close it, and open the "
                "embedding again from its last checkpoint, with NodeEmbedding.open"
            )
        if not self._finalizer.alive:
            raise StateError(
                f"the embedding of {self.node_type!r} is closed; open it again with NodeEmbedding.open"
            )

    def require_dataset(self, dataset: Dataset) -> None:
        """Raise ConfigError if the rows belong to another dataset."""
        self.require_open()
        is_other = self._fingerprint not in (None, dataset.fingerprint)
        if is_other or self.num_rows != dataset.node_tables[self.node_type].num_nodes:
            raise ConfigError(
                f"the embedding of {self.node_type!r} belongs to another dataset than {dataset.location}"
            )

    def require_trained(self, verb: str) -> TrainedEmbedding:
        """Return the service of a loader. Raises StateError if no loader trains the rows."""
        self.require_open()
        if self._trained is None:
            raise StateError(
                f"embedding.{verb}: no open loader trains the embedding of {self.node_type!r}; a loader trains it with "
                "embeddings=embedding, until the loader is closed"
            )
        return self._trained

    def attach(self, trained: TrainedEmbedding) -> None:
        """Let ``trained`` serve the rows until `detach`. Raises ConfigError if another loader trains them."""
        if self._trained is not None:
            raise ConfigError(
                f"another loader trains the embedding of {self.node_type!r}: close it first, or pass "
                "embeddings=embedding.frozen() to a loader that does not train"
            )
        trained.rows.num_steps = self._num_steps
        self._trained = trained

    def detach(self) -> None:
        """Write the rows in slots to the table, and end the service. Idempotent."""
        trained = self._trained
        if trained is None:
            return
        try:
            trained.rows.flush()
            self._num_steps = trained.rows.num_steps
        except GloaderError:
            self._is_lost = True
            logger.exception("the trained rows of %r were lost at the end of the training", self.node_type)
        finally:
            self._trained = None
            trained.rows.close()

    def rows(self, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the present weights (M, D); see `gloader.NodeEmbedding.rows`."""
        self.require_open()
        if isinstance(ids, torch.Tensor):
            ids = ids.detach().cpu().numpy()
        nodes = as_ids(ids, noun="nodes", error=ShapeError)
        if len(wrong := outside(nodes, self.num_rows)):
            raise ShapeError(
                f"nodes of type {self.node_type!r} are in 0..{self.num_rows - 1}; these are not: {wrong[:5].tolist()}"
            )
        if self._trained is not None:
            return torch.from_numpy(self._trained.rows.read(nodes))
        ascending, places = np.unique(nodes, return_inverse=True)
        found = np.empty((len(ascending), self.stored.width), np.float32)
        self.stored.read_into(ascending, found)
        return torch.from_numpy(found[places, : self.dim])

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all present weights in order of their ids; see `gloader.NodeEmbedding.pieces`."""
        self.require_open()
        if max_rows < 1:
            raise ConfigError(f"max_rows={max_rows} must be at least 1")
        if self._trained is not None:
            yield from self._trained.rows.pieces(max_rows)
            return
        for first, found in self.stored.pieces(max_rows):
            yield first, np.ascontiguousarray(found[:, : self.dim])

    def checkpoint(self, record: str) -> None:
        """Write all rows that changed, and then ``record``; see `gloader.NodeEmbedding.checkpoint`."""
        self.require_open()
        if isinstance(self.stored, AbsentTable):
            raise elsewhere("checkpoint()")
        if self._is_temporary:
            raise ConfigError(
                "this embedding lies in a temporary folder, which is removed at the end: give NodeEmbedding folder= to "
                "keep checkpoints"
            )
        record_path(self.stored.folder, record)  # a wrong name is refused before anything is written
        with uninterrupted():
            if self._trained is None:
                facts = {**self.stored.facts, "optimizer": self.optimizer.facts()}
                self.stored.commit(record, num_steps=self._num_steps, facts=facts)
            else:
                self._trained.require_done()
                self._trained.rows.checkpoint(record, self.stored.facts)
            self._recorded_steps = self.num_steps

    def close(self, *, drop: bool = False) -> None:
        """Close the table, and remove a temporary one; see `gloader.NodeEmbedding.close`. Idempotent."""
        if self._trained is not None:
            raise StateError(
                f"a loader trains the embedding of {self.node_type!r}: close the loader before the embedding"
            )
        is_kept = not self._is_temporary and not isinstance(self.stored, AbsentTable)
        if self._finalizer.alive and is_kept and not drop and self._num_steps > self._recorded_steps:
            logger.warning(
                "%s: %d steps since the last record are lost; call checkpoint() before close() to keep them",
                self.stored.folder,
                self._num_steps - self._recorded_steps,
            )
        with uninterrupted():
            self._finalizer()


def _release(pid: int, table: EmbeddingTable | AbsentTable, temporary: SpillFolder | None) -> None:
    """Close a table, and remove its temporary folder. Does nothing in a forked child."""
    if os.getpid() != pid:
        return

    def close() -> None:
        """Close both, the folder also if the table fails."""
        try:
            table.close()
        finally:
            if temporary is not None:
                temporary.close()

    close_in_finalizer(close)
