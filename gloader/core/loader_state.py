"""The state of a loader, as JSON: where it stands in its stream of batches, and which stream that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.errors import StateError
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_VERSION = 1
_KEYS = ("version", "next", "seed", "global_batch_size", "fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """The position of a loader in its stream of batches, and what that stream depends on."""

    next: BatchId  # the first batch that was not handed out
    seed: int
    global_batch_size: int
    fingerprint: str  # of the dataset, the seeds, the fan-outs and the order
    version: int = STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return {
            "version": self.version,
            "next": [self.next.epoch, self.next.index],
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LoaderState:
        """Parse a result of `to_json`.

        Raises
        ------
        StateError
            A key is missing or unknown, or a value is malformed or of another version.
        """
        # Exactly these keys: a state of another kind, or one that was edited, must not resume half right.
        if not isinstance(state, dict) or set(state) != set(_KEYS):
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise StateError(f"a loader state has exactly the keys {list(_KEYS)}, got {found}")
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"the state has version {state['version']!r}; this build reads version {STATE_VERSION}"
            )
        position = state["next"]
        if not (isinstance(position, list | tuple) and len(position) == 2 and all(map(_is_count, position))):
            raise StateError(f"'next' must be [epoch, index], both at least 0, got {position!r}")
        if not _is_count(state["global_batch_size"]) or not isinstance(state["seed"], int):
            raise StateError("'seed' and 'global_batch_size' must be whole numbers")
        if not isinstance(state["fingerprint"], str):
            raise StateError(f"'fingerprint' must be a text, got {state['fingerprint']!r}")
        return cls(
            next=BatchId(epoch=position[0], index=position[1]),
            seed=state["seed"],
            global_batch_size=state["global_batch_size"],
            fingerprint=state["fingerprint"],
        )

    def require_same_stream(self, other: LoaderState) -> None:
        """Raise StateError naming the first field in which ``other`` follows another stream of batches."""
        for name in ("seed", "global_batch_size", "fingerprint"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise StateError(
                    f"the state was saved with {name} {theirs!r}, this loader has {ours!r}; "
                    "use the dataset and settings of the saved run"
                )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
