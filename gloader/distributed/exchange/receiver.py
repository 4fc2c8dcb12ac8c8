"""The receiver's side of a row exchange: requests, rounds, and arrived rows.

In an exchange each machine reads a range of a table's rows from its disk, and the machines send each other the rows
that they need. A machine takes part by one process, its host. Every host is a receiver of rows and, for its range, an
owner (`gloader.distributed.exchange.owner`).

- A round moves one part of the requested rows, so that its buffers have a limited size. There are Q rounds.
- A step is one collective transfer between all W hosts. Round s takes three steps: in step s the hosts send the ids of
  the requested rows, in step s + 1 the owners read these rows, and in step s + 2 they send them. `LAG` is this 2. The
  rounds overlap: step s sends the ids of round s and the rows of round s - 2. So Q rounds take Q + `LAG` steps.
- A request is the row ids for one owner in one round. The reply is the rows, in pages of 4 KiB with their checksums.
- A run is the pages of one owner in one round. Arriving rows are laid out run after run, as in a file, and each run
  begins with a row that begins a page. So there may be unused pages between two runs.
- A bucket is a range of consecutive rows, in which hosts count their requests before the rounds are cut.

`plan_fetch` agrees with all hosts on the rounds, and `RowFetch` runs them in threads. `Arrivals` hands out the arrived
rows page by page to a local sweep, which reads them as if they came from a file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.kernels import njit
from gloader.core.signals import Cancellation, thread_errors
from gloader.core.thread_times import helping
from gloader.distributed.exchange.owner import (
    LAG,
    SUM_BYTES,
    Owner,
    bucket_starts,
    plan_arrivals,
    plan_rounds,
)
from gloader.distributed.exchange.transport import gather, sealed, unsealed
from gloader.errors import ChannelClosedError, ChecksumError
from gloader.ssd_store.format.checksum import FORMAT_VERSION, PAGE_BYTES, PAGE_WORDS, page_checksum_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.distributed.exchange.owner import OwnedRows, RoundSizes
    from gloader.distributed.exchange.transport import Transport
    from gloader.ssd_store.sweep.wanted_rows import ArrivalLayout
    from gloader.types import IdArray


class Ahead:
    """Runs one function after another in a second thread, ahead of the caller. Owns the thread until `wait`.

    For one calling thread.

    Parameters
    ----------
    name : the name of each thread
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin ``work``; `wait` must have returned for the previous work."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        # `helping` adds the thread's processor time to the caller's, for the statistics.
        thread = threading.Thread(target=helping(run), name=self._name, daemon=True)
        with thread_errors():
            thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Wait until the work is done, and raise its error once. Returns immediately without work."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


_POLL_S: Final = 0.05  # maximum seconds between two tests for a cancellation
_NUM_BUFFERS: Final = 2  # one buffer fills while the other is handed out


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """One owner's pages in a round, and their place in the step's buffer."""

    owner: int  # number of the sending host
    step: int  # step of the exchange in which the pages arrive
    at: int  # offset in the step's buffer, in bytes; the checksums follow the pages
    first_page: int  # index of the first page among all arriving pages
    num_pages: int
    key: int  # number of the first page, unique in the exchange; a page's checksum depends on its number


