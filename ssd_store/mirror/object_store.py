"""Object stores: their interface, the limits on requests, and the client that uses the library obstore.

An object store, such as S3 or a web server, holds files as objects below a URL. A mirror fetches a dataset's objects
block by block. `ObjectStore` is its interface, and `ObstoreClient` the implementation. An ETag is the store's text that
identifies an object's content: it changes when the object is replaced.

`Limits` are the bytes and requests per second that a user allows, shared by all threads. `RedirectGuard` follows a web
server's redirects within its host, and refuses redirects to another host. Errors have gloader's texts, because
obstore's texts may hold signed queries, headers and key ids.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from gloader.core.malformed import shown
from gloader.core.paths import shown_url
from gloader.core.units import format_bytes, parse_bytes
from gloader.errors import ConfigError, MissingDependencyError, StoreReadError, StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer


REQUEST_TIMEOUT_S: Final = 60.0  # longest time for one request, until its last byte


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """A store's facts about an object."""

    size: int  # bytes
    # Identifies this content: the ETag, or the nearest equivalent if the store has none.
    etag: str


class ObjectStore(Protocol):
    """The objects below a URL, by their names. Thread-safe.

    Every method raises `StoreReadError` (`put` and `delete`: `StoreWriteError`) with one of these errno: EBUSY (the
    store is overloaded), ETIMEDOUT, ECONNRESET (a failed connection, or a truncated body), EIO (a server error),
    ENOENT, EACCES, ESTALE (the content was replaced), or EINVAL (an invalid request).
    """

    @property
    def url(self) -> str:
        """The URL in a form without user, password and query."""
        ...

    def head(self, name: str, /) -> ObjectFacts | None:
        """Return an object's facts, or None if it does not exist."""
        ...

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """Return an entire object with at most ``max_bytes``. A larger object raises EFBIG."""
        ...

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """Return ``length`` bytes from byte ``start`` on, from the content with ``etag``."""
        ...

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """Write or replace an object, which appears completely or not at all."""
        ...

    def list(self, prefix: str = "", /) -> list[str]:
        """Return the names that begin with the folders ``prefix``, sorted. EINVAL if the store cannot list names."""
        ...

    def delete(self, name: str, /) -> None:
        """Remove an object; a missing object is no error."""
        ...


# The expected rate of a store for one machine, in bytes per second. On S3, 6 to 20 Gb/s were measured.
_LIKELY_BYTES_PER_S: Final = 1e9
# After idle time, the amount for this many seconds may be taken at once.
_BURST_S: Final = 0.25
_REQUESTS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*req/s", re.IGNORECASE)
_ALLOWED: Final = "bytes and requests a second, as in 500MB/s,3000req/s, or one of them"


class TokenBucket:
    """A rate limit with short bursts. Thread-safe; serves requests in their order.

    Each amount taken moves `_free_at` into the future by the time in which the rate refills the amount.

    Parameters
    ----------
    per_s : the rate: bytes or requests per second, above 0
    """

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._lock = threading.Lock()
        self._free_at = monotonic() - _BURST_S  # time at which all earlier amounts have been refilled

    def take(self, amount: float) -> float:
        """Take ``amount``, which may be more than available; return the seconds to wait before its use."""
        with self._lock:
            now = monotonic()
            begin = max(self._free_at, now - _BURST_S)
            self._free_at = begin + amount / self.per_s
            # A request waits until earlier amounts are refilled, not its own: a block may be larger than any burst.
            return max(0.0, begin - now)


