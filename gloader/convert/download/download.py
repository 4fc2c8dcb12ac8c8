"""Downloads that end up whole and checked, or not at all."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import secrets
import shutil
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from gloader.convert.download.archive import extract_archive
from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.units import format_bytes
from gloader.errors import DownloadError, MissingDependencyError, SourceError

if TYPE_CHECKING:
    from http.client import HTTPResponse

_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
# Free disk that a download must leave.
_SPARE_BYTES = 1 << 28


def fetch_ogb(name: str, root: Path, *, progress: PrepareProgress = NO_PROGRESS) -> Path:
    """Download an OGB data set unless it is there, and return its folder.

    Parameters
    ----------
    name : of the data set, such as "ogbn-arxiv"
    root : the folder that holds, or will hold, the data sets
    progress : receives the step "download"

    Raises
    ------
    MissingDependencyError
        The ogb package, whose table says where the data is, is not installed.
    SourceError
        OGB has no data set of that name.
    DownloadError
        The download failed; nothing was installed. The message says what to put where instead.
    UnsafeArchiveError
        The archive is not what OGB's are.
    """
    folder = root / name.replace("-", "_")
    if folder.is_dir():
        return folder
    entry = _ogb_entry(name)
    # The table of OGB has addresses of http, and the archive has no digest to check.
    url = urlunsplit(urlsplit(entry["url"])._replace(scheme="https"))
    # Everything happens in a folder of its own, whose last rename makes the data set appear whole.
    is_new_root = not root.exists()
    scratch = root / f".{folder.name}.{secrets.token_hex(4)}.partial"
    scratch.mkdir(parents=True)
    try:
        archive = scratch / "archive.zip"
        download(url, archive, progress=progress)
        extract_archive(archive, scratch / "unpacked")
        inner = scratch / "unpacked" / entry["download_name"]
        _check_content(inner, url)
        inner.replace(folder)
    except (DownloadError, SourceError) as error:
        raise DownloadError(
            f"cannot download {name}: {error}. Unpack {url} elsewhere, so that {folder}/raw exists, "
            f"or name the folder that holds {folder.name}: ogb:{name}@DIR"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if is_new_root and not any(root.iterdir()):
            root.rmdir()
    return folder


def _check_content(inner: Path, url: str) -> None:
    if not (inner / "raw").is_dir():
        raise DownloadError(f"{url} does not hold {inner.name}/raw")


def download(
    url: str, target: Path, *, sha256: str | None = None, progress: PrepareProgress = NO_PROGRESS
) -> None:
    """Download a file, which appears only once its length, and its digest if given, are right.

    Redirects are followed within the scheme of ``url`` (https, or http).

    Parameters
    ----------
    url : the address
    target : the file to make
    sha256 : hexadecimal digest that the file must have; None: any
    progress : receives the step "download", in bytes

    Raises
    ------
    DownloadError
        No connection, a refusal, a redirect to another scheme, a body of another length or digest, or too
        little free disk. Nothing is left behind.
    """
    if urlsplit(url).scheme not in {"https", "http"}:
        raise DownloadError(f"{url} is not an https address")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        with _opener().open(Request(url), timeout=_TIMEOUT_S) as response, partial.open("xb") as file:  # noqa: S310  # the scheme was checked
            digest = _receive(response, file, url, progress)
        if sha256 is not None and digest != sha256.lower():
            raise DownloadError(f"{url} has the SHA-256 digest {digest}, expected {sha256}; nothing was kept")
        partial.replace(target)
    except (URLError, HTTPException, TimeoutError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(f"{url} cannot be downloaded ({reason})") from error
    finally:
        partial.unlink(missing_ok=True)


def _receive(response: HTTPResponse, file: IO[bytes], url: str, progress: PrepareProgress) -> str:
    header = response.headers.get("Content-Length")
    expected = int(header) if header is not None and header.isdigit() else None
    free = shutil.disk_usage(Path(file.name).parent).free
    # Refused before the first byte, not after hours.
    if expected is not None and expected + _SPARE_BYTES > free:
        raise DownloadError(f"{url} has {format_bytes(expected)}, the disk has {format_bytes(free)} free")
    digest, done = hashlib.sha256(), 0
    while piece := response.read(_PIECE_BYTES):
        file.write(piece)
        digest.update(piece)
        done += len(piece)
        progress.advance("download", done, expected, "bytes")
    # A connection that breaks looks like the end of the body: only the length tells.
    if expected is not None and done != expected:
        raise DownloadError(f"{url} ended after {done} of {expected} bytes")
    return digest.hexdigest()


class _SameScheme(HTTPRedirectHandler):
    """Follows a redirect only within the scheme of the request."""

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,  # as the base class has it
        newurl: str,
    ) -> Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise DownloadError(f"{req.full_url} redirects to {newurl}, which leaves its scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> OpenerDirector:
    """Return an opener that knows http and https only."""
    # `urllib.request.build_opener` would add handlers for file, ftp and data addresses.
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        _SameScheme,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _ogb_entry(name: str) -> dict[str, str]:
    # Found, not imported: importing ogb asks the network for updates.
    spec = importlib.util.find_spec("ogb")
    if spec is None or spec.origin is None:
        raise MissingDependencyError.of_extra(f"downloading {name} needs the ogb package", "ogb")
    task, kind = ("linkproppred", "link") if name.startswith("ogbl-") else ("nodeproppred", "node")
    with (Path(spec.origin).parent / task / "master.csv").open(newline="") as file:
        (_, *names), *rows = csv.reader(file)
    if name not in names:
        nearest = get_close_matches(name, names, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise SourceError(f"OGB has no {kind} data set {name!r}{hint} It has {', '.join(names)}")
    column = names.index(name) + 1
    return {row[0]: row[column] for row in rows if row}
