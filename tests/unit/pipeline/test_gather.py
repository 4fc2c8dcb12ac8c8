"""The verb "gather": every row of a batch in its buffer, from the slots and from features in memory."""

import numpy as np
import pytest

from gloader.cache import DeviceShare, SlotCache
from gloader.errors import PlanError
from gloader.pipeline.gather import GatherCached, GatherWhole, ReadMisses
from gloader.pipeline.superbatch import BatchJob, FilledBatch, OrderedBatch, RunFeedback
from gloader.ssd_store import RamFeatures

from .items import DIM, FEATURES, NODES, NUM_NODES, degrees, in_order, instruments, ring, sampled, staged


def _filled() -> list[FilledBatch]:
    superbatch, feedback = staged(number=3), RunFeedback()
    feedback.begin(superbatch, stage_s=[0.0])
    read = ReadMisses(ring(), feedback=feedback, instruments=instruments())
    jobs = [
        BatchJob(superbatch=superbatch, index=index, batch=in_order(index)) for index in range(len(NODES))
    ]
    return [read.process(job) for job in jobs]


def _whole() -> OrderedBatch:
    return OrderedBatch(sampled=sampled(0), src_degree=degrees(0), tables=())


def test_hits_come_from_the_slots_that_the_batch_before_filled() -> None:
    slots = SlotCache(2, dim=DIM)
    gather = GatherCached([slots], instruments())
    hosts = [gather.process(filled) for filled in _filled()]
    for host, nodes in zip(hosts, NODES, strict=True):
        np.testing.assert_array_equal(host.x[0], FEATURES[nodes])
        assert host.src_degree.tolist() == [*range(len(nodes))]
    assert [(host.superbatch, host.ends_superbatch) for host in hosts] == [(3, False), (3, True)]
    assert sorted(slots.resident.tolist()) == [2, 4]


def test_a_slot_that_holds_another_row_is_an_error() -> None:
    gather = GatherCached([SlotCache(2, dim=DIM)], instruments())
    with pytest.raises(PlanError):
        gather.process(_filled()[1])  # the batch before it admitted nothing


@pytest.mark.parametrize("held", [[], [4, 17]])
def test_features_in_memory_are_gathered_but_those_of_the_device(held: list[int]) -> None:
    is_held = np.zeros(NUM_NODES, dtype=np.bool_)
    is_held[held] = True
    found = instruments()
    gather = GatherWhole(
        [RamFeatures(FEATURES)],
        [DeviceShare(held=is_held if held else None)],
        [0],
        ring=ring(),
        instruments=found,
    )
    host = gather.process(_whole())
    wanted = [position for position, node in enumerate(NODES[0]) if node not in held]
    np.testing.assert_array_equal(host.x[0][wanted], FEATURES[NODES[0]][wanted])
    assert (host.superbatch, host.ends_superbatch) == (0, False)
    stats = found.recorder(0).snapshot()
    assert (stats.rows_gathered, stats.device_hits, stats.cache_hits) == (4, len(held), 4 - len(held))


def test_nothing_is_gathered_for_a_device_that_reaches_all_rows() -> None:
    gather = GatherWhole(
        [RamFeatures(FEATURES)],
        [DeviceShare(reaches_all=True)],
        [0],
        ring=ring(),
        instruments=instruments(),
    )
    assert gather.process(_whole()).x[0].shape == (0, DIM)
