"""A reading process holds no more than the staging ring and indices in memory, for requests of any size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gloader.ssd_store import FeatureStore

NUM_ROWS, DIM = 65_536, 256  # 64 MiB in rows of 1 KiB
REQUEST_ROWS = 20_000  # 20 MB of output out of some 46 MB of pages
RING_BYTES = 2**20
INDEX_BYTES = 10 * 8 * REQUEST_ROWS  # sorted ids, positions, the extents; a tenth of the output
CHECKSUM_BYTES = 8 * NUM_ROWS * DIM * 4 // 4096
SLACK_BYTES = 4 * 2**20  # stacks of threads, the allocator's rounding
LIMIT_BYTES = RING_BYTES + INDEX_BYTES + CHECKSUM_BYTES + SLACK_BYTES

GROWTH = """
import json, sys
import numpy as np
from pathlib import Path
from gloader.ssd_store import FeatureStore

def resident(field):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
    return 1024 * int(line.split()[1])

path, io, count, ring_bytes, is_staged_whole = json.loads(sys.argv[1])
with FeatureStore.open(path, io=io, ring_bytes=ring_bytes) as store:
    few = np.arange(100, -1, -1)
    store.read_into(few, np.empty((len(few), store.dim), np.float32))  # compiles, or loads what is compiled
    num_rows, dim = store.num_rows, store.dim
random = np.random.default_rng(0)
out = np.ones((count, dim), np.float32)
rows = random.integers(0, num_rows, count)

Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
before = resident("VmRSS")
sums = []
with FeatureStore.open(path, io=io, ring_bytes=ring_bytes) as store:
    for _ in range(4):
        random.shuffle(rows)
        if is_staged_whole:
            middle = np.empty_like(out)
            store.read_into(rows, middle)
            out[:] = middle
        else:
            store.read_into(rows, out)
        sums.append(bool((out[:, 0] == rows).all()))
print(json.dumps({"growth": resident("VmHWM") - before, "is_right": all(sums), "backend": store.backend}))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features = np.repeat(np.arange(NUM_ROWS, dtype=np.float32)[:, None], DIM, axis=1)
    folder = tmp_path_factory.mktemp("resident") / "s"
    FeatureStore.create(folder, features).close()
    return folder


def peak_growth(path: Path, *, io: str, is_staged_whole: bool = False) -> int:
    """Return by how many bytes a process grew at most while it read, its output and kernels set aside."""
    root = Path(__file__).resolve().parents[3]
    settings = json.dumps([str(path), io, REQUEST_ROWS, RING_BYTES, is_staged_whole])
    done = subprocess.run(
        [sys.executable, "-B", "-c", GROWTH, settings],
        env=dict(os.environ, PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["is_right"]
    assert io == "auto" or report["backend"] == "threads"
    return int(report["growth"])


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_growth_is_bounded_by_the_ring_and_not_by_the_request(io: str, path: Path) -> None:
    assert peak_growth(path, io=io) <= LIMIT_BYTES


def test_a_buffer_of_the_size_of_the_request_would_be_noticed(path: Path) -> None:
    """The limit is no formality: one more array of the output's size exceeds it."""
    assert peak_growth(path, io="auto", is_staged_whole=True) > LIMIT_BYTES + SLACK_BYTES
