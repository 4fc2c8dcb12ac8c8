"""Times of steps by the clock of a device that works behind the host."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gloader.device import Device, Mark
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.transfer import SentBatch


@dataclass(slots=True, kw_only=True)
class _Step:
    """One batch in the loop's hands."""

    recorder: StatsRecorder  # of its epoch
    superbatch: int
    ends_superbatch: bool
    asked: Mark  # behind the step before it
    begun: Mark  # behind what brings the batch
    ended: Mark | None = None  # behind what the loop launched for it

    def marks(self) -> tuple[Mark, ...]:
        """Return all of them; none while the loop has the batch."""
        # A loop may go on in another thread, on another stream: then the last is reached before the others.
        return () if self.ended is None else (self.asked, self.begun, self.ended)


class StepTimes:
    """Measures what the device computes, and for how long it stands still before; for the consumer's thread.

    The host's clock shows how long launching takes, and a wait for a batch is one for the model where the sender keeps
    its distance. So marks are put between the steps, and read when the device has passed them: nothing waits for it.

    Parameters
    ----------
    device : works behind the host
    feedback : told of every step
    """

    def __init__(self, device: Device, feedback: RunFeedback) -> None:
        self._device = device
        self._feedback = feedback
        self._asked: Mark | None = None
        self._steps: deque[_Step] = deque()

    def ask(self) -> None:
        """Note that the loop asks for a batch."""
        if self._asked is None:
            self._asked = self._device.mark_computing()
        self._report()

    def begin(self, sent: SentBatch, recorder: StatsRecorder) -> Mark:
        """Return the mark before the computation of ``sent``, which begins; ``recorder`` is that of its epoch."""
        assert self._asked is not None  # noqa: S101 - by `ask`
        begun = self._device.mark_computing()
        self._steps.append(
            _Step(
                recorder=recorder,
                superbatch=sent.superbatch,
                ends_superbatch=sent.ends_superbatch,
                asked=self._asked,
                begun=begun,
            )
        )
        self._asked = None
        return begun

    def end(self) -> None:
        """Note that nothing more is launched for the batch that the loop got last. Idempotent."""
        if self._steps and self._steps[-1].ended is None:
            self._asked = self._steps[-1].ended = self._device.mark_computing()

    def settle(self) -> None:
        """Wait for the device at the end of an epoch, whose figures are then complete."""
        for mark in self._steps[-1].marks() if self._steps else ():
            mark.wait()
        self._report()
        self._asked = None  # what comes before the next epoch is no wait for a batch

    def _report(self) -> None:
        while self._steps and (marks := self._steps[0].marks()) and all(mark.is_reached() for mark in marks):
            step = self._steps.popleft()
            wait_s, compute_s = (max(b.seconds_since(a), 0.0) for a, b in pairwise(marks))
            step.recorder.add_seconds("wait", wait_s)
            step.recorder.add_seconds("compute", compute_s)
            self._feedback.delivered(step.superbatch, ends_superbatch=step.ends_superbatch, wait_s=wait_s)
            self._feedback.computed(compute_s)
