"""Bytes from elsewhere: a source feeds sweeps, lanes are told what is on this disk, calls bring what they read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from arrived_rows import PlayedPages
from far_files import FarIO

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError, ChecksumError, RankError, StoreError
from gloader.ssd_store import DirectMisses, FeatureStore, Packer, load_misses
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.read.columns import stored_array
from gloader.ssd_store.read.lane import ReadSettings
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.spill.regions import RegionStore, SharedBuffers, plan_regions
from gloader.ssd_store.sweep.supply import WantedPositions
from gloader.ssd_store.sweep.sweep_kernels import WHOLE_FILE
from gloader.ssd_store.sweep.sweeper import Sweeper
from gloader.ssd_store.sweep.wanted_rows import collect_union, empty_bits
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS, DIM = 9000, 100
FEATURES = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM)).astype(np.float32)
IO = ["auto", "threads", "buffered"]


def draw(num_batches: int, share: float = 0.1) -> list[np.ndarray]:
    rng = np.random.default_rng(num_batches)
    return [np.flatnonzero(rng.random(NUM_ROWS) < share) for _ in range(num_batches)]


def read(source, batch: int, rows: np.ndarray) -> np.ndarray:
    out = np.zeros((len(rows), DIM), np.float32)
    source.read_into(batch, rows, out, at=np.arange(len(rows)))
    return out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FeatureStore.create(tmp_path / "s", FEATURES).close()
    return tmp_path / "s"


@pytest.fixture
def far(path: Path) -> FarIO:
    return FarIO(path / "features.npy")


# --- lanes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", IO)
def test_a_batch_is_read_as_much_at_a_time_as_is_on_this_disk(path: Path, far: FarIO, io: Any) -> None:
    with FeatureStore.open(path, os_io=far, io=io) as store:
        for rows in (*draw(3, share=0.01), np.arange(NUM_ROWS), np.arange(0)):
            out = np.zeros((len(rows), DIM), np.float32)
            stats = store.read_into(rows, out, gap_bytes=0)
            assert np.array_equal(out, FEATURES[rows])
            assert stats.requests >= min(len(rows), 2)
        assert (far.num_portions > 20, far.num_here) == (True, 0)
        with pytest.raises(ChecksumError, match=r"features.npy: page 3 at byte .* \(requested: 31, 32\)"):
            far.damaged = (str(path / "features.npy"), [DATA_OFFSET + 3 * 4096 + 100])
            store.read_into(np.array([0, 11, 31, 32, 500]), np.zeros((5, DIM), np.float32), gap_bytes=0)
        assert far.num_here == 0
        far.damaged = None
        misses = draw(2, share=0.02)
        assert np.array_equal(read(DirectMisses(store), 1, misses[1]), FEATURES[misses[1]])


@pytest.mark.parametrize("io", IO)
def test_a_damaged_page_is_brought_anew_before_it_is_an_error(path: Path, far: FarIO, io: Any) -> None:
    rows, out = np.arange(0, NUM_ROWS, 40), np.zeros((NUM_ROWS // 40, DIM), np.float32)
    damaged = [DATA_OFFSET + page * 4096 + 100 for page in (3, 4, 19, 800)]
    with FeatureStore.open(path, os_io=far, io=io) as store:
        far.damaged, far.answers = (str(path / "features.npy"), damaged), 1
        store.read_into(rows, out, gap_bytes=0)
        assert np.array_equal(out, FEATURES[rows])
        assert far.num_here == 0
        far.damaged = (str(path / "features.npy"), damaged)
        with pytest.raises(ChecksumError, match=r"page (3|4|19) at byte"):
            store.read_into(rows, out)
    assert [offset - DATA_OFFSET for offset in far.refetched][-1] in (3 * 4096, 4 * 4096, 19 * 4096)


def test_pages_of_an_array_that_is_read_whole_are_brought_anew(tmp_path: Path) -> None:
    values = np.arange(3_000_000, dtype=np.int64)
    with NewDirectory(tmp_path / "d", manifest_name="dataset.json") as directory:
        with directory.array("indices", dtype="int64", shape=values.shape) as writer:
            writer.append(values)
        record = directory.commit("dataset", {}).arrays["indices"]
    data = tmp_path / "d" / record.file
    far = FarIO(data)
    far.damaged, far.answers = (str(data), [DATA_OFFSET + 4096 * page for page in (5, 6, 2000, 5000)]), 1
    assert np.array_equal(load_array(tmp_path / "d", record, os_io=far), values)
    far.damaged = (str(data), [DATA_OFFSET + 4096 * 2000])
    with pytest.raises(ChecksumError, match="page 2000 at byte"):
        load_array(tmp_path / "d", record, os_io=far)
    assert far.refetched == [DATA_OFFSET + 4096 * page for page in (5, 2000)]


def test_calls_bring_what_they_read(path: Path, far: FarIO) -> None:
    assert verify_directory(path, "store.json", os_io=far).is_ok
    assert not verify_directory(path, "store.json").is_ok


# --- sweeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", IO)
def test_a_sweep_is_fed_by_what_brings_the_pages_of_its_file(
    path: Path, far: FarIO, io: Any, tmp_path: Path
) -> None:
    misses = [*draw(4), np.arange(0), *draw(3, share=0.001)]
    with (
        FeatureStore.open(path, os_io=far, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        for source in (
            load_misses(store, misses, cancellation=NEVER),
            packer.pack(misses, superbatch=0, cancellation=NEVER),
        ):
            for batch, rows in enumerate(misses):
                assert np.array_equal(read(source, batch, rows), FEATURES[rows])
            played = far.sources[-1]
            cost = source.cost
            assert (cost.read.requests, cost.read.bytes_read) == (0, 0)
            assert cost.bytes_brought == sum(length for _, length in played.reads) >= NUM_ROWS * DIM * 2
            assert max(length for _, length in played.reads) <= 2**20
            assert (played.num_closed, far.num_strays) == (1, 0)
            source.close()
        # When everything is on this disk, it is read from there.
        far._content.clear()
        FeatureStore.create(path, FEATURES, overwrite=True).close()
    with FeatureStore.open(path, os_io=far, io=io) as store:
        source = load_misses(store, misses, cancellation=NEVER)
        assert (source.cost.bytes_brought, source.cost.read.requests > 0) == (0, True)


@pytest.mark.parametrize("way", ["direct", "merged", "full"])
@pytest.mark.parametrize("io", ["auto", "threads"])
def test_only_wanted_pages_are_asked_for_and_holes_below_an_extent(tmp_path: Path, io: Any, way: str) -> None:
    values = np.arange(3_000_000, dtype=np.int64)
    with NewDirectory(tmp_path / "d", manifest_name="dataset.json") as directory:
        with directory.array("indices", dtype="int64", shape=values.shape) as writer:
            writer.append(values)
        record = directory.commit("dataset", {}).arrays["indices"]
    far = FarIO(tmp_path / "d" / record.file)
    stored = stored_array(tmp_path / "d", record, settings=ReadSettings(io=io), os_io=far)
    wanted = [np.array([0, 5, 512 * 200, 512 * 900, 2_999_999]), np.arange(1_000_000, 1_400_000, 3)]
    pages = empty_bits(record.num_pages)
    marked = np.unique(np.concatenate(wanted) // 512)
    for page in marked.tolist():
        pages[page >> 6] |= np.uint64(1 << (page & 63))

    class Listed:
        def fill(self, ids: Any, taken: Any, ends: Any, has_more: Any) -> None:
            for owner, positions in enumerate(wanted):
                left = positions[self.given[owner] - int(ends[owner] - taken[owner]) :][: ids.shape[1]]
                ids[owner, : len(left)] = left
                self.given[owner] += len(left) - int(ends[owner] - taken[owner])
                ends[owner], taken[owner] = len(left), 0
                has_more[owner] = self.given[owner] < len(positions)

        given = np.zeros(2, np.int64)

    gap_bytes = {"direct": 0, "merged": 10**5, "full": WHOLE_FILE}[way]
    counts = np.array([len(positions) for positions in wanted])
    with SpillFolder(tmp_path, budget_bytes=10**9) as spill:
        store = RegionStore(
            stored, spill, buffers=SharedBuffers(sweep_bytes=6 * 2**20, lane_bytes=2**20, name="the reader")
        )
        try:
            regions = store.write(
                WantedPositions(
                    portions=Listed(),
                    counts=counts,
                    pages=pages,
                    num_pages=record.num_pages,
                    gap_bytes=gap_bytes,
                    portion_bytes=160_000,
                ),
                plan_regions(counts, 8),
                label="pass 1",
                member="frontier",
                cancellation=NEVER,
            )
            for owner, positions in enumerate(wanted):
                found = regions.read_array(owner, len(positions), np.dtype(np.int64))
                assert np.array_equal(found, values[positions])
        finally:
            store.close()
    (played,) = far.sources
    for offset, length in played.reads:
        first, last = offset // 4096, (offset + length) // 4096 - 1
        inside = marked[(marked >= first) & (marked <= last)]
        assert (inside[0], inside[-1]) == (first, last)
    assert played.num_closed == 1
    assert len(played.reads) < len(marked) / 50


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("kind", ["packed", "staged"])
def test_what_ends_a_source_ends_the_sweep_and_the_next_one_works(
    path: Path, far: FarIO, io: Any, kind: str, tmp_path: Path
) -> None:
    misses = draw(4, share=0.5)
    with (
        FeatureStore.open(path, os_io=far, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):

        def make(cancellation=NEVER):
            if kind == "staged":
                return load_misses(store, misses, cancellation=cancellation)
            return packer.pack(misses, superbatch=3, cancellation=cancellation)

        make().close()
        for number in range(1, len(far.sources[-1].reads) + 1):
            error = RankError("rank 3 is gone")
            far.how = {"error": error, "fail_at": number}
            with pytest.raises(RankError) as caught:
                make()
            assert caught.value is error
            assert (far.sources[-1].num_closed, spill.used_bytes) == (1, 0)
            far.how = {"wait_at": number}
            looks = iter(range(50))
            with pytest.raises(ChannelClosedError, match="cancelled"):
                make(Cancellation(lambda looks=looks: next(looks) > 40))
            assert (far.sources[-1].num_closed, spill.used_bytes) == (1, 0)
        far.how = {}
        far.damaged = (str(path / "features.npy"), [DATA_OFFSET + 700 * 4096])
        with pytest.raises(
            ChecksumError, match=r"features.npy: page 700 at byte \d+, with rows 7168 to 7178"
        ):
            make()
        far.damaged = None
        source = make()
        assert np.array_equal(read(source, 2, misses[2]), FEATURES[misses[2]])
        source.close()


@pytest.mark.parametrize("kind", ["packed", "staged"])
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("is_here", [False, True], ids=["source", "file"])
def test_damaged_extents_are_read_once_more_when_their_bytes_were_brought_anew(
    path: Path, io: Any, kind: str, is_here: bool, tmp_path: Path
) -> None:
    misses = draw(4, share=0.5)
    # Pages of one extent and of others, which were read before one of them was found to be damaged.
    damaged = [DATA_OFFSET + page * 4096 + 7 for page in (3, 5, 40, 41, 100, 500, 800)]

    class HereIO(FarIO):
        def source(self, _fd: int, _pages: Any, _data_offset: int, /) -> None:
            return None

        def refetch(self, fd: int, offset: int, /) -> bool:
            if not super().refetch(fd, offset):
                return False
            self._put(str(data), 0, self._content[str(data)])
            return True

    data = path / "features.npy"
    far = (HereIO if is_here else FarIO)(data)
    with (
        FeatureStore.open(path, os_io=far, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        for answers in (1, 2, 0):
            far.damaged, far.answers = (str(data), damaged), answers
            far.refetched.clear()
            if is_here:
                content = far._content[str(data)].copy()
                content[damaged] ^= 8
                far._put(str(data), 0, content)

            def make():
                if kind == "staged":
                    return load_misses(store, misses, cancellation=NEVER)
                return packer.pack(misses, superbatch=3, cancellation=NEVER)

            if answers == 0:
                with pytest.raises(ChecksumError, match="page 3 at byte"):
                    make()
                assert far.refetched == [DATA_OFFSET + 3 * 4096]
                continue
            source = make()
            for batch, rows in enumerate(misses):
                assert np.array_equal(read(source, batch, rows), FEATURES[rows])
            source.close()
            assert DATA_OFFSET + 3 * 4096 in far.refetched


@pytest.mark.parametrize("io", IO)
def test_full_pieces_are_written_while_a_source_waits(
    path: Path, far: FarIO, io: Any, tmp_path: Path
) -> None:
    with (
        FeatureStore.open(path, os_io=far, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):

        def require_written(number: int) -> None:
            # The first extent has filled pieces: on the disk they are, before the second one comes.
            deadline = time.monotonic() + 20
            while number == 2 and not any(file.read_bytes()[:4096].strip(b"\0") for file in packs()):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        def packs() -> list[Path]:
            return [file for file in spill.path.iterdir() if file.name != "owner.json"]

        far.how = {"before_read": require_written}
        packed = packer.pack([np.arange(NUM_ROWS)], superbatch=0, cancellation=NEVER)
        assert len(far.sources[-1].reads) > 2
        packed.close()


def test_a_source_that_is_given_is_used_and_stays_open(path: Path) -> None:
    content = np.fromfile(path / "features.npy", np.uint8)[DATA_OFFSET:]
    far = FarIO(path / "features.npy")
    with FeatureStore.open(path, os_io=far) as store:
        stored = store.stored_rows
    wanted = collect_union(
        [np.arange(0, NUM_ROWS, 3)], num_rows=NUM_ROWS, row_bytes=4 * DIM, cancellation=NEVER
    )
    out, given = aligned_bytes(len(wanted.ids) * 4 * DIM + 4096), PlayedPages(content)
    sweeper = Sweeper(stored, aligned_bytes(2**22))
    sweeper.to_memory(wanted, out, cancellation=NEVER, source=given)
    assert np.array_equal(out.view(np.float32)[: len(wanted.ids) * DIM], FEATURES[::3].reshape(-1))
    assert (given.num_closed, far.sources) == (0, [])
    sweeper.close()
    with pytest.raises(StoreError, match="the lane of this sweep is closed"):
        sweeper.to_memory(wanted, out, cancellation=NEVER)
    assert far.sources == []
