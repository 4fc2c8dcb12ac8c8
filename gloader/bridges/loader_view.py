"""A view of a loader for the loops of other libraries: the same batches, converted.

A `LoaderView` is the base class of the loaders for DGL and PyG. It iterates over one of gloader's own ("native")
loaders and passes each batch through a function. A `TypedBatch` gives this function every batch in one form, by node
type and relation. `nodes_by_hop` counts a batch's nodes by type and hop, as other libraries do. `to_loader` and
`to_link_loader` build the native loader if the user passes a dataset.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import torch

from gloader.core.near_names import near_attributes, require_keywords
from gloader.dataset import Dataset
from gloader.errors import ConfigError, LoaderBusyError
from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.consumer import require_same_process
from gloader.types import EDGE, DeviceBlock, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import TypeAlias

    from gloader.types import AnyReadyBatch, Block, IdArray, LocalArray, Relation


T = TypeVar("T")
V = TypeVar("V")


def nodes_by_hop(
    num_seeds: Mapping[str, int], blocks: Sequence[Mapping[Relation, Block | DeviceBlock]]
) -> dict[str, list[int]]:
    """Return L + 1 node counts per type: the seeds, then the nodes after each hop. Pure.

    The hop next to the seeds comes first, so the last count is the batch's total.

    Parameters
    ----------
    num_seeds : number of seeds by type
    blocks : the blocks of a `HeteroBatch` or a `HeteroReadyBatch`
    """
    known = {name: [count] for name, count in num_seeds.items()}
    for hop in reversed(blocks):
        # A type that is not the source of a relation gains no nodes.
        after = {source: block.num_src for (source, _, _), block in hop.items()}
        for name, counts in known.items():
            counts.append(after.get(name, counts[-1]))
    return known


class TypedBatch:
    """A native batch as mappings by type, also if the batch has only one type. Node ids are on the batch's device.

    Parameters
    ----------
    batch : a batch with one type or with several
    relation : for a batch with one type, the other library's name of the only relation; its first entry names the type
    """

    def __init__(self, batch: AnyReadyBatch, relation: Relation = EDGE) -> None:
        self.only_type = relation[0] if isinstance(batch, ReadyBatch) else None
        self.device = batch.y.device
        self.num_seeds: Mapping[str, int] = self._typed(batch.num_seeds)
        # (U_t, F_t) rows for the U_t nodes of each type t; (U_t, 0) without features
        self.x: Mapping[str, torch.Tensor] = self._typed(batch.x)
        # (U_t,) index of the seed for which each node was sampled, if each seed has a tree of its own nodes; None if
        # the seeds share nodes
        self.trees: Mapping[str, LocalArray] | None = (
            None if batch.trees is None else self._typed(batch.trees)
        )
        nodes: Mapping[str, IdArray] = self._typed(batch.nodes)
        self.nodes = {name: torch.from_numpy(ids).to(self.device) for name, ids in nodes.items()}
        self.blocks: list[Mapping[Relation, DeviceBlock]] = [
            {relation: hop} if isinstance(hop, DeviceBlock) else hop for hop in batch.blocks
        ]
        self.known = nodes_by_hop(self.num_seeds, self.blocks)  # L + 1 node counts per type

    def sizes(self, depth: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of sources and destinations of block ``depth`` by type; block 0 reads the features."""
        num_hops = len(self.blocks) - depth  # hops up to this block, counted from the seeds
        num_src, num_dst = (
            {name: counts[hops] for name, counts in self.known.items()} for hops in (num_hops, num_hops - 1)
        )
        return num_src, num_dst

    @property
    def seeds(self) -> dict[str, torch.Tensor]:
        """The seeds of each type."""
        return {name: ids[: self.num_seeds[name]] for name, ids in self.nodes.items()}

    def plain(self, by_type: Mapping[str, V]) -> V | Mapping[str, V]:
        """Return ``by_type``; for a batch with one type, return its only value."""
        return by_type if self.only_type is None else by_type[self.only_type]

    def _typed(self, value: Any) -> Any:
        """Return ``value`` as a mapping by type, which it already is in a batch with several types."""
        return value if self.only_type is None else {self.only_type: value}


AnyLoader: TypeAlias = "Loader | HeteroLoader"
Viewed: TypeAlias = "Loader | HeteroLoader | LinkLoader"


