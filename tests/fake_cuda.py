"""A stand-in for ``torch.cuda`` on a machine without a GPU: real names, real signatures, and the behaviour that counts.

`faked_cuda` puts it in the place of the real module. A name that torch.cuda does not have raises AttributeError, a call
that does not fit the real signature raises TypeError. What it behaves as:

- Each thread has a current GPU, the first until it takes another. A call that uses it opens a context there
  (`contexts`).
- Tensors "on a GPU" lie in the memory of the host and say that they are on the GPU.
- Streams do their work at once. With ``lags`` they do copies out of pinned memory when somebody waits for an event
  behind them, or at `catch_up`; until then events are not reached.
- Host memory is pinned in whole pages (`registered`). A page is pinned once, and has to be mapped while it is. A copy
  from memory that one call pinned in part fails.

`check` tells what went wrong and raised nothing where it happened.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import weakref
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gloader.device import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PAGE = 4096
_REAL = torch.cuda
_TENSOR_DEVICE = torch.Tensor.device

# Functions in C have no signature that Python could ask for. As torch 2.13 binds them (cudart.cpp, _tensor_docs.py),
# and as CUDA's headers have them.
CUDART = {
    "cudaHostRegister": "ptr, size, flags, /",
    "cudaHostUnregister": "ptr, /",
    "cudaGetErrorString": "error, /",
    "cudaMemGetInfo": "device, /",
    "cudaProfilerStart": "",
    "cudaProfilerStop": "",
    "cudaStreamCreate": "ptr, /",
    "cudaStreamDestroy": "ptr, /",
}
TENSOR = {
    "record_stream": "self, stream, /",
    "is_pinned": "self, device=None",
    "pin_memory": "self, device=None",
}
DRIVER = {"cuPointerGetAttribute": "data, attribute, ptr, /"}

ERRORS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
}


class CudaError(int):
    """``cudart.cudaError``: an enumeration that converts to int."""


def signature_of(parameters: str) -> inspect.Signature:
    """Return the signature that a table above writes down."""
    return inspect.signature(eval(f"lambda {parameters}: None"))  # noqa: S307 - of the tables above


def checked(signature: inspect.Signature, does: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``does``, which a call reaches only if it fits ``signature``."""

    def call(*args: Any, **keywords: Any) -> Any:
        signature.bind(*args, **keywords)
        return does(*args, **keywords)

    return call


