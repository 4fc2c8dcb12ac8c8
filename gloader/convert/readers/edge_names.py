"""Under which names a source has the times and the features of its edges: as it was asked for, or as is usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeNames:
    """Names that were asked for; None: those that are usual, where they are there; "none": neither."""

    time: str | None = None
    features: str | None = None

    @property
    def takes_times(self) -> bool:
        """Whether edges get times where there are any."""
        return self.time != NONE

    @property
    def takes_features(self) -> bool:
        """Whether edges get features where there are any."""
        return self.features != NONE

    def pick_time(self, there: Collection[str], usual: tuple[str, ...] = ("edge_time",)) -> str | None:
        """Return the name of the times among those that are ``there``; None: there are none. Pure."""
        return _pick(self.time, there, usual)

    def pick_features(self, there: Collection[str], usual: tuple[str, ...]) -> str | None:
        """Return the name of the features among those that are ``there``; None: there are none. Pure."""
        return _pick(self.features, there, usual)

    def require(
        self, *, has_times: bool, has_features: bool, there: Iterable[str] | None = None, where: str
    ) -> None:
        """Refuse names that were asked for and were not found.

        Parameters
        ----------
        has_times, has_features : whether any edges got some
        there : names of what edges have; None: a source of this kind has no such thing
        where : the source, for messages

        Raises
        ------
        ConfigError
            Says which there are.
        """
        asked = (("--edge-time", self.time, has_times), ("--edge-features", self.features, has_features))
        for flag, name, is_found in asked:
            if name in (None, NONE) or is_found:
                continue
            names = [] if there is None else sorted(set(there))
            said = f"they have {', '.join(names)}" if names else "they have nothing by a name"
            raise ConfigError(f"{flag} {name}: the edges of {where} have no such column; {said}")


USUAL_NAMES: Final = EdgeNames()


def _pick(asked: str | None, there: Collection[str], usual: tuple[str, ...]) -> str | None:
    wanted = usual if asked is None else () if asked == NONE else (asked,)
    return next((name for name in wanted if name in there), None)
