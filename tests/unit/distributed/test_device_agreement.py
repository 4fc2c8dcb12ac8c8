"""The agreement between the devices of several ranks: the room of the smallest, and one set of rows."""

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
import torch
from fake_cuda import faked_cuda

from gloader.cache import DeviceCachePlan, no_device_cache, whole_device_cache
from gloader.config import DeviceSettings, LoaderSettings
from gloader.device import CpuDevice, DeviceTier, RowFormat
from gloader.distributed.device_agreement import FollowerDevice, PeerDevices
from gloader.distributed.shared_memory import create_segment, pin_segment
from gloader.distributed.wire import (
    Answer,
    Connection,
    Failed,
    HoldRows,
    Message,
    Pong,
    ReachFeatures,
    Received,
)
from gloader.errors import RankError
from gloader.pipeline.open.device_tier import with_features
from gloader.pipeline.other_ranks import LoadedFeatures
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import BatchId, BatchTypes, Block, ReadyBatch, SampledBatch

NUM_NODES, DIM = 40, 3
FEATURES = np.random.default_rng(0).standard_normal((NUM_NODES, DIM)).astype(np.float32)
BLOCK = Block(
    indptr=np.array([0, 1, 2], dtype=np.int32),
    indices=np.array([2, 0], dtype=np.int32),
    edge_ids=np.array([7, 9]),
    num_src=5,
    num_dst=2,
)
LARGEST = SampledBatch(
    id=BatchId(epoch=0, index=0), nodes=np.array([3, 1, 4, 15, 9]), num_seeds=2, blocks=(BLOCK,)
)


@dataclass
class SmallDevice:
    """A device with little memory; no CPU by its type, so that "auto" looks at what is free."""

    free: int
    inner: Any = field(default_factory=RehearsedDevice)
    can_pin: bool = True
    pinned: list["PinnedRows"] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def free_bytes(self) -> int:
        return self.free

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        step()
        return 100

    def pin(self, array: Any) -> "PinnedRows | None":
        if not self.can_pin:
            return None
        self.pinned.append(PinnedRows(array))
        return self.pinned[-1]


