"""The CUDA device over a fake of torch.cuda that behaves: streams that lag, pinned pages, a current GPU a thread."""

import inspect
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import PAGE, FakeCuda, FakeCudart, faked_cuda, is_mapped, modelled
from forking import in_child

from gloader.cache import whole_device_cache
from gloader.core.aligned_memory import mapped_bytes
from gloader.device import RowFormat, StaticCache, cuda, open_device
from gloader.device.cuda import CudaDevice, CudaHostMemory, pieces, pin_in_place
from gloader.device.row_table import MOST_PROGRAMS, RowParts, RowTable, most_programs
from gloader.device.seam import Device
from gloader.distributed.shared_memory import create_segment, pin_segment
from gloader.errors import ConfigError, StoreReadError
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.ssd_store import RamFeatures
from gloader.testing.device_suite import DeviceSuite
from gloader.types import IdArray

SECOND = torch.device("cuda", 1)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    """Two GPUs, of which a new thread's own is the first."""
    with faked_cuda() as fake:
        yield fake


@pytest.fixture
def device(fake: FakeCuda) -> CudaDevice:
    """The second of them: a call without a guard goes to the first."""
    opened = open_device(SECOND)
    assert isinstance(opened, CudaDevice)
    return opened


class TestOverTheFake(DeviceSuite):
    """The suite with the module's `device`; on a real GPU it takes `make_device` alone."""

    @pytest.fixture
    def device(self, device: CudaDevice) -> Device:
        return device


class TestOverTheFakeThatLags(TestOverTheFake):
    """The suite where the GPU does everything late."""

    # The fake's copies lag and its kernels do not: one would read ids that are not there yet.
    test_rows_come_as_they_are_stored_and_are_widened = None

    @pytest.fixture
    def device(self, device: CudaDevice, fake: FakeCuda) -> Device:
        assert device.can_launch
        fake.lags = True
        return device

    def test_a_mark_is_reached_after_waiting_for_it(self, device: Device) -> None:
        """As in the suite, but that the fake's host does not wait for the GPU where it reads a tensor."""
        with device.sending():
            tensors = device.upload([np.arange(1000, dtype=np.int64)])
            mark = device.mark()
        mark.precede(tensors)
        assert not mark.is_reached()
        assert int(tensors[0].sum()) != 499_500
        mark.wait()
        assert int(tensors[0].sum()) == 499_500
        assert mark.is_reached()


def test_a_gpu_that_is_not_there_is_refused(fake: FakeCuda) -> None:
    with pytest.raises(ConfigError, match="device='cuda:3': there are 2 GPUs"):
        open_device(torch.device("cuda", 3))
    with pytest.raises(ConfigError, match="device='meta' is neither 'cpu' nor 'cuda'"):
        open_device(torch.device("meta"))
    assert open_device(torch.device("cuda")).place == torch.device("cuda", 0)


# The fake


