"""How a range server answers one request after another of a connection."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
from dataclasses import asdict, replace
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from gloader.testing.served_faults import flipped
from gloader.testing.served_requests import Served

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.testing.served_faults import FaultKind
    from gloader.testing.served_folder import ServedFolder

COUNTS_PATH: Final = "/-/counts"  # answers with the figures so far, as JSON
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_PIECE_BYTES = 1 << 20  # of an upload, or of what is served changed


class RangeHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 14  # headers leave in one piece
    server: Listener

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""

    def do_GET(self) -> None:
        """Answer with a file, or the range of it that is asked for."""
        if self.path == COUNTS_PATH:
            self._answer(HTTPStatus.OK, json.dumps(asdict(self.server.served.counts)).encode())
            return
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the size and the ETag of a file."""
        self._serve(with_body=False)

    def do_PUT(self) -> None:
        """Take an upload."""
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
        folder, path = self.server.served, self._path()
        name = self._name(path)
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        fault = folder.begin(self.command, name, int(asked[1] or 0) if asked else 0)
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
            self._send_file(file.fileno(), served, asked, with_body=with_body)

    def _send_file(self, fd: int, served: Served, asked: re.Match[str] | None, *, with_body: bool) -> None:
        status = os.fstat(fd)
        size, etag = status.st_size, _etag_of(status)
        wanted = self.headers.get("If-Match")
        if wanted not in {None, "*", etag}:
            self._refuse(served, HTTPStatus.PRECONDITION_FAILED)
            return
        start, past = _bounds(asked, size)
        if start >= past and asked is not None:
            self._refuse(
                served, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"}
            )
            return
        code = HTTPStatus.OK if asked is None else HTTPStatus.PARTIAL_CONTENT
        self.send_response(code)
        for name, value in _file_headers(status, etag, start, past, is_range=asked is not None).items():
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
        """Return how many of the bytes were sent: all, or an OSError is on its way."""
        folder = self.server.served
        flips = {flip.offset: flip.mask for flip in folder.flips if flip.name == name}
        sent = 0
        while sent < length and not folder.is_closing.is_set():
            count = min(length - sent, folder.pace.piece_bytes)
            folder.pace.wait(count)
            here = start + sent
            if any(here <= offset < here + count for offset in flips):
                count = min(count, _PIECE_BYTES)
                self.connection.sendall(flipped(bytearray(os.pread(fd, count, here)), here, flips))
                sent += count
                continue
            done = 0
            while done < count:
                taken = os.sendfile(self.connection.fileno(), fd, here + done, count - done)
                if taken == 0:  # the file became shorter
                    self._hang_up("cut")
                    return sent + done
                done += taken
            sent += done
        return sent

    def _path(self) -> Path | None:
        return self.server.served.path_of(self.path)

    def _name(self, path: Path | None) -> str:
        return "" if path is None else path.relative_to(self.server.served.folder).as_posix()

    def _refuse(self, served: Served, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.server.served.note(replace(served, status=int(status)))
        self._answer(status, b"" if self.command == "HEAD" else status.phrase.encode(), headers)

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self, fault: FaultKind | None) -> None:
        """End the connection, after the wait of a stall."""
        if fault == "stall":
            self.server.served.is_closing.wait(self.server.served.faults.stall_s)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Listener(ThreadingHTTPServer):
    """Takes connections; each has a thread, which is waited for at the end."""

    request_queue_size = 512
    daemon_threads = False  # joined by server_close

    def __init__(self, served: ServedFolder, port: int) -> None:
        self.served = served
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), RangeHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note a new connection, and begin its thread."""
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
        """Stay silent about clients that left; anything else is a mistake of this server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _bounds(asked: re.Match[str] | None, size: int) -> tuple[int, int]:
    """Return first byte and the byte past the last of what ``asked`` means in a file of ``size`` bytes. Pure."""
    if asked is None:
        return 0, size
    first, last = asked[1], asked[2]
    if not first:  # the last so many bytes
        return max(0, size - int(last or 0)), size
    return int(first), min(size, int(last) + 1) if last else size


def _file_headers(
    status: os.stat_result, etag: str, start: int, past: int, *, is_range: bool
) -> dict[str, str]:
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