class Limits:
    """The limits on requests to an object store; no limits by default. Thread-safe.

    Parameters
    ----------
    bytes_per_s, requests_per_s : rates for all requests together; None means no limit

    Raises
    ------
    ConfigError
        A rate is not above 0.
    """

    def __init__(self, *, bytes_per_s: float | None = None, requests_per_s: float | None = None) -> None:
        rates = (bytes_per_s, requests_per_s)
        if any(rate is not None and not rate > 0 for rate in rates):
            raise ConfigError(f"a limit of an object store must be above 0, not {rates}; give {_ALLOWED}")
        self.bytes_per_s = bytes_per_s
        self.requests_per_s = requests_per_s
        self._bytes = TokenBucket(bytes_per_s) if bytes_per_s else None
        self._requests = TokenBucket(requests_per_s) if requests_per_s else None

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse limits such as "500MB/s,3000req/s". None or an empty text means no limits. Pure.

        Raises
        ------
        ConfigError
            The text has another form, or gives one limit twice.
        """
        rates: dict[str, float | None] = {"bytes_per_s": None, "requests_per_s": None}
        for part in filter(None, map(str.strip, (text or "").split(","))):
            requests = _REQUESTS.fullmatch(part)
            name = "requests_per_s" if requests else "bytes_per_s"
            if rates[name] is not None:
                raise ConfigError(f"{shown(text)} gives the same limit twice; allowed are {_ALLOWED}")
            rates[name] = float(requests[1]) if requests else _bytes_of(part, text)
        return cls(bytes_per_s=rates["bytes_per_s"], requests_per_s=rates["requests_per_s"])

    @property
    def likely_bytes_per_s(self) -> float:
        """Expected bytes per second, before the run has measured them."""
        return self.bytes_per_s or _LIKELY_BYTES_PER_S

    def take(self, num_bytes: int) -> float:
        """Take a request of ``num_bytes``; return the seconds to wait before making it."""
        waits = [self._bytes.take(num_bytes)] if self._bytes else []
        waits += [self._requests.take(1)] if self._requests else []
        return max(waits, default=0.0)

    def __str__(self) -> str:
        rates = [f"{format_bytes(self.bytes_per_s)}/s"] if self.bytes_per_s else []
        rates += [f"{self.requests_per_s:g}req/s"] if self.requests_per_s else []
        return ",".join(rates) or "none"


def _bytes_of(part: str, text: str | None) -> float:
    """Return the bytes per second in ``part``, such as "500MB/s"; the error shows the user's full ``text``. Pure."""
    size = part[: -len("/s")] if part.lower().endswith("/s") else ""
    try:
        rate = parse_bytes(size) if size[:1].isdigit() else 0
    except ConfigError:
        rate = 0
    if rate <= 0:
        raise ConfigError(f"{shown(text)} is no limit of an object store; allowed are {_ALLOWED}")
    return float(rate)


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 10  # redirects to follow for one object, as many as obstore follows


class RedirectGuard:
    """Refuses objects that a web server redirects to another host, after one HEAD request each. Thread-safe.

    obstore itself follows redirects. The dataset's record, and so its checksums, would then come from another host.

    Parameters
    ----------
    url : the objects' folder URL, http or https, perhaps with user and password
    timeout_s : time-out for a request
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._folder = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Authorization": f"Basic {_basic(user)}"} if user else {}
        self._timeout_s = timeout_s
        self._opener = OpenerDirector()
        for handler in (ProxyHandler, HTTPHandler, HTTPSHandler):  # no redirects, no errors raised
            self._opener.add_handler(handler())
        self._direct: set[str] = set()  # names that are not redirected to another host

    def require_direct(self, name: str) -> None:
        """Raise `StoreReadError` if another host would answer a request for the object ``name``.

        If the server does not answer this test, nothing is raised: the object's own request reports the reason.
        """
        if name in self._direct:
            return
        url = f"{self._folder}/{quote(name)}"
        try:
            other = self._other_host(url)
        except (OSError, HTTPException, ValueError):
            return
        if other is not None:
            text = (
                f"the server sends requests on to {shown_url(other)}, and redirects to another host are not followed; "
                "give the URL that it leads to, or read it with --object-redirects (object_redirects=True)"
            )
            raise StoreReadError(errno.EINVAL, text, url)
        self._direct.add(name)

    def _other_host(self, url: str) -> str | None:
        """Return the URL at another host to which ``url`` leads, or None."""
        for _ in range(_MOST_REDIRECTS):
            request = Request(url, headers=self._headers, method="HEAD")  # noqa: S310 - http and https alone
            response = self._opener.open(request, timeout=self._timeout_s)
            with response:
                location = response.headers.get("Location")
            target = urljoin(url, location or url)
            # No client follows a redirect to another scheme.
            if response.status not in _REDIRECTS or urlsplit(target).scheme not in {"http", "https"}:
                return None
            if not _is_same_host(url, target):
                return target
            url = target
        return None


def _is_same_host(first: str, second: str) -> bool:
    """Return True if two URLs belong to one server; https may replace http. Pure."""
    before, after = urlsplit(first), urlsplit(second)
    is_upgrade = (before.scheme, after.scheme) == ("http", "https")
    return before.hostname == after.hostname and (is_upgrade or _port(first) == _port(second))


def _port(url: str) -> int:
    """Return the URL's port, by default its scheme's. Pure."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _basic(user: str) -> str:
    """Return the value for HTTP's basic authentication from "user:password" in a URL. Pure."""
    return base64.b64encode(unquote(user).encode()).decode("ascii")


