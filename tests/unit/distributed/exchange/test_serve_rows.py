"""One host reads the rows of all, in order or not, and the others serve it until it ends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.ids import RangePart, copy_bounds
from gloader.core.signals import NEVER, Cancellation
from gloader.distributed.exchange import serve_rows as module
from gloader.distributed.exchange.exchange import Exchange
from gloader.distributed.exchange.owner import OwnedRows
from gloader.distributed.exchange.serve_rows import AllRows, RowReader, serve_rows
from gloader.errors import ChannelClosedError, ChecksumError, LoaderClosedError, RankError, ShapeError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.manifest import STORE_MANIFEST
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.rehearsed_network import ThreadHosts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

SHAPES = {"nodes": (900, 70), "edges": (2000, 9)}


def matrices() -> dict[str, NDArray[np.float32]]:
    """Return rows that every dtype holds as they are."""
    random = np.random.default_rng(5)
    found = {name: random.integers(-127, 128, shape).astype(np.float32) for name, shape in SHAPES.items()}
    for rows in found.values():
        rows[:, 0] = 127
    return found


class Machines:
    """W machines, each with its part of two tables on its disk; machine ``leader`` reads."""

    def __init__(self, folder: Path, num_hosts: int, *, dtype: str = "float32", leader: int = 0) -> None:
        self.rows = matrices()
        self.leader = leader
        self.num_hosts = num_hosts
        self.folder = folder
        for host in range(num_hosts):
            part = RangePart(part=host, of=num_hosts)
            with NewDirectory(folder / str(host), manifest_name=STORE_MANIFEST, part=part) as directory:
                for name, rows in self.rows.items():
                    with directory.features(
                        name, num_rows=len(rows), dim=rows.shape[1], dtype=dtype
                    ) as column:
                        column.append(rows)
                directory.commit("feature_store", {})
        self.hosts = ThreadHosts(num_hosts).hosts
        self.served: list[Any] = []

    def run(
        self,
        read: Callable[[dict[str, AllRows]], Any],
        *,
        cancellation: Cancellation = NEVER,
        after: Callable[[dict[str, AllRows]], Any] = lambda _: None,
    ) -> None:
        """Let the leader ``read``, and act ``after`` the machines parted; ``served`` is how the others ended."""

        def one(host: int) -> Any:
            with ExitStack() as stack:
                stores = [
                    stack.enter_context(FeatureStore.open(self.folder / str(host), column=name))
                    for name in SHAPES
                ]
                owned = [
                    OwnedRows(store=store, bounds=copy_bounds(store.num_rows, self.num_hosts))
                    for store in stores
                ]
                exchange = Exchange(self.hosts[host], owned, memory_bytes=3_000_000, rates_s=0.0)
                if host != self.leader:
                    try:
                        serve_rows(exchange, cancellation=cancellation)
                    except Exception as error:
                        return error
                    return None
                with RowReader(exchange, stores) as reader:
                    tables = {
                        name: AllRows(number, store, lambda: reader)
                        for number, (name, store) in enumerate(zip(SHAPES, stores, strict=True))
                    }
                    read(tables)
                return after(tables)

        with ThreadPoolExecutor(self.num_hosts) as pool:
            futures = [pool.submit(one, host) for host in range(self.num_hosts)]
            self.served = [futures[host].result() for host in range(self.num_hosts) if host != self.leader]
            futures[self.leader].result()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize(("num_hosts", "leader"), [(1, 0), (2, 1), (4, 2)])
def test_any_rows_are_read_as_from_a_copy(tmp_path: Path, num_hosts: int, leader: int, dtype: str) -> None:
    machines = Machines(tmp_path, num_hosts, dtype=dtype, leader=leader)
    random = np.random.default_rng(num_hosts)

    def read(tables: dict[str, AllRows]) -> None:
        for name, rows in machines.rows.items():
            table = tables[name]
            assert (table.num_rows, table.dim) == rows.shape
            asked = [
                np.arange(len(rows)),  # as an evaluation does, in order
                random.integers(0, len(rows), 300),  # in any order, some of them twice
                np.array([len(rows) - 1]),
                np.empty(0, np.int64),
            ]
            for ids in asked:
                out = np.full((len(ids), rows.shape[1]), 77, np.float32)
                assert table.read_into(ids, out).rows == len(ids)
                np.testing.assert_array_equal(out, rows[ids])
            at = random.permutation(500)[:200]
            ids = random.integers(0, len(rows), 200)
            out = np.full((500, rows.shape[1]), 77, np.float32)
            table.read_into(ids, out, at=at)
            np.testing.assert_array_equal(out[at], rows[ids])
            assert (np.delete(out, at, axis=0) == 77).all()
        with pytest.raises(ShapeError, match="out of range"):
            tables["nodes"].read_into(np.array([900]), np.empty((1, 70), np.float32))

    machines.run(read)
    assert machines.served == [None] * (num_hosts - 1)


def test_more_than_a_piece_is_exchanged_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10_000)
    machines = Machines(tmp_path, 3)

    def read(tables: dict[str, AllRows]) -> None:
        out = np.empty((900, 70), np.float32)
        tables["nodes"].read_into(np.arange(900), out)
        np.testing.assert_array_equal(out, machines.rows["nodes"])

    machines.run(read)


def test_threads_that_read_take_turns_and_a_reader_that_computes_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hosts that wait half a second at most for each other."""
    monkeypatch.setattr(module, "_BEAT_S", 0.05)
    machines = Machines(tmp_path, 3)
    machines.hosts = ThreadHosts(3, timeout_s=0.5).hosts

    def read(tables: dict[str, AllRows]) -> None:
        def some(seed: int) -> None:
            random = np.random.default_rng(seed)
            for name in random.choice(list(SHAPES), 10):
                ids = random.integers(0, SHAPES[name][0], 50)
                out = np.empty((50, SHAPES[name][1]), np.float32)
                tables[name].read_into(ids, out)
                np.testing.assert_array_equal(out, machines.rows[name][ids])

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(some, range(3)))
        time.sleep(1.2)  # a long computation
        some(9)

    machines.run(read)
    assert machines.served == [None, None]
    assert not [thread for thread in threading.enumerate() if thread.name == "gloader-beat"]


