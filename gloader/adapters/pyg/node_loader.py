"""The loader, yielding PyG's ``Data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.adapters.loader_view import LoaderView, to_loader
from gloader.adapters.pyg.data import to_data
from gloader.dataset import Dataset
from gloader.samplers import preferred_layout

if TYPE_CHECKING:
    from gloader.loader import Loader
    from gloader.types import IdArray, ReadyBatch


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
