"""Agreement between a machine's ranks, while a loader opens, on the rows that their devices hold and reach.

The host is the rank that loads for all ranks of its machine; the other ranks are its clients. The host opens its device
by `gloader.pipeline.open.device_tier`. At each step `PeerDevices` sends a request to every client, and
`FollowerDevice` answers it on the client. The steps are: measure each device's room with a trial step of the model
(`TryStep`), hold rows (`HoldRows`), offer the others for reads in place (`ReachFeatures`), and decide whether all
devices read them so, or none (`SettleFeatures`).

- A device's room is the memory that it has for rows, in bytes.
- All devices hold the same rows, chosen by the host. The device with the least room decides their number.
- A device reaches rows if it reads them in place, in host memory. The rows are then in a segment.
- A segment is shared memory of two processes. A message carries its file descriptor to the other process.
- A table is the feature rows of a node type or of a relation.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

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
from gloader.pipeline.open.disk import open_store
from gloader.pipeline.other_ranks import SharedFeatures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.config import LoaderSettings
    from gloader.dataset.tables import FeatureRows
    from gloader.device import Device, Pinned
    from gloader.distributed.shared_memory import BatchShape
    from gloader.distributed.wire import Connection, Message, Received
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.types import AnyBatch, BatchTypes


class PeerDevices:
    """The host's view of the other ranks' devices on its machine. For one thread; owns nothing.

    Parameters
    ----------
    connections : the connections to the other ranks, by rank
    """

    def __init__(self, connections: Mapping[int, Connection]) -> None:
        self._connections = connections
        self._answers: list[Answer] = []

    @property
    def are_asynchronous(self) -> bool:
        """True if all devices are asynchronous; set after `trying_step`."""
        return all(answer.is_asynchronous for answer in self._answers)

    @contextmanager
    def trying_step(self, largest: AnyBatch | None) -> Iterator[list[int]]:
        """Let all devices try a step of the model, and list each device's room for rows, in bytes.

        The context manager's list is empty at first. The block tries the step on this rank and adds its room; the
        other ranks' rooms are added at the end of the block.

        Parameters
        ----------
        largest : the batch of a trial step on every rank; None skips the trial

        Raises
        ------
        RankError
            Another rank cannot open its device, failed in the step, or is gone.
        """
        self._answers.clear()
        # All ranks, with this one, try their step at the same time: requests are sent first, and answers read last.
        if largest is None:
            self._request(TryStep(shape=None))
        else:
            degrees = np.empty(0, dtype=np.float32)  # a trial step has its own degrees
            shape = shape_of(largest, degrees)
            with _segment(shape.num_bytes) as (descriptor, memory):
                write_batch(largest, degrees, shape, memory)
                self._request(TryStep(shape=shape), descriptor)
        rooms: list[int] = []
        yield rooms
        rooms += [self._room_of(rank) for rank in self._connections]

    @contextmanager
    def holding(self, plan: DeviceCachePlan, *, as_stored: bool, table: int) -> Iterator[None]:
        """Make every other device hold the rows of ``plan``, while the block does so on this rank.

        Parameters
        ----------
        plan : the rows; each rank reads them from its own copy of the dataset
        as_stored : whether the host sends all other rows in their storage format, which the devices widen to float32
        table : number of the table

        Raises
        ------
        RankError
            Another rank cannot hold the rows, or is gone.
        """
        message = HoldRows(
            count=len(plan.rows), hit_rate=plan.expected_hit_rate, as_stored=as_stored, table=table
        )
        # For all rows or none, the count is enough, and no ids are sent.
        if plan.holds_all or not len(plan.rows):
            self._request(message)
        else:
            with _segment(plan.rows.nbytes) as (descriptor, memory):
                memory[:] = plan.rows.view(np.uint8)
                self._request(message, descriptor)
        yield
        for rank, connection in self._connections.items():
            _answer_of(rank, connection)

    @contextmanager
    def sharing_features(self, device: Device, num_bytes: int, *, table: int) -> Iterator[SharedFeatures]:
        """Share memory for all features. Either all devices then read the features in place, or none.

        The block fills the memory and sets ``is_reached`` for this rank. After the block, ``is_reached`` is True only
        if every device reads the features.

        Parameters
        ----------
        device : this rank's device
        num_bytes : all rows' size in their storage format
        table : number of the table

        Raises
        ------
        RankError
            Another rank is gone.
        """
        # A CPU computes with rows that are gathered into its own buffers, and does not read shared features.
        if not device.is_asynchronous:
            shared = SharedFeatures()
            yield shared
            shared.is_reached = False
            return
        with _segment(num_bytes, is_touched=False) as (descriptor, memory):
            # The announcement comes first: the other ranks pin the memory while it is filled.
            self._request(ReachFeatures(table=table), descriptor)
            shared = SharedFeatures(memory=memory)
            yield shared
            answers = [_answer_of(rank, connection) for rank, connection in self._connections.items()]
            seal_contents(descriptor)
        shared.is_reached = shared.is_reached and all(answer.reaches for answer in answers)
        self._request(SettleFeatures(by_all=shared.is_reached, table=table))

    def _request(self, message: Message, descriptor: int | None = None) -> None:
        """Send a request, and a segment's file descriptor if given, to every client."""
        for rank, connection in self._connections.items():
            try:
                connection.send(message, descriptor=descriptor)
            except EOFError as error:
                raise _lost(rank) from error

    def _room_of(self, rank: int) -> int:
        """Receive the answer of ``rank`` to `TryStep`, and return its device's room in bytes."""
        answer = _answer_of(rank, self._connections[rank])
        if answer.room is None:
            raise _wrong_answer(rank, answer)
        self._answers.append(answer)
        return answer.room


