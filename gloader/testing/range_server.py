"""A local web server for tests. It serves a folder like an object store: with ranges, ETags, uploads and faults.

A range is a part of a file, which the header Range requests. An ETag identifies a file's version.
`gloader.testing.served_folder` defines the faults and counts the requests.
`RangeServer` runs in threads of this process. For measurements, `range_server_process` runs it in another process::

    python -m gloader.testing.range_server FOLDER --port 8000 --latency 0.05 --bytes-per-s 1GB
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from dataclasses import asdict, dataclass, replace
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.core.units import parse_bytes
from gloader.testing.served_folder import (
    FAULT_KINDS,
    NO_FAULTS,
    Faults,
    Flip,
    Served,
    ServedCounts,
    ServedFolder,
    flipped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.testing.served_folder import FaultKind


COUNTS_PATH: Final = "/-/counts"  # path of the request counts so far, as JSON
# The header Range: first and last byte, either of them may be missing.
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_PIECE_BYTES = 1 << 20  # largest read of an upload, and largest write of data with flipped bits


class RangeHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 14  # bytes: all headers of an answer fit and are sent together
    server: ConnectionListener

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""

    def do_GET(self) -> None:
        """Answer with a file, or with the requested range of the file."""
        if self.path == COUNTS_PATH:
            self._answer(HTTPStatus.OK, json.dumps(asdict(self.server.served.counts)).encode())
            return
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the size and the ETag of a file."""
        self._serve(with_body=False)

    def do_PUT(self) -> None:
        """Store an upload in a draft file, which replaces the served file when the upload is complete."""
        folder, path = self.server.served, self._path()
        length = int(self.headers.get("Content-Length", 0))
        fault = folder.begin("PUT", self._name(path), 0)
        draft = None if path is None else path.with_name(f".{path.name}.{threading.get_ident()}.upload")
        folder.is_closing.wait(folder.latency_s)
        if path is not None and draft is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        left = length // 2 if fault == "cut" else length
        received = 0
        with draft.open("wb") if draft else open(os.devnull, "wb") as file:  # noqa: PTH123 - no path
            while left and (piece := self.rfile.read(min(left, _PIECE_BYTES))):
                folder.pace.wait(len(piece))
                file.write(piece)
                received, left = received + len(piece), left - len(piece)
        status = self._put_status(path, fault, is_whole=received == length)
        if path is not None and draft is not None:
            if status is HTTPStatus.CREATED:
                draft.replace(path)
            else:
                draft.unlink()
        folder.note(
            Served(method="PUT", name=self._name(path), length=received, status=status or 0, fault=fault)
        )
        if status is None:
            self._hang_up(fault)
            return
        etag = {"ETag": _etag(path)} if path is not None and status is HTTPStatus.CREATED else {}
        self._answer(status, b"", etag)

    def do_DELETE(self) -> None:
        """Remove a file."""
        path = self._path()
        is_there = path is not None and path.is_file()
        if path is not None and is_there:
            path.unlink()
        status = HTTPStatus.NO_CONTENT if is_there else HTTPStatus.NOT_FOUND
        self.server.served.note(Served(method="DELETE", name=self._name(path), status=status))
        self._answer(status, b"")

    def _put_status(self, path: Path | None, fault: FaultKind | None, *, is_whole: bool) -> HTTPStatus | None:
        """Return the status for an upload, or None if the connection must end without an answer.

        Parameters
        ----------
        path : the file to write, or None outside the folder
        fault : the request's fault
        is_whole : True if the whole body was received
        """
        # A fault is an HTTP status such as "503", or a word.
        if fault is not None and fault.isdigit():
            return HTTPStatus(int(fault))
        if fault is not None or not is_whole:
            return None
        if path is None:
            return HTTPStatus.FORBIDDEN
        if self.headers.get("If-None-Match") == "*" and path.is_file():
            return HTTPStatus.PRECONDITION_FAILED
        return HTTPStatus.CREATED

    def _serve(self, *, with_body: bool) -> None:
        """Answer with the requested range of a file, or with the request's fault."""
        folder, path = self.server.served, self._path()
        name = self._name(path)
        range_match = _RANGE.fullmatch(self.headers.get("Range", ""))
        fault = folder.begin(self.command, name, int(range_match[1] or 0) if range_match else 0)
        folder.is_closing.wait(folder.latency_s)
        served = Served(method=self.command, name=name, fault=fault)
        if fault is not None and fault.isdigit():
            self._refuse(served, HTTPStatus(int(fault)))
            return
        if fault == "stall":
            folder.note(served)
            self._hang_up(fault)
            return
        try:
            if path is None:
                raise FileNotFoundError
            file = path.open("rb")
        except OSError:
            self._refuse(served, HTTPStatus.NOT_FOUND)
            return
        with file:
            self._send_file(file.fileno(), served, range_match, with_body=with_body)

    def _send_file(
        self, fd: int, served: Served, range_match: re.Match[str] | None, *, with_body: bool
    ) -> None:
        """Answer with the requested range of an open file, or refuse the request.

        Parameters
        ----------
        fd : descriptor of the file
        served : the request so far, to complete and note
        range_match : match of `_RANGE`, or None for the whole file
        with_body : False for HEAD
        """
        status = os.fstat(fd)
        size, etag = status.st_size, _etag_of(status)
        expected_etag = self.headers.get("If-Match")
        if expected_etag not in {None, "*", etag}:
            self._refuse(served, HTTPStatus.PRECONDITION_FAILED)
            return
        start, past = _bounds(range_match, size)
        if start >= past and range_match is not None:
            self._refuse(
                served, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"}
            )
            return
        code = HTTPStatus.OK if range_match is None else HTTPStatus.PARTIAL_CONTENT
        self.send_response(code)
        for name, value in _file_headers(status, etag, start, past, is_range=range_match is not None).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        sent = 0
        is_cut = served.fault == "cut"
        try:
            if with_body:
                sent = self._send_bytes(
                    fd, served.name, start, (past - start) // 2 if is_cut else past - start
                )
        finally:
            self.server.served.note(replace(served, start=start, length=sent, status=int(code)))
        if is_cut:
            self._hang_up("cut")

    def _send_bytes(self, fd: int, name: str, start: int, length: int) -> int:
        """Send ``length`` bytes from ``start``, with flipped bits. Return the number of sent bytes.

        The number is smaller than ``length`` if the file became shorter or the server closes.
        """
        folder = self.server.served
        flips = {flip.offset: flip.mask for flip in folder.flips if flip.name == name}
        sent = 0
        while sent < length and not folder.is_closing.is_set():
            count = min(length - sent, folder.pace.piece_bytes)
            folder.pace.wait(count)
            position = start + sent
            # Only data with flipped bits is copied through this process. Other data goes through sendfile.
            if any(position <= offset < position + count for offset in flips):
                count = min(count, _PIECE_BYTES)
                self.connection.sendall(flipped(bytearray(os.pread(fd, count, position)), position, flips))
                sent += count
                continue
            done = 0
            while done < count:
                num_sent = os.sendfile(self.connection.fileno(), fd, position + done, count - done)
                if num_sent == 0:  # the file became shorter
                    self._hang_up("cut")
                    return sent + done
                done += num_sent
            sent += done
        return sent

    def _path(self) -> Path | None:
        """Return the requested file, or None outside the folder."""
        return self.server.served.path_of(self.path)

    def _name(self, path: Path | None) -> str:
        """Return the path below the folder, or "" for None."""
        return "" if path is None else path.relative_to(self.server.served.folder).as_posix()

    def _refuse(self, served: Served, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        """Answer with an error status, and note the request ``served``."""
        self.server.served.note(replace(served, status=int(status)))
        self._answer(status, b"" if self.command == "HEAD" else status.phrase.encode(), headers)

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self, fault: FaultKind | None) -> None:
        """End the connection without a further answer. With the fault "stall", first wait until it is over."""
        if fault == "stall":
            self.server.served.is_closing.wait(self.server.served.faults.stall_s)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class ConnectionListener(ThreadingHTTPServer):
    """Accepts connections, and serves each in its own thread; `server_close` joins the threads."""

    request_queue_size = 512
    daemon_threads = False  # so that server_close joins them

    def __init__(self, served: ServedFolder, port: int) -> None:
        self.served = served
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), RangeHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record a new connection, and start its thread."""
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ends."""
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """Wake every thread that waits on its connection."""
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that left; report all others, which are bugs of this server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _bounds(range_match: re.Match[str] | None, size: int) -> tuple[int, int]:
    """Return (start, end) of a range in a file of ``size`` bytes; ``end`` is exclusive. Pure.

    ``range_match`` is a match of `_RANGE`, or None for the whole file.
    """
    if range_match is None:
        return 0, size
    first, last = range_match[1], range_match[2]
    if not first:  # the last bytes of the file
        return max(0, size - int(last or 0)), size
    return int(first), min(size, int(last) + 1) if last else size


