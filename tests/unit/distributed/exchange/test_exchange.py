"""Exchanges between hosts that are threads: the rows that were asked for arrive, or everybody is told why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.signals import NEVER, Cancellation
from gloader.core.thread_times import own_account
from gloader.distributed.exchange.exchange import Exchange
from gloader.distributed.exchange.owner import OwnedRows, Owner
from gloader.distributed.exchange.receiver import Ahead
from gloader.distributed.exchange.transport import Transport
from gloader.errors import (
    BudgetError,
    ChannelClosedError,
    ChecksumError,
    MachineLeftError,
    RankError,
    ShapeError,
    StoreError,
)
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.cost.exchange_cost import count_collectives
from gloader.ssd_store.sweep.supply import ArrivingRows
from gloader.testing.rehearsed_network import ThreadHost, ThreadHosts

PAGE = 4096
SMALL = 1_400_000  # bytes of memory with which rounds are short
NUM_ROWS = 3000


def read_all(
    arriving: ArrivingRows, num_pages_a_read: int = 3, cancellation: Cancellation = NEVER
) -> NDArray[np.uint8]:
    """Return (K, R) what arrives, in the order of rows, read as a sweep reads."""
    layout = arriving.layout
    num_pages = -(-layout.num_slots * layout.row_bytes // PAGE)
    has_rows = np.zeros(num_pages, bool)
    for run in range(len(layout.first_slot)):
        count = int(layout.bounds[run + 1] - layout.bounds[run])
        first = int(layout.first_slot[run]) * layout.row_bytes
        if count:
            has_rows[first // PAGE : -(-(first + count * layout.row_bytes) // PAGE)] = True
    out = np.full((len(layout.rows), layout.row_bytes), 77, np.uint8)
    content: dict[int, NDArray[np.uint8]] = {}
    page = 0
    while page < num_pages:
        if not has_rows[page]:
            page += 1
            continue
        count = min(num_pages_a_read, num_pages - page)
        buffer = mapped_bytes(count * PAGE)
        arriving.source.read(buffer[: count * PAGE].data, page * PAGE, cancellation=cancellation)
        for i in range(count):
            content[page + i] = buffer[i * PAGE : (i + 1) * PAGE]
            assert has_rows[page + i] or not content[page + i].any()
        page += count
    for run in range(len(layout.first_slot)):
        first, past = layout.bounds[run : run + 2].tolist()
        at = int(layout.first_slot[run]) * layout.row_bytes
        if past > first:
            size = (past - first) * layout.row_bytes
            pages = range(at // PAGE, -(-(at + size) // PAGE))
            run_bytes = np.concatenate([content[p] for p in pages])
            assert not run_bytes[size:].any()
            out[first:past] = run_bytes[:size].reshape(past - first, -1)
    return out


def store_of(path: Path, *, dim: int, dtype: str, num_rows: int = NUM_ROWS) -> FeatureStore:
    rng = np.random.default_rng(dim)
    return FeatureStore.create(path, rng.standard_normal((num_rows, dim)).astype(np.float32), dtype=dtype)


def on_all(hosts: Sequence[Transport], act: Callable[[int, Transport], Any]) -> list[Any]:
    """Return what ``act`` returns on each host, or the error that it raises."""

    def one(host: int) -> Any:
        try:
            return act(host, hosts[host])
        except Exception as error:
            hosts[host].close(error)
            return error

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(one, range(len(hosts))))


def fetch_once(
    transport: Transport,
    owned: OwnedRows,
    rows: NDArray[Any],
    *,
    memory_bytes: int = SMALL,
    verify: bool = True,
) -> tuple[NDArray[np.uint8], Exchange]:
    exchange = Exchange(transport, [owned], memory_bytes=memory_bytes, verify=verify, rates_s=0.0)
    with exchange.fetch(0, rows, cancellation=NEVER) as arriving:
        found = read_all(arriving)
    return found, exchange


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FeatureStore]:
    with store_of(tmp_path / "rows", dim=128, dtype="float32") as store:
        yield store


def oracle(store: FeatureStore) -> NDArray[np.uint8]:
    """Return (N, R) the bytes of all rows, as stored."""
    raw = np.fromfile(store.stored_rows.path, np.uint8)
    from gloader.ssd_store.format.format import DATA_OFFSET

    return raw[DATA_OFFSET:][: store.num_rows * store.row_bytes].reshape(store.num_rows, store.row_bytes)


def wants(host: int, num_rows: int = NUM_ROWS, share: float = 0.5) -> NDArray[np.int64]:
    return np.flatnonzero(np.random.default_rng(100 + host).random(num_rows) < share)


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        (1, "float32"),
        (25, "float32"),
        (128, "float32"),
        (1024, "float32"),
        (1500, "float32"),
        (37, "int8"),
        (64, "bfloat16"),
    ],
)
@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4])
def test_every_host_gets_the_bytes_of_its_rows(tmp_path: Path, num_hosts: int, dim: int, dtype: str) -> None:
    num_rows = 700
    with store_of(tmp_path / "rows", dim=dim, dtype=dtype, num_rows=num_rows) as store:
        expected = oracle(store)
        bounds = np.linspace(0, num_rows, num_hosts + 1).astype(np.int64)
        owned = OwnedRows(store=store, bounds=bounds)
        hosts = ThreadHosts(num_hosts).hosts
        memory = SMALL + num_hosts * store.row_bytes * 300
        found = on_all(
            hosts, lambda host, to: fetch_once(to, owned, wants(host, num_rows), memory_bytes=memory)
        )
        for host, result in enumerate(found):
            assert not isinstance(result, Exception), result
            assert (result[0] == expected[wants(host, num_rows)]).all()


@pytest.mark.reliability("N12")
@pytest.mark.parametrize(
    "bounds", [[0, 0, 3000, 3000], [0, 1, 2, 3000], [0, 2999, 3000, 3000], [0, 1500, 1500, 3000]]
)
def test_ranges_may_be_empty_and_of_any_size_and_hosts_may_want_nothing(
    store: FeatureStore, bounds: list[int]
) -> None:
    owned = OwnedRows(store=store, bounds=np.array(bounds))
    asked = [np.arange(NUM_ROWS), np.empty(0, np.int64), np.array([0, 1500, 2999])]
    found = on_all(ThreadHosts(3).hosts, lambda host, to: fetch_once(to, owned, asked[host]))
    for rows, result in zip(asked, found, strict=True):
        assert not isinstance(result, Exception), result
        assert (result[0] == oracle(store)[rows]).all()
        assert result[1].stats.rounds > 3
    # A page at a cut between rounds is read in both.
    for host, result in enumerate(found):
        rows = bounds[host + 1] - bounds[host]
        assert rows * 512 <= result[1].stats.bytes_read <= rows * 512 + 2 * PAGE * result[1].stats.rounds


def test_nobody_wants_anything(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 10, NUM_ROWS]))
    for result in on_all(ThreadHosts(2).hosts, lambda _, to: fetch_once(to, owned, np.empty(0, np.int64))):
        assert result[0].shape == (0, 512)
        assert result[1].stats.rounds == 0


def test_each_row_is_read_once_for_all_machines_and_counted(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    rows = np.arange(NUM_ROWS)
    found = on_all(ThreadHosts(2).hosts, lambda _, to: fetch_once(to, owned, rows, memory_bytes=64 * 2**20))
    stats = [result[1].stats for result in found]
    assert [one.bytes_read for one in stats] == [1000 * 512, 2000 * 512]
    assert [one.rows for one in stats] == [NUM_ROWS, NUM_ROWS]
    assert stats[0].bytes_received >= 2000 * 512
    assert stats[1].bytes_sent == stats[0].bytes_received
    assert stats[0].rounds == 1
    assert found[0][1].rates().bytes_per_s > 0


def test_the_processor_time_of_an_exchange_counts_for_who_stages(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1200, NUM_ROWS]))

    def used(host: int, to: Transport) -> list[int]:
        moments = [own_account().used_ns]
        fetch_once(to, owned, wants(host))
        moments.append(own_account().used_ns)
        ahead = Ahead("reads")
        ahead.begin(lambda: None)
        ahead.wait()
        return [*moments, own_account().used_ns]

    for before, exchanged, read in on_all(ThreadHosts(2).hosts, used):
        assert before < exchanged < read


def test_an_exchange_has_as_many_collectives_as_the_cost_model_counts(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))

    def act(host: int, to: ThreadHost) -> None:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        exchange.agree(np.empty(0), cancellation=NEVER)
        before = to._num_calls
        with exchange.fetch(0, np.empty(0, np.int64), cancellation=NEVER) as arriving:
            read_all(arriving)
        assert to._num_calls - before == count_collectives(0)
        with exchange.fetch(0, wants(host), cancellation=NEVER) as arriving:
            read_all(arriving)
        rounds = exchange.stats.rounds
        assert rounds > 1
        assert to._num_calls - before == count_collectives(0) + count_collectives(rounds)

    assert on_all(ThreadHosts(2).hosts, act) == [None, None]


def test_rows_of_the_host_cache_are_not_read_again(store: FeatureStore) -> None:
    expected = oracle(store)
    asked: list[int] = []

    def cached(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        is_held = rows % 3 != 0
        out[is_held] = expected[rows[is_held]]
        asked.extend(rows.tolist())
        return is_held

    owned = OwnedRows(store=store, bounds=np.array([0, 1500, NUM_ROWS]), cached=cached)
    found = on_all(ThreadHosts(2).hosts, lambda host, to: fetch_once(to, owned, wants(host)))
    for host, result in enumerate(found):
        assert (result[0] == expected[wants(host)]).all()
    assert sorted(asked) == np.union1d(wants(0), wants(1)).tolist()
    held = OwnedRows(store=store, bounds=np.array([0, 1500, NUM_ROWS]), cached=lambda rows, _: rows >= 0)
    found = on_all(ThreadHosts(2).hosts, lambda host, to: fetch_once(to, held, wants(host)))
    assert [result[1].stats.bytes_read for result in found] == [0, 0]


class Damaging:
    """Flips a bit of what a host receives from another in one of its collectives."""

    def __init__(self, inner: ThreadHost, *, call: int, sender: int, at: int) -> None:
        self._inner, self._call, self._sender, self._at = inner, call, sender, at
        self.index, self.names = inner.index, inner.names
        self.num_calls = 0
        self.has_hit = False

    def all_to_all(
        self,
        out: NDArray[np.uint8],
        data: NDArray[np.uint8],
        out_sizes: Sequence[int],
        sizes: Sequence[int],
        /,
        *,
        cancellation: Cancellation,
    ) -> None:
        self._inner.all_to_all(out, data, out_sizes, sizes, cancellation=cancellation)
        if self.num_calls == self._call and out_sizes[self._sender] > 0:
            size = out_sizes[self._sender]
            out[sum(out_sizes[: self._sender]) + self._at % size] ^= 4
            self.has_hit = True
        self.num_calls += 1

    def close(self, error: BaseException | None = None) -> None:
        self._inner.close(error)


@pytest.mark.reliability("N4")
@pytest.mark.parametrize("at", [0, 5000, -1, -9, -700])
@pytest.mark.parametrize("call", range(17))
def test_a_flipped_bit_is_found_and_names_the_sender(store: FeatureStore, call: int, at: int) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, 2000, NUM_ROWS]))
    damaging = Damaging(ThreadHosts(3).hosts[0], call=call, sender=2, at=at)
    world = damaging._inner._world
    found = on_all(
        [damaging, *world.hosts[1:]],
        lambda host, to: fetch_once(to, owned, wants(host)),
    )
    if not damaging.has_hit:
        assert damaging.num_calls <= call
        return
    # A bit between runs of ids, or in a measured message, is nobody's.
    if not any(isinstance(one, Exception) for one in found):
        assert all((result[0] == oracle(store)[wants(host)]).all() for host, result in enumerate(found))
        assert call in MEASURED
        return
    assert isinstance(found[0], ChecksumError | RankError)
    assert "rank 2 (machine c)" in str(found[0])
    for other in found[1:]:
        assert isinstance(other, RankError)
        assert "rank 0 (machine a) failed: " in str(other)


MEASURED = (6,)  # the message by which the network is measured


def test_damage_goes_through_where_nobody_verifies(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    last = 14  # the first message with rows
    damaging = Damaging(ThreadHosts(2).hosts[0], call=last, sender=1, at=0)
    found = on_all(
        [damaging, damaging._inner._world.hosts[1]],
        lambda host, to: fetch_once(to, owned, wants(host), verify=False),
    )
    assert damaging.has_hit
    assert (found[0][0] != oracle(store)[wants(0)]).sum() == 1


@pytest.mark.reliability("N1")
@pytest.mark.parametrize("call", range(0, 16, 3))
def test_a_host_that_vanishes_is_named_by_all_others(
    store: FeatureStore, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.distributed.exchange.notes.PATIENCE_S", 0.2)
    world = ThreadHosts(3, timeout_s=0.3)

    class Vanishing(Damaging):
        def all_to_all(self, *args: Any, **how: Any) -> None:
            if self.num_calls == call:
                self._inner.vanish()
                raise SystemExit
            super().all_to_all(*args, **how)

        def close(self, error: BaseException | None = None) -> None:
            """Say nothing."""

    vanishing = Vanishing(world.hosts[1], call=-1, sender=0, at=0)

    def act(host: int, to: Transport) -> Any:
        owned = OwnedRows(store=store, bounds=np.array([0, 1000, 2000, NUM_ROWS]))
        try:
            return fetch_once(to, owned, wants(host))
        except SystemExit:
            return None

    found = on_all([world.hosts[0], vanishing, world.hosts[2]], act)
    for one in (found[0], found[2]):
        assert isinstance(one, RankError), one
        assert "rank 1 (machine b) is gone or does not answer" in str(one)
    assert no_threads_left()


def no_threads_left() -> bool:
    return not [one for one in threading.enumerate() if one.name.startswith("gloader-exchange")]


@pytest.mark.reliability("N6")
def test_a_host_that_leaves_early_is_told_apart_from_one_that_fails(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))

    def act(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        for number in range(3):
            exchange.agree(np.array([number, host]), cancellation=NEVER, same=("superbatch",))
            if host == 0 and number == 1:
                exchange.close()
                return None
        return None

    found = on_all(ThreadHosts(2).hosts, act)
    assert found[0] is None
    assert isinstance(found[1], MachineLeftError)
    assert "rank 0 (machine a) has left the run" in str(found[1])


def test_an_error_inside_a_fetch_is_told_to_all(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))

    def act(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        with exchange.fetch(0, wants(host), cancellation=NEVER) as arriving:
            # Host 1 fails as it waits for rows, and its thread for a round of host 0, which does not read yet.
            time.sleep(0.3 if host else 1.0)
            return read_all(arriving, cancellation=Cancellation(boom) if host else NEVER)

    found = on_all(ThreadHosts(2).hosts, act)
    assert isinstance(found[1], OSError)
    assert isinstance(found[0], RankError)
    assert "rank 1 (machine b) failed: OSError: boom in the sweep" in str(found[0])
    assert no_threads_left()


def boom() -> bool:
    raise OSError("boom in the sweep")


class Replaying(Damaging):
    """Gives out what a host sent in the collective before once more."""

    last: NDArray[np.uint8]

    def all_to_all(
        self,
        out: NDArray[np.uint8],
        data: NDArray[np.uint8],
        out_sizes: Sequence[int],
        sizes: Sequence[int],
        /,
        *,
        cancellation: Cancellation,
    ) -> None:
        super().all_to_all(out, data, out_sizes, sizes, cancellation=cancellation)
        first = sum(out_sizes[: self._sender])
        received = out[first : first + out_sizes[self._sender]]
        if self.num_calls == self._at and len(received) == len(self.last):
            received[:] = self.last
            self.has_hit = True
        self.last = received.copy()


def test_rows_of_another_round_are_not_taken_for_those_of_this_one(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 0, NUM_ROWS]))
    replaying = Replaying(ThreadHosts(2).hosts[0], call=-1, sender=1, at=18)
    found = on_all(
        [replaying, replaying._inner._world.hosts[1]],
        lambda _, to: fetch_once(to, owned, np.arange(NUM_ROWS)),
    )
    assert replaying.has_hit
    assert isinstance(found[0], ChecksumError)
    assert "that rank 1 (machine b) sent in round" in str(found[0])


def test_pages_are_sent_with_checksums_where_one_host_verifies(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    found = on_all(
        ThreadHosts(2).hosts, lambda host, to: fetch_once(to, owned, wants(host), verify=host == 0)
    )
    for host, result in enumerate(found):
        assert (result[0] == oracle(store)[wants(host)]).all()


@pytest.mark.reliability("N14")
def test_cancellation_ends_a_wait_soon_and_lets_the_others_know(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    has_to_end = threading.Event()

    def act(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        exchange.agree(np.zeros(1), cancellation=NEVER)
        if host == 1:
            threading.Timer(0.2, has_to_end.set).start()
            return exchange.agree(np.zeros(1), cancellation=Cancellation(has_to_end.is_set))
        has_to_end.wait(5)
        threading.Event().wait(0.3)
        return exchange.agree(np.zeros(1), cancellation=NEVER)

    found = on_all(ThreadHosts(2).hosts, act)
    assert isinstance(found[1], ChannelClosedError)
    assert isinstance(found[0], MachineLeftError)


@pytest.mark.reliability("N10")
def test_numbers_are_gathered_and_hosts_at_different_points_are_named(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))

    def act(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        found = exchange.agree(np.array([1.5, host]), cancellation=NEVER, same=("epoch",))
        assert found.tolist() == [[1.5, 0.0], [1.5, 1.0]]
        return exchange.agree(np.array([0, 4 + host]), cancellation=NEVER, same=("epoch", "superbatch"))

    found = on_all(ThreadHosts(2).hosts, act)
    assert "rank 1 (machine b) is at superbatch 5 and rank 0 (machine a) at superbatch 4" in str(found[0])

    def differ(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        if host:
            return exchange.agree(np.zeros(2), cancellation=NEVER)
        with exchange.fetch(0, wants(0), cancellation=NEVER):
            return None

    found = on_all(ThreadHosts(2).hosts, differ)
    assert all("rank 1 (machine b) agrees on 2 numbers" in str(one) for one in found)


@pytest.mark.reliability("N10")
def test_hosts_with_other_rows_or_too_little_memory_are_refused(store: FeatureStore) -> None:
    def other(host: int, to: Transport) -> Any:
        return fetch_once(to, OwnedRows(store=store, bounds=np.array([0, 10 + host, NUM_ROWS])), wants(host))

    assert all("has other rows than" in str(one) for one in on_all(ThreadHosts(2).hosts, other))
    owned = OwnedRows(store=store, bounds=np.array([0, 10, NUM_ROWS]))

    def poor(host: int, to: Transport) -> Any:
        return fetch_once(to, owned, wants(host), memory_bytes=10_000 if host else SMALL)

    assert all(isinstance(one, BudgetError) for one in on_all(ThreadHosts(2).hosts, poor))

    def wild(_: int, to: Transport) -> Any:
        return fetch_once(to, owned, np.array([5, 5]))

    assert all(isinstance(one, ShapeError) for one in on_all(ThreadHosts(2).hosts, wild))


@pytest.mark.reliability("N12")
@pytest.mark.parametrize(
    ("has_cache", "bounds"), [(False, [0, 0, 0]), (True, [0, 0, 0]), (True, [0, 1000, 2000])]
)
def test_buffers_stay_within_the_memory_whatever_is_asked_for(
    store: FeatureStore, has_cache: bool, bounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All want all rows of one host, or of all, and some are where few fit."""
    taken: dict[int, int] = {}  # by the thread of the host

    def counted(num_bytes: int, **how: Any) -> NDArray[np.uint8]:
        buffer = mapped_bytes(num_bytes, **how)
        taken[threading.get_ident()] = taken.get(threading.get_ident(), 0) + buffer.nbytes
        return buffer

    for module in ("owner", "receiver"):
        monkeypatch.setattr(f"gloader.distributed.exchange.{module}.mapped_bytes", counted)
    cached = (lambda rows, _: np.zeros(len(rows), bool)) if has_cache else None
    owned = OwnedRows(store=store, bounds=np.array([*bounds, NUM_ROWS]), cached=cached)
    memory = 1_500_000
    found = on_all(
        ThreadHosts(3).hosts, lambda _, to: fetch_once(to, owned, np.arange(NUM_ROWS), memory_bytes=memory)
    )
    for result in found:
        assert (result[0] == oracle(store)).all()
        assert result[1].stats.rounds > 15
    assert len(taken) == 3
    # A mebibyte of it is the ring of a sweep, on each host. Where all serve all, nothing else is left over.
    least = 0.9 * memory if bounds[1] else 2**20
    assert least < min(taken.values()) <= max(taken.values()) <= memory