@near_attributes
class LoaderView(Generic[T]):
    """A loader's batches, each passed through ``convert``; position, length and state are the loader's.

    An epoch ends as soon as its last batch is returned, because loops that count batches, as in Lightning, never
    request another one. A new iterator ends the unfinished epoch of the last one, which then raises.

    `close` closes the loader. The view is also a context manager.

    Parameters
    ----------
    loader : see `to_loader` and `to_link_loader`
    convert : pure function from a native batch to the loop's batch
    is_owner : whether to close the loader when this view is dropped without `close`, as is common for data loaders
    """

    _refused: ClassVar[tuple[str, ...]] = ()  # keywords of other libraries, to ignore or to refuse
    _renamed: ClassVar[tuple[str, ...]] = ()  # keywords of the loader that have other names in this class

    def __init__(self, loader: Viewed, *, convert: Callable[[Any], T], is_owner: bool = False) -> None:
        self.loader = loader
        self.convert = convert
        if is_owner:
            # The finalizer does not run when Python exits, because the loader's threads may have ended by then.
            weakref.finalize(self, loader.close).atexit = False
        # A weak reference: if a loop breaks out, its epoch is garbage, which ends the epoch's threads.
        self._running: weakref.ref[_Epoch[T]] | None = None

    def __new__(cls, *_given: Any, **keywords: Any) -> Self:
        """Refuse unknown keywords before Python reports a missing one: an unknown keyword may be its misspelling."""
        require_keywords(cls.__name__, keywords, cls._keywords())
        return super().__new__(cls)

    @classmethod
    def _keywords(cls) -> list[str]:
        """Return the allowed keywords of the constructor.

        They are its own parameters and, if it takes further keywords, those of other libraries and the native loaders.
        """
        own = inspect.signature(cls.__init__).parameters
        if all(parameter.kind != inspect.Parameter.VAR_KEYWORD for parameter in own.values()):
            return list(own)
        native = [*inspect.signature(Loader).parameters, *inspect.signature(LinkLoader).parameters]
        return [*own, *cls._refused, *(name for name in native if name not in cls._renamed)]

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loader)

    def __repr__(self) -> str:
        """Return the loader's text under the name of this class."""
        return f"{type(self).__name__}({repr(self.loader).partition('(')[2]}"

    def explain(self) -> str:
        """Return the loader's explanation; see `gloader.Loader.explain`."""
        return self.loader.explain()

    def bottleneck(self) -> str:
        """Return the loader's bottleneck as a sentence; see `gloader.Loader.bottleneck`."""
        return self.loader.bottleneck()

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the next epoch, or over the rest of the epoch from `load_state_dict`.

        The first ``next`` starts the epoch, and raises what ``iter`` of a `gloader.Loader` raises.
        """
        self._end_running()
        epoch = _Epoch(self)
        self._running = weakref.ref(epoch)
        return epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON; see `gloader.Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position from `state_dict`; ends the running epoch."""
        self._end_running()
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Close the loader. Idempotent."""
        self._end_running()
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _end_running(self) -> None:
        """End the last iterator's epoch, if the iterator still exists."""
        running = self._running() if self._running is not None else None
        if running is not None:
            running.supersede()
        self._running = None


class _Epoch(Iterator[T]):
    """The iterator over one epoch. It starts at the first ``next``, because some loops make iterators but use none."""

    def __init__(self, view: LoaderView[T]) -> None:
        self._view = view  # kept, because dropping the view may close the loader
        self._batches: Iterator[Any] | None = None
        self._state: Literal["new", "running", "ended", "superseded"] = "new"
        self._turn = threading.Lock()  # held by the thread that takes a batch; threads may share an epoch
        self._pid = os.getpid()

    def __next__(self) -> T:
        require_same_process(self._pid)  # before the lock, which may be held for ever in a forked child
        with self._turn:
            return self._next()

    def _next(self) -> T:
        """Return the next converted batch. The caller holds ``_turn``, so only one thread runs this at any moment."""
        if self._state == "superseded":
            raise LoaderBusyError(
                "another epoch of this loader was started meanwhile; a loader runs one epoch at a time"
            )
        if self._state == "new":
            self._batches, self._state = iter(self._view.loader), "running"
        if (batches := self._batches) is None:
            raise StopIteration
        batch = next(batches)
        # Loops that count batches request none after the last. Without this call the epoch would stay open.
        if batch.id.index == len(self._view) - 1:
            next(batches, None)  # completes the epoch in the loader
            self._batches, self._state = None, "ended"
        return self._view.convert(batch)

    def supersede(self) -> None:
        """End the epoch by dropping the loader's iterator. A later ``next`` raises, unless the epoch is complete."""
        # Dropping the iterator ends its threads, even if this epoch is still referenced.
        self._batches = None
        if self._state != "ended":
            self._state = "superseded"


def at_most(batch_size: Any, num_seeds: int) -> Any:
    """Return ``batch_size``, but at most ``num_seeds`` (and at least 1), as in other libraries.

    A size that is no integer is returned unchanged, for the loader to refuse.
    """
    return min(batch_size, max(num_seeds, 1)) if isinstance(batch_size, Integral) else batch_size


def to_loader(loader: AnyLoader | Dataset, settings: Mapping[str, Any]) -> AnyLoader:
    """Return ``loader``, or a new loader for a dataset: a `HeteroLoader` if it has several types.

    Raises
    ------
    ConfigError
        Settings are given for an existing loader, or ``loader`` is neither loader nor dataset.
    GloaderError
        As in `gloader.Loader`.
    """
    if isinstance(loader, Dataset):
        return HeteroLoader(loader, **settings) if loader.kind == "hetero" else Loader(loader, **settings)
    if not isinstance(loader, (Loader, HeteroLoader)):
        raise ConfigError(
            f"expected a gloader.Loader, gloader.HeteroLoader or gloader.Dataset, got a {type(loader).__name__}"
        )
    if settings:
        raise ConfigError(_built_already(settings))
    return loader


def to_link_loader(loader: LinkLoader | Dataset, settings: Mapping[str, Any]) -> LinkLoader:
    """Return ``loader``, or a new link loader for a dataset.

    Raises
    ------
    ConfigError
        Settings are given for an existing loader, or ``loader`` is neither loader nor dataset.
    GloaderError
        As in `gloader.LinkLoader`.
    """
    if isinstance(loader, Dataset):
        return LinkLoader(loader, **settings)
    if not isinstance(loader, LinkLoader):
        raise ConfigError(f"expected a gloader.LinkLoader or gloader.Dataset, got a {type(loader).__name__}")
    if settings:
        raise ConfigError(_built_already(settings))
    return loader


def _built_already(settings: Mapping[str, Any]) -> str:
    """Return the message for settings that are given with an existing loader."""
    return (
        f"{', '.join(settings)}: this loader is built already; pass the dataset instead, or build the loader "
        "with them"
    )
