"""An object store by way of obstore."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gloader.core.urls import shown_url
from gloader.errors import ConfigError, MissingDependencyError, StoreReadError, StoreWriteError
from gloader.ssd_store.mirror.objects import REQUEST_TIMEOUT_S, ObjectFacts
from gloader.ssd_store.mirror.redirects import RedirectGuard
from gloader.ssd_store.mirror.store_errors import redacted, refusal, store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.objects import ObjectStore

T = TypeVar("T")

_PART_BYTES: Final = 16 * 2**20  # of an upload in parts: S3 takes 10,000 of them, so up to 160 GB
_STALL_S: Final = 20.0  # without any byte
_CONNECT_S: Final = 5.0


def open_objects(url: str, *, timeout_s: float = REQUEST_TIMEOUT_S, redirects: bool = False) -> ObjectStore:
    """Open the objects below ``url`` through obstore; no request is made.

    Credentials are found by obstore alone: environment variables (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...),
    the files of the vendors' tools, or the machine's own role.

    Parameters
    ----------
    url : s3://, gs://, az://, https://, http://, file:// or, within a process, memory://name
    timeout_s : of one request, until its last byte is here
    redirects : follow a web server to another host

    Raises
    ------
    ConfigError
        The URL is none, or something that the store needs is not set.
    MissingDependencyError
        obstore is not installed.
    """
    shown = shown_url(url)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise MissingDependencyError.of_extra(f"{shown} is read with obstore", "object") from error
    if url.startswith("memory://"):
        store = _memory_store(shown)
        return ObstoreClient(shown, once=store, patient=store)
    options: dict[str, Any] = {}
    if not url.startswith("file://"):
        options["client_options"] = {
            "timeout": timedelta(seconds=timeout_s),
            "read_timeout": timedelta(seconds=min(timeout_s, _STALL_S)),
            "connect_timeout": timedelta(seconds=min(timeout_s, _CONNECT_S)),
            "allow_http": _says_http(url),
        }
    try:
        # Blocks are repeated by the fetcher, which must see every refusal to slow down in time. What is asked for once
        # and by nobody else, obstore repeats itself.
        patient = from_url(url, **options)
        once = (
            patient
            if url.startswith("file://")
            else from_url(url, **options, retry_config={"max_retries": 0})
        )
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(
            f"{shown} cannot be opened: {redacted(error)}; allowed are s3://bucket/folder, gs://bucket/folder, "
            "az://container/folder, https://host/folder and file:///folder, and the settings of the store in the "
            "environment, such as AWS_REGION or AZURE_STORAGE_ACCOUNT_NAME"
        ) from None
    is_guarded = shown.lower().startswith("http") and not redirects
    guard = RedirectGuard(url, timeout_s=timeout_s) if is_guarded else None
    return ObstoreClient(shown, once=once, patient=patient, guard=guard)


def _says_http(url: str) -> bool:
    """Return whether the endpoint of ``url`` is named as an unencrypted one, by itself or in the environment."""
    if url.startswith("http://"):
        return True
    prefixes = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}
    prefix = prefixes.get(url[:2])
    return prefix is not None and any(
        value.lower().startswith("http://")
        for name, value in os.environ.items()
        if name.startswith(prefix) and ("ENDPOINT" in name or name.endswith("BASE_URL"))
    )


class ObstoreClient:
    """The objects of an obstore store, each request a call that lets other threads run. Thread-safe.

    Parameters
    ----------
    url : where they are, as it may be shown
    once : the store, which repeats no request: for `get`, whose caller does
    patient : the same store, which repeats requests itself
    guard : refuses objects of other hosts; None: there are none, or they are allowed
    """

    def __init__(self, url: str, *, once: Any, patient: Any, guard: RedirectGuard | None = None) -> None:
        self.url = url
        self._once = once
        self._patient = patient
        self._guard = guard

    def head(self, name: str, /) -> ObjectFacts | None:
        """As `ObjectStore.head`."""
        try:
            return _facts(
                self._asked(StoreReadError, name, "asking for it", lambda: self._patient.head(name))
            )
        except StoreReadError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """As `ObjectStore.read`."""

        def act() -> tuple[bytes, ObjectFacts]:
            result = self._patient.get(name)
            facts = _facts(result.meta)
            # Its size is known before its bytes are asked for.
            return b"" if facts.size > max_bytes else bytes(result.bytes()), facts

        data, facts = self._asked(StoreReadError, name, "reading it", act)
        if facts.size > max_bytes:
            text = (
                f"the object has {facts.size} bytes, at most {max_bytes} are expected: it is something else"
            )
            raise StoreReadError(errno.EFBIG, text, self._url_of(name))
        return data, facts

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """As `ObjectStore.get`."""
        doing = f"reading bytes {start} to {start + length - 1}"
        options: dict[str, Any] = {"range": (start, start + length)}
        # A weak tag matches nothing, says RFC 9110; the answer's own is compared in any case.
        if etag.startswith('"'):
            options["if_match"] = etag

        def act() -> tuple[Buffer, ObjectFacts]:
            result = self._once.get(name, options=options)
            facts = _facts(result.meta)
            return b"" if facts.etag != etag else result.bytes(), facts

        data, facts = self._asked(StoreReadError, name, doing, act)
        if facts.etag != etag:
            raise refusal(StoreReadError, errno.ESTALE, self._url_of(name), f"{doing} failed (another ETag)")
        return data

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """As `ObjectStore.put`; large ones in parts, where the store takes them so."""
        # A web server knows no parts.
        has_parts = not self.url.startswith("http")
        options: dict[str, Any] = {} if has_parts else {"use_multipart": False}
        content = source if has_parts or isinstance(source, Path | bytes) else b"".join(source)
        self._asked(
            StoreWriteError,
            name,
            "writing it",
            lambda: self._patient.put(name, content, chunk_size=_PART_BYTES, **options),
        )

    def list(self, prefix: str = "", /) -> list[str]:
        """As `ObjectStore.list`."""

        def act() -> list[str]:
            return sorted(entry["path"] for entry in self._patient.list(prefix or None).collect())

        return self._asked(StoreReadError, prefix, "listing it", act)

    def delete(self, name: str, /) -> None:
        """As `ObjectStore.delete`."""
        try:
            self._asked(StoreWriteError, name, "removing it", lambda: self._patient.delete(name))
        except StoreWriteError as error:
            if error.errno != errno.ENOENT:
                raise

    def __repr__(self) -> str:
        return f"ObstoreClient({self.url!r})"

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _asked(
        self,
        kind: type[StoreReadError | StoreWriteError],
        name: str,
        doing: str,
        act: Callable[[], T],
    ) -> T:
        if self._guard is not None:
            self._guard.require_direct(name)
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - whatever it is, its text may hold a signed query
            failure = store_error(kind, self._url_of(name), doing, error)
        # Outside of the block: not even as the context of ours may the library's text be shown.
        raise failure


@cache
def _memory_store(_url: str) -> Any:
    """Return the store of this process for a URL such as memory://name: for tests and trials."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _facts(meta: Any) -> ObjectFacts:
    # Where there is no ETag, the time of the last change stands for it; it never begins with a quote.
    etag = meta["e_tag"] or f"of {meta['last_modified'].isoformat()}"
    return ObjectFacts(size=meta["size"], etag=etag)