def test_a_round_arrives_while_the_one_before_is_dealt_out_and_no_more(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))

    def act(host: int, to: Transport) -> int:
        exchange = Exchange(to, [owned], memory_bytes=1_200_000, rates_s=0.0)
        with exchange.fetch(0, wants(host), cancellation=NEVER) as arriving:
            threading.Event().wait(0.3)  # nobody reads
            ahead: int = arriving.source._arrived  # type: ignore[attr-defined]
            assert (read_all(arriving) == oracle(store)[wants(host)]).all()
        assert exchange.stats.rounds > 5
        return ahead

    # The ids of two rounds, and the rows of both: they are not given out yet, and fill both buffers.
    assert on_all(ThreadHosts(2).hosts, act) == [3, 3]


FIRST_STEP = 12  # of an exchange, among the collectives of `fetch_once`


class Gated(Damaging):
    """Holds the collective that brings the first rows back until ``gate`` is set, or for two seconds."""

    def __init__(self, inner: ThreadHost, gate: threading.Event) -> None:
        super().__init__(inner, call=-1, sender=0, at=0)
        self.gate = gate
        self.was_set = False

    def all_to_all(self, *args: Any, **how: Any) -> None:
        if self.num_calls == FIRST_STEP + 2:
            self.was_set = self.gate.wait(2)
        super().all_to_all(*args, **how)


