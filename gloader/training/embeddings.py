"""The embeddings of a training run: trained rows in the folder of the run, and the records that its checkpoints name.

An embedding has a table, which is a folder. A record is a file of the table that names all its rows at one moment. The
name of a record is the position of a checkpoint, the epoch and the index of the next training batch. For a checkpoint
the run first writes the record of each table (`RunEmbeddings.commit`), then the checkpoint's file, which names the
record, and then removes the records that no checkpoint names (`RunEmbeddings.settle`). So a run that is killed
at any moment leaves a checkpoint whose record is there. A checkpoint names two records: the present rows, to resume
from, and those of the best epoch, which belong to its best weights.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader.errors import CheckpointError, ConfigError
from gloader.loader.node_embedding import FrozenEmbedding, NodeEmbedding
from gloader.pipeline.embedding_optimizers import OPTIMIZERS, optimizer_from
from gloader.pipeline.embedding_rows import slot_bytes
from gloader.pipeline.node_rows import NodeRows
from gloader.ssd_store.embedding.embedding_record import record_names
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.ssd_store.write.atomic_file import remove_tree
from gloader.training.checkpoint.save import SavedEmbeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gloader.config import EmbedConfig
    from gloader.dataset import Dataset
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.group import RankGroup
    from gloader.training.model_spec import AnyModelSpec
    from gloader.types import Delivered

# The folder of a run's tables. A run that replaces another one adds its id while the other run's tables are there.
EMBEDDINGS: Final = "embeddings"


@dataclass(slots=True, kw_only=True)
class RunEmbeddings:
    """The embeddings of a run by node type; without any, every method does nothing.

    Parameters
    ----------
    by_type : the embeddings, in the order of the types
    folder : has the folder of each table
    present, best : see `SavedEmbeddings`
    is_kept : whether the folder stays when the run ends
    """

    by_type: Mapping[str, NodeEmbedding]
    folder: Path
    present: str
    best: str
    is_kept: bool = False

    @property
    def views(self) -> dict[str, FrozenEmbedding]:
        """The present rows by type, for an evaluation."""
        return {name: each.frozen() for name, each in self.by_type.items()}

    @property
    def num_weights(self) -> int:
        """Number of trained numbers in all rows."""
        return sum(each.num_rows * each.dim for each in self.by_type.values())

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes read from the disk and written to it so far. For the first rank."""
        stats = [each.stats for each in self.by_type.values()]
        return sum(each.bytes_read for each in stats), sum(each.bytes_written for each in stats)

    @property
    def saved(self) -> SavedEmbeddings | None:
        """The tables and records for a checkpoint; None without embeddings."""
        if not self.by_type:
            return None
        return SavedEmbeddings(folder=self.folder, present=self.present, best=self.best)

    def step(self, batch: Delivered, *, num_ranks: int = 1) -> None:
        """Train the rows of ``batch``, whose loss is the mean over the batches of ``num_ranks`` ranks.

        An embedding adds the gradients of the ranks up, and the weights' gradients are averaged; so the rows' are
        divided by the number of ranks. No gradient is clipped.
        """
        for name, embedding in self.by_type.items():
            grad = (batch.embedded or {})[name].grad
            if grad is None:  # no row of the type reached the loss
                embedding.skip(batch)
                continue
            if num_ranks > 1:
                grad /= num_ranks
            embedding.step(batch)

    def commit(self, position: tuple[int, int], group: RankGroup, *, is_best: bool) -> None:
        """Write the records of ``position``, the epoch and the index of the next batch. Collective."""
        if not self.by_type:
            return
        record = record_name(position)
        group.run_on_first(lambda: self._write(record))
        self.present = record
        if is_best:
            self.best = record

    def _write(self, record: str) -> None:
        for embedding in self.by_type.values():
            embedding.checkpoint(record)

    def settle(self, group: RankGroup, *, is_kept: bool) -> None:
        """Remove the records other than ``present`` and ``best``, after a checkpoint has named these. Collective."""
        if self.by_type:
            self.is_kept = is_kept
            group.run_on_first(self._forget_unnamed)

    def _forget_unnamed(self) -> None:
        for embedding in self.by_type.values():
            for record in record_names([path.name for path in embedding.folder.iterdir()]):
                if record not in (self.present, self.best):
                    embedding.forget(record)

    @contextmanager
    def at_best(self) -> Iterator[dict[str, FrozenEmbedding]]:
        """Open the rows of the best epoch, by type."""
        if not self.by_type:
            yield {}
            return
        saved = SavedEmbeddings(folder=self.folder, present=self.present, best=self.best)
        with ExitStack() as stack:
            yield open_record(saved, tuple(self.by_type), stack)


