"""Reports of a mirror: the bytes from the store, their cost, and the read rate of a partial mirror."""

from dataclasses import asdict

import pytest

from gloader.core.object_traffic import ObjectPrice, ObjectTraffic
from gloader.dataset.mirrored import rates_with_store
from gloader.ssd_store.cost.io_rates import IoRates

DISK = IoRates(
    random_reads_per_s=100_000.0,
    read_bytes_per_s=2e9,
    write_bytes_per_s=1e9,
    pack_read_bytes_per_s=2e9,
    medium_reads_per_s=0.0,
    wide_reads_per_s=20_000.0,
)
BLOCK_BYTES = 8 * 2**20


def test_a_mirror_that_holds_all_has_the_rates_of_its_disk() -> None:
    assert rates_with_store(DISK, share=0.0, bytes_per_s=1e9, block_bytes=BLOCK_BYTES) is DISK


def test_what_is_not_held_brings_a_block_for_each_read() -> None:
    none = rates_with_store(DISK, share=1.0, bytes_per_s=1e9, block_bytes=BLOCK_BYTES)
    assert none.random_reads_per_s == pytest.approx(1e9 / BLOCK_BYTES)
    assert none.wide_reads_per_s == pytest.approx(1e9 / BLOCK_BYTES)
    assert none.medium_reads_per_s == 0.0  # not measured, still
    assert none.read_bytes_per_s == pytest.approx(1e9)
    half = rates_with_store(DISK, share=0.5, bytes_per_s=1e9, block_bytes=BLOCK_BYTES)
    assert half.read_bytes_per_s == pytest.approx(1 / (0.5 / 1e9 + 0.5 / 2e9))
    # Packs are written and read on the disk as ever.
    same = ("write_bytes_per_s", "pack_read_bytes_per_s", "is_one_device")
    assert [asdict(half)[name] for name in same] == [asdict(DISK)[name] for name in same]


def test_traffic_adds_up_and_is_told_apart() -> None:
    first = ObjectTraffic(requests=10, num_bytes=5000, retries=1, waited_s=2.0)
    second = ObjectTraffic(requests=12, num_bytes=9000, retries=1, waited_s=2.5)
    assert second.since(first) == ObjectTraffic(requests=2, num_bytes=4000, waited_s=0.5)
    assert first.plus(second.since(first)) == second


def test_traffic_is_said_with_its_cost_where_prices_are_known() -> None:
    traffic = ObjectTraffic(requests=1466, num_bytes=12_300_000_000, retries=3, waited_s=4.2)
    assert traffic.describe(None) == "12.3 GB in 1,466 requests, 3 of them again, held back 4.2 s"
    price = ObjectPrice.parse("0.0004/1000req,0.09/GB")
    assert traffic.cost(price) == pytest.approx(1466 * 0.0004 / 1000 + 12.3 * 0.09)
    assert traffic.describe(price).endswith("cost 1.11")
    assert ObjectTraffic(requests=1, num_bytes=20).describe(None) == "20 B in 1 request"
