"""A process that is killed while it keeps a stream leaves files that the next conversion removes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import gloader

KEEPS_A_STREAM = """
import sys, time
import pyarrow as pa
import gloader

def batches():
    yield pa.record_batch({"src": ["a"], "dst": ["b"]})
    print("reading", flush=True)
    time.sleep(600)

schema = pa.schema({"src": pa.string(), "dst": pa.string()})
gloader.prepare(edges=pa.RecordBatchReader.from_batches(schema, batches()), out=sys.argv[1], edge_split="60/20/20")
"""


def test_the_stream_of_a_killed_process_is_removed_by_the_next_conversion(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KEEPS_A_STREAM, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.kill()
    (left,) = tmp_path.iterdir()
    assert [each.suffix for each in left.iterdir() if each.name != "owner.json"] == [".arrows"]
    keys = [f"n{number}" for number in range(40)]
    edges = pa.table({"src": keys, "dst": [*keys[1:], keys[0]]})
    gloader.prepare(edges=edges, out=out, edge_split="60/20/20").close()
    assert list(tmp_path.iterdir()) == [out]
