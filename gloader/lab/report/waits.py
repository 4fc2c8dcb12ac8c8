"""What an epoch's seconds went to: the model's step, and what the loop waited for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPUTE: Final = "the model's step"
_OTHER_WAIT: Final = "waiting for the loader"
_REST: Final = "the rest of the loop"
_EVALUATION: Final = "evaluation"
# Words of a bottleneck's sentence (`gloader.observe.bottleneck`), and what the wait of its epoch is called. The wait is
# measured as one: all of it goes to the cause that the epoch named.
_CAUSES: Final = (
    ("waits for the SSD", "waiting for the SSD"),
    ("the object store", "waiting for the object store"),
    ("the samplers", "waiting for samplers"),  # and what these wait for: passes over the edges
    ("the CPU cores", "waiting for a core"),
    ("kernels are compiled", "compiling kernels"),
)
# In the order in which they are drawn, with the styles of their colours.
PARTS: Final[tuple[tuple[str, int], ...]] = (
    (_COMPUTE, 0),
    ("waiting for the SSD", 1),
    ("waiting for the object store", 2),
    ("waiting for samplers", 3),
    ("waiting for a core", 6),
    ("compiling kernels", 5),
    (_OTHER_WAIT, 4),
    (_REST, 7),
    (_EVALUATION, 8),
)


def cause_of(sentence: str) -> str:
    """Return what the wait of an epoch is called that said ``sentence`` of itself."""
    said = sentence.partition(";")[0]  # what would help stands behind it
    return next((cause for words, cause in _CAUSES if words in said), _OTHER_WAIT)


def split_seconds(
    seconds: float, evaluate_seconds: float, stage_seconds: Mapping[str, float], sentence: str
) -> tuple[float, ...]:
    """Return the seconds of an epoch and its evaluation in the order of `PARTS`.

    Parameters
    ----------
    seconds, evaluate_seconds : of the training and of what came behind it
    stage_seconds : of them "compute" and "wait" are the loop's own; the others run beside it
    sentence : what the epoch said it waited for
    """
    compute, wait = stage_seconds["compute"], stage_seconds["wait"]
    parts = {_COMPUTE: compute, cause_of(sentence): wait, _EVALUATION: evaluate_seconds}
    parts[_REST] = max(seconds - compute - wait, 0.0)
    return tuple(parts.get(name, 0.0) for name, _ in PARTS)