# A run without embeddings.
NO_EMBEDDINGS: Final = RunEmbeddings(by_type={}, folder=Path(), present="", best="")


def record_name(position: tuple[int, int]) -> str:
    """Return the name of the record of a position. Pure."""
    return f"{position[0]:05}-{position[1]:07}"


def open_record(
    saved: SavedEmbeddings, types: tuple[str, ...], stack: ExitStack
) -> dict[str, FrozenEmbedding]:
    """Return the rows that belong to the best weights, by type. ``stack`` closes them.

    Raises
    ------
    CheckpointError
        A table is not there.
    StoreError
        A table is damaged.
    """
    found = {}
    for name in types:
        folder = saved.folder / name
        if not folder.is_dir():
            raise CheckpointError(
                f"the checkpoint names the rows of embedding {name!r} in {folder}, and there is no such folder; a "
                f"checkpoint is copied together with the folder {saved.folder.name!r} beside it"
            )
        table = EmbeddingTable.open(folder, record=saved.best, is_read_only=True)
        rows = NodeRows(name, table, optimizer_from(table.facts["optimizer"]))
        stack.callback(rows.close)
        found[name] = FrozenEmbedding(rows)
    return found


def open_saved(checkpoint: Checkpoint, dataset: Dataset, stack: ExitStack) -> dict[str, FrozenEmbedding]:
    """Return the trained rows of a checkpoint by type, for predictions; raises as `open_record`."""
    types = tuple(embedded_types(checkpoint.spec, dataset))
    if not types:
        return {}
    if checkpoint.embeddings is None:
        raise CheckpointError(
            "the checkpoint's network reads embeddings, and the checkpoint names no tables of them"
        )
    found = open_record(checkpoint.embeddings, types, stack)
    for name, rows in found.items():
        num_nodes = dataset.node_tables[name].num_nodes
        if rows.num_rows != num_nodes:
            raise CheckpointError(
                f"the checkpoint has trained rows of {rows.num_rows:,} nodes of type {name!r}, and dataset "
                f"{dataset.name} has {num_nodes:,}"
            )
    return found


def embedded_types(spec: AnyModelSpec, dataset: Dataset) -> dict[str, int]:
    """Return the width of each embedding of a network, by the type's name in ``dataset``. Pure."""
    embedded = spec.encoder.schema.embedded
    if not spec.has_types and embedded:
        return {dataset.node_types[0]: next(iter(embedded.values()))}
    return dict(embedded)


