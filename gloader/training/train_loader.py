"""What training asks of a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from gloader.memory.plan import MemoryPlan
    from gloader.observe.epoch_stats import EpochStats
    from gloader.observe.explain import SuperbatchReport
    from gloader.samplers import CscGraph
    from gloader.types import FeatureSource, ReadyBatch


class TrainLoader(Protocol):
    """`gloader.loader.Loader`, or a stand-in: each iteration yields the batches of the next epoch."""

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def __iter__(self) -> Iterator[ReadyBatch]:
        """Start the next epoch, or go on in the one that `load_state_dict` points into."""
        ...

    @property
    def stats(self) -> EpochStats:
        """What the running or the last epoch moved."""
        ...

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where the features live."""
        ...

    @property
    def graph(self) -> CscGraph:
        """The whole topology."""
        ...

    @property
    def features(self) -> FeatureSource:
        """All N rows, in memory where they are."""
        ...

    @property
    def reports(self) -> Sequence[SuperbatchReport]:
        """What was predicted and measured for each superbatch so far."""
        ...

    def explain(self) -> str:
        """Say which tiers are on, and why."""
        ...

    def bottleneck(self) -> str:
        """Say in one sentence what the running or the last epoch waited for."""
        ...

    def write_trace(self, path: Path, /) -> None:
        """Write the events of a loader that was built to trace."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the first batch that was not handed out, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue at a saved position."""
        ...

    def __enter__(self) -> Self:
        """Own the loader."""
        ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close it."""
        ...
