"""That the devices of the ranks of a machine hold the same rows: agreed while their one loader opens."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from gloader.cache import DeviceCachePlan, no_device_cache, whole_device_cache
from gloader.device import DeviceTier, open_device
from gloader.distributed.batch_layout import BatchShape, read_batch, write_batch
from gloader.distributed.segment import create_segment, map_segment
from gloader.errors import RankError
from gloader.pipeline.open_device_tier import hold_rows, room_for_rows, row_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gloader.config import DeviceSettings
    from gloader.device import Device
    from gloader.distributed.wire import Connection, Message, Received
    from gloader.pipeline.open_device_tier import DryRun
    from gloader.ssd_store import FeatureStore
    from gloader.types import SampledBatch

T = TypeVar("T")


class LedDevices:
    """The devices of the ranks behind ``connections``, to whom the rank that loads says what to hold.

    All ranks try a step, and later read their rows, at the same time. For one thread; owns nothing.
    """

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._connections = connections

    def least_room(self, largest: SampledBatch | None, own: Callable[[], int]) -> int:
        """Return the bytes that every device can give, that of this rank what ``own`` finds.

        Parameters
        ----------
        largest : a batch for the others to try; None where there are none

        Raises
        ------
        RankError
            Another rank cannot open its device, failed in the step, or is gone.
        """
        if largest is None:
            self._tell({"op": "try", "shape": None})
        else:
            shape = BatchShape.of(largest)
            descriptor, memory = create_segment(shape.num_bytes)
            try:
                write_batch(largest, np.ones(shape.num_nodes, dtype=np.float32), shape, memory)
                self._tell({"op": "try", "shape": shape.to_json()}, descriptor)
            finally:
                os.close(descriptor)
        room = own()
        return min([room, *(int(answer["room"]) for answer in self._answers())])

    def hold_alike(self, plan: DeviceCachePlan, own: Callable[[], T]) -> T:
        """Let every device hold the rows of ``plan``, that of this rank by ``own``, and return what that returns.

        Raises
        ------
        RankError
            Another rank cannot hold them, or is gone.
        """
        message = {"op": "hold", "count": len(plan.rows), "hit_rate": plan.expected_hit_rate}
        if plan.holds_all or not len(plan.rows):
            self._tell(message)
        else:
            descriptor, memory = create_segment(plan.rows.nbytes)
            try:
                memory[:] = plan.rows.view(np.uint8)
                self._tell(message, descriptor)
            finally:
                os.close(descriptor)
        held = own()
        self._answers()
        return held

    def _tell(self, message: Message, descriptor: int | None = None) -> None:
        for rank, connection in self._connections.items():
            try:
                connection.send(message, descriptor=descriptor)
            except EOFError as error:
                raise _lost(rank) from error

    def _answers(self) -> list[Message]:
        return [_answer_of(rank, connection) for rank, connection in self._connections.items()]


class FollowingDevice:
    """The device of a rank that is loaded for; holds what `LedDevices` says. For one thread; owns nothing.

    Parameters
    ----------
    settings : which device, and how much of it rows may take
    num_nodes : N
    dim : F
    open_store : opens the features, to read the rows that the device holds
    dry_run : one step of the model, to see what it takes of the device
    """

    def __init__(
        self,
        settings: DeviceSettings,
        *,
        num_nodes: int,
        dim: int,
        open_store: Callable[[], FeatureStore],
        dry_run: DryRun | None = None,
    ) -> None:
        self._settings = settings
        self._dry_run = dry_run
        self._num_nodes = num_nodes
        self._dim = dim
        self._open_store = open_store
        self._tier: DeviceTier | None = None

    @cached_property
    def _device(self) -> Device:
        return open_device(
            torch.device(self._settings.device)
        )  # late: what it raises is then told to the others

    @property
    def tier(self) -> DeviceTier:
        """What the device holds, once it was told.

        Raises
        ------
        RankError
            It was not.
        """
        if self._tier is None:
            raise RankError(
                "the rank that loads did not say what to hold; use one version of gloader on all ranks"
            )
        return self._tier

    def answer(self, received: Received) -> Message | None:
        """Do what the rank that loads asks for; return the answer, or None where it asks for nothing of a device.

        Raises
        ------
        BaseException
            Whatever the device, the step or the store raises.
        """
        message = received.message
        if message["op"] == "try":
            return {"op": "answer", "room": self._room(received)}
        if message["op"] == "hold":
            self._hold(self._plan(received))
            return {"op": "answer"}
        return None

    def _room(self, received: Received) -> int:
        largest = None
        if received.descriptor is not None:
            shape = BatchShape.from_json(received.message["shape"])
            largest, _ = read_batch(shape, _memory_of(received.descriptor))
        return room_for_rows(
            self._device, self._settings, largest=largest, dim=self._dim, dry_run=self._dry_run
        )

    def _plan(self, received: Received) -> DeviceCachePlan:
        count = int(received.message["count"])
        if received.descriptor is None:
            return whole_device_cache(self._num_nodes) if count else no_device_cache(self._num_nodes)
        return DeviceCachePlan(
            num_nodes=self._num_nodes,
            rows=_memory_of(received.descriptor)[: 8 * count].view(np.int64),
            expected_hit_rate=received.message["hit_rate"],
        )

    def _hold(self, plan: DeviceCachePlan) -> None:
        if not len(plan.rows):
            self._tier = DeviceTier(device=self._device)
            return
        with self._open_store() as store:
            self._tier = hold_rows(self._device, plan, source=store, form=row_format(store))


def _memory_of(descriptor: int) -> NDArray[np.uint8]:
    """Return the shared memory of ``descriptor``, which is closed."""
    try:
        return map_segment(descriptor)
    finally:
        os.close(descriptor)


def _answer_of(rank: int, connection: Connection) -> Message:
    try:
        received = connection.receive(None)  # as long as it takes; its end is heard
    except EOFError as error:
        raise _lost(rank) from error
    message: Message = {"op": "nothing"} if received is None else received.message
    if message["op"] == "failed":
        raise RankError(f"rank {rank} failed: {message['text']}")
    if message["op"] != "answer":
        raise RankError(f"rank {rank} answered {message!r}; use one version of gloader on all ranks")
    return message


def _lost(rank: int) -> RankError:
    return RankError(f"rank {rank} ended while the loader of this machine was opened; see its own error")