class Arrivals:
    """The arriving pages, in two alternating buffers, which a sweep reads like a file (a `SweepSource`).

    The network thread calls `buffer` and `publish` step by step. The sweep's thread calls `read` for ascending pages. A
    buffer is filled again after all runs of its step have been read.

    Parameters
    ----------
    runs : runs with rows, in the order of arrival
    names : (W,) the owners' names, for errors
    num_bytes : bytes that arrive in the largest step
    verify : whether the pages are compared with their checksums
    """

    def __init__(
        self, runs: Sequence[PageRun], *, names: Sequence[str], num_bytes: int, verify: bool
    ) -> None:
        self._runs = runs
        self._names = names
        self._verify = verify
        self._buffers = [mapped_bytes(num_bytes, touch=False) for _ in range(_NUM_BUFFERS)]
        self._changed = threading.Condition()
        self._next = 0  # index of the run that is handed out now
        self._arrived = -1  # the last step that arrived
        self._error: BaseException | None = None
        self._is_over = False  # True after `close`: no page is read any more
        self.waited_s = 0.0  # seconds that readers waited for rows that had not arrived

    def buffer(self, step: int, *, cancellation: Cancellation) -> NDArray[np.uint8]:
        """Return the buffer for ``step``; waits until all pages of its earlier step have been read.

        Raises
        ------
        ChannelClosedError
            The work was cancelled.
        """
        with self._changed:
            while not self._is_over and self._step_of_next() <= step - _NUM_BUFFERS:
                cancellation.raise_if_set("an exchange with other machines")
                self._changed.wait(_POLL_S)
        return self._buffers[step % _NUM_BUFFERS]

    def publish(self, step: int) -> None:
        """Announce that all steps up to ``step`` have arrived."""
        with self._changed:
            self._arrived = step
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let each `read` that waits for rows raise ``error``."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def read(self, buffer: memoryview, offset: int, /, *, cancellation: Cancellation) -> None:
        """Fill ``buffer`` with the pages from byte ``offset`` on, as `SweepSource.read`.

        Unused pages between two runs do not arrive; the call writes zeros for them.

        Raises
        ------
        ChecksumError
            A page differs from its owner's page.
        GloaderError
            The exchange failed.
        ChannelClosedError
            The work was cancelled.
        """
        out = np.frombuffer(buffer, np.uint8)
        # Pages before ``page`` are written. Each turn writes zeros up to the next run, then pages of this run.
        base = page = offset // PAGE_BYTES
        end = base + out.shape[0] // PAGE_BYTES
        while page < end:
            run = self._runs[self._next] if self._next < len(self._runs) else None
            if run is not None and run.first_page + run.num_pages <= page:
                self._pass()
                continue
            start = end if run is None else min(max(run.first_page, page), end)
            out[(page - base) * PAGE_BYTES : (start - base) * PAGE_BYTES] = 0
            page = start
            if run is not None and page < end:
                self._wait_for(run.step, cancellation)
                count = min(run.first_page + run.num_pages, end) - page
                self._copy(
                    run, page - run.first_page, out[(page - base) * PAGE_BYTES :][: count * PAGE_BYTES]
                )
                page += count
        # If the run is finished, pass it now and free its buffer: this may be the last read.
        if (
            self._next < len(self._runs)
            and self._runs[self._next].first_page + self._runs[self._next].num_pages <= page
        ):
            self._pass()

    def close(self) -> None:
        """Drop the remaining pages. Idempotent."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _step_of_next(self) -> int:
        """Return the step of the run that is handed out now; a huge number after the last run."""
        return self._runs[self._next].step if self._next < len(self._runs) else np.iinfo(np.int64).max

    def _pass(self) -> None:
        """Go on to the next run."""
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def _wait_for(self, step: int, cancellation: Cancellation) -> None:
        """Wait until the pages of ``step`` have arrived; raise if the exchange failed or was cancelled."""
        started = time.perf_counter()
        with self._changed:
            while self._arrived < step:
                if self._error is not None:
                    raise self._error
                if cancellation.is_set() or self._is_over:
                    raise ChannelClosedError("the wait for rows from other machines was cancelled")
                self._changed.wait(_POLL_S)
        self.waited_s += time.perf_counter() - started

    def _copy(self, run: PageRun, first: int, out: NDArray[np.uint8]) -> None:
        """Copy a run's pages from page ``first`` on, and compare the copies with the owner's checksums."""
        arrived = self._buffers[run.step % _NUM_BUFFERS][run.at :]
        out[:] = arrived[first * PAGE_BYTES :][: out.shape[0]]
        if not self._verify:
            return
        sums = arrived[run.num_pages * PAGE_BYTES :][: run.num_pages * SUM_BYTES].view(np.uint64)[first:]
        with np.errstate(over="ignore"):  # without numba's compilation, numpy would warn of the wrap-around
            damaged = _first_damaged(out.view(np.uint64), sums, run.key + first)
        if damaged >= 0:
            raise ChecksumError(
                f"page {first + damaged} of {run.num_pages} that {self._names[run.owner]} sent in round "
                f"{run.step - LAG} does not match its checksum: it was damaged on its way; check the network and the "
                "memory of both machines, then start all ranks again from the last checkpoint"
            )


@njit(cache=True, nogil=True)
def _first_damaged(words: NDArray[np.uint64], sums: NDArray[np.uint64], key: int) -> int:
    """Return the first page of ``words`` that differs from its checksum, or -1; ``key`` is the first page's number."""
    for i in range(words.shape[0] // PAGE_WORDS):
        if page_checksum_at(words, i * PAGE_WORDS, key + i, np.int64(FORMAT_VERSION)) != sums[i]:
            return i
    return -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchPlan:
    """One host's requests to the others, and the others' requests to this host, in Q rounds."""

    sizes: RoundSizes  # the maximum sizes of a round
    layout: ArrivalLayout  # the order of the arriving rows
    # (W, Q + 1) positions in this host's ascending rows: in round q it requests rows[bounds[w, q]:bounds[w, q + 1]]
    # from owner w
    bounds: IdArray
    served: IdArray  # (W, Q) rows that each other host requests

    @property
    def asked(self) -> IdArray:
        """(W, Q) rows that the host requests from each owner."""
        return np.diff(self.bounds, axis=1)

    @property
    def num_rounds(self) -> int:
        """Q."""
        return self.served.shape[1]

    def step_bytes(self, replies: IdArray, requests: IdArray) -> IdArray:
        """Return (Q + `LAG`, W, 2) bytes of each step's replies and requests; (0, W, 2) without rounds. Pure.

        Parameters
        ----------
        replies, requests : (W, Q) numbers of rows in each round, by host: in the replies, and in the requests
        """
        num_steps = self.num_rounds + LAG if self.num_rounds else 0
        num_bytes = np.zeros((num_steps, replies.shape[0], 2), np.int64)
        num_bytes[LAG:, :, 0] = self.sizes.reply_bytes(replies).T
        num_bytes[:-LAG, :, 1] = self.sizes.request_bytes(requests).T
        return num_bytes


def plan_fetch(
    transport: Transport,
    bounds: IdArray,
    sizes: RoundSizes,
    rows: NDArray[Any],
    *,
    cancellation: Cancellation,
) -> FetchPlan:
    """Agree with all hosts on the rounds in which each host receives its rows. Collective.

    Each host counts its rows per bucket, and sends the counts to the buckets' owner. Each owner cuts its buckets into
    rounds. All hosts get all cuts; an owner with fewer rounds than others has empty rounds at the end.

    Parameters
    ----------
    transport : the connection to the other hosts
    bounds : (W + 1,) owner w has the rows from bounds[w] to bounds[w + 1] - 1
    sizes : the maximum sizes of a round
    rows : (K,) rows that this host needs, ascending

    Raises
    ------
    RankError, ChannelClosedError
        As in `gather`.
    """
    # 1. Count this host's rows in each bucket, and send the counts to the buckets' owners.
    num_hosts = sizes.num_hosts
    starts = [bucket_starts(int(bounds[w]), int(bounds[w + 1]), sizes.bucket_rows) for w in range(num_hosts)]
    positions = [_first_positions(rows, owner_starts) for owner_starts in starts]
    messages = [sealed(np.diff(owner_positions)) for owner_positions in positions]
    num_words = len(messages[transport.index])
    counts = np.empty((num_hosts, num_words), np.int64)
    transport.all_to_all(
        counts.reshape(-1).view(np.uint8),
        np.concatenate(messages).view(np.uint8),
        [num_words * 8] * num_hosts,
        [message.nbytes for message in messages],
        cancellation=cancellation,
    )
    # 2. Cut this owner's buckets into rounds, and exchange all cuts, padded with empty rounds to the same length.
    # ``requested`` (W, B) has the number of rows that each host requests in each of this owner's buckets.
    requested = np.stack([unsealed(row, name) for row, name in zip(counts, transport.names, strict=True)])
    cuts = plan_rounds(requested, sizes.max_rows)
    rounds = gather(transport, np.array([cuts.shape[0] - 1]), cancellation=cancellation)
    padded = np.append(cuts, np.full(int(rounds.max()) + 1 - cuts.shape[0], cuts[-1]))
    all_cuts = gather(transport, padded, cancellation=cancellation)
    # 3. From buckets to positions in this host's rows, and to numbers of rows that other hosts request from this owner.
    round_bounds = np.stack([buckets[cut] for buckets, cut in zip(positions, all_cuts, strict=True)])
    before = np.concatenate([np.zeros((num_hosts, 1), np.int64), np.cumsum(requested, axis=1)], axis=1)
    return FetchPlan(
        sizes=sizes,
        layout=plan_arrivals(rows, round_bounds, sizes.row_bytes),
        bounds=round_bounds,
        served=np.diff(before[:, padded], axis=1),
    )


class RowFetch:
    """Runs an exchange. Owns buffers, a network thread and a disk thread until `close`.

    In each step the network thread writes this host's requests, lets the disk thread read the rows for the next
    step's replies, and transfers the step's requests and replies.

    Parameters
    ----------
    transport : the connection to the other hosts; while the network thread runs, no other thread uses it
    owned : the table's rows, and the range that this host reads for the others
    plan : the plan of this exchange
    verify : whether pages are sent with checksums and compared with them
    """

    def __init__(self, transport: Transport, owned: OwnedRows, plan: FetchPlan, *, verify: bool) -> None:
        self._transport = transport
        self._plan = plan
        # (Q + LAG, W, 2) bytes that arrive from each host, and bytes that are sent to it, by step: reply, request.
        self._arriving_bytes = plan.step_bytes(plan.asked, plan.served)
        self._send_bytes = plan.step_bytes(plan.served, plan.asked)
        self._cancellation = Cancellation()
        self._requests: list[NDArray[Any]] = []  # the row ids that each host requested in the last step
        self._error: BaseException | None = None
        self.num_rounds = plan.num_rounds
        # Of each step: the bytes from other hosts, and the seconds of the transfer.
        self.steps: list[tuple[int, float]] = []
        self.bytes_sent = 0  # bytes to other hosts
        self.arrivals = Arrivals(
            self._runs(), names=transport.names, num_bytes=_most(self._arriving_bytes), verify=verify
        )
        # One reply is sent while the next one is read.
        self._data = [mapped_bytes(_most(self._send_bytes), touch=False) for _ in range(2)]
        self._ahead = Ahead("gloader-exchange-disk")  # the disk thread
        self.owner = Owner(
            owned,
            index=transport.index,
            names=transport.names,
            sizes=plan.sizes,
            # Maximum number of rows that a round reads, if no two hosts request the same row.
            max_union=int(plan.served.sum(axis=0).max(initial=0)),
            verify=verify,
        )
        self._thread = threading.Thread(target=helping(self._run), name="gloader-exchange", daemon=True)
        try:
            with thread_errors():
                self._thread.start()
        except BaseException:
            self.owner.close()
            raise

    def wait(self, *, cancellation: Cancellation) -> None:
        """Wait until all hosts have their rows; hosts with more rounds are served to the end.

        Raises
        ------
        GloaderError
            The exchange failed.
        ChannelClosedError
            The work was cancelled.
        """
        self.arrivals.close()  # pages that were not read yet are dropped
        while self._thread.is_alive():
            cancellation.raise_if_set("an exchange with other machines")
            self._thread.join(_POLL_S)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread, even inside a round, and release everything. Idempotent."""
        self._cancellation.set()
        self.arrivals.close()
        self._thread.join()
        self.owner.close()

    def _runs(self) -> list[PageRun]:
        """Return the runs that arrive at this host and have rows, in the order of arrival."""
        plan, runs = self._plan, []
        num_hosts, num_rounds = plan.served.shape
        # A step's buffer holds each host's reply and request in turn; ``at`` (Q + LAG, W, 2) are their byte offsets.
        part_bytes = self._arriving_bytes.reshape(-1, 2 * num_hosts)
        at = (np.cumsum(part_bytes, axis=1) - part_bytes).reshape(self._arriving_bytes.shape)
        first = plan.layout.first_slot.reshape(num_hosts, num_rounds) * plan.sizes.row_bytes // PAGE_BYTES
        for round_number, owner in np.argwhere(plan.asked.T > 0).tolist():
            runs.append(
                PageRun(
                    owner=owner,
                    step=round_number + LAG,
                    at=int(at[round_number + LAG, owner, 0]),
                    first_page=int(first[owner, round_number]),
                    num_pages=int(self._arriving_bytes[round_number + LAG, owner, 0])
                    // (PAGE_BYTES + SUM_BYTES),
                    key=self._key(round_number, owner, self._transport.index),
                )
            )
        return runs

    def _key(self, round_number: int, owner: int, receiver: int) -> int:
        """Return the first page's number in a round from ``owner`` to ``receiver``; page numbers are unique."""
        num_hosts = self._plan.sizes.num_hosts
        return ((round_number * num_hosts + owner) * num_hosts + receiver) << 32

    def _run(self) -> None:
        """Make all steps, in the network thread."""
        try:
            for step in range(self._send_bytes.shape[0]):
                self._ahead.wait()  # until the reply of this step has been read from the disk
                self._write_requests(step)
                if step:  # the requests of step - 1 are answered in step + 1
                    self._ahead.begin(partial(self._write_replies, step + 1, self._requests))
                self._transfer(step)
        except BaseException as error:  # noqa: BLE001 - raised by the next read or wait
            self._error = error
            self.arrivals.fail(error)
        finally:
            self._cancellation.set()
            with contextlib.suppress(BaseException):  # one error is enough
                self._ahead.wait()

    def _transfer(self, step: int) -> None:
        """Send this host's requests and replies of ``step``, and receive those of the others, in one transfer."""
        sizes, out_sizes = self._send_bytes[step].sum(axis=1), self._arriving_bytes[step].sum(axis=1)
        out = self.arrivals.buffer(step, cancellation=self._cancellation)[: out_sizes.sum()]
        data = self._data[step % 2][: sizes.sum()]
        started = time.perf_counter()
        self._transport.all_to_all(
            out, data, out_sizes.tolist(), sizes.tolist(), cancellation=self._cancellation
        )
        own = self._transport.index
        self.steps.append((int(out_sizes.sum() - out_sizes[own]), time.perf_counter() - started))
        self.bytes_sent += int(sizes.sum() - sizes[own])
        self._requests = self._requests_of(step, out)
        self.arrivals.publish(step)

    def _parts(self, step: int) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
        """Yield each host, and the parts of the send buffer for its reply and its request in ``step``."""
        at = 0
        for host, (reply, request) in enumerate(self._send_bytes[step].tolist()):
            middle = at + reply
            yield host, self._data[step % 2][at:middle], self._data[step % 2][middle : middle + request]
            at = middle + request

    def _write_requests(self, step: int) -> None:
        """Write the ids that this host requests from each owner in ``step`` into the step's send buffer."""
        for host, _, part in self._parts(step):
            if part.shape[0]:
                first, past = self._plan.bounds[host, step : step + 2].tolist()
                words = part.view(np.int64)
                # The last word is the digest, which `sealed` adds. words[-2] is the last word of ids; with 4-byte ids
                # it may be half full.
                words[-2] = 0
                ids = words[:-1].view(_wire_ids(self._plan.sizes))
                ids[: past - first] = self._plan.layout.rows[first:past]
                words[:] = sealed(words[:-1])

    def _write_replies(self, step: int, requests: list[NDArray[Any]]) -> None:
        """Read the rows that each host requested, and write them into the send buffer of ``step``, in the disk thread.

        Parameters
        ----------
        step : the step in which the rows are sent
        requests : (W,) the row ids that each host requested in step - 2
        """
        if not any(rows.shape[0] for rows in requests):
            return
        pages, sums, keys = [], [], []
        for host, part, _ in self._parts(step):
            middle = part.shape[0] // (PAGE_BYTES + SUM_BYTES) * PAGE_BYTES
            pages.append(part[:middle])
            sums.append(part[middle:].view(np.uint64))
            keys.append(self._key(step - LAG, self._transport.index, host))
        self.owner.reply(requests, pages, sums, keys, cancellation=self._cancellation)

    def _requests_of(self, step: int, out: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """Return the row ids that each host requests in ``step``, as views of ``out`` that stay valid for LAG steps."""
        requests: list[NDArray[Any]] = []
        at = 0
        for host, (reply, request) in enumerate(self._arriving_bytes[step].tolist()):
            ids = np.empty(0, _wire_ids(self._plan.sizes))
            if request:
                words = unsealed(
                    out[at + reply : at + reply + request].view(np.int64), self._transport.names[host]
                )
                ids = words.view(ids.dtype)[: self._plan.served[host, step]]
            requests.append(ids)
            at += reply + request
        return requests


def _wire_ids(sizes: RoundSizes) -> np.dtype[Any]:
    """Return the dtype of row ids in messages."""
    return np.dtype(np.int32 if sizes.id_bytes == np.dtype(np.int32).itemsize else np.int64)


def _most(step_bytes: IdArray) -> int:
    """Return the bytes of the largest step."""
    return int(step_bytes.sum(axis=(1, 2)).max(initial=0))


@njit(cache=True, nogil=True)
def _find_positions(rows: NDArray[Any], starts: IdArray, positions: IdArray) -> None:
    """Write the position in ``rows`` of the first row at or after each start; both ascend.

    A binary search for each start, from the position of the previous start on.
    """
    low = np.int64(0)
    for i in range(starts.shape[0]):
        high = np.int64(rows.shape[0])
        while low < high:
            middle = (low + high) // 2
            if np.int64(rows[middle]) < starts[i]:
                low = middle + 1
            else:
                high = middle
        positions[i] = low


def _first_positions(rows: NDArray[Any], starts: IdArray) -> IdArray:
    """Return (B + 1,) the position in ``rows`` of each bucket's first row, and the end of the last bucket. Pure."""
    positions = np.empty(starts.shape[0], np.int64)
    _find_positions(rows, starts, positions)
    return positions
