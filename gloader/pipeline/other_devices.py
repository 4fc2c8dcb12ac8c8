"""The devices of the other ranks that a rank loads for: what all of them hold, and what all of them reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.device import Device, DeviceTier
    from gloader.ssd_store import RamFeatures
    from gloader.types import AnyBatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFeatures:
    """All features, in memory, and the device tier, which may read them there."""

    source: RamFeatures
    tier: DeviceTier

    @property
    def is_reached(self) -> bool:
        """Whether the device reads them in place."""
        return self.tier.features is not None

    def out_of_reach(self) -> LoadedFeatures:
        """Return the same where the device does not read them in place, after it let go of them."""
        return LoadedFeatures(source=self.source, tier=self.tier.out_of_reach())


class OtherDevices(Protocol):
    """The devices of the ranks that this one loads for: all of them hold the same rows; see `gloader.distributed`."""

    @property
    def are_asynchronous(self) -> bool:
        """Whether all of them are, and so can be sent rows as they are stored; known after `agree_on_cache_bytes`."""
        ...

    def agree_on_cache_bytes(self, largest: AnyBatch | None, own: Callable[[], int]) -> int:
        """Return the bytes that every device has for cached rows; ``own`` finds those of this rank."""
        ...

    def hold_same_rows(
        self, plan: DeviceCachePlan, own: Callable[[], T], *, as_stored: bool, table: int = 0
    ) -> T:
        """Make every device hold the rows of ``plan``; ``own`` does so on this rank, and its result is returned.

        Parameters
        ----------
        plan : which rows
        own : holds them on this rank
        as_stored : the host brings the other rows as they are stored, and the devices widen them
        table : of those of the dataset
        """
        ...

    def reach_same_features(
        self,
        device: Device,
        num_bytes: int,
        own: Callable[[NDArray[np.uint8] | None], LoadedFeatures],
        *,
        table: int = 0,
    ) -> LoadedFeatures:
        """Have ``own`` load the features, to memory that it is given or to its own; every device reaches them or none.

        Parameters
        ----------
        device : of this rank
        num_bytes : of the features
        own : loads them and makes ``device`` reach them, if it can
        table : of those of the dataset
        """
        ...


class NoOtherDevices:
    """A rank that loads for itself alone."""

    are_asynchronous = True  # all none of them

    def agree_on_cache_bytes(self, largest: AnyBatch | None, own: Callable[[], int]) -> int:  # noqa: ARG002 - the seam's
        """Return what ``own`` finds."""
        return own()

    def hold_same_rows(
        self,
        plan: DeviceCachePlan,  # noqa: ARG002 - the seam's
        own: Callable[[], T],
        *,
        as_stored: bool,  # noqa: ARG002 - the seam's
        table: int = 0,  # noqa: ARG002 - the seam's
    ) -> T:
        """Return what ``own`` returns."""
        return own()

    def reach_same_features(
        self,
        device: Device,  # noqa: ARG002 - the seam's
        num_bytes: int,  # noqa: ARG002 - the seam's
        own: Callable[[NDArray[np.uint8] | None], LoadedFeatures],
        *,
        table: int = 0,  # noqa: ARG002 - the seam's
    ) -> LoadedFeatures:
        """Return what ``own`` returns, which finds memory by itself."""
        return own(None)