@contextmanager
def open_embeddings(  # noqa: PLR0913 - what a run's tables consist of
    dims: Mapping[str, int],
    dataset: Dataset,
    config: EmbedConfig,
    group: RankGroup,
    *,
    seed: int,
    root: Path | None,
    run_id: str,
    find_saved: Callable[[], SavedEmbeddings | None],
    scratch: Path | None = None,
) -> Iterator[RunEmbeddings]:
    """Open the embeddings of a run: those of a checkpoint, or new ones. Collective.

    The ranks of a machine train the tables of the first rank. The folder of new tables goes at the end if no checkpoint
    names it.

    Parameters
    ----------
    dims : the width of each type's embedding; empty for none
    dataset : the dataset with the nodes
    config : optimizer and memory
    group : the ranks that train together
    seed : key of the first rows
    root : the run's folder; None means a temporary folder
    run_id : the run's id
    find_saved : returns the tables and records to resume from, or None to begin anew; called on the first rank
    scratch : parent of the temporary folder

    Raises
    ------
    ConfigError
        The ranks are on several machines.
    CheckpointError, StateError, StoreError
        A table to resume from belongs to other settings, or is damaged.
    StoreWriteError, SpillError
        The folder cannot be made.
    """
    if not dims:
        yield NO_EMBEDDINGS
        return
    if len(group.machine_hosts) > 1:
        raise ConfigError(
            f"--embed trains its rows on one machine, and the ranks are on {len(group.machine_hosts)}; start all ranks "
            "on one machine, or leave --embed out"
        )
    with ExitStack() as stack:

        def choose() -> list[str]:
            """Return the folder, its present and its best record; the record is "" for new tables."""
            saved = find_saved()
            if saved is not None:
                return [str(saved.folder), saved.present, saved.best]
            parent = root or stack.enter_context(scratch_folder(scratch, prefix="gloader-embed-"))
            plain = parent / EMBEDDINGS
            return [str(parent / f"{EMBEDDINGS}-{run_id}" if plain.exists() else plain), "", ""]

        name, present, best = group.run_on_first(choose)
        folder, first = Path(name), record_name((0, 0))
        opened = RunEmbeddings(
            by_type={}, folder=folder, present=present or first, best=best or first, is_kept=bool(present)
        )
        if group.is_first:
            # Registered first, so that the tables are closed before their folder goes.
            stack.callback(lambda: None if opened.is_kept else remove_tree(folder))
        shapes = {name: (dataset.node_tables[name].num_nodes, dim) for name, dim in dims.items()}
        caches = cache_bytes(config, shapes)
        by_type: dict[str, NodeEmbedding] = {}
        for name, dim in dims.items():
            common: Any = {
                "node_type": name,
                "dim": dim,
                "optimizer": OPTIMIZERS[config.optimizer](lr=config.learning_rate),
                "cache": caches[name],
            }
            if present:
                embedding = NodeEmbedding.open(dataset, folder / name, record=present, **common)
            else:
                embedding = NodeEmbedding(dataset, folder=folder / name, seed=_seed_of(name, seed), **common)
            # The end of a run says where it can go on; the steps behind that are made again.
            stack.callback(embedding.close, drop=True)
            by_type[name] = embedding
        opened.by_type = by_type
        if present:
            opened.settle(group, is_kept=True)  # a killed run may have left others
        else:
            # The best weights of a run are the initial ones until its first epoch has ended.
            opened.commit((0, 0), group, is_best=True)
        yield opened


def _seed_of(node_type: str, seed: int) -> int:
    """Return the key of a type's first rows. Equal numbers of two types begin with different rows."""
    return int.from_bytes(hashlib.sha256(f"{seed} {node_type}".encode()).digest()[:7], "little")


def cache_bytes(config: EmbedConfig, shapes: Mapping[str, tuple[int, int]]) -> dict[str, int | None]:
    """Return the bytes of the rows in memory by type; None leaves them to the loader. Pure.

    The types get equal parts, and what a small type does not need goes to the others: all rows of a batch have to be in
    memory, and their number depends on the batch more than on the type's size.

    Parameters
    ----------
    config : optimizer and memory
    shapes : by type, the number of rows and their width without the optimizer's state
    """
    if config.cache is None:
        return dict.fromkeys(shapes)
    optimizer = OPTIMIZERS[config.optimizer]()
    sizes = {
        name: count * slot_bytes(dim + optimizer.state_width(dim)) for name, (count, dim) in shapes.items()
    }
    left = int(config.cache * sum(sizes.values())) if isinstance(config.cache, float) else config.cache
    parts: dict[str, int | None] = {}
    for number, (name, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        parts[name] = part = min(size, left // (len(sizes) - number))
        left -= part
    return parts


def saved_of(
    checkpoint: Checkpoint | None, spec: AnyModelSpec, settings: Mapping[str, Any]
) -> SavedEmbeddings | None:
    """Return the tables to resume from, or None to begin anew.

    A checkpoint with other rows gives None: the run has its own tables until `Trainer.resume_from` refuses it with
    every difference between the settings.

    Parameters
    ----------
    checkpoint : the checkpoint to resume from, if there is one
    spec : the network of this run
    settings : the decisive settings of this run
    """
    names = [name for name in settings if name.startswith("embed")]
    if checkpoint is None or checkpoint.spec != spec:
        return None
    if any(checkpoint.settings.get(name) != settings[name] for name in names):
        return None
    return checkpoint.embeddings
