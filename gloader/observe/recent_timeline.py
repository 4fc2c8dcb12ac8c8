"""The last epochs as they were recorded: enough to replay one of them, in little memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gloader.observe.timeline import TimelineRecorder
from gloader.observe.timeline_events import timeline_events
from gloader.replay.recording import HEADER_KEY, parse_recording

if TYPE_CHECKING:
    from gloader.observe.epoch_stats import WorkName
    from gloader.observe.timeline import NoteValue
    from gloader.observe.timeline_events import Used
    from gloader.replay.recording import Recording, RunHeader
    from gloader.types import BatchId

# Of an epoch, those that are recorded: enough to see how it goes on, in some 2 MB an epoch.
MOST_BATCHES: Final = 512
_EVENTS: Final = 16 * MOST_BATCHES  # of an epoch; a batch has some eight
_EPOCHS: Final = 3  # the one before the last, which shows how that began, the last one, and the one under way


class RecentTimeline:
    """Records the first batches of an epoch, and forgets the epochs before the last two. Thread-safe.

    Parameters
    ----------
    whole : records all of it as well; None: nobody does
    """

    def __init__(self, whole: TimelineRecorder | None = None) -> None:
        self.whole = whole
        # Replaced as a whole: threads record while another epoch begins.
        self._recorders: tuple[TimelineRecorder, ...] = (TimelineRecorder(max_events=_EVENTS),)

    def record(
        self,
        stage: WorkName,
        batch: BatchId,
        batches: int,
        started_ns: int,
        ended_ns: int,
        used: Used,
        notes: dict[str, NoteValue] | None = None,
    ) -> None:
        """Record a piece of work of the thread that calls; arguments as of `TimelineRecorder.record`."""
        if self.whole is not None:
            self.whole.record(stage, batch, batches, started_ns, ended_ns, used, notes)
        if batch.index < MOST_BATCHES:
            self._recorders[-1].record(stage, batch, batches, started_ns, ended_ns, used, notes)

    def begin_epoch(self) -> None:
        """Note that another epoch begins: the oldest is forgotten."""
        self._recorders = (*self._recorders[1 - _EPOCHS :], TimelineRecorder(max_events=_EVENTS))

    def recording(self, header: RunHeader) -> Recording:
        """Return what is known of the epochs from the first one of ``header`` on.

        Parameters
        ----------
        header : of the run; its state names the first batch of the recording

        Raises
        ------
        ReplayError
            Events were not recorded, as there were too many.
        """
        records = [record for recorder in self._recorders for record in recorder.records()]
        first_epoch = header.state["next"][0]
        events = [
            event
            for event in timeline_events(records)
            if event["ph"] == "X" and event["args"]["epoch"] >= first_epoch
        ]
        # Of longer epochs no more was recorded: their first part stands for all of it.
        header = replace(header, num_batches=min(header.num_batches, MOST_BATCHES))
        dropped = sum(recorder.num_dropped for recorder in self._recorders)
        other = {HEADER_KEY: header.to_json(), "dropped_events": dropped}
        return parse_recording({"otherData": other, "traceEvents": events})