class PinnedRows:
    """Memory that is pinned until it is closed."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_pinned = True

    def close(self) -> None:
        self.is_pinned = False


class Store:
    """A store in memory."""

    dtype, dim = FEATURES.dtype, DIM
    is_open = False

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    @property
    def stored_rows(self) -> Any:
        return SimpleNamespace(form=RowFormat(dtype=FEATURES.dtype, dim=DIM))

    def read_into(self, rows: Any, out: Any) -> None:
        assert self.is_open
        out[:] = FEATURES[rows]


def _table(open_store: Callable[[], Store]) -> Any:
    """Return the feature rows of a table, as far as a rank that is loaded for needs them."""
    return SimpleNamespace(
        number=0, num_rows=NUM_NODES, feature_dim=DIM, open_features=lambda **_: open_store()
    )


def _least_room(peers: PeerDevices, largest: SampledBatch | None, own: int) -> int:
    with peers.trying_step(largest) as rooms:
        rooms.append(own)
    return min(rooms)


def _hold(peers: PeerDevices, plan: DeviceCachePlan, *, as_stored: bool = False, table: int = 0) -> None:
    with peers.holding(plan, as_stored=as_stored, table=table):
        pass


def _reach(peers: PeerDevices, own: "SmallDevice", table: int = 0) -> LoadedFeatures:
    with peers.sharing_features(own, FEATURES.nbytes, table=table) as shared:  # type: ignore[arg-type]
        loaded = _loaded(own, shared.memory)
        shared.is_reached = loaded.is_reached
    return loaded if shared.is_reached else loaded.out_of_reach()


def _settings(**device: Any) -> LoaderSettings:
    return LoaderSettings(device=DeviceSettings(**device))


class Follower:
    """A rank that is loaded for, in a thread: answers until its connection ends, or it fails."""

    def __init__(
        self,
        free: int | BaseException,
        monkeypatch: pytest.MonkeyPatch,
        *,
        dry_run: Any = None,
        can_pin: bool = True,
        num_tables: int = 1,
        **settings: Any,
    ) -> None:
        self.gpu = SmallDevice(free if isinstance(free, int) else 0, can_pin=can_pin)
        self.host_end, self._end = (
            Connection(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.stores: list[Store] = []
        self.device = FollowerDevice(
            _settings(**settings),
            dry_run=dry_run,
            types=BatchTypes(),
            tables=[_table(self._open_store)] * num_tables,
        )

        def opened(_: object) -> Any:
            if isinstance(free, BaseException):
                raise free
            return self.gpu

        monkeypatch.setattr("gloader.distributed.device_agreement.open_device", opened)
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def _open_store(self) -> Store:
        self.stores.append(Store())
        return self.stores[-1]

    def _answer(self) -> None:
        try:
            while True:
                received = self._end.receive(None)
                assert received is not None
                if (told := self.device.answer(received)) is not None:
                    self._end.send(told)
        except EOFError:
            pass
        except (OSError, RankError) as error:
            self._end.send(Failed(text=str(error)))
        self._end.close()

    def end(self) -> None:
        self.host_end.close()
        self.thread.join()


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def follow(free: int | BaseException, **settings: Any) -> Follower:
        made.append(Follower(free, monkeypatch, **settings))
        return made[-1]

    yield follow
    for follower in made:
        follower.end()


def test_the_least_of_all_rooms_counts(follow: Callable[..., Follower]) -> None:
    peers = PeerDevices({1: follow(0, device_cache=900).host_end, 2: follow(0, device_cache=700).host_end})
    assert _least_room(peers, LARGEST, 800) == 700
    assert _least_room(peers, LARGEST, 600) == 600
    assert _least_room(peers, None, 10**6) == 700


@pytest.mark.parametrize("kinds", [(True, True), (True, False)])
def test_rows_are_sent_as_they_are_stored_if_every_device_takes_them_so(
    follow: Callable[..., Follower], kinds: tuple[bool, bool]
) -> None:
    followers = [follow(0, device_cache=1) for _ in kinds]
    for follower, rehearses in zip(followers, kinds, strict=True):
        follower.device.device = RehearsedDevice() if rehearses else CpuDevice()
    peers = PeerDevices({rank: follower.host_end for rank, follower in enumerate(followers, 1)})
    for _ in range(2):
        _least_room(peers, None, 0)
        assert peers.are_asynchronous == all(kinds)


def test_the_others_try_a_step_on_the_largest_batch(follow: Callable[..., Follower]) -> None:
    seen: list[ReadyBatch] = []
    follower = follow((512 << 20) + 10_000, dry_run=seen.append)
    room = _least_room(PeerDevices({1: follower.host_end}), LARGEST, 10**9)
    (batch,) = seen
    assert batch.x.shape == (5, DIM)
    np.testing.assert_array_equal(batch.nodes, LARGEST.nodes)
    np.testing.assert_array_equal(batch.blocks[0].indices.numpy(), BLOCK.indices)
    assert 0 < room < 10_000 - 1.2 * 100


@pytest.mark.parametrize(
    "plan",
    [
        DeviceCachePlan(num_nodes=NUM_NODES, rows=np.array([0, 7, 39]), expected_hit_rate=0.25),
        whole_device_cache(NUM_NODES),
        no_device_cache(NUM_NODES),
    ],
)
@pytest.mark.parametrize("as_stored", [False, True])
def test_all_hold_the_rows_of_the_plan(
    follow: Callable[..., Follower], plan: DeviceCachePlan, as_stored: bool
) -> None:
    followers = [follow(0), follow(0)]
    peers = PeerDevices({rank: follower.host_end for rank, follower in enumerate(followers, 1)})
    _hold(peers, plan, as_stored=as_stored)
    for follower in followers:
        tier = follower.device.tiers[0]
        cache = tier.cache
        # What the host brings has the dtype of the dataset, which a rank has to open to know it.
        assert (tier.staged is not None) == as_stored
        if not len(plan.rows):
            assert cache is None
            assert [store.is_open for store in follower.stores] == [False] * as_stored
            continue
        assert cache is not None
        np.testing.assert_array_equal(cache.plan.rows, plan.rows)
        np.testing.assert_array_equal(cache.table.rows.numpy(), FEATURES[plan.rows])
        assert (cache.plan.holds_all, cache.plan.expected_hit_rate) == (
            plan.holds_all,
            plan.expected_hit_rate,
        )
        assert [store.is_open for store in follower.stores] == [False]


def test_each_table_has_rows_and_memory_of_its_own(follow: Callable[..., Follower]) -> None:
    own, follower = SmallDevice(0), follow(0, num_tables=2)
    peers = PeerDevices({1: follower.host_end})
    for table, rows in enumerate(([0, 7], [39])):
        plan = DeviceCachePlan(num_nodes=NUM_NODES, rows=np.array(rows))
        _hold(peers, plan, table=table)
    _reach(peers, own, table=0)
    own.can_pin = False
    _reach(peers, own, table=1)
    follower.end()
    first, second = follower.device.tiers
    assert first.cache is not None
    assert second.cache is not None
    assert (first.cache.plan.rows.tolist(), second.cache.plan.rows.tolist()) == ([0, 7], [39])
    assert (first.features is None, second.features is None) == (False, True)
    follower.device.close()
    assert [pinned.is_pinned for pinned in follower.gpu.pinned] == [False, False]


def test_a_table_that_is_not_there_is_refused(follow: Callable[..., Follower]) -> None:
    peers = PeerDevices({1: follow(0).host_end})
    with pytest.raises(RankError, match="the loading rank requested table 1 of 1; use one dataset on all"):
        _hold(peers, no_device_cache(NUM_NODES), table=1)


def test_a_table_that_nothing_was_said_of_is_missed(follow: Callable[..., Follower]) -> None:
    follower = follow(0, num_tables=2)
    _hold(PeerDevices({1: follower.host_end}), no_device_cache(NUM_NODES), table=1)
    with pytest.raises(RankError, match="did not say which rows to hold"):
        _ = follower.device.tiers


def test_a_device_that_fails_is_named_with_its_rank(follow: Callable[..., Follower]) -> None:
    peers = PeerDevices({3: follow(OSError("no such device")).host_end})
    with pytest.raises(RankError, match="rank 3 failed: no such device"):
        _least_room(peers, LARGEST, 0)


def test_a_rank_that_is_gone_is_named(follow: Callable[..., Follower]) -> None:
    follower = follow(OSError("no such device"))
    peers = PeerDevices({3: follower.host_end})
    with pytest.raises(RankError, match="rank 3 failed"):
        _least_room(peers, None, 0)
    follower.thread.join()
    with pytest.raises(RankError, match="rank 3 ended while the loader of this machine was opened"):
        _hold(peers, no_device_cache(NUM_NODES))


def test_a_device_that_was_told_nothing_holds_nothing() -> None:
    device = FollowerDevice(
        _settings(),
        tables=[_table(Store)],
        types=BatchTypes(),
    )
    with pytest.raises(RankError, match="did not say which rows to hold"):
        _ = device.tiers


def _loaded(device: SmallDevice, memory: Any) -> LoadedFeatures:
    """Load the features to ``memory``, and pin them for ``device``."""
    rows = (
        np.empty_like(FEATURES)
        if memory is None
        else memory[: FEATURES.nbytes].view(np.float32).reshape(-1, DIM)
    )
    rows[:] = FEATURES
    form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
    tier = with_features(DeviceTier(device=device), rows, form)  # type: ignore[arg-type]
    return LoadedFeatures(source=RamFeatures(rows), tier=tier)


@pytest.mark.parametrize("own_can", [True, False])
@pytest.mark.parametrize("other_can", [True, False])
def test_all_devices_reach_the_features_in_one_memory_or_none_does(
    follow: Callable[..., Follower], own_can: bool, other_can: bool
) -> None:
    own, other = SmallDevice(0, can_pin=own_can), follow(0, can_pin=other_can)
    peers = PeerDevices({1: other.host_end})
    _hold(peers, no_device_cache(NUM_NODES))
    loaded = _reach(peers, own)
    other.end()
    both = own_can and other_can
    tier = other.device.tiers[0]
    assert (loaded.is_reached, tier.features is not None) == (both, both)
    np.testing.assert_array_equal(loaded.source.array, FEATURES)
    assert [pinned.is_pinned for pinned in own.pinned + other.gpu.pinned] == [both] * (own_can + other_can)
    if tier.features is not None:
        np.testing.assert_array_equal(tier.features.rows.numpy(), FEATURES)
        loaded.source.array[7] = 5.0  # it is one memory
        assert (tier.features.rows[7] == 5.0).all()
        other.device.close()
        assert [pinned.is_pinned for pinned in other.gpu.pinned] == [False]


def test_features_that_cannot_be_loaded_leave_nothing_open(follow: Callable[..., Follower]) -> None:
    follower = follow(0)
    peers = PeerDevices({1: follower.host_end})
    _hold(peers, no_device_cache(NUM_NODES))
    with (
        pytest.raises(OSError, match="the disk is gone"),
        peers.sharing_features(SmallDevice(0), FEATURES.nbytes, table=0),  # type: ignore[arg-type]
    ):
        raise OSError("the disk is gone")
    follower.end()
    follower.device.close()
    assert not any(pinned.is_pinned for pinned in follower.gpu.pinned)
    del follower.gpu.pinned[:], follower.device
    gc.collect()
    assert "memfd:gloader" not in Path("/proc/self/maps").read_text()


def test_a_device_that_gathers_as_it_computes_takes_its_rows_from_the_rings(
    follow: Callable[..., Follower],
) -> None:
    follower = follow(0)
    own = SmallDevice(0, inner=CpuDevice())
    peers = PeerDevices({1: follower.host_end})
    with peers.sharing_features(own, FEATURES.nbytes, table=0) as shared:  # type: ignore[arg-type]
        assert shared.memory is None
    assert not shared.is_reached
    assert not _reach(peers, own).is_reached
    assert [pinned.is_pinned for pinned in own.pinned] == [False]


def test_every_thread_of_a_rank_pins_for_the_gpu_that_was_opened() -> None:
    """A thread's own current GPU is the first, whichever the rank's is; a context there takes 0.4 GB of another's."""
    follower = FollowerDevice(
        _settings(device="cuda"),
        tables=[_table(Store)],
        types=BatchTypes(),
    )
    descriptor, memory = create_segment(1 << 16)
    pinned: list[Any] = []
    with faked_cuda(num_devices=2) as fake:
        torch.cuda.set_device(1)
        follower.answer(Received(message=HoldRows(count=0, hit_rate=None), descriptor=None))
        follower.answer(Received(message=ReachFeatures(), descriptor=descriptor))
        tier = follower.tiers[0]
        assert (tier.device.place, tier.has_short_ids) == (torch.device("cuda:1"), True)
        assert tier.features is not None
        assert len(fake.registered) == 1
        thread = threading.Thread(target=lambda: pinned.append(pin_segment(memory, tier.device.place)))
        thread.start()
        thread.join()
        assert len(fake.registered) == 2
        pinned[0].close()
        follower.close()
        assert fake.registered == {}
        assert fake.contexts == {1}


@pytest.mark.parametrize("answer", [Answer(), Pong()])
def test_an_answer_to_something_else_is_refused(answer: Message) -> None:
    host_end, end = (Connection(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    end.send(answer)
    with pytest.raises(RankError, match=r"rank 2 answered (Answer|Pong)\(.*use one version of gloader"):
        _least_room(PeerDevices({2: host_end}), None, 0)
    host_end.close()
    end.close()