def _file_headers(
    status: os.stat_result, etag: str, start: int, past: int, *, is_range: bool
) -> dict[str, str]:
    """Return the headers of an answer with the bytes from ``start`` up to, but without, ``past``. Pure."""
    headers = {
        "Content-Length": str(past - start),
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": formatdate(status.st_mtime, usegmt=True),
    }
    if is_range:
        headers["Content-Range"] = f"bytes {start}-{past - 1}/{status.st_size}"
    return headers


def _etag(path: Path) -> str:
    return _etag_of(path.stat())


def _etag_of(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


class RangeServer:
    """Serves a folder at `url`. Thread-safe. Owns its threads until `close`; a context manager.

    A file's inode, size and time make its ETag, so that a replaced file has a new ETag.

    Parameters
    ----------
    folder, latency_s, bytes_per_s, faults, flips : see `ServedFolder`
    port : 0 means any free port
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        faults: Faults = NO_FAULTS,
        flips: tuple[Flip, ...] = (),
    ) -> None:
        self.served = ServedFolder(
            folder, latency_s=latency_s, bytes_per_s=bytes_per_s, faults=faults, flips=flips
        )
        self._listener = ConnectionListener(self.served, port)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.05}, name="range-server"
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The folder's URL, without a slash at the end."""
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    @property
    def counts(self) -> ServedCounts:
        """The requests so far."""
        return self.served.counts

    def close(self) -> None:
        """End every connection and thread. Idempotent."""
        self.served.is_closing.set()
        self._listener.shutdown()
        self._listener.end_connections()
        self._listener.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A range server in a separate process."""

    url: str  # the folder's URL, without a slash at the end

    @property
    def counts(self) -> ServedCounts:
        """The requests so far."""
        with urllib.request.urlopen(self.url + COUNTS_PATH, timeout=10) as answer:  # noqa: S310 - ours
            return ServedCounts(**json.load(answer))


@contextlib.contextmanager
def range_server_process(
    folder: Path, *, latency_s: float = 0.0, bytes_per_s: int | None = None, faults: Faults = NO_FAULTS
) -> Iterator[ServerProcess]:
    """Serve ``folder`` from another process inside the block, so that serving takes no time of this interpreter.

    Parameters
    ----------
    folder, latency_s, bytes_per_s, faults : see `ServedFolder`; of the faults, methods other than GET are not passed on
    """
    words = [sys.executable, "-m", __spec__.name, str(folder), "--latency", str(latency_s)]
    words += ["--fault-rate", str(faults.rate), "--seed", str(faults.seed), "--stall", str(faults.stall_s)]
    words += ["--kinds", ",".join(faults.kinds)]
    words += [] if bytes_per_s is None else ["--bytes-per-s", str(bytes_per_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield ServerProcess(url=(child.stdout.readline() if child.stdout else "").strip())
        finally:
            child.kill()


def _main() -> None:
    """Run the server of the command line, and write its URL to stdout, until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--bytes-per-s", type=parse_bytes, default=None, help="cap over all connections")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of GETs that fail")
    parser.add_argument("--kinds", default=",".join(FAULT_KINDS), help="kinds of faults, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stall", type=float, default=60.0, help="seconds that a stalled answer takes")
    arguments = parser.parse_args()
    kinds = tuple(kind for kind in FAULT_KINDS if kind in arguments.kinds.split(","))
    faults = Faults(rate=arguments.fault_rate, kinds=kinds, seed=arguments.seed, stall_s=arguments.stall)
    with RangeServer(
        arguments.folder,
        port=arguments.port,
        latency_s=arguments.latency,
        bytes_per_s=arguments.bytes_per_s,
        faults=faults,
    ) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.served.is_closing.wait()


if __name__ == "__main__":
    _main()
