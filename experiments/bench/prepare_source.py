"""Prepares one large ``.npy`` file of features, in turns with a plain read of it, and with other code.

The rate is that of the features alone: bytes of the source over the seconds from its first byte read to the last byte
of the dataset forced to the disk, which it shares with the reads. ``--other`` names another checkout, whose code takes
its turn too. Each turn is a process of its own, with the file out of the page cache.

    python experiments/bench/prepare_source.py --workdir /var/tmp --size 6GB --out DATE-prepare-source.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.units import parse_bytes
from gloader.lab.bench.environment import provenance

DIM = 1632
BLOCK = 4 << 20
_CHILD = """
import json, sys
from pathlib import Path
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
source = open_source(f"npy:{sys.argv[1]}", SourceOptions())
report = prepare(source, Path(sys.argv[2]), PrepareOptions(memory_budget_bytes=10**9, overwrite=True))
print(json.dumps(report.feature_seconds))
"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workdir", type=Path, required=True, help="on the disk to measure; three times the size"
    )
    parser.add_argument("--size", type=parse_bytes, default="6GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    codes = {"gloader": Path(__file__).resolve().parents[2]} | ({"other": args.other} if args.other else {})
    rates: dict[str, list[float]] = {name: [] for name in ("plain read", *codes)}
    with tempfile.TemporaryDirectory(prefix="gloader-bench-", dir=args.workdir) as folder:
        file = _write_source(Path(folder), args.size)
        for _ in range(args.rounds):
            _drop(file)
            rates["plain read"].append(_plain_rate(file))
            for name, code in codes.items():
                _drop(file)
                rates[name].append(_prepare_rate(file, code, Path(folder) / "out"))
    result = {
        "benchmark": "prepare-source",
        **provenance(),
        "size_bytes": args.size,
        "row_bytes": 4 * DIM,
        "mb_per_s": {name: [round(rate / 1e6) for rate in values] for name, values in rates.items()},
        "median_mb_per_s": {name: round(statistics.median(v) / 1e6) for name, v in rates.items()},
    }
    print(json.dumps(result, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def _write_source(folder: Path, size: int) -> Path:
    rows = size // (4 * DIM)
    random = np.random.default_rng(0)
    block = random.random((2048, DIM), np.float32)
    with (folder / "features.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, DIM)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, 2048):
            file.write(block[: rows - start].data)
        os.fsync(file.fileno())
    np.save(folder / "labels.npy", np.zeros(rows, np.int64))
    np.save(folder / "edges.npy", random.integers(0, rows, (1000, 2)))
    return folder / "features.npy"


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _plain_rate(path: Path) -> float:
    memory, done = aligned_bytes(BLOCK).data, 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    started = time.perf_counter()
    while (count := os.preadv(fd, [memory], done)) == BLOCK:
        done += count
    os.close(fd)
    return done / (time.perf_counter() - started)


def _prepare_rate(path: Path, code: Path, out: Path) -> float:
    words = [sys.executable, "-c", _CHILD, str(path.parent), str(out)]
    ended = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(code)}, cwd=code, check=True, stdout=subprocess.PIPE
    )
    return path.stat().st_size / float(json.loads(ended.stdout))


if __name__ == "__main__":
    main()
