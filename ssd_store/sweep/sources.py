"""The seam between a sweep and bytes that are not in a file here: they come in file order, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class SweepSource(Protocol):
    """Brings the wanted pages of a file in file order, for one sweep."""

    def read(self, buffer: memoryview, offset: int, /, *, is_cancelled: Callable[[], bool]) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on, waiting for them; offsets of successive calls ascend.

        It begins and ends with a wanted page. Of others in between, less than 1 MiB on end, nobody looks at the bytes:
        they may stay as they are. All calls come from one thread.

        Parameters
        ----------
        buffer : whole pages, at most 1 MiB
        offset : byte behind the file's header: page p begins at 4096 p
        is_cancelled : asked again and again while it waits; true ends it

        Raises
        ------
        GloaderError
            Whatever ended the source, such as a machine that is gone.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        ...

    def close(self) -> None:
        """Ask for no more, and give everything back. Idempotent."""
        ...
