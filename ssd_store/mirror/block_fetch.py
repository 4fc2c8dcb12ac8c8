"""A block that is to be brought, how far it is, and whether it is asked for again after a request failed."""

from __future__ import annotations

import errno
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gloader.core.processor_time import HelpAccount, own_account
from gloader.errors import ChecksumError, StoreError, StoreReadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

    Alone = Callable[[Callable[[], bool]], AbstractContextManager[Buffer | None]]

MAX_ATTEMPTS: Final = (
    10  # of a block; with the pauses between them, some 20 seconds in which a store answers nothing
)
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
SLOWER: Final = frozenset({errno.EBUSY, errno.ETIMEDOUT})  # what a store says that is asked too much
_REPEATED: Final = SLOWER | {errno.ECONNRESET, errno.EIO}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """A part of an object."""

    name: str
    number: int  # of the block within the object
    start: int  # byte
    length: int
    etag: str

    @property
    def text(self) -> str:
        """What to call it in messages."""
        return f"block {self.number} (bytes {self.start} to {self.start + self.length - 1})"


@dataclass(slots=True, kw_only=True, eq=False)
class Fetch:
    """A block that was asked for. Its fields are the fetcher's own, but for ``request`` and ``error``."""

    request: BlockRequest
    take: Callable[[Buffer], None]
    keep: Callable[[], None]
    alone: Alone
    rank: int  # the order in which blocks were asked for
    asked_by: HelpAccount = field(default_factory=own_account)  # of the thread that asked
    not_before: float = 0.0
    attempt: int = 0
    age: int = 0  # of the window when the request was made
    began: float | None = None  # when the request was made; None: it waits for its turn or for the limits
    is_done: bool = False
    error: StoreError | None = None


def may_repeat(error: StoreError, attempt: int) -> bool:
    """Return whether a block is asked for again whose last of ``attempt`` requests failed. Pure."""
    if isinstance(error, ChecksumError):
        return attempt == 1
    return isinstance(error, StoreReadError) and error.errno in _REPEATED and attempt < MAX_ATTEMPTS


def final_error(error: StoreError, request: BlockRequest, attempt: int, url: str) -> StoreError:
    """Return what to say of a block that is not asked for again. Pure."""
    if attempt == 1 or not isinstance(error, StoreReadError):
        return error
    text = f"{request.text} was given up after {attempt} requests, the last of which: {error.strerror}"
    return StoreReadError(error.errno, text, url)


def pause_s(request: BlockRequest, attempt: int) -> float:
    """Return the seconds to wait before a block is asked for again: doubled each time, spread by its address. Pure."""
    address = zlib.crc32(f"{request.name} {request.number} {attempt}".encode())
    return min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * (0.5 + address / 2**32)