class FollowerDevice:
    """A client's device, which answers the requests of the host's `PeerDevices`. Owns its tiers until `close`.

    For one thread.

    Parameters
    ----------
    settings : the loader's settings: the device, the memory for its rows, and the reads that fill them
    tables : the dataset's feature rows, in order
    types : the batches' types
    dry_run : one step of the model, to measure its device memory
    """

    def __init__(
        self,
        settings: LoaderSettings,
        *,
        tables: Sequence[FeatureRows],
        types: BatchTypes,
        dry_run: DryRun | None = None,
    ) -> None:
        self._settings = settings.device
        self._reading = settings.reading
        self._dry_run = dry_run
        self._tables = tables
        self.types = types
        self._tiers: dict[int, DeviceTier] = {}

    @property
    def dims(self) -> tuple[int, ...]:
        """F per table."""
        return tuple(table.feature_dim for table in self._tables)

    @cached_property
    def device(self) -> Device:
        """The device of this rank."""
        # The device is opened at the host's request, not in `__init__`, so that errors reach the other ranks.
        return open_device(torch.device(self._settings.device))

    @property
    def tiers(self) -> tuple[DeviceTier, ...]:
        """The device with its rows of each table, after the host has selected them.

        Raises
        ------
        RankError
            The host did not select the rows.
        """
        if len(self._tiers) != len(self._tables):
            raise RankError(
                "the loading rank did not say which rows to hold; use one version of gloader on all ranks"
            )
        return tuple(self._tiers[table] for table in range(len(self._tables)))

    def answer(self, received: Received) -> Message | None:
        """Execute the host's request, and return the answer; None if the message needs no answer.

        Raises
        ------
        BaseException
            The error of the device, the step or the store.
        """
        match received.message:
            case TryStep(shape=shape):
                room = self._room(shape, received.descriptor)
                return Answer(room=room, is_asynchronous=self.device.is_asynchronous)
            case HoldRows(as_stored=as_stored, table=table):
                self._hold(table, self._plan(received.message, received.descriptor), as_stored=as_stored)
                return Answer()
            case ReachFeatures(table=table) if received.descriptor is not None:
                return Answer(reaches=self._reach(table, received.descriptor))
            case SettleFeatures(by_all=False, table=table):
                self._tiers[table] = self.tiers[table].out_of_reach()
        return None

    def pin(self, memory: NDArray[np.uint8]) -> Pinned | None:
        """Pin a batch's features in place; None if the device copies from ``memory`` without pinning."""
        # The opened device has an explicit number, as the sending thread's current device may differ.
        return pin_segment(memory, self.device.place)

    def close(self) -> None:
        """Release the features. Idempotent."""
        for tier in self._tiers.values():
            tier.close()

    def _room(self, shape: BatchShape | None, descriptor: int | None) -> int:
        """Try a step with the batch in the segment ``descriptor``, if given; return the device's room in bytes."""
        largest = None
        if shape is not None and descriptor is not None:
            largest, _ = read_batch(shape, take_segment(descriptor), self.types)
        dims = {table.number: table.feature_dim for table in self._tables}
        return room_for_rows(self.device, self._settings, largest=largest, dims=dims, dry_run=self._dry_run)

    def _table(self, number: int) -> FeatureRows:
        """Return the table with this number; the host's number may be wrong if its dataset is another one."""
        if not 0 <= number < len(self._tables):
            raise RankError(
                f"the loading rank requested table {number} of {len(self._tables)}; use one dataset on all ranks"
            )
        return self._tables[number]

    def _plan(self, request: HoldRows, descriptor: int | None) -> DeviceCachePlan:
        """Return the plan with the requested rows: all rows, no rows, or the int64 ids in the segment."""
        num_nodes = self._table(request.table).num_rows
        if descriptor is None:
            return whole_device_cache(num_nodes) if request.count else no_device_cache(num_nodes)
        return DeviceCachePlan(
            num_nodes=num_nodes,
            rows=take_segment(descriptor)[: 8 * request.count].view(np.int64),  # 8 bytes per id
            expected_hit_rate=request.hit_rate,
        )

    def _hold(self, number: int, plan: DeviceCachePlan, *, as_stored: bool) -> None:
        """Make the device hold the rows of ``plan`` of table ``number``, read from this rank's dataset."""
        if not len(plan.rows) and not as_stored:
            self._tiers[number] = bare_tier(self.device, num_nodes=plan.num_nodes)
            return
        with open_store(self._table(number), self._reading) as store:
            self._tiers[number] = hold_rows(
                self.device, plan, form=store.stored_rows.form, as_stored=as_stored
            )
            self._tiers[number].fill(store)

    def _reach(self, number: int, descriptor: int) -> bool:
        """Make the device reach the rows in the host's memory, if possible; return whether it does."""
        # The memory is writable, as the rings are: some drivers do not pin memory that is mapped read-only.
        memory = take_segment(descriptor, is_touched=False)
        table = self._table(number)
        with open_store(table, self._reading) as store:
            form = store.stored_rows.form
        num_nodes = table.num_rows
        rows = memory[: num_nodes * form.row_bytes].view(form.dtype).reshape(num_nodes, form.dim)
        self._tiers[number] = with_features(self.tiers[number], rows, form)
        return self._tiers[number].features is not None


@contextmanager
def _segment(num_bytes: int, *, is_touched: bool = True) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Return a new segment's descriptor and memory (num_bytes,); the end of the block closes the descriptor."""
    descriptor, memory = create_segment(num_bytes, is_touched=is_touched)
    try:
        yield descriptor, memory
    finally:
        os.close(descriptor)


def _answer_of(rank: int, connection: Connection) -> Answer:
    """Wait for the answer of ``rank``, and return it; raise RankError if the rank failed or is gone."""
    try:
        # There is no time limit, as a step may compile for minutes. If a rank dies, its connection ends.
        received = connection.receive(None)
    except EOFError as error:
        raise _lost(rank) from error
    answer = None if received is None else received.message
    if isinstance(answer, Failed):
        raise RankError(f"rank {rank} failed: {answer.text}")
    if not isinstance(answer, Answer):
        raise _wrong_answer(rank, answer)
    return answer


def _wrong_answer(rank: int, answer: Message | None) -> RankError:
    return RankError(f"rank {rank} answered {answer!r}; use one version of gloader on all ranks")


def _lost(rank: int) -> RankError:
    return RankError(f"rank {rank} ended while the loader of this machine was opened; see its own error")