def test_without_signs_of_life_the_others_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 30.0)
    machines = Machines(tmp_path, 2)
    machines.hosts = ThreadHosts(2, timeout_s=0.3).hosts
    with pytest.raises(RankError):
        machines.run(lambda _: time.sleep(1.0))
    assert isinstance(machines.served[0], RankError)


@pytest.mark.reliability("N5")
def test_damage_on_the_disk_of_one_machine_is_told_on_all(tmp_path: Path) -> None:
    machines = Machines(tmp_path, 3)
    file = tmp_path / "1" / "nodes.npy"
    with file.open("r+b") as opened:
        opened.seek(4096 + 450 * 280)
        opened.write(b"damaged")

    def read(tables: dict[str, AllRows]) -> None:
        tables["nodes"].read_into(np.arange(100), np.empty((100, 70), np.float32))  # those of machine 0
        tables["nodes"].read_into(np.arange(900), np.empty((900, 70), np.float32))

    with pytest.raises(RankError, match=r"rank 1 \(machine b\).*ChecksumError"):
        machines.run(read)
    assert isinstance(machines.served[0], ChecksumError)
    assert "rank 1 (machine b)" in str(machines.served[1])


def test_a_reader_that_fails_is_named_by_those_that_serve(tmp_path: Path) -> None:
    machines = Machines(tmp_path, 2)

    def read(tables: dict[str, AllRows]) -> None:
        tables["nodes"].read_into(np.arange(900), np.empty((900, 70), np.float32))
        raise ValueError("the network has NaN")

    with pytest.raises(ValueError, match="NaN"):
        machines.run(read)
    assert isinstance(machines.served[0], RankError)
    assert "rank 0 (machine a) failed: ValueError: the network has NaN" in str(machines.served[0])


