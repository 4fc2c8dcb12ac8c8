"""Rows a second that a gather brings from memory into a reused buffer, beside `torch.index_select(out=)` on one thread.

    python experiments/bench/gather.py --out experiments/results/DATE-gather.json

`gloader bench gather` with a line for each width as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gloader.lab.bench.features import bench_gather


def main() -> None:
    """Measure every width, print a line each, and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table-bytes", type=int, default=2**31)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 100, 128, 512, 1632])
    parser.add_argument("--rows", type=int, default=100_000, help="of a gather")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    results = []
    for dim in options.dims:
        found = bench_gather(
            dims=[dim], rows=options.rows, table_bytes=options.table_bytes, repeats=options.rounds
        )
        results += found["results"]
        _print(results[-1])
    if options.out is not None:
        options.out.write_text(json.dumps({**found, "results": results}, indent=1) + "\n")


def _print(result: dict[str, Any]) -> None:
    rates, ratios = result["rows_per_s"], result["ratios"]
    print(
        f"{result['row_bytes']:6} B a row: {rates['gloader'] / 1e6:6.2f} M rows/s, index_select(out=) "
        f"{rates['index_select'] / 1e6:6.2f} M rows/s: {result['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