Failure = TypeVar("Failure", bound=StoreReadError | StoreWriteError)

# Patterns in obstore's text: "status: 503" and "kind: Timeout" from Rust values, and the code in S3's answers.
_STATUS = re.compile(r"\bstatus: (\d{3})\b|status code: (\d{3})\b")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_QUERY = re.compile(r"\?[^\s\"',)>]*")
_USER = re.compile(r"//[^/\s\"']*@")
_SLOW_CODES: Final = frozenset({"SlowDown", "ServerBusy", "RequestLimitExceeded", "TooManyRequests"})
_ADVICE: Final = {
    errno.EBUSY: "the store asks to slow down; allow fewer requests with --object-requests or --object-limit",
    errno.ETIMEDOUT: "it took too long; check the network, or allow fewer requests with --object-requests",
    errno.ECONNRESET: "the connection failed; check the network and the endpoint",
    errno.EIO: "the store reports an internal error; try again later",
    errno.ENOENT: "there is no such object; check the URL",
    errno.EACCES: "permission denied; check the credentials that the environment names, and what they may read",
    errno.ESTALE: "the object was replaced after the dataset was opened; open the dataset again",
    errno.EINVAL: "the store refuses the request; check the URL and the settings in the environment",
}
# errno and reason for an exception of obstore, by the exception's class name.
_BY_NAME: Final = {
    "FileNotFoundError": (errno.ENOENT, "not found"),
    "PermissionError": (errno.EACCES, "permission denied"),
    "PreconditionError": (errno.ESTALE, "another ETag"),
    "PermissionDeniedError": (errno.EACCES, "permission denied"),
    "UnauthenticatedError": (errno.EACCES, "not authenticated"),
    "NotSupportedError": (errno.EINVAL, "not supported, such as ranges of bytes by a web server"),
    "InvalidPathError": (errno.EINVAL, "invalid object name"),
}
# errno and reason for an exception of obstore, by words in its text ("redential" with or without a capital C).
_BY_WORDS: Final = {
    "UnexpectedRange": (errno.ESTALE, "the object is shorter than it was"),
    "StartTooLarge": (errno.ESTALE, "the object is shorter than it was"),
    "redential": (errno.EACCES, "no credentials were found"),
}


def store_error(kind: type[Failure], url: str, doing: str, error: BaseException) -> Failure:
    """Return the error for obstore's exception. Pure. Raise it ``from None``, because ``error`` may hold secrets.

    Parameters
    ----------
    kind : the error's class
    url : the object's URL, without secrets
    doing : the operation, such as "reading bytes 0 to 99"
    error : obstore's exception
    """
    code, reason = _classified(error)
    return refusal(kind, code, url, f"{doing} failed ({reason})")


def refusal(kind: type[Failure], code: int, url: str, text: str) -> Failure:
    """Return the error ``text`` about ``url`` with the advice for the errno ``code``. Pure."""
    return kind(code, f"{text}: {_ADVICE[code]}", url)


