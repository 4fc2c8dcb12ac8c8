"""Agreement on the rows that all devices of a machine's ranks hold and reach, while a loader opens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from gloader.cache import DeviceCachePlan, no_device_cache, whole_device_cache
from gloader.device import DeviceTier, open_device
from gloader.distributed.shared_memory import (
    create_segment,
    pin_segment,
    read_batch,
    seal_contents,
    shape_of,
    take_segment,
    write_batch,
)
from gloader.distributed.wire import Answer, Failed, HoldRows, ReachFeatures, SettleFeatures, TryStep
from gloader.errors import RankError
from gloader.pipeline.open.device_rows import room_for_rows
from gloader.pipeline.open.device_tier import bare_tier, hold_rows, with_features

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.config import DeviceSettings
    from gloader.device import Device, Pinned
    from gloader.distributed.shared_memory import BatchShape
    from gloader.distributed.wire import Connection, Message, Received
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.other_ranks import LoadedFeatures
    from gloader.ssd_store import FeatureStore
    from gloader.types import AnyBatch, BatchTypes

T = TypeVar("T")


class PeerDevices:
    """The host's view of the other ranks' devices on its machine. For one thread; owns nothing.

    Parameters
    ----------
    connections : to the other ranks, by rank
    """

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._connections = connections
        self._answers: list[Answer] = []

    @property
    def are_asynchronous(self) -> bool:
        """True if all devices are asynchronous; known after `agree_on_cache_bytes`."""
        return all(answer.is_asynchronous for answer in self._answers)

    def agree_on_cache_bytes(self, largest: AnyBatch | None, own: Callable[[], int]) -> int:
        """Return the bytes for cached rows on every device: the minimum over the ranks.

        Parameters
        ----------
        largest : the batch of a trial step on every rank, or None
        own : returns the bytes of this rank's device

        Raises
        ------
        RankError
            Another rank cannot open its device, failed in the step, or is gone.
        """
        self._answers.clear()
        # Requests go out first, answers are read last: all ranks, this one too, try their step at the same time.
        if largest is None:
            self._tell(TryStep(shape=None))
        else:
            degrees = np.empty(0, dtype=np.float32)  # a trial step has its own
            shape = shape_of(largest, degrees)
            descriptor, memory = create_segment(shape.num_bytes)
            try:
                write_batch(largest, degrees, shape, memory)
                self._tell(TryStep(shape=shape), descriptor)
            finally:
                os.close(descriptor)
        rooms = [own(), *(self._room_of(rank) for rank in self._connections)]
        return min(rooms)

    def hold_same_rows(
        self, plan: DeviceCachePlan, own: Callable[[], T], *, as_stored: bool, table: int = 0
    ) -> T:
        """Make every device hold the rows of ``plan``, and return the result of ``own``.

        Parameters
        ----------
        plan : the rows; each rank reads them from its own copy of the dataset
        own : makes this rank's device hold them
        as_stored : the host sends the other rows as stored, and the devices widen them
        table : number of the table

        Raises
        ------
        RankError
            Another rank cannot hold them, or is gone.
        """
        message = HoldRows(
            count=len(plan.rows), hit_rate=plan.expected_hit_rate, as_stored=as_stored, table=table
        )
        # All rows or none: the count is enough, and no ids are sent.
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
        for rank, connection in self._connections.items():
            _answer_of(rank, connection)
        return held

    def reach_same_features(
        self,
        device: Device,
        num_bytes: int,
        own: Callable[[NDArray[np.uint8] | None], LoadedFeatures],
        *,
        table: int = 0,
    ) -> LoadedFeatures:
        """Load the features to memory that every device then reads in place; all devices do, or none does.

        Parameters
        ----------
        device : of this rank
        num_bytes : of all rows as stored
        own : loads them, into the given memory or its own, and makes this rank's device reach them
        table : number of the table

        Raises
        ------
        RankError
            Another rank is gone.
        """
        # If batches are not sent, the cores that compute also gather rows into the buffers of every rank.
        if not device.is_asynchronous:
            return own(None).out_of_reach()
        descriptor, memory = create_segment(num_bytes, is_touched=False)
        try:
            # Announced first: the others pin the memory while it is filled.
            self._tell(ReachFeatures(table=table), descriptor)
            loaded = own(memory)
            answers = [_answer_of(rank, connection) for rank, connection in self._connections.items()]
            seal_contents(descriptor)
        finally:
            os.close(descriptor)
        by_all = loaded.is_reached and all(answer.reaches for answer in answers)
        self._tell(SettleFeatures(by_all=by_all, table=table))
        return loaded if by_all else loaded.out_of_reach()

    def _tell(self, message: Message, descriptor: int | None = None) -> None:
        for rank, connection in self._connections.items():
            try:
                connection.send(message, descriptor=descriptor)
            except EOFError as error:
                raise _lost(rank) from error

    def _room_of(self, rank: int) -> int:
        answer = _answer_of(rank, self._connections[rank])
        if answer.room is None:
            raise _misunderstanding(rank, answer)
        self._answers.append(answer)
        return answer.room


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerTable:
    """A client's description of a node type's feature rows."""

    type_number: int
    num_nodes: int  # N
    dim: int  # F
    open_store: Callable[[], FeatureStore]  # opens the features, to read the device's rows


class FollowerDevice:
    """The device of a client; follows the host's `PeerDevices`. For one thread; owns its tiers until `close`.

    Parameters
    ----------
    settings : the device, and the size of its rows
    tables : of the dataset, in order
    types : those of the loader's batches
    dry_run : one step of the model, to measure its device memory
    """

    def __init__(
        self,
        settings: DeviceSettings,
        *,
        tables: Sequence[FollowerTable],
        types: BatchTypes,
        dry_run: DryRun | None = None,
    ) -> None:
        self._settings = settings
        self._dry_run = dry_run
        self._tables = tables
        self.types = types
        self._tiers: dict[int, DeviceTier] = {}

    @property
    def dims(self) -> tuple[int, ...]:
        """F of each table."""
        return tuple(table.dim for table in self._tables)

    @cached_property
    def _device(self) -> Device:
        # Opened at the host's request, not in `__init__`: its errors then reach the other ranks.
        return open_device(torch.device(self._settings.device))

    @property
    def tiers(self) -> tuple[DeviceTier, ...]:
        """The device with its rows of each table, after the host has named them.

        Raises
        ------
        RankError
            The host did not name them.
        """
        if len(self._tiers) != len(self._tables):
            raise RankError(
                "the rank that loads did not say what to hold; use one version of gloader on all ranks"
            )
        return tuple(self._tiers[table] for table in range(len(self._tables)))

    def answer(self, received: Received) -> Message | None:
        """Execute a request of the host, and return the answer; None if the message is no request to a device.

        Raises
        ------
        BaseException
            The error of the device, the step or the store.
        """
        match received.message:
            case TryStep(shape=shape):
                room = self._room(shape, received.descriptor)
                return Answer(room=room, is_asynchronous=self._device.is_asynchronous)
            case HoldRows(as_stored=as_stored, table=table):
                self._hold(table, self._plan(received.message, received.descriptor), as_stored=as_stored)
                return Answer()
            case ReachFeatures(table=table) if received.descriptor is not None:
                return Answer(reaches=self._reach(table, received.descriptor))
            case SettleFeatures(by_all=False, table=table):
                self._tiers[table] = self.tiers[table].out_of_reach()
        return None

    def pin(self, memory: NDArray[np.uint8]) -> Pinned | None:
        """Pin a batch's features in place; None if the device copies from ``memory`` as it is."""
        # The opened device has a number: the sending thread has a current device of its own.
        return pin_segment(memory, self._device.place)

    def close(self) -> None:
        """Release the features. Idempotent."""
        for tier in self._tiers.values():
            tier.close()

    def _room(self, shape: BatchShape | None, descriptor: int | None) -> int:
        largest = None
        if shape is not None and descriptor is not None:
            largest, _ = read_batch(shape, take_segment(descriptor), self.types)
        dims = {table.type_number: table.dim for table in self._tables}
        return room_for_rows(self._device, self._settings, largest=largest, dims=dims, dry_run=self._dry_run)

    def _table(self, number: int) -> FollowerTable:
        if not 0 <= number < len(self._tables):
            raise RankError(
                f"the rank that loads asked for table {number} of {len(self._tables)}; use one dataset on all ranks"
            )
        return self._tables[number]

    def _plan(self, asked: HoldRows, descriptor: int | None) -> DeviceCachePlan:
        num_nodes = self._table(asked.table).num_nodes
        if descriptor is None:
            return whole_device_cache(num_nodes) if asked.count else no_device_cache(num_nodes)
        return DeviceCachePlan(
            num_nodes=num_nodes,
            rows=take_segment(descriptor)[: 8 * asked.count].view(np.int64),
            expected_hit_rate=asked.hit_rate,
        )

    def _hold(self, number: int, plan: DeviceCachePlan, *, as_stored: bool) -> None:
        if not len(plan.rows) and not as_stored:
            self._tiers[number] = bare_tier(self._device, num_nodes=plan.num_nodes)
            return
        with self._table(number).open_store() as store:
            self._tiers[number] = hold_rows(
                self._device, plan, form=store.stored_rows.form, as_stored=as_stored
            )
            self._tiers[number].fill(store)

    def _reach(self, number: int, descriptor: int) -> bool:
        """Make the device reach the rows in the host's memory, if possible; return whether it does."""
        # Writable, as the rings are: some drivers do not pin memory that is mapped read-only.
        memory = take_segment(descriptor, is_touched=False)
        table = self._table(number)
        with table.open_store() as store:
            form = store.stored_rows.form
        num_nodes = table.num_nodes
        rows = memory[: num_nodes * form.row_bytes].view(form.dtype).reshape(num_nodes, form.dim)
        self._tiers[number] = with_features(self.tiers[number], rows, form)
        return self._tiers[number].features is not None


def _answer_of(rank: int, connection: Connection) -> Answer:
    try:
        # Without a limit: a step may compile for minutes. A rank that dies ends its connection.
        received = connection.receive(None)
    except EOFError as error:
        raise _lost(rank) from error
    answer = None if received is None else received.message
    if isinstance(answer, Failed):
        raise RankError(f"rank {rank} failed: {answer.text}")
    if not isinstance(answer, Answer):
        raise _misunderstanding(rank, answer)
    return answer


def _misunderstanding(rank: int, answer: Message | None) -> RankError:
    return RankError(f"rank {rank} answered {answer!r}; use one version of gloader on all ranks")


def _lost(rank: int) -> RankError:
    return RankError(f"rank {rank} ended while the loader of this machine was opened; see its own error")
