"""A loader's state as JSON: its position in its stream of batches, and the stream's identity.

A loader's stream is the sequence of all batches of all epochs. It is determined by *facts*: the dataset, the seeds and
some settings. A saved state can only be resumed by a loader with the same stream. A loader writes its state with
`to_json`, and checks a saved one with `from_json` and `require_same_stream`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gloader.core.malformed import shown
from gloader.errors import StateError
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_VERSION = 2  # version of the JSON form
_KEYS = ("version", "next", "seed", "global_batch_size", "fingerprint", "stream")
# States of version 1 have only the fingerprint of their stream, without the facts.
_KEYS_OF_1 = _KEYS[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """A loader's position in its stream of batches, with the settings that determine the stream."""

    next: BatchId  # the first undelivered batch
    seed: int  # the loader's random seed
    global_batch_size: int  # seeds per step of all ranks together
    fingerprint: str  # hash of the facts: dataset, seeds, fan-outs, order
    # The same facts by name, as JSON values. Empty in a state of version 1.
    stream: Mapping[str, Any] = field(default_factory=dict)
    version: int = STATE_VERSION  # version of the JSON form that this state came from or will have

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return {
            "version": self.version,
            "next": [self.next.epoch, self.next.index],
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "fingerprint": self.fingerprint,
            "stream": dict(self.stream),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LoaderState:
        """Return the state from a result of `to_json`, in this version or version 1.

        Raises
        ------
        StateError
            A key is missing or unknown, or a value is malformed or from another version.
        """
        # Exactly the known keys are accepted, so that a wrong or an edited state is not resumed.
        if not isinstance(state, dict):
            raise StateError(f"a loader state is a JSON object, got {type(state).__name__}")
        version = state.get("version", STATE_VERSION)
        if isinstance(version, bool) or version not in (1, STATE_VERSION):
            raise StateError(
                f"the state has version {shown(version)}; this build reads versions 1 and {STATE_VERSION}"
            )
        keys = _KEYS if version == STATE_VERSION else _KEYS_OF_1
        if set(state) != set(keys):
            raise StateError(
                f"a loader state has exactly the keys {list(keys)}, got {shown(sorted(map(shown, state)))}"
            )
        position = state["next"]
        if not (isinstance(position, list | tuple) and len(position) == 2 and all(map(_is_count, position))):
            raise StateError(f"'next' must be [epoch, index], both at least 0, got {shown(position)}")
        seed = state["seed"]
        if not _is_count(state["global_batch_size"]) or not (isinstance(seed, int) and abs(seed) < 2**64):
            raise StateError("'seed' and 'global_batch_size' must be whole numbers of 64 bits")
        if not isinstance(state["fingerprint"], str):
            raise StateError(f"'fingerprint' must be a text, got {shown(state['fingerprint'])}")
        stream = state.get("stream", {})
        if not isinstance(stream, dict) or not all(isinstance(name, str) for name in stream):
            raise StateError(f"'stream' must be a JSON object, got {shown(stream)}")
        return cls(
            next=BatchId(epoch=position[0], index=position[1]),
            seed=state["seed"],
            global_batch_size=state["global_batch_size"],
            fingerprint=state["fingerprint"],
            stream=stream,
        )

    def require_same_stream(self, other: LoaderState) -> None:
        """Raise StateError if ``other``, a saved state, has another stream. The message names the first difference."""
        known, saved = self._facts(), other._facts()
        # The fingerprint is compared last: it differs if any fact differs, but does not show which one. A state of
        # version 1 has no other facts than the seed and the batch size.
        names = {**known, **saved} if other.stream else ("seed", "global_batch_size")
        for name in names:
            _require_equal(name, known.get(name), saved.get(name))
        _require_equal("fingerprint", self.fingerprint, other.fingerprint)

    def _facts(self) -> dict[str, Any]:
        """Return the facts that determine the stream, by name."""
        return {"seed": self.seed, "global_batch_size": self.global_batch_size, **self.stream}


def _require_equal(name: str, ours: object, theirs: object) -> None:
    """Raise StateError if a fact of this loader differs from the saved one."""
    if ours != theirs:
        raise StateError(
            f"the state was saved with {name} {shown(theirs)}, this loader has {shown(ours)}; "
            "use the dataset and settings of the saved run"
        )


def _is_count(value: object) -> bool:
    """Return True for a whole number in 0..2**62-1, which fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
