"""What a mirror asks of an object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Buffer

REQUEST_TIMEOUT_S: Final = 60.0  # of one request, until its last byte is here


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What a store says of an object."""

    size: int  # bytes
    # Of this content, never of another one: the ETag, or what comes nearest to one where the store has none.
    etag: str


class ObjectStore(Protocol):
    """The objects below a URL, by their names. Thread-safe.

    Every method raises `StoreReadError` (`put` and `delete`: `StoreWriteError`) with one of these errno: EBUSY (the
    store asks to slow down), ETIMEDOUT, ECONNRESET (a connection that failed, or a body that was cut), EIO (an error
    of the server), ENOENT, EACCES, ESTALE (another content than asked for), or EINVAL (a request that it refuses).
    """

    @property
    def url(self) -> str:
        """Where they are, as it may be shown: without user, password and query."""
        ...

    def head(self, name: str, /) -> ObjectFacts | None:
        """Return the facts of an object; None: it is not there."""
        ...

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """Return a whole object, of at most ``max_bytes``; a larger one is refused with EFBIG."""
        ...

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """Return ``length`` bytes from byte ``start`` on, of the content that has ``etag``."""
        ...

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """Write an object, or replace it; it is there whole or not at all."""
        ...

    def list(self, prefix: str = "", /) -> list[str]:
        """Return the names that begin with the folders ``prefix``, sorted; EINVAL where a store lists nothing."""
        ...

    def delete(self, name: str, /) -> None:
        """Remove an object; one that is not there is no error."""
        ...
