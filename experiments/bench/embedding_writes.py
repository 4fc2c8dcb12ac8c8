"""Bytes that an embedding table writes for each byte of appended rows, with uniform and with skewed ids.

    python experiments/bench/embedding_writes.py --out experiments/results/DATE-embedding_writes.json

Rows are appended until they are six tables. The table is 10 to 160 times the append buffer. Skewed ids follow
Zipf's law with exponent 0.9. Merges are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gloader.ssd_store import EmbeddingTable, InitialRows

WIDTH = 32  # float32 in a row
TABLES = 6  # tables of rows that are appended


def measure(folder: Path, *, num_rows: int, ratio: int, exponent: float) -> dict[str, Any]:
    """Append rows to a new table that is ``ratio`` times its buffer; return the bytes."""
    random = np.random.default_rng(0)
    places = random.permutation(num_rows)
    shares = np.cumsum(1 / np.arange(1, num_rows + 1) ** exponent)
    count, appended, most = num_rows // ratio // 4, 0, 0
    rows = np.zeros((count, WIDTH), np.float32)
    with EmbeddingTable.create(
        folder,
        num_rows=num_rows,
        initial=InitialRows(seed=0, dim=WIDTH - 1, kind="uniform", scale=1.0, state=(0.0,)),
        facts={},
    ) as table:
        table.resize_buffer(num_rows // ratio)
        begin = time.perf_counter()
        while appended < TABLES * num_rows:
            ids = np.unique(places[np.searchsorted(shares, random.random(count) * shares[-1])])
            table.append(ids, rows[: len(ids)])
            appended += len(ids)
            most = max(most, len(table._runs.runs))  # noqa: SLF001 - a count for this table alone
        seconds = time.perf_counter() - begin
        num_bytes = appended * WIDTH * 4
        return {
            "table_to_buffer": ratio,
            "exponent": exponent,
            "written": round(table.bytes_written / num_bytes, 2),
            "read_by_merges": round(table.bytes_read / num_bytes, 2),
            "runs_at_most": most,
            "seconds": round(seconds, 2),
        }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="parent of the table's folder")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    for ratio in (10, 40, 80, 160):
        for exponent in (0.0, 0.9):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                results.append(
                    measure(Path(folder) / "table", num_rows=arguments.rows, ratio=ratio, exponent=exponent)
                )
            print(results[-1], flush=True)
    if arguments.out:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        arguments.out.write_text(
            json.dumps(
                {
                    "command": " ".join(["python", *sys.argv]),
                    "commit": commit,
                    "machine": "2 cores, 24 GB",
                    "num_rows": arguments.rows,
                    "width": WIDTH,
                    "results": results,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
