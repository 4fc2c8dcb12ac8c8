"""Rows a second that a gather brings from memory into a reused buffer, beside `torch.index_select(out=)` on one thread.

    python experiments/bench/gather.py --out experiments/results/DATE-gather.json

Both take the same random rows into the same warm buffer, in turns; a ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.bench.environment import machine, versions
from gloader.ssd_store import RamFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES_PER_ROUND = 2**30


def main() -> None:
    """Measure every width, print a line each, and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--matrix-bytes", type=int, default=2**31)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 100, 128, 512, 1632])
    parser.add_argument("--rows", type=int, default=100_000, help="of a gather")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(dim, options) for dim in options.dims]
    if options.out is not None:
        found = {"benchmark": "gather", "machine": machine(), "versions": versions(), "results": results}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(dim: int, options: argparse.Namespace) -> dict[str, Any]:
    """Let both gather rows of ``dim`` float32 in turns."""
    rng = np.random.default_rng(0)
    num_rows = options.matrix_bytes // (4 * dim)
    matrix = np.empty((num_rows, dim), np.float32)
    matrix[:] = np.arange(num_rows, dtype=np.float32)[:, None]
    rows = rng.integers(num_rows, size=options.rows)
    out = np.ones((options.rows, dim), np.float32)
    source, tensor = RamFeatures(matrix), torch.from_numpy(matrix)
    ids, buffer = torch.from_numpy(rows), torch.from_numpy(out)
    contenders: dict[str, Callable[[], object]] = {
        "gloader": lambda: source.read_into(rows, out),
        "index_select": lambda: torch.index_select(tensor, 0, ids, out=buffer),
    }
    repeats = max(1, _BYTES_PER_ROUND // out.nbytes)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, gather in contenders.items():
        out.fill(-1)
        gather()
        if not np.array_equal(out[:, 0], matrix[rows, 0]):
            raise SystemExit(f"{name} gathered other rows than were asked for")
    for number in range(options.rounds):
        names = list(contenders)[:: 1 if number % 2 else -1]
        for name in names:
            began = time.perf_counter()
            for _ in range(repeats):
                contenders[name]()
            seconds[name].append((time.perf_counter() - began) / repeats)
    rates = {name: options.rows / median(values) for name, values in seconds.items()}
    ratios = [theirs / ours for ours, theirs in zip(seconds["gloader"], seconds["index_select"], strict=True)]
    print(
        f"{4 * dim:6} B a row: {rates['gloader'] / 1e6:6.2f} M rows/s, index_select(out=) "
        f"{rates['index_select'] / 1e6:6.2f} M rows/s: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )
    return {"row_bytes": 4 * dim, "rows_per_s": rates, "ratios": ratios, "ratio": median(ratios)}


if __name__ == "__main__":
    main()
