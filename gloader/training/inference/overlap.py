"""Copies to the device ahead of the computation, and back behind it: nobody waits for one that is under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import torch

from gloader.errors import ChannelClosedError
from gloader.pipeline.channel import Channel
from gloader.pipeline.threads import Failures, Pipeline, stage_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device import Device, Mark

T = TypeVar("T")
Sent: TypeAlias = "tuple[tuple[torch.Tensor, ...], Mark]"  # what is on its way, and the mark behind it

# One is read by the host, one is on its way, one is computed on.
AHEAD: Final = 3
# Where nothing has to be copied, one is read while the other is computed on.
_AHEAD_ON_CPU: Final = 2


def num_ahead(device: Device) -> int:
    """Return how many items `send_ahead` has under way: so many buffers are enough."""
    return AHEAD if device.is_asynchronous else _AHEAD_ON_CPU


def send_ahead(
    items: Iterable[T], send: Callable[[T, int], Sent], device: Device, *, name: str
) -> Generator[tuple[torch.Tensor, ...]]:
    """Yield what ``send`` brings to the device for each item; a thread sends while earlier ones are computed on.

    What is computed from tensors counts until the next ones are asked for. Close the generator: it joins the thread.

    Parameters
    ----------
    items : taken by the thread
    send : called by the thread with an item and the number of a buffer, below `num_ahead`, that nobody uses any more
    device : receives them
    name : of the thread

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    """
    free: Channel[_Slot] = Channel(num_ahead(device))
    for number in range(num_ahead(device)):
        free.put(_Slot(number, None))
    sent: Channel[_OnItsWay] = Channel(1)
    failures = Failures(sent.fail)
    stage = _Send(send, free, name)
    thread = Pipeline(
        [stage_thread(stage, _Items(iter(items)), sent, failures)],
        cancels=[free, sent],
        failures=failures,
        on_joined=stage.wait,
    )
    try:
        thread.start()
        while True:
            try:
                found = sent.get()
            except ChannelClosedError:
                return
            found.mark.precede(found.tensors)
            yield found.tensors
            # The device may be far behind: its memory, and the host's, are used again when it was here.
            free.put(_Slot(found.slot, device.mark_computing()))
            del found
    finally:
        thread.close()


def fetch_behind(
    chunks: Iterable[torch.Tensor], device: Device, buffers: Callable[[], Sequence[NDArray[np.uint8]]]
) -> Generator[NDArray[np.float32]]:
    """Yield ``chunks`` in host memory; while one is used there, the next is computed and copied.

    Each is good until the next is asked for.

    Parameters
    ----------
    chunks : float32 on the device
    device : that one
    buffers : returns two or more of `Device.host_buffer`, each with room for any chunk; not called on the CPU
    """
    if not device.is_asynchronous:
        for chunk in chunks:
            yield chunk.numpy()
        return
    behind: tuple[Mark, NDArray[np.float32]] | None = None
    try:
        for number, chunk in enumerate(chunks):
            memory = buffers()[number % 2][: chunk.nbytes].view(np.float32).reshape(tuple(chunk.shape))
            # Behind the computation, on its own stream: what is computed next waits for the copy, the host does not.
            torch.from_numpy(memory).copy_(chunk, non_blocking=True)
            before, behind = behind, (device.mark_computing(), memory)
            if before is not None:
                before[0].wait()
                yield before[1]
        if behind is not None:
            behind[0].wait()
            yield behind[1]
    finally:
        # However it ends: the buffers may go with whoever asked.
        if behind is not None:
            behind[0].wait()


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int
    computed: Mark | None  # behind what was computed from it


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    slot: int
    tensors: tuple[torch.Tensor, ...]
    mark: Mark


class _Items(Generic[T]):
    """Gives a thread one item after another."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def get(self) -> T:
        for item in self._items:
            return item
        raise ChannelClosedError("there are no more items")


class _Send:
    """Sends items, each when the device is done with what lay in its buffer."""

    def __init__(self, send: Callable[[Any, int], Sent], free: Channel[_Slot], name: str) -> None:
        self.name = name
        self._send = send
        self._free = free
        self._last: Mark | None = None

    def process(self, item: Any) -> _OnItsWay:
        slot = self._free.get()
        if slot.computed is not None:
            slot.computed.wait()
        tensors, self._last = self._send(item, slot.number)
        return _OnItsWay(slot.number, tensors, self._last)

    def wait(self) -> None:
        """Wait until everything was read from the host's memory, which goes with the thread."""
        if self._last is not None:
            self._last.wait()