def test_the_fake_has_the_names_and_signatures_of_torch(fake: FakeCuda) -> None:
    with pytest.raises(AttributeError, match="sychronize"):
        torch.cuda.sychronize()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="blockng"):
        torch.cuda.Event(blockng=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional"):
        torch.cuda.empty_cache(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument"):
        torch.cuda.cudart().cudaHostRegister(0, 1)
    with pytest.raises(AttributeError, match="cudaHostPin"):
        torch.cuda.cudart().cudaHostPin(0)
    with pytest.raises(TypeError):
        torch.ones(1).record_stream()  # type: ignore[call-arg]
    for name, real, does in modelled():
        if name in {"device", "Event"}:  # classes, whose arguments the fake hands on
            continue
        own = inspect.signature(does).parameters
        assert list(own) == [each for each in real.parameters if each != "kwargs"], name


def test_the_fake_sees_memory_that_is_unmapped_while_it_is_pinned(fake: FakeCuda) -> None:
    memory = mapped_bytes(16 << 20)
    start = memory.ctypes.data
    assert int(FakeCudart(fake).cudaHostRegister(start, memory.nbytes, 0)) == 0
    fake.check()
    del memory
    with pytest.raises(AssertionError, match="unmapped while it was pinned"):
        fake.check()
    fake.faults.clear()
    fake.registered.clear()


def test_the_fake_sees_a_page_that_is_pinned_twice(fake: FakeCuda) -> None:
    memory = np.zeros(3 * PAGE, np.uint8)
    cudart = FakeCudart(fake)
    cudart.cudaHostRegister(memory.ctypes.data, PAGE, 0)
    status = cudart.cudaHostRegister(memory.ctypes.data + PAGE // 2, PAGE, 0)
    assert (int(status), cudart.cudaGetErrorString(status)) == (
        712,
        "part or all of the requested memory range is already mapped",
    )
    with pytest.raises(AssertionError, match="pinned twice"):
        fake.check()
    fake.faults.clear()
    fake.registered.clear()


# Guards: whichever thread calls, only the device's own GPU gets a context.


def test_no_thread_opens_a_context_on_another_gpu(device: CudaDevice, fake: FakeCuda) -> None:
    features = np.zeros((3, 2), dtype=np.float32)
    descriptor, memory = create_segment(PAGE)

    def work() -> None:
        buffer = device.host_buffer(10)
        del buffer
        pinned = device.pin(features)
        assert pinned is not None
        pinned.close()
        segment = pin_segment(memory, SECOND)
        assert segment is not None
        segment.close()
        device.free_bytes()
        device.most_bytes_of(lambda: None)
        device.mark_computing().wait()
        with device.sending():
            device.upload([np.arange(3)])
        with device.sampling():
            device.upload([np.arange(3)])
            assert torch.cuda.current_stream() is not torch.cuda.default_stream()
        device.mark().wait()

    os.close(descriptor)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert fake.contexts == {1}
    assert {"cudaHostRegister", "cudaHostUnregister", "cudaEventRecord", "mem_get_info"} <= set(fake.calls)
    fake.check()


def test_a_thread_that_waits_for_the_gpu_sleeps(device: CudaDevice, fake: FakeCuda) -> None:
    device.mark().wait()
    device.mark_computing().wait()
    assert fake.faults == []
    torch.cuda.Event().synchronize()  # type: ignore[no-untyped-call]
    assert fake.faults == ["a thread waits busily: its event is not blocking"]
    fake.faults.clear()


def test_seconds_between_two_marks_of_the_computation_are_the_gpus(
    device: CudaDevice, fake: FakeCuda
) -> None:
    first, second = device.mark_computing(), device.mark_computing()
    second.wait()
    assert second.seconds_since(first) == 1e-3  # the fake's clock goes on by a millisecond with every event


def test_the_sending_stream_has_the_priority_of_the_models(device: CudaDevice, fake: FakeCuda) -> None:
    with device.sending():
        stream = torch.cuda.current_stream()
    assert stream is not torch.cuda.default_stream(SECOND)
    assert stream.priority == 0  # type: ignore[attr-defined]


def test_sampling_waits_for_nothing_that_is_sent(device: CudaDevice, fake: FakeCuda) -> None:
    with device.sending():
        sending = torch.cuda.current_stream()
    with device.sampling():
        sampling = torch.cuda.current_stream()
        assert device.mark_computing()._event.stream is sampling  # type: ignore[attr-defined]
    assert sampling not in (sending, torch.cuda.default_stream(SECOND))
    assert fake.contexts == {1}


def test_computing_waits_for_the_sending_stream_and_keeps_the_memory(
    device: CudaDevice, fake: FakeCuda
) -> None:
    mark = device.mark()
    tensors = [torch.ones(1), torch.ones(1)]
    mark.precede(tensors)
    computing = torch.cuda.default_stream(SECOND)
    assert [(stream, event) for stream, event in fake.waits] == [(computing, mark._event)]
    assert [(id(tensor), stream) for tensor, stream in fake.recorded] == [
        (id(tensor), computing) for tensor in tensors
    ]


def test_a_step_is_measured_from_what_was_taken_before(device: CudaDevice, fake: FakeCuda) -> None:
    steps: list[int] = []
    assert device.most_bytes_of(lambda: steps.append(1)) == 800
    assert steps == [1]
    assert fake.calls.index("reset_peak_memory_stats") > fake.calls.index("empty_cache")
    assert device.free_bytes() == 700


# Pinned memory


def test_a_buffer_pins_what_was_asked_for_and_gives_it_back_with_its_last_view(
    device: CudaDevice, fake: FakeCuda
) -> None:
    size = (3 << 20) + 1
    buffer = device.host_buffer(size)
    assert buffer.ctypes.data % PAGE == 0
    assert size <= fake.pinned_bytes() <= 1.05 * size
    assert len(fake.registered) == 1
    view = torch.from_numpy(buffer[100:].view()[::2])
    assert view.is_pinned()
    del buffer
    assert len(fake.registered) == 1  # the view holds it
    del view
    assert fake.registered == {}
    fake.check()


def test_a_ring_that_drops_a_buffer_unpins_it_first(device: CudaDevice, fake: FakeCuda) -> None:
    ring = BufferRing(forms=[RowForm(dim=256)], rows=[16], max_bytes=3 << 20, allocate=device.host_buffer)
    ring.acquire([16])[0]
    assert fake.pinned_bytes() == 16 << 10
    larger = ring.acquire([1024])[0]
    assert fake.pinned_bytes() == 1 << 20
    fake.check()
    del ring
    assert len(fake.registered) == 1
    larger[:] = 1
    del larger
    assert fake.registered == {}
    fake.check()


def test_memory_that_is_copied_from_is_pinned_in_one_piece(
    device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = pin_in_place.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "chunk_bytes", PAGE)
    descriptor, memory = create_segment(3 * PAGE)
    os.close(descriptor)
    buffer, segment = device.host_buffer(3 * PAGE), pin_segment(memory, SECOND)
    assert list(fake.registered.values()) == [3 * PAGE] * 2
    assert segment is not None
    segment.close()
    assert list(fake.registered) == [buffer.ctypes.data]


def test_what_is_pinned_is_not_unmapped_when_nobody_unpins_it(device: CudaDevice, fake: FakeCuda) -> None:
    array = np.zeros(1 << 22)
    num_bytes = array.nbytes
    pinned = device.pin(array)
    del pinned, array
    fake.check()
    assert sum(fake.registered.values()) >= num_bytes  # in two pieces where a border of them lies within


def test_a_refused_buffer_is_pinned_by_torch_or_ordinary_and_said_once(
    device: CudaDevice, fake: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    fake.refuse_from = 0
    buffers = [device.host_buffer(PAGE), device.host_buffer(PAGE)]
    assert fake.num_registrations == 1
    assert fake.pinned_by_torch == 2 * PAGE
    assert fake.last_error == 0  # not left for the next kernel
    (line,) = caplog.messages
    assert "cannot be pinned in place (CUDA error 2: out of memory)" in line
    fake.torch_refuses_to_pin = True
    buffers.append(device.host_buffer(PAGE))
    assert "buffers are not pinned" in caplog.messages[-1]
    assert [len(buffer) for buffer in buffers] == [PAGE] * 3


def test_features_that_cannot_be_pinned_leave_no_error_behind(
    device: CudaDevice, fake: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    assert device.can_launch
    fake.refuse_from = 0
    assert device.pin(np.zeros((3, 2), dtype=np.float32)) is None
    assert fake.last_error == 0
    assert "ulimit" not in caplog.text


@pytest.mark.parametrize(
    ("shift_of", "is_read_in_place"),
    [(lambda _: 0, True), (lambda _: 1 << 40, True), (lambda address: address % (3 * PAGE), False)],
)
def test_pieces_that_lie_apart_for_the_gpu_are_not_read_in_place(
    device: CudaDevice,
    fake: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    shift_of: object,
    is_read_in_place: bool,
) -> None:
    monkeypatch.setattr("gloader.device.cuda.pin_in_place", _in_pieces)
    fake.shift_of = shift_of  # type: ignore[assignment]
    pinned = device.pin(np.zeros(4 * PAGE))
    assert (pinned is not None) == is_read_in_place
    assert bool(fake.registered) == is_read_in_place
    assert fake.contexts == {1}


@pytest.mark.parametrize("shift", [0, 8])
def test_no_copy_goes_over_the_border_of_two_pinned_pieces(
    device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    for function in (pin_in_place, pieces):
        defaults = function.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "chunk_bytes", PAGE)
    memory = mapped_bytes(4 * PAGE)[shift : shift + 28 * 500]
    features = memory.view(np.float32).reshape(-1, 7)  # rows go over the borders of pages
    features[:] = np.arange(features.size).reshape(-1, 7)
    pinned = device.pin(features)
    assert len(fake.registered) == 4
    rows = torch.from_numpy(features)
    with pytest.raises(RuntimeError, match="invalid argument"):
        torch.empty(500, 7, device=SECOND).copy_(rows, non_blocking=True)
    for start, stop in [(0, 500), (100, 200), (3, 3)]:
        with device.sending():
            out = device.empty((stop - start, 7), torch.float32)
            device.copy(rows[start:stop], out)
        assert torch.equal(out.cpu(), rows[start:stop])
    assert pinned is not None
    pinned.close()


def test_a_thread_that_never_used_a_gpu_opens_none_but_the_devices_own(
    device: CudaDevice, fake: FakeCuda
) -> None:
    first, last = device.mark_computing(), device.mark_computing()
    fake.contexts.clear()

    def look() -> None:
        last.wait()
        assert first.is_reached()
        assert last.seconds_since(first) > 0

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert fake.contexts == {1}


def test_pieces_are_not_read_in_place_where_the_driver_cannot_be_asked(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("gloader.device.cuda.ctypes.CDLL", fail)
    host = CudaHostMemory(SECOND)
    assert not host.is_one_array([PAGE, 2 * PAGE])
    assert host.is_one_array([PAGE])


def _in_pieces(array: np.ndarray, runtime: CudaHostMemory) -> object:
    return pin_in_place(array, runtime, chunk_bytes=PAGE)


def test_a_table_whose_rows_cannot_be_read_leaves_no_copy_under_way(
    device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(RamFeatures):
        def read_into(self, rows: IdArray, out: Any, **parts: Any) -> Any:
            if rows[0]:
                raise StoreReadError("the disk is gone")
            return super().read_into(rows, out, **parts)

    fake.lags = True
    monkeypatch.setattr("gloader.device.tier._CHUNK_BYTES", 64)
    features = np.ones((40, 4), dtype=np.float32)
    cache = StaticCache(
        whole_device_cache(40), form=RowFormat(dtype=features.dtype, dim=4), place=device.place
    )
    with pytest.raises(StoreReadError):
        cache.fill(Broken(features), device)
    assert fake.calls.count("cudaHostRegister") == 2
    assert all(stream.query() for stream in fake.streams.all)


# Small arrays


def test_a_block_is_not_written_before_the_gpu_has_read_it(device: CudaDevice, fake: FakeCuda) -> None:
    fake.lags = True
    with device.sending():
        sent = [device.upload([np.full(1000, number)]) for number in range(3)]
    assert len(fake.registered) == 3
    fake.catch_up()
    assert [set(tensor.tolist()) for (tensor,) in sent] == [{0}, {1}, {2}]


def test_blocks_that_were_read_are_used_again(device: CudaDevice, fake: FakeCuda) -> None:
    with device.sending():
        for size in (1000, 1200, 100):
            (tensor,) = device.upload([np.arange(size)])
            assert tensor.tolist() == list(range(size))
        assert fake.num_registrations == 1
        device.upload([np.arange(5000)])
    assert fake.num_registrations == 2
    assert len(fake.registered) == 1  # the one that was too small is gone
    assert fake.pinned_by_torch == 0


def test_a_device_takes_its_blocks_along(fake: FakeCuda) -> None:
    device = CudaDevice(SECOND)
    with device.sending():
        device.upload([np.arange(3)])
    assert len(fake.registered) == 1
    del device
    assert fake.registered == {}


def test_a_forked_child_has_no_copy_of_pinned_memory(device: CudaDevice) -> None:
    buffer = device.host_buffer(PAGE)
    start = buffer.ctypes.data
    assert is_mapped(start, PAGE)

    def look() -> None:
        assert not is_mapped(start, PAGE)

    assert in_child(look) == 0


def test_a_block_stays_lent_after_a_failure_too(device: CudaDevice, fake: FakeCuda) -> None:
    fake.lags = True
    with device.sending():
        with pytest.raises(ValueError, match="in the middle"), device._uploads.lend(10, device):
            raise ValueError("in the middle")
        with device._uploads.lend(10, device):
            assert len(fake.registered) == 2


# The kernel


def _in_place(rows: np.ndarray) -> RowParts:
    return RowParts(table=None, slot_of=None, host=RowTable(rows=torch.from_numpy(rows)), is_host_by_id=True)


def test_a_gather_launches_the_kernel_where_the_hosts_rows_are_pinned(
    device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int | None] = []

    def launch(ids: torch.Tensor, parts: RowParts, out: torch.Tensor, max_programs: int | None) -> None:
        launched.append(max_programs)
        out.fill_(7)

    monkeypatch.setattr(cuda, "gather_kernel", lambda place: launch)
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    ids, out = torch.tensor([3, 1]), torch.empty(2, 2)
    device.gather(ids, _in_place(features), out)
    assert (launched, out.tolist()) == ([], [[6, 7], [2, 3]])  # in torch: the kernel cannot reach them
    pinned = device.pin(features)
    assert pinned is not None
    device.gather(ids, _in_place(features), out)
    device.gather(ids, RowParts(table=RowTable(rows=torch.zeros(4, 2)), slot_of=None, host=None), out)
    assert launched == [24, None]
    pinned.close()


@pytest.mark.parametrize(
    ("dim", "dtype", "programs"),
    [
        (128, torch.float32, 24),  # tiles of 16 rows, 8 KB
        (100, torch.float32, 31),
        (768, torch.float16, 48),  # four rows, in two steps of which the first has 512 columns
        (128, torch.int8, 96),
        (1, torch.float32, 24),
    ],
)
def test_as_many_programs_wait_for_the_link_as_keep_it_busy(
    dim: int, dtype: torch.dtype, programs: int
) -> None:
    host = RowTable(rows=torch.zeros(100, dim, dtype=dtype))
    assert most_programs(RowParts(table=None, slot_of=None, host=host)) == programs
    copied = RowTable(rows=host.rows.to("meta"))  # by the copy engine, to be widened
    assert most_programs(RowParts(table=None, slot_of=None, host=copied)) is None


def test_programs_follow_the_hits_that_are_expected_and_not_the_rows_that_are_held() -> None:
    host, slot_of = RowTable(rows=torch.zeros(100, 128)), torch.zeros(100, dtype=torch.int32)

    def programs(num_held: int, hit_rate: float | None = None) -> int | None:
        table = RowTable(rows=torch.zeros(num_held, 128))
        return most_programs(RowParts(table=table, slot_of=slot_of, host=host, expected_hit_rate=hit_rate))

    # One row in four comes over the link: four times the programs keep it as busy.
    assert programs(75) == programs(10, 0.75) == 4 * 24
    assert programs(75, 0.0) == 24
    assert programs(99) == programs(10, 1.0) == MOST_PROGRAMS
    assert programs(100) is programs(100, 0.5) is None  # nothing comes over it
    table = RowTable(rows=torch.zeros(90, 128))
    assert most_programs(RowParts(table=table, slot_of=None, host=None)) is None


def test_a_kernel_that_brings_other_rows_is_not_used(
    device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched_on: list[int] = []
    monkeypatch.setattr(
        "gloader.device.triton_kernels.launch_gather",
        lambda *_: launched_on.append(torch.cuda.current_device()),
    )
    assert not device.can_launch
    assert not CudaDevice(SECOND).can_launch
    assert launched_on == [1]  # tried once, on its own GPU
    (line,) = caplog.messages
    assert "gather kernel does not run on cuda:1 (RuntimeError: it returned wrong rows" in line
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert device.pin(features) is None
    assert fake.registered == {}
    out = torch.empty(2, 2)
    device.gather(torch.tensor([3, 1]), _in_place(features), out)
    assert out.tolist() == [[6, 7], [2, 3]]


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="gloader")