class FakeStream:
    """A queue of work on one GPU."""

    def __init__(self, fake: FakeCuda, device: int, priority: int) -> None:
        self._fake = fake
        self.device = torch.device("cuda", device)
        self.priority = priority
        self.work: list[Callable[[], object]] = []  # what was given to it
        self.done = 0  # how much of it

    def give(self, work: Callable[[], object]) -> None:
        self.work.append(work)
        if not self._fake.lags:
            self.run_to(len(self.work))

    def run_to(self, end: int) -> None:
        while self.done < end:
            self.done += 1
            self.work[self.done - 1]()

    def query(self) -> bool:
        return self.done == len(self.work)

    def synchronize(self) -> None:
        self.run_to(len(self.work))

    def wait_event(self, event: FakeEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = FakeEvent(self._fake) if event is None else event
        event.record(self)
        return event


class FakeEvent:
    """A point in a stream's work."""

    def __init__(
        self,
        fake: FakeCuda,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._fake = fake
        self.is_timed = enable_timing
        self.is_blocking = blocking
        self.stream: FakeStream | None = None
        self._place = 0
        self._moment: int | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        stream = self._fake.streams.current() if stream is None else stream
        self._fake.use_context("cudaEventRecord")
        if stream.device.index != self._fake.current_device():
            self._fake.faults.append(
                f"an event is recorded on {stream.device} by a thread whose device is {self._fake.current_device()}"
            )
        self.stream = stream
        stream.give(self._pass)
        self._place = len(stream.work)

    def _pass(self) -> None:
        self._fake.clock += 1
        self._moment = self._fake.clock

    def query(self) -> bool:
        self._fake.use_context("cudaEventQuery")
        return self.stream is None or self.stream.done >= self._place

    def synchronize(self) -> None:
        self._fake.use_context("cudaEventSynchronize")
        if not self.is_blocking:
            self._fake.faults.append("a thread waits busily: its event is not blocking")
        if self.stream is not None:
            self.stream.run_to(self._place)

    def wait(self, stream: FakeStream | None = None) -> None:
        stream = self._fake.streams.current() if stream is None else stream
        self._fake.waits.append((stream, self))
        own, place = self.stream, self._place
        if own is not None and own is not stream:
            stream.give(lambda: own.run_to(place))

    def elapsed_time(self, end_event: FakeEvent) -> float:
        if not (self.is_timed and end_event.is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._moment is None or end_event._moment is None:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        self._fake.use_context("cudaEventElapsedTime")
        return float(end_event._moment - self._moment)


class _Streams:
    """The current GPU of each thread, and its current stream on each GPU."""

    def __init__(self, fake: FakeCuda) -> None:
        self._fake = fake
        self._own = threading.local()
        self._default: dict[int, FakeStream] = {}
        self.all: list[FakeStream] = []

    @property
    def device(self) -> int:
        return int(getattr(self._own, "device", 0))

    @device.setter
    def device(self, index: int) -> None:
        self._own.device = index

    def make(self, index: int, priority: int = 0) -> FakeStream:
        self.all.append(FakeStream(self._fake, index, priority))
        return self.all[-1]

    def default(self, index: int) -> FakeStream:
        if index not in self._default:
            self._default[index] = self.make(index)
        return self._default[index]

    def current(self, index: int | None = None) -> FakeStream:
        index = self.device if index is None else index
        return self._chosen().get(index) or self.default(index)

    def choose(self, stream: FakeStream) -> None:
        self._chosen()[stream.device.index] = stream

    def _chosen(self) -> dict[int, FakeStream]:
        if not hasattr(self._own, "chosen"):
            self._own.chosen = {}
        chosen: dict[int, FakeStream] = self._own.chosen
        return chosen


class FakeCuda:
    """Stands for ``torch.cuda``. Made by `faked_cuda`."""

    def __init__(self, num_devices: int) -> None:
        self.num_devices = num_devices
        self.lags = False
        self.clock = 0
        self.streams = _Streams(self)
        self.contexts: set[int] = set()  # GPUs that a context was opened on
        self.faults: list[str] = []
        self.waits: list[tuple[FakeStream, FakeEvent]] = []
        self.recorded: list[tuple[torch.Tensor, FakeStream]] = []  # by `Tensor.record_stream`
        self.registered: dict[int, int] = {}  # address -> bytes
        self.pinned_by_torch = 0  # bytes that its allocator took, as it rounds them
        self._of_torch: dict[int, int] = {}  # address -> bytes
        self.refuse_from = 1 << 60  # the number of the call of cudaHostRegister from which on it is refused
        self.torch_refuses_to_pin = False
        self.num_registrations = 0
        self.last_error = 0
        self.shift_of: Callable[[int], int] = lambda _: 0  # the GPU's address of host memory, less the host's
        self.allocations_left = 1 << 60  # on all GPUs together, before they are full
        self.free_bytes = 700
        self.reserved = [100, 900]  # now, and at most
        self.calls: list[str] = []
        self._places: dict[int, int] = {}  # memory "on a GPU" -> which
        self._does: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: self.num_devices,
            "current_device": self.current_device,
            "set_device": self._set_device,
            "device": self._device,
            "stream": self._stream,
            "set_stream": self._set_stream,
            "Stream": self._make_stream,
            "Event": self._make_event,
            "current_stream": lambda device=None: self.streams.current(self.index_of(device)),
            "default_stream": lambda device=None: self.streams.default(self.index_of(device)),
            "synchronize": self._synchronize,
            "mem_get_info": self._mem_get_info,
            "memory_reserved": lambda device=None: self.reserved[0],
            "max_memory_reserved": lambda device=None: self.reserved[1],
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda device=None: None,
            "cudart": lambda: FakeCudart(self),
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(_REAL, name)  # raises AttributeError where torch has no such name
        does = self.__dict__.get("_does", {}).get(name)
        if does is None:
            return real
        signature = inspect.signature(real.__init__ if name == "device" else real)
        if name == "device":
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])

        def noted(*args: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            return does(*args, **keywords)

        return checked(signature, noted)

    def current_device(self) -> int:
        return self.streams.device

    def index_of(self, device: Any) -> int:
        """Return the number of a GPU, given as torch's functions take one."""
        if device is None:
            return self.current_device()
        if isinstance(device, int):
            return device
        place = torch.device(device)
        if place.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {place}")
        return self.current_device() if place.index is None else int(place.index)

    def use_context(self, call: str) -> None:
        """Note a call that opens a context on the thread's current GPU; it fails for a GPU that is not there."""
        self.calls.append(call)
        self.contexts.add(self.current_device())

    def catch_up(self) -> None:
        """Do all work that was given to any stream."""
        for stream in self.streams.all:
            stream.synchronize()

    def check(self) -> None:
        """Raise if a rule was broken."""
        for address, num_bytes in self.registered.items():
            if not is_mapped(address, num_bytes):
                self.faults.append("memory was unmapped while it was pinned")
        assert not self.faults, self.faults

    def pinned_bytes(self) -> int:
        """Return the bytes of all pinned pages."""
        return self.pinned_by_torch + sum(
            PAGE * len(_pages(address, num_bytes)) for address, num_bytes in self.registered.items()
        )

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        first, last = tensor.data_ptr(), tensor.data_ptr() + max(tensor.nbytes - 1, 0)
        ranges = (*self.registered.items(), *self._of_torch.items())
        return any(start <= first and last < start + size for start, size in ranges)

    def is_torn(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory was not pinned as a whole, by one call, but a part of it was."""
        first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        parts = [
            (start, size) for start, size in self.registered.items() if start < end and first < start + size
        ]
        return any(start > first or start + size < end for start, size in parts)

    def pin_by_torch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let new memory count as pinned by torch, which rounds to a power of two and keeps what is freed."""
        if self.torch_refuses_to_pin:
            raise RuntimeError("CUDA error: out of memory")
        self.use_context("cudaHostAlloc")
        self.pinned_by_torch += 1 << max(tensor.nbytes - 1, 0).bit_length()
        storage = tensor.untyped_storage()
        self._of_torch[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, self._of_torch.pop, storage.data_ptr(), None).atexit = False
        return tensor

    def put_on(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        """Let ``tensor`` say that it is on a GPU."""
        self.contexts.add(index)
        self.allocations_left -= 1
        if self.allocations_left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.data_ptr() not in self._places:
            self._places[storage.data_ptr()] = index
            weakref.finalize(storage, self._places.pop, storage.data_ptr(), None).atexit = False
        return tensor

    def place_of(self, tensor: torch.Tensor) -> torch.device:
        index = (
            self._places.get(tensor.untyped_storage().data_ptr()) if tensor.layout == torch.strided else None
        )
        return _TENSOR_DEVICE.__get__(tensor) if index is None else torch.device("cuda", index)

    def _set_device(self, device: Any) -> None:
        self.streams.device = self.index_of(device)
        self.contexts.add(self.streams.device)

    @contextmanager
    def _device(self, device: Any) -> Iterator[None]:
        before = self.current_device()
        self.streams.device = self.index_of(device)
        try:
            yield
        finally:
            self.streams.device = before

    @contextmanager
    def _stream(self, stream: FakeStream) -> Iterator[None]:
        before, device = self.streams.current(stream.device.index), self.current_device()
        self.streams.choose(stream)
        self.streams.device = stream.device.index
        try:
            yield
        finally:
            self.streams.choose(before)
            self.streams.device = device

    def _set_stream(self, stream: FakeStream) -> None:
        self.streams.choose(stream)
        self.streams.device = stream.device.index

    def _make_stream(self, device: Any = None, priority: int = 0) -> FakeStream:
        return self.streams.make(self.index_of(device), priority)

    def _make_event(self, *args: bool, **keywords: bool) -> FakeEvent:
        return FakeEvent(self, *args, **keywords)

    def _synchronize(self, device: Any = None) -> None:
        index = self.index_of(device)
        self.contexts.add(index)
        for stream in self.streams.all:
            if stream.device.index == index:
                stream.synchronize()

    def _mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self.contexts.add(self.index_of(device))
        return self.free_bytes, 1000


class FakeCudart:
    """Stands for ``torch.cuda.cudart()``: what torch binds, by position alone."""

    cudaError = CudaError  # noqa: N815 - CUDA's name

    def __init__(self, fake: FakeCuda) -> None:
        self._fake = fake
        self._does: dict[str, Callable[..., Any]] = {
            "cudaHostRegister": self._register,
            "cudaHostUnregister": self._unregister,
            "cudaGetErrorString": self._error_string,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in CUDART:
            raise AttributeError(f"torch binds no {name} of the CUDA runtime")
        return checked(signature_of(CUDART[name]), self._does[name])

    def _register(self, address: int, num_bytes: int, flags: int) -> CudaError:
        fake = self._fake
        fake.use_context("cudaHostRegister")
        fake.num_registrations += 1
        pages = set(_pages(address, num_bytes))
        if fake.num_registrations >= fake.refuse_from:
            return self._error(2)
        if num_bytes < 1 or flags != 0 or not is_mapped(address, num_bytes):
            return self._error(1)
        if any(pages & set(_pages(*other)) for other in fake.registered.items()):
            fake.faults.append("a page is pinned twice")
            return self._error(712)
        fake.registered[address] = num_bytes
        return CudaError(0)

    def _unregister(self, address: int) -> CudaError:
        fake = self._fake
        fake.use_context("cudaHostUnregister")
        num_bytes = fake.registered.pop(address, None)
        if num_bytes is None:
            fake.faults.append("memory is unpinned that is not pinned")
            return self._error(713)
        if not is_mapped(address, num_bytes):
            fake.faults.append("memory was unmapped while it was pinned")
        return CudaError(0)

    def _error_string(self, error: CudaError) -> str:
        if not isinstance(error, CudaError):
            raise TypeError("cudaGetErrorString takes a cudaError")
        return ERRORS[int(error)]

    def _error(self, number: int) -> CudaError:
        self._fake.last_error = number
        return CudaError(number)


def _pages(address: int, num_bytes: int) -> range:
    return range(address // PAGE, -(-(address + num_bytes) // PAGE))


def is_mapped(address: int, num_bytes: int) -> bool:
    """Return whether every page of a range is mapped: mincore(2) fails where one is not."""
    pages = _pages(address, num_bytes)
    found = (ctypes.c_ubyte * len(pages))()
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.mincore(ctypes.c_void_p(pages.start * PAGE), ctypes.c_size_t(len(pages) * PAGE), found) == 0


@contextmanager
def faked_cuda(num_devices: int = 2) -> Iterator[FakeCuda]:
    """Put a fake of ``num_devices`` GPUs in the place of ``torch.cuda``; at the end, `FakeCuda.check` it."""
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeCuda(num_devices)
        install(patch, fake)
        try:
            yield fake
            fake.check()
        finally:
            # What the test still holds cannot be unpinned later: the fake is gone then.
            for pinned in tuple(cuda._PINNED):
                pinned.close()
        fake.check()


def install(patch: pytest.MonkeyPatch, fake: FakeCuda) -> None:
    """Put ``fake`` in the place of ``torch.cuda`` until ``patch`` is undone."""
    patch.setattr(torch, "cuda", fake)
    # Whether the kernel runs is found out once a process, and again for the fake.
    patch.setattr(cuda, "gather_kernel", cache(cuda.gather_kernel.__wrapped__))
    for name in ("empty", "zeros", "ones", "full", "arange", "tensor", "randint", "as_tensor", "empty_like"):
        patch.setattr(torch, name, _made_on(fake, name, getattr(torch, name)))
    patch.setattr(torch.Tensor, "device", property(fake.place_of))
    for name, does in {
        "to": _to(fake, torch.Tensor.to),
        "copy_": _copy(fake, torch.Tensor.copy_),
        "record_stream": checked(
            signature_of(TENSOR["record_stream"]),
            lambda tensor, stream: fake.recorded.append((tensor, stream)),
        ),
        "is_pinned": checked(
            signature_of(TENSOR["is_pinned"]), lambda tensor, device=None: fake.is_pinned(tensor)
        ),
        "pin_memory": checked(
            signature_of(TENSOR["pin_memory"]), lambda tensor, device=None: fake.pin_by_torch(tensor.clone())
        ),
    }.items():
        patch.setattr(torch.Tensor, name, does)
    real_library = ctypes.CDLL

    def library(name: str | None, *args: Any, **keywords: Any) -> Any:
        return _driver(fake) if name == "libcuda.so.1" else real_library(name, *args, **keywords)

    patch.setattr(ctypes, "CDLL", library)


def _driver(fake: FakeCuda) -> Any:
    def ask(data: Any, attribute: int, ptr: Any) -> int:
        fake.use_context("cuPointerGetAttribute")
        address = ptr.value
        known = any(start <= address < start + size for start, size in fake.registered.items())
        if attribute != 3 or not known:
            return 1
        data._obj.value = address + fake.shift_of(address)
        return 0

    return SimpleNamespace(cuPointerGetAttribute=checked(signature_of(DRIVER["cuPointerGetAttribute"]), ask))


def _made_on(fake: FakeCuda, name: str, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*args: Any, **keywords: Any) -> torch.Tensor:
        if keywords.pop("pin_memory", False):
            return fake.pin_by_torch(real(*args, **keywords))
        place = keywords.get("device")
        if place is None and name.endswith("_like") and args[0].device.type == "cuda":
            return fake.put_on(real(*args, **keywords), args[0].device.index)
        if place is None or torch.device(place).type != "cuda":
            return real(*args, **keywords)
        keywords["device"] = "cpu"
        if name == "ones":
            fake.last_error = 0  # a kernel takes the runtime's last error; zeros may be written by none
        return fake.put_on(real(*args, **keywords), fake.index_of(place))

    return make


def _to(fake: FakeCuda, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def to(tensor: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        place = keywords.get("device", args[0] if args else None)
        if (
            isinstance(place, torch.dtype | torch.Tensor)
            or place is None
            or torch.device(place).type != "cuda"
        ):
            return real(tensor, *args, **keywords)
        found = fake.put_on(real(tensor, "cpu", copy=True), fake.index_of(place))
        return _sent(fake, tensor, found, is_late=bool(keywords.get("non_blocking")))

    return to


def _copy(fake: FakeCuda, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def copy_(tensor: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if fake.place_of(tensor).type == "cuda" and non_blocking:
            return _sent(fake, src, tensor, is_late=True, copy=real)
        return real(tensor, src)

    return copy_


def _sent(
    fake: FakeCuda,
    source: torch.Tensor,
    out: torch.Tensor,
    *,
    is_late: bool,
    copy: Callable[..., torch.Tensor] | None = None,
) -> torch.Tensor:
    """Copy, late if the stream is: then ``source`` is read when the stream gets there, as CUDA reads pinned memory."""
    real = copy or torch.Tensor.copy_
    if fake.is_torn(source):
        raise RuntimeError("CUDA error: invalid argument")
    if is_late and fake.lags and fake.is_pinned(source):
        out.view(-1).view(torch.uint8).fill_(0xAA)
        fake.streams.current().give(lambda: real(out, source))
    else:
        real(out, source)
    return out


def modelled() -> Iterable[tuple[str, inspect.Signature, Callable[..., Any]]]:
    """Yield the functions of torch.cuda that the fake does itself, with the real signature: for a test of the fake."""
    fake = FakeCuda(1)
    for name, does in fake._does.items():
        real = getattr(_REAL, name)
        yield name, inspect.signature(real), does
