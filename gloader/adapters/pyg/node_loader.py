"""The loader, yielding PyG's ``Data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.adapters.loader_view import LoaderView, to_loader
from gloader.adapters.pyg.data import to_data
from gloader.adapters.pyg.graph_data import GraphData
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.samplers import preferred_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.loader import Loader
    from gloader.types import IdArray, ReadyBatch

_OF_WORKERS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")


class NodeLoader(LoaderView[Any]):
    """Yields what PyG's ``NeighborLoader`` yields for node tasks, see `to_data`, without pyg-lib or torch-sparse.

    ``y`` holds the labels of the seeds alone, so that ``batch.y[:batch.batch_size]`` is all of it; ``input_id`` are the
    seeds' positions in the loader's seeds (the training nodes where none were given).

    Parameters
    ----------
    loader : a `gloader.Loader`, or a `gloader.Dataset` to build one for
    settings : of the loader to build: ``fanouts``, ``batch_size``, ``memory_budget``, ...; see `gloader.Loader`.
        ``layout`` is "merged" where it is not given and the sampler has it: batches have exactly the nodes and edges of
        native ones. Of a layered loader they have the nodes, and the edges that PyG would have drawn

    Raises
    ------
    ConfigError
        As `to_loader`.
    """

    def __init__(self, loader: Loader | Dataset, **settings: Any) -> None:
        if isinstance(loader, Dataset):
            # PyG samples each node once, and so does the merged layout: a batch has exactly the edges of
            # the native one.
            settings.setdefault("layout", preferred_layout(settings.get("sampler", "neighbor")))
        native = to_loader(loader, settings)
        positions = _Positions(native.seeds)

        def convert(batch: ReadyBatch) -> Any:
            seeds = batch.nodes[: batch.num_seeds]
            return to_data(batch, input_id=torch.from_numpy(positions.of(seeds)))

        super().__init__(native, convert=convert, is_owner=isinstance(loader, Dataset))

    @property
    def dataset(self) -> range:
        """The positions of the seeds, as in PyG: ``len(loader.dataset)`` is the seeds of an epoch."""
        return range(len(self.loader.seeds))


class NeighborLoader(NodeLoader):
    """`NodeLoader` by the names, and with the defaults, of ``torch_geometric.loader.NeighborLoader``.

    All nodes in their order where nothing else is said: ``NeighborLoader(data, [-1], batch_size=1024)`` gives what
    layer-wise inference takes, a layer a pass.

    Parameters
    ----------
    data : a `GraphData`, or the `gloader.Dataset` itself; ``loader.data`` is the former
    num_neighbors : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    input_nodes : (n,) ids or (N,) mask of the seeds; None: all nodes
    batch_size : seeds per batch; all of them where they are fewer, as in PyG
    shuffle : order the seeds anew in every epoch
    settings : other keywords of `gloader.Loader`: ``memory_budget``, ``features``, ``device``, ...

    Raises
    ------
    ConfigError
        A setting speaks of the worker processes that PyG has; ``input_nodes`` is no mask of all nodes; or as
        `gloader.Loader`.
    SeedError
        ``input_nodes`` holds what is no node, or one twice.
    """

    def __init__(
        self,
        data: GraphData | Dataset,
        num_neighbors: Sequence[int],
        input_nodes: torch.Tensor | NDArray[Any] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        **settings: Any,
    ) -> None:
        if workers := [name for name in _OF_WORKERS if name in settings]:
            raise ConfigError(
                f"{', '.join(workers)}: gloader samples and reads in threads of this process; leave it out "
                "(threads= is how many sample)"
            )
        self.data = GraphData(data) if isinstance(data, Dataset) else data
        seeds = _as_ids(input_nodes, self.data.num_nodes)
        super().__init__(
            self.data.dataset,
            seeds=seeds,
            fanouts=num_neighbors,
            batch_size=min(batch_size, max(len(seeds), 1)),
            shuffle=shuffle,
            **settings,
        )


def _as_ids(nodes: torch.Tensor | NDArray[Any] | None, num_nodes: int) -> IdArray:
    if nodes is None:
        return np.arange(num_nodes, dtype=np.int64)
    found = nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else np.asarray(nodes)
    if found.dtype != np.bool_:
        return found
    if found.shape != (num_nodes,):
        raise ConfigError(f"input_nodes is a mask of shape {found.shape}; the graph has {num_nodes} nodes")
    return np.flatnonzero(found)


class _Positions:
    """Where each of the (n,) unique ``seeds`` stands."""

    def __init__(self, seeds: IdArray) -> None:
        self._order = np.argsort(seeds)
        self._sorted = seeds[self._order]

    def of(self, nodes: IdArray) -> IdArray:
        """Return the positions of ``nodes`` (B,), all of them seeds."""
        by_id = np.argsort(nodes)  # a search in order runs through memory, one at random does not
        positions = np.empty(len(nodes), dtype=np.int64)
        positions[by_id] = self._order[np.searchsorted(self._sorted, nodes[by_id])]
        return positions
