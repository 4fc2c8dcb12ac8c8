"""Errors of obstore in our words, without what its own texts hold: signed queries, headers, key ids."""

from __future__ import annotations

import errno
import re
from typing import Final, TypeVar

from gloader.errors import StoreReadError, StoreWriteError

Failure = TypeVar("Failure", bound=StoreReadError | StoreWriteError)

# Of obstore's text: "status: 503" and "kind: Timeout" of its Rust values, and the code in the body of S3's answers.
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
    errno.EIO: "the store has an error of its own; try again later",
    errno.ENOENT: "there is no such object; check the URL",
    errno.EACCES: "permission denied; check the credentials that the environment names, and what they may read",
    errno.ESTALE: "it was replaced since it was first seen; open the dataset again",
    errno.EINVAL: "the store refuses the request; check the URL and the settings in the environment",
}
_BY_NAME: Final = {
    "FileNotFoundError": (errno.ENOENT, "not found"),
    "PermissionError": (errno.EACCES, "permission denied"),
    "PreconditionError": (errno.ESTALE, "another ETag"),
    "PermissionDeniedError": (errno.EACCES, "permission denied"),
    "UnauthenticatedError": (errno.EACCES, "not authenticated"),
    "NotSupportedError": (errno.EINVAL, "not supported, such as ranges of bytes by a web server"),
    "InvalidPathError": (errno.EINVAL, "no name of an object"),
}
_BY_WORDS: Final = {
    "UnexpectedRange": (errno.ESTALE, "the object is shorter than it was"),
    "StartTooLarge": (errno.ESTALE, "the object is shorter than it was"),
    "redential": (errno.EACCES, "no credentials were found"),
}


def store_error(kind: type[Failure], url: str, doing: str, error: BaseException) -> Failure:
    """Return the error for what obstore raised. Pure; to be raised ``from None``, since ``error`` may hold secrets.

    Parameters
    ----------
    kind : class of the returned error
    url : of the object, as it may be shown
    doing : what was asked, such as "reading bytes 0 to 99"
    error : what obstore raised
    """
    code, reason = _classified(error)
    return refusal(kind, code, url, f"{doing} failed ({reason})")


def refusal(kind: type[Failure], code: int, url: str, text: str) -> Failure:
    """Return the error ``text`` about ``url`` with the advice for the errno ``code``. Pure."""
    return kind(code, f"{text}: {_ADVICE[code]}", url)


def redacted(error: BaseException) -> str:
    """Return the first line of an error's text without queries and users of URLs, and not at length. Pure."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _USER.sub("//", _QUERY.sub("", lines[0]))[:200]


def _classified(error: BaseException) -> tuple[int, str]:
    """Return the errno that says what kind of failure this is, and a few words that hold nothing of the request."""
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
    kind = _KIND.search(text)
    if "TimedOut" in text or (kind is not None and kind[1] == "Timeout"):
        return errno.ETIMEDOUT, "timed out"
    if kind is not None:
        return errno.ECONNRESET, "no connection" if kind[1] == "Connect" else f"connection: {kind[1]}"
    return next(
        (known for words, known in _BY_WORDS.items() if words in text), (errno.EIO, type(error).__name__)
    )


def _errno_of_status(status: int) -> int:
    if status in (429, 503):
        return errno.EBUSY
    if status in (408, 504):
        return errno.ETIMEDOUT
    if status >= 500:
        return errno.EIO
    known = {404: errno.ENOENT, 410: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES, 412: errno.ESTALE}
    return known.get(status, errno.EINVAL)
