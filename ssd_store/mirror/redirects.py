"""Redirects of a web server: followed within its host, refused where they lead to another one."""

from __future__ import annotations

import base64
import errno
from http.client import HTTPException
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from gloader.core.urls import shown_url
from gloader.errors import StoreReadError

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_HOPS: Final = 10  # as obstore follows


class RedirectGuard:
    """Refuses objects that a web server has another host answer for; each is asked for once, by HEAD. Thread-safe.

    obstore follows redirects by itself. The record of a dataset, and so its checksums, would be another host's.

    Parameters
    ----------
    url : of the folder of the objects, http or https, perhaps with user and password
    timeout_s : of a request
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._folder = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Authorization": f"Basic {_basic(user)}"} if user else {}
        self._timeout_s = timeout_s
        self._opener = OpenerDirector()
        for handler in (ProxyHandler, HTTPHandler, HTTPSHandler):  # none that follows, or raises for a status
            self._opener.add_handler(handler())
        self._direct: set[str] = set()

    def require_direct(self, name: str) -> None:
        """Raise `StoreReadError` where a request for the object ``name`` would be answered by another host.

        A server that cannot be asked is left to the request itself, which says what is wrong.
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
        """Return the URL at another host that ``url`` leads to, None: there is none."""
        for _ in range(_MOST_HOPS):
            request = Request(url, headers=self._headers, method="HEAD")  # noqa: S310 - http and https alone
            response = self._opener.open(request, timeout=self._timeout_s)
            with response:
                place = response.headers.get("Location")
            found = urljoin(url, place or url)
            # Another scheme is followed by no request.
            if response.status not in _REDIRECTS or urlsplit(found).scheme not in {"http", "https"}:
                return None
            if not _is_same_host(url, found):
                return found
            url = found
        return None


def _is_same_host(first: str, second: str) -> bool:
    """Return whether two URLs are of one server; https in place of http is. Pure."""
    one, other = urlsplit(first), urlsplit(second)
    is_upgrade = (one.scheme, other.scheme) == ("http", "https")
    return one.hostname == other.hostname and (is_upgrade or _port(first) == _port(second))


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _basic(user: str) -> str:
    return base64.b64encode(unquote(user).encode()).decode("ascii")
