"""Feature rows on the SSD in the place of a tensor of them."""

from __future__ import annotations

import weakref
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Never

import torch

from gloader.bridges.rows import CachedRows
from gloader.core.near_names import missing_attribute

if TYPE_CHECKING:
    from gloader.dataset.feature_rows import FeatureRows


_IN_BATCHES: Final = (
    "the features stay on the SSD; index the rows that you need, or change those of a batch in the loop"
)


class StoredRows:
    """A matrix of features on the SSD, as a tensor that is indexed by rows: those that are asked for are read.

    The rows of a loader's last batch are there already, and are returned where its input nodes are the index.

    Parameters
    ----------
    rows : of the dataset
    """

    def __init__(self, rows: FeatureRows) -> None:
        self._source = _Source(rows)
        self.device = torch.device("cpu")
        self.shape = torch.Size((rows.num_rows, rows.feature_dim))
        self.dtype = torch.float32
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one number of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return 2."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of values."""
        return self.shape.numel()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return the rows of ``index``: ids, a slice, a mask or one id; float32, on the device.

        Raises
        ------
        SeedError
            An id is not a row.
        ForkError
            In a forked worker process.
        StoreError
            Reading failed.
        """
        found = self._source.ready_rows(index)
        if found is None:
            ids = torch.as_tensor(range(*index.indices(len(self))) if isinstance(index, slice) else index)
            if ids.dtype == torch.bool:
                ids = ids.nonzero().squeeze(1)
            found = self._source.read(ids.reshape(-1)).view(*ids.shape, self.shape[1])
        return found.to(self.device)

    def to(self, device: Any = None, *_args: Any, **_how: Any) -> StoredRows:
        """Return the same rows, which come to ``device`` when they are asked for."""
        moved = copy(self)
        if isinstance(device, (str, int, torch.device)):
            moved.device = torch.empty(0, device=device).device
        return moved

    def cpu(self) -> StoredRows:
        """Return the rows, which come to the CPU."""
        return self.to("cpu")

    def float(self) -> StoredRows:
        """Return the rows as they are: float32."""
        return self

    def keep_ready(self, nodes: torch.Tensor, rows: torch.Tensor) -> None:
        """Remember, as long as anybody has them, the ``rows`` of ``nodes``."""
        self._source.ready = (nodes, weakref.ref(rows))

    def __repr__(self) -> str:
        return f"StoredRows({self.shape[0]:,} x {self.shape[1]}, on the SSD)"

    def __getattr__(self, name: str) -> Never:
        advice = {} if name.startswith("_") or not hasattr(torch.Tensor, name) else {name: _IN_BATCHES}
        raise missing_attribute("a StoredRows", name, dir(self), advice)


class _Source:
    """Where rows come from: the same on every device."""

    def __init__(self, rows: FeatureRows) -> None:
        self._rows = rows
        self.ready: tuple[torch.Tensor, weakref.ref[torch.Tensor]] | None = None

    def ready_rows(self, index: Any) -> torch.Tensor | None:
        """Return the rows of ``index``, if it is the nodes of the last batch."""
        ready = self.ready  # read once: a loop in another thread may be a batch further
        return ready[1]() if ready is not None and index is ready[0] else None

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``ids`` (n,)."""
        return torch.from_numpy(self._store.gather(ids.cpu().numpy()))

    @cached_property
    def _store(self) -> CachedRows:
        store = self._rows.open_features()
        rows = CachedRows(store)
        weakref.finalize(rows, store.close)
        return rows
