"""Corrections of the cost model's predictions, learnt from the superbatches of a run. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

Strategy: TypeAlias = Literal["direct", "staged", "packed"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("direct", "staged", "packed")

# A larger error is an event, such as a device that hung for a second, not a wrong rate.
_FACTOR_LIMIT: Final = 3.0
_DAMPING: Final = 0.5  # of the logarithm of an error: half of it is believed
_SHARED: Final = 0.5  # of the logarithm of a factor: what it says about a strategy that was not observed
_FORGETTING: Final = 0.95  # of the logarithm of a factor, for each superbatch in which it was not observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted seconds of each strategy, learnt from the superbatches of the run so far."""

    direct: float = 1.0
    staged: float = 1.0
    packed: float = 1.0
    exchanged: float = 1.0  # of rows that come from several machines, however they are kept here
    observed: frozenset[Strategy] = frozenset()
    has_exchanged: bool = False  # `exchanged` was observed, too
    hidden_s: float = 0.0  # of the reads of a batch, that the loop computes meanwhile; 0: that is not known

    def factor(self, strategy: Strategy) -> float:
        """Return what the model's seconds of ``strategy`` are multiplied with."""
        return float(getattr(self, strategy))

    def after(
        self, strategy: Strategy, predicted_s: float, measured_s: float, *, factor: float | None = None
    ) -> Calibration:
        """Return the calibration with one more superbatch in it. Pure.

        Half of the error is believed: a single hiccup of the device does no harm, and three superbatches bring a
        prediction that was wrong by a factor of two to within 10%. Factors stay within a third and three.

        Parameters
        ----------
        strategy : the one that was used
        predicted_s, measured_s : seconds of the superbatch
        factor : of the `Choice`, if an earlier calibration than this one predicted; defaults to this one's
        """
        if not (_is_positive(predicted_s) and _is_positive(measured_s)):
            return self
        learnt = learn_factor(
            self.factor(strategy), predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        # A strategy that was never tried is taken to be half as wrong as this one: they share a device, but not
        # everything. One that was tried before is slowly forgiven, so that a bad moment does not rule it out for
        # the rest of the run.
        factors = self._others(learnt)
        factors[strategy] = learnt
        exchanged = self.exchanged**_FORGETTING if self.has_exchanged else learnt**_SHARED
        known = replace(self, exchanged=exchanged, observed=self.observed | {strategy})
        return replace(known, **factors)

    def after_exchange(self, predicted_s: float, measured_s: float, *, factor: float) -> Calibration:
        """Return the calibration with one more superbatch whose rows came from several machines. Pure.

        Own sweeps that were never tried are taken to be half as wrong: the disk is the same. An exchange that alone
        paid for a disk that is slower than it was measured would lose to them.

        Parameters
        ----------
        predicted_s, measured_s : seconds of the superbatch
        factor : that was in the prediction
        """
        learnt = learn_factor(
            self.exchanged, predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        return replace(replace(self, exchanged=learnt, has_exchanged=True), **self._others(learnt))

    def _others(self, learnt: float) -> dict[str, Any]:
        """Return the factors of the strategies, after one way of reading was learnt of."""
        return {
            other: self.factor(other) ** _FORGETTING if other in self.observed else learnt**_SHARED
            for other in STRATEGIES
        }


def learn_factor(
    factor: float, *, predicted_s: float, measured_s: float, made_with: float | None = None
) -> float:
    """Return the factor to predict with next, halfway to the one that would have been right. Pure.

    No error of more than a factor of three is believed, and seconds that are not positive teach nothing.

    Parameters
    ----------
    factor : the factor until now
    predicted_s, measured_s : seconds
    made_with : the factor in the prediction; defaults to ``factor``
    """
    if not (_is_positive(predicted_s) and _is_positive(measured_s)):
        return factor
    right = (factor if made_with is None else made_with) * _clamped(measured_s / predicted_s)
    # A mean of logarithms: twice as fast and twice as slow weigh the same.
    return _clamped(factor ** (1 - _DAMPING) * right**_DAMPING)


def _is_positive(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _clamped(factor: float) -> float:
    return min(max(factor, 1 / _FACTOR_LIMIT), _FACTOR_LIMIT)
