"""Progress of a conversion on the screen: bars on a terminal, otherwise lines for a log.

A conversion (``gloader prepare``) has steps, one after another. During each step it calls `PrepareProgress.advance`
with the finished amount, in bytes, edges or rows. `convert_view` chooses the implementation: `_BarView` or `_LineView`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from gloader.cli.screen import PacedLines, Screen
from gloader.convert.progress import PrepareProgress
from gloader.core.units import format_bytes, format_count, format_seconds

_TOLD_FROM_S = 0.5  # a line mentions the compilation of kernels if it took more seconds than this


def format_amount(amount: float, unit: str) -> str:
    """Return an amount such as '1.2 GB' or '4.2 M edges'. Pure."""
    return format_bytes(amount) if unit == "bytes" else f"{format_count(amount)} {unit}"


class _Rate(ProgressColumn):
    """A column of a bar: the finished amount and its rate."""

    def render(self, task: Task) -> Text:
        """Return a bar's text, such as "1.2 GB  300 MB/s"."""
        unit = str(task.fields["unit"])
        done = format_amount(task.completed, unit)
        speed = task.finished_speed or task.speed
        return Text(f"{done}  {format_amount(speed, unit)}/s" if speed else done, style="cyan")


class _BarView:
    """One moving bar per step; implements `PrepareProgress`."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._step: str | None = None
        self._task = TaskID(0)

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Move the bar of ``step``. A new step gets its own bar."""
        if step != self._step:
            self._finish()
            self._step, self._task = step, self._bars.add_task(step, total=total, unit=unit)
        self._bars.update(self._task, completed=done, total=total)

    def _finish(self) -> None:
        """Show the last step's bar as complete."""
        # A step of unknown length is complete when it ends, whatever its amount.
        if self._step is not None:
            completed = self._bars.tasks[self._task].completed
            self._bars.update(self._task, total=completed)


class _LineView:
    """For logs: one line at each step's end, and every few seconds of a long step; implements `PrepareProgress`."""

    def __init__(self, screen: Screen) -> None:
        # This import is late: a conversion needs numba, --help does not.
        from gloader.observe.compile_clock import compile_seconds

        self._compile_seconds = compile_seconds
        self._screen = screen
        self._lines = PacedLines(screen)
        self._step: str | None = None
        self._done = ""
        self._started = self._last = time.monotonic()
        self._compiled_s = self._last_compiled_s = self._compile_seconds()

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Note the progress, and write a line if the last one is a few seconds old."""
        if step != self._step:
            self.finish()
            # A step's start is not reported. It is taken to be the last report of the step before.
            self._step, self._started, self._compiled_s = step, self._last, self._last_compiled_s
        self._last, self._last_compiled_s = time.monotonic(), self._compile_seconds()
        # The first conversion on a machine compiles kernels, which does not count in its rate.
        compiled = min(self._last_compiled_s - self._compiled_s, self._last - self._started)
        elapsed = self._last - self._started - compiled
        rate = f", {format_amount(done / elapsed, unit)}/s" if elapsed > 1 else ""
        self._done = f"{format_amount(done, unit)} in {format_seconds(elapsed)}{rate}"
        if compiled > _TOLD_FROM_S:
            self._done += f", after {format_seconds(compiled)} of compiling kernels, once on a machine"
        # `finish` writes the last line of a step.
        if done != total:
            share = f" ({100 * done / total:.0f}%)" if total else ""
            self._lines.say(f"{step}: {self._done}{share}")

    def finish(self) -> None:
        """Write the last line of the step."""
        if self._step is not None:
            self._screen.say(f"{self._step}: {self._done}")
            self._step = None


@contextmanager
def convert_view(screen: Screen) -> Iterator[PrepareProgress]:
    """Show a conversion inside the block: bars on a terminal, otherwise lines."""
    # A log has no bars: moving text would fill it.
    if not screen.has_bars:
        lines = _LineView(screen)
        yield lines
        lines.finish()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=screen.console) as bars:
        yield _BarView(bars)
