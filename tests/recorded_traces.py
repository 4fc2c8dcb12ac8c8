"""A small recording, as the recorder of a timeline writes it."""

from __future__ import annotations

import json
from typing import Any

from replay_recordings import RATES

from gloader.replay.recording import HEADER_KEY, RecordedTable, RunHeader
from gloader.replay.work import PipelineShape

HEADER = RunHeader(
    cores=2,
    torch_threads=1,
    device="cpu",
    shape=PipelineShape(features="ssd", sampler_threads=2, num_buffers=4, unit=2, is_synchronous=False),
    superbatch=8,
    superbatch_unit=2,
    sweep_batches=16,
    num_hops=3,
    policy="belady",
    budget_bytes=10**9,
    spill_bytes=0,
    staging_bytes=5,
    tables=(
        RecordedTable(name="paper", num_rows=9, row_bytes=4, cache_rows=3),
        RecordedTable(name="author", num_rows=2**40, row_bytes=512, cache_rows=0),
    ),
    rates=RATES,
    state={"next": [0, 3], "global_batch_size": 16, "stream": {"seed": 7}},
    num_batches=7,
    dataset="/data/graph",
    fingerprint="f00",
    settings={"batch_size": 16, "fanouts": [3, 2]},
)
SLICE: dict[str, Any] = {
    "ph": "X",
    "pid": 1,
    "tid": 4,
    "ts": 1500.0,
    "dur": 250.5,
    "name": "read",
    "cat": "stage",
    "args": {
        "epoch": 1,
        "batch": 2,
        "superbatch": 3,
        "misses": 4,
        "cpu_us": 12.5,
        "requests": 9,
        "bytes_read": 4096,
        "bytes_written": 1,
    },
}
SHORT: dict[str, Any] = {
    **SLICE,
    "ts": 7,
    "args": {"epoch": 0, "batch": 0, "batches": 8, "cpu_us": 0, "misses": 0},
}
FLOW = {"ph": "s", "name": "batch", "cat": "batch", "id": 1, "pid": 1, "tid": 4, "ts": 1.0}
NAME = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "gloader"}}


def trace(*events: Any, **other: Any) -> dict[str, Any]:
    """Return a trace as a recorder writes it, read back from JSON."""
    head = {"dropped_events": 0, HEADER_KEY: HEADER.to_json(), **other}
    body = {"displayTimeUnit": "ms", "otherData": head, "traceEvents": [NAME, *events, FLOW]}
    parsed: dict[str, Any] = json.loads(json.dumps(body))
    return parsed