def redacted(error: BaseException) -> str:
    """Return an error text's first line, shortened, without the queries and users in URLs. Pure."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _USER.sub("//", _QUERY.sub("", lines[0]))[:200]


def _classified(error: BaseException) -> tuple[int, str]:
    """Return the errno for the kind of failure, and a short text without parts of the request."""
    text = str(error)
    status = _STATUS.search(text)
    if status is not None:
        number, code = int(status[1] or status[2]), _CODE.search(text)
        is_slow = code is not None and code[1] in _SLOW_CODES
        return errno.EBUSY if is_slow else _errno_of_status(number), f"HTTP {number}" + (
            f" {code[1]}" if code else ""
        )
    known = _BY_NAME.get(type(error).__name__)
    if known is not None:
        return known
    kind = _KIND.search(text)  # the HTTP library's kind of failure
    if "TimedOut" in text or (kind is not None and kind[1] == "Timeout"):
        return errno.ETIMEDOUT, "timed out"
    if kind is not None:
        return errno.ECONNRESET, "no connection" if kind[1] == "Connect" else f"connection: {kind[1]}"
    return next(
        (known for words, known in _BY_WORDS.items() if words in text), (errno.EIO, type(error).__name__)
    )


def _errno_of_status(status: int) -> int:
    """Return the errno for an HTTP status that reports a failure. Pure."""
    if status in (429, 503):
        return errno.EBUSY
    if status in (408, 504):
        return errno.ETIMEDOUT
    if status >= 500:
        return errno.EIO
    known = {404: errno.ENOENT, 410: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES, 412: errno.ESTALE}
    return known.get(status, errno.EINVAL)


T = TypeVar("T")

_PART_BYTES: Final = 16 * 2**20  # bytes per part in an upload: S3 takes 10,000 parts, so objects up to 160 GB
_STALL_S: Final = 20.0  # longest wait for the next byte
_CONNECT_S: Final = 5.0  # longest wait for a connection


def open_objects(url: str, *, timeout_s: float = REQUEST_TIMEOUT_S, redirects: bool = False) -> ObjectStore:
    """Open the objects below ``url`` through obstore; makes no request.

    Only obstore looks for credentials: in environment variables (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...), the
    files of the vendors' tools, or the machine's own role.

    Parameters
    ----------
    url : s3://, gs://, az://, https://, http://, file:// or, within a process, memory://name
    timeout_s : time-out for one request, until its last byte arrived
    redirects : True follows a web server to another host

    Raises
    ------
    ConfigError
        The URL is invalid, or a setting that the store needs is missing.
    MissingDependencyError
        obstore is not installed.
    """
    public_url = shown_url(url)  # without secrets
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise MissingDependencyError.of_extra(f"{public_url} is read with obstore", "object") from error
    if url.startswith("memory://"):
        store = _memory_store(public_url)
        return ObstoreClient(public_url, once=store, patient=store)
    options: dict[str, Any] = {}
    if not url.startswith("file://"):
        options["client_options"] = {
            "timeout": timedelta(seconds=timeout_s),
            "read_timeout": timedelta(seconds=min(timeout_s, _STALL_S)),
            "connect_timeout": timedelta(seconds=min(timeout_s, _CONNECT_S)),
            "allow_http": _says_http(url),
        }
    try:
        # ``once`` is for blocks: the fetcher repeats them, and must see an overloaded store's refusals in time.
        # ``patient`` is for all other requests, which obstore repeats.
        patient = from_url(url, **options)
        once = (
            patient
            if url.startswith("file://")
            else from_url(url, **options, retry_config={"max_retries": 0})
        )
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(
            f"{public_url} cannot be opened: {redacted(error)}; allowed are s3://bucket/folder, gs://bucket/folder, "
            "az://container/folder, https://host/folder and file:///folder, and the settings of the store in the "
            "environment, such as AWS_REGION or AZURE_STORAGE_ACCOUNT_NAME"
        ) from None
    is_guarded = public_url.lower().startswith("http") and not redirects
    guard = RedirectGuard(url, timeout_s=timeout_s) if is_guarded else None
    return ObstoreClient(public_url, once=once, patient=patient, guard=guard)


def _says_http(url: str) -> bool:
    """Return True if ``url`` or its endpoint in the environment is an unencrypted address."""
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
    """The objects in an obstore store. Each request releases the interpreter lock. Thread-safe.

    Parameters
    ----------
    url : the URL, without secrets
    once : the store without retries, for `get`, whose caller retries
    patient : the same store with retries
    guard : refuses objects on other hosts; None for stores without redirects, or if redirects are allowed
    """

    def __init__(self, url: str, *, once: Any, patient: Any, guard: RedirectGuard | None = None) -> None:
        self.url = url
        self._once = once
        self._patient = patient
        self._guard = guard

    def head(self, name: str, /) -> ObjectFacts | None:
        """Return the facts, as `ObjectStore.head`."""
        try:
            return _facts(self._call(StoreReadError, name, "asking for it", lambda: self._patient.head(name)))
        except StoreReadError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """Read, as `ObjectStore.read`."""

        def request() -> tuple[bytes, ObjectFacts]:
            result = self._patient.get(name)
            facts = _facts(result.meta)
            # The size is known before the bytes are read. A larger object raises below.
            return b"" if facts.size > max_bytes else bytes(result.bytes()), facts

        data, facts = self._call(StoreReadError, name, "reading it", request)
        if facts.size > max_bytes:
            text = (
                f"the object has {facts.size} bytes, at most {max_bytes} are expected: it is something else"
            )
            raise StoreReadError(errno.EFBIG, text, self._url_of(name))
        return data, facts

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """Return the bytes, as `ObjectStore.get`."""
        doing = f"reading bytes {start} to {start + length - 1}"
        options: dict[str, Any] = {"range": (start, start + length)}
        # By RFC 9110 a weak tag, which begins with W/, never matches. So the answer's tag is compared below as well.
        if etag.startswith('"'):
            options["if_match"] = etag

        def request() -> tuple[Buffer, ObjectFacts]:
            result = self._once.get(name, options=options)
            facts = _facts(result.meta)
            return b"" if facts.etag != etag else result.bytes(), facts

        data, facts = self._call(StoreReadError, name, doing, request)
        if facts.etag != etag:
            raise refusal(StoreReadError, errno.ESTALE, self._url_of(name), f"{doing} failed (another ETag)")
        return data

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """Write as `ObjectStore.put`; large objects in parts, if the store supports them."""
        # A web server does not support parts.
        has_parts = not self.url.startswith("http")
        options: dict[str, Any] = {} if has_parts else {"use_multipart": False}
        content = source if has_parts or isinstance(source, Path | bytes) else b"".join(source)
        self._call(
            StoreWriteError,
            name,
            "writing it",
            lambda: self._patient.put(name, content, chunk_size=_PART_BYTES, **options),
        )

    def list(self, prefix: str = "", /) -> list[str]:
        """Return the names, as `ObjectStore.list`."""

        def request() -> list[str]:
            return sorted(entry["path"] for entry in self._patient.list(prefix or None).collect())

        return self._call(StoreReadError, prefix, "listing it", request)

    def delete(self, name: str, /) -> None:
        """Delete, as `ObjectStore.delete`."""
        try:
            self._call(StoreWriteError, name, "removing it", lambda: self._patient.delete(name))
        except StoreWriteError as error:
            if error.errno != errno.ENOENT:
                raise

    def __repr__(self) -> str:
        return f"ObstoreClient({self.url!r})"

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _call(
        self,
        kind: type[StoreReadError | StoreWriteError],
        name: str,
        doing: str,
        request: Callable[[], T],
    ) -> T:
        """Return the result of ``request``, a call to obstore about the object ``name``; raise errors of ``kind``."""
        if self._guard is not None:
            self._guard.require_direct(name)
        try:
            return request()
        except Exception as error:  # noqa: BLE001 - any error's text may hold a signed query
            failure = store_error(kind, self._url_of(name), doing, error)
        # The error is raised outside the block, so that the library's text is not shown as its context.
        raise failure


@cache
def _memory_store(_url: str) -> Any:
    """Return this process's store for a URL such as memory://name, for tests and trials."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _facts(meta: Any) -> ObjectFacts:
    """Return the facts in obstore's metadata about an object."""
    # Without an ETag the time of the last change replaces it. This text never begins with a quote.
    etag = meta["e_tag"] or f"of {meta['last_modified'].isoformat()}"
    return ObjectFacts(size=meta["size"], etag=etag)