def test_a_round_is_read_from_the_disk_while_the_one_before_is_on_its_way(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    replies: dict[int, int] = {}  # rounds that each owner has read
    inner, gates = Owner.reply, [threading.Event(), threading.Event()]

    def reply(owner: Owner, *args: Any, **how: Any) -> None:
        inner(owner, *args, **how)
        host = int(owner._lower > 0)
        replies[host] = replies.get(host, 0) + 1
        if replies[host] == 2:
            gates[host].set()

    monkeypatch.setattr(Owner, "reply", reply)
    hosts = [Gated(host, gate) for host, gate in zip(ThreadHosts(2).hosts, gates, strict=True)]
    found = on_all(hosts, lambda host, to: fetch_once(to, owned, wants(host)))
    assert all((result[0] == oracle(store)[wants(host)]).all() for host, result in enumerate(found))
    assert [host.was_set for host in hosts] == [True, True]


def test_who_reads_ahead_is_told_when_the_network_fails(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    told: list[bool] = []

    def reply(_: Owner, *__: Any, cancellation: Cancellation) -> None:
        deadline = time.monotonic() + 3
        while not cancellation.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        told.append(cancellation.is_set())

    class Failing(Damaging):
        def all_to_all(self, *args: Any, **how: Any) -> None:
            if self.num_calls == FIRST_STEP + 1:
                raise StoreError("boom on the way")
            super().all_to_all(*args, **how)

    monkeypatch.setattr(Owner, "reply", reply)
    first, second = ThreadHosts(2).hosts
    # The first one wants nothing: nobody reads there who would hear of the error.
    found = on_all(
        [first, Failing(second, call=-1, sender=0, at=0)],
        lambda host, to: fetch_once(to, owned, wants(host) if host else np.empty(0, np.int64)),
    )
    assert "rank 1 (machine b) failed: StoreError: boom on the way" in str(found[0])
    assert told
    assert all(told)
    assert no_threads_left()


def test_who_reads_ahead_ends_with_the_exchange_and_its_error_is_that_of_the_machine(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read fails, one waits for a disk for ever: it is told to end."""
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    inner = Owner.reply

    def reply(owner: Owner, *args: Any, cancellation: Cancellation) -> None:
        if owner._lower > 0:
            raise StoreError("boom on the disk")
        inner(owner, *args, cancellation=cancellation)
        while not cancellation.is_set():
            time.sleep(0.01)
        raise ChannelClosedError("the sweep was cancelled")

    monkeypatch.setattr(Owner, "reply", reply)
    has_failed = threading.Event()

    def act(host: int, to: Transport) -> Any:
        exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
        if host == 0:
            threading.Timer(0.5, has_failed.set).start()
        with exchange.fetch(
            0, wants(host), cancellation=Cancellation(has_failed.is_set) if host == 0 else NEVER
        ) as arriving:
            read_all(arriving, cancellation=Cancellation(has_failed.is_set) if host == 0 else NEVER)

    found = on_all(ThreadHosts(2).hosts, act)
    assert isinstance(found[0], ChannelClosedError)
    assert str(found[1]) == "boom on the disk"
    assert no_threads_left()


@pytest.mark.reliability("N5")
def test_a_damaged_disk_is_its_owners_error_and_the_others_are_told(tmp_path: Path) -> None:
    with store_of(tmp_path / "rows", dim=128, dtype="float32") as store:
        expected = oracle(store)
        with store.stored_rows.path.open("r+b") as file:
            file.seek(4096 + 2500 * 512)
            file.write(b"damaged!")
        owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
        found = on_all(ThreadHosts(2).hosts, lambda _, to: fetch_once(to, owned, np.arange(NUM_ROWS)))
        assert isinstance(found[1], ChecksumError)
        assert "gloader verify" in str(found[1])
        assert isinstance(found[0], RankError)
        assert "rank 1 (machine b) failed: ChecksumError" in str(found[0])
        # Rows that nobody asks for are nobody's.
        found = on_all(ThreadHosts(2).hosts, lambda host, to: fetch_once(to, owned, np.arange(host, 2400, 2)))
        for host, result in enumerate(found):
            assert (result[0] == expected[host:2400:2]).all()


def test_reads_of_any_length_bring_the_same_bytes(store: FeatureStore) -> None:
    owned = OwnedRows(store=store, bounds=np.array([0, 1000, NUM_ROWS]))
    for pages in (1, 2, 7, 300):

        def act(host: int, to: Transport, pages: int = pages) -> NDArray[np.uint8]:
            exchange = Exchange(to, [owned], memory_bytes=SMALL, rates_s=0.0)
            with exchange.fetch(0, wants(host), cancellation=NEVER) as arriving:
                return read_all(arriving, pages)

        for host, found in enumerate(on_all(ThreadHosts(2).hosts, act)):
            assert (found == oracle(store)[wants(host)]).all()


def test_a_second_fetch_at_a_time_is_refused(store: FeatureStore) -> None:
    exchange = Exchange(
        ThreadHosts(1).hosts[0], [OwnedRows(store=store, bounds=np.array([0, NUM_ROWS]))], memory_bytes=SMALL
    )
    with (
        exchange.fetch(0, wants(0), cancellation=NEVER) as arriving,
        pytest.raises(RankError, match="one exchange at a time"),
    ):
        exchange.agree(np.zeros(1), cancellation=NEVER)
    assert arriving.layout.num_slots > 0
