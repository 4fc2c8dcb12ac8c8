"""Items that a thread reads while the caller works on earlier ones, such as the batches of a file."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from gloader.core.signals import thread_errors, uninterrupted
from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import Channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

# Items that exist at a time: the caller's, one that is ready, and one that is read.
ITEMS_AT_A_TIME: Final = 3


@contextmanager
def read_ahead(items: Iterable[T], *, name: str, is_on: bool = True) -> Iterator[Iterator[T]]:
    """Give the items in order to the block, which works on one while a thread reads the next ones.

    An error of ``items`` is raised in the block after all earlier items. The thread has ended when the block ends.

    Parameters
    ----------
    items : only the thread uses them
    name : the thread's name after "gloader-"
    is_on : False if memory has no room for several items; then the caller reads each one itself

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    """
    if not is_on:
        yield iter(items)
        return
    ready: Channel[T] = Channel(1)
    thread = threading.Thread(target=_read, args=(items, ready), name=f"gloader-{name}", daemon=True)
    try:
        with thread_errors(), uninterrupted():
            thread.start()
        yield _items_of(ready)
    finally:
        with uninterrupted():
            ready.cancel()
            if thread.ident is not None:
                thread.join()
            del thread  # here: Python swallows a Ctrl-C that arrives while it forgets a thread


def _read(items: Iterable[T], ready: Channel[T]) -> None:
    """Put the items and their end into ``ready``. The thread runs this."""
    try:
        for item in items:
            ready.put(item)
            del item  # its memory is free while the next one is read
        ready.close()
    except BaseException as error:  # noqa: BLE001 - raised in the caller's thread, whatever its type
        ready.close(error)  # no effect if the block has ended


def _items_of(ready: Channel[T]) -> Iterator[T]:
    """Yield the items until their end."""
    while True:
        try:
            item = ready.get()
        except ChannelClosedError:
            return
        yield item
        del item