def test_who_serves_can_be_told_to_stop(tmp_path: Path) -> None:
    machines = Machines(tmp_path, 2)
    stop = threading.Event()

    def read(tables: dict[str, AllRows]) -> None:
        tables["nodes"].read_into(np.arange(900), np.empty((900, 70), np.float32))
        stop.set()
        time.sleep(0.2)
        tables["nodes"].read_into(np.arange(900), np.empty((900, 70), np.float32))

    with pytest.raises(RankError):
        machines.run(read, cancellation=Cancellation(stop.is_set))
    assert isinstance(machines.served[0], ChannelClosedError)


def test_hosts_of_which_several_read_or_none_are_refused() -> None:
    for said, count in ([[2, 0], [2, 0], [0, 0]], 2), ([[0, 0], [0, 0], [0, 0]], 0):
        with pytest.raises(
            RankError, match=f"{count} of 3 machines read the rows of all machines, but exactly one must"
        ):
            module._announced(np.array(said, np.float64))


def test_rows_of_others_are_read_before_the_machines_part_alone(tmp_path: Path) -> None:
    def read(tables: dict[str, AllRows]) -> None:
        tables["edges"].read_into(np.arange(2000), np.empty((2000, 9), np.float32))

    def late(tables: dict[str, AllRows]) -> None:
        with pytest.raises(LoaderClosedError, match="after the machines had ended the exchange"):
            read(tables)

    machines = Machines(tmp_path, 2)
    machines.run(read, after=late)
    assert machines.served == [None]


def test_what_a_sign_of_life_finds_is_raised_by_the_next_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.02)
    machines = Machines(tmp_path, 2)
    stop = threading.Event()

    def read(tables: dict[str, AllRows]) -> None:
        stop.set()
        time.sleep(0.4)  # machine b ends while this one computes
        tables["nodes"].read_into(np.arange(900), np.empty((900, 70), np.float32))

    with pytest.raises(RankError, match=r"rank 1 \(machine b\)"):
        machines.run(read, cancellation=Cancellation(stop.is_set))


def test_rows_that_are_read_in_order_come_in_large_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, 3, leader=1)
    fetched: list[int] = []
    fetch = Exchange.fetch

    def counted(self: Exchange, table: int, rows: NDArray[Any], **more: Any) -> Any:
        if rows.shape[0]:
            fetched.append(rows.shape[0])
        return fetch(self, table, rows, **more)

    monkeypatch.setattr(Exchange, "fetch", counted)
    monkeypatch.setattr(module, "PIECE_BYTES", 200 * 4 * SHAPES["nodes"][1])

    def read(tables: dict[str, AllRows]) -> None:
        nodes, expected = tables["nodes"], machines.rows["nodes"]
        for _ in range(2):
            for start in range(0, 900, 40):  # as an evaluation, a few at a time; the own rows are 300 to 599
                out = np.empty((min(40, 900 - start), 70), np.float32)
                nodes.read_into(np.arange(start, start + len(out)), out)
                assert np.array_equal(out, expected[start : start + len(out)])
        # The first rows of a pass alone tell nothing of what is read next; own rows are no gap.
        assert fetched == 2 * [40, 200, 60, 200, 100]
        fetched.clear()
        out = np.empty((1, 70), np.float32)
        for row in (700, 5, 800):  # in no order: nothing beside them is brought
            nodes.read_into(np.array([row]), out)
            assert np.array_equal(out[0], expected[row])
        assert fetched == [1, 1, 1]
        ids = np.array([3, 3, 7, 890, 890])
        out = np.empty((5, 70), np.float32)
        nodes.read_into(ids, out)
        assert np.array_equal(out, expected[ids])

    machines.run(read)
    assert machines.served == [None, None]
