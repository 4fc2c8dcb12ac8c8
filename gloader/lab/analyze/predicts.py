"""The seam between a recorded run that can be asked, and the commands that ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gloader.lab.analyze.result import Prediction
    from gloader.replay.changes import Changes
    from gloader.replay.demands import Measured
    from gloader.replay.recording import Recording


class Predicts(Protocol):
    """Says what an epoch of a recorded run would take; as `gloader.lab.analyze.predict.Predictor`."""

    @property
    def recording(self) -> Recording:
        """The run."""
        ...

    @property
    def measured(self) -> Measured:
        """What it took."""
        ...

    @property
    def base(self) -> Prediction:
        """The run as it was, replayed."""
        ...

    def predict(self, changes: Changes, /) -> Prediction:
        """Return what an epoch takes with ``changes``; ReplayError, ConfigError or BudgetError where it cannot."""
        ...

    def memory_bytes(self, prediction: Prediction, /) -> int:
        """Return the bytes of memory that the loader of a prediction plans for."""
        ...

    def spill_bytes(self, prediction: Prediction, /) -> int:
        """Return the bytes of disk that packs of a prediction take at a time."""
        ...
