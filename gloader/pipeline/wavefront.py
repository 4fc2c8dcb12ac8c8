"""Which batches go into which pass over the edges: a wave that moves through them, a hop with each pass. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

from gloader.ssd_store.cost.superbatch_size import ramp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePass:
    """One pass over the edges, and the positions of the stream whose batches it serves."""

    number: int  # counts from the start of the pipeline
    served: tuple[
        range, ...
    ]  # (L,) one behind the other: hop L - 1 is of ``served[0]``, hop 0 of ``served[-1]``

    @property
    def completed(self) -> range:
        """The batches that it brings the last hop of: none while the wave fills."""
        return self.served[0]

    @property
    def begun(self) -> range:
        """The batches that it brings hop 0 of: none behind the end of the stream."""
        return self.served[-1]

    @property
    def positions(self) -> range:
        """All batches that it serves."""
        return range(self.completed.start, self.begun.stop)


def edge_passes(
    size: int, *, num_hops: int, has: Callable[[int], bool], start: int = 0
) -> Iterator[EdgePass]:
    """Yield every pass that the stream needs, and none for batches that nobody takes. Pure but for ``has``.

    Batches form topology superbatches: of 1, 2, 4, ... batches, as many as there are hops, so that the first batch does
    not wait for passes over all of the file, then of ``size``. Pass t serves the last hop of superbatch t - L + 1, the
    hop before it of the next one, ... and hop 0 of superbatch t.

    Parameters
    ----------
    size : S_t, batches of a superbatch
    num_hops : L
    has : whether the stream has a batch at a position; true for all those before one that it is true for
    start : the first position that is to be swept

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    return _edge_passes(chain(islice(ramp(size), num_hops), repeat(size)), num_hops, has, start)


def batches_swept(size: int, planned: int) -> int:
    """Return how many batches may be drawn to their end and not be made yet, those of the pass under way included.

    The pass that completes a superbatch waits until so few are left with it. While it is under way, the batches of the
    superbatch before it are executed, behind up to ``planned`` whose traces were taken ahead of them. Pure.

    No two ever wait for one another. Say that a pass waits: with the ``size`` batches or fewer that it would complete
    there were more than 2 S_t + 2 S, so more than 2 S are complete and not made. The next batch to be made is of a
    superbatch j of features. Plans j and j + 1 end at most 2 S batches behind that batch: their traces can be taken,
    which is all that plan j needs (`SuperbatchCollector`), and room for it, which the batches before j make as they are
    executed. So that batch is made, and the next, until there is room for the pass.

    Parameters
    ----------
    size : S_t
    planned : S, batches whose features are planned together; 1 where they are in memory
    """
    return 2 * (size + planned)


def _edge_passes(
    sizes: Iterator[int], num_hops: int, has: Callable[[int], bool], start: int
) -> Iterator[EdgePass]:
    wave = deque([range(start, start)] * num_hops, maxlen=num_hops)
    number = 0
    while True:
        begin = stop = wave[-1].stop
        most = begin + next(sizes)
        while stop < most and has(stop):
            stop += 1
        wave.append(range(begin, stop))
        if (
            wave[0].start == stop
        ):  # all of them are empty: the stream ended, and so did its last batches' hops
            return
        yield EdgePass(number=number, served=tuple(wave))
        number += 1
