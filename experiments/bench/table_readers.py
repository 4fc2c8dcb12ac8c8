"""Reads one edge table in each format: millions of rows per second, and the growth of the process's peak memory.

The table has two columns of ids and one of weights. Each format is read in a process of its own, as numbers (`read`),
as a conversion reads edges, and as stored values (`read_arrow`), as it reads keys. A stream is written to a temporary
file first, and its time includes this.

    python experiments/bench/table_readers.py --rows 2000000 --repeats 3 --out DATE-table-readers.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as pafeather
import pyarrow.parquet as pq

from gloader.convert.readers.arrow_stream import spilled_stream
from gloader.convert.readers.open_table import open_table
from gloader.errors import SourceError
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from gloader.convert.readers.table_streams import Number

FORMATS = ("e.csv", "e.csv.gz", "e.mtx", "e.parquet", "lz4.arrow", "plain.arrow", "stream")


def write(folder: Path, rows: int) -> None:
    """Write the table in every format."""
    draw = np.random.default_rng(0)
    src, dst = draw.integers(1, rows // 8 + 2, (2, rows))
    table = pa.table({"src": src, "dst": dst, "weight": draw.integers(1, 1000, rows) / 8})
    pacsv.write_csv(table, folder / "e.csv")
    with gzip.open(folder / "e.csv.gz", "wb", compresslevel=1) as packed:
        packed.write((folder / "e.csv").read_bytes())
    with (folder / "e.mtx").open("wb") as file:
        file.write(f"%%MatrixMarket matrix coordinate real general\n{rows} {rows} {rows}\n".encode())
        options = pacsv.WriteOptions(include_header=False, delimiter=" ")
        pacsv.write_csv(table, file, options)
    pq.write_table(table, folder / "e.parquet")
    pafeather.write_feather(table, folder / "lz4.arrow", compression="lz4")
    pafeather.write_feather(table, folder / "plain.arrow", compression="uncompressed", chunksize=rows)


def read(folder: Path, name: str, form: str) -> dict[str, float]:
    """Read one file. Return seconds and growth of the peak memory."""
    pa.array([1, None]).to_numpy(zero_copy_only=False)  # imports pandas, which takes up to a second
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
    start_bytes = _peak_bytes()
    start = time.perf_counter()
    table = (
        spilled_stream(_reader(folder), folder, "stream") if name == "stream" else open_table(folder / name)
    )
    ends = table.names[:2]
    if form == "read":
        numbers: dict[str, Number] = {ends[0]: "int64", ends[1]: "int64", table.names[2]: "float64"}
        count = sum(len(arrays[0]) for arrays in table.read(numbers, error=SourceError))
    else:
        count = sum(batch.num_rows for batch in table.read_arrow(ends, error=SourceError))
    seconds = time.perf_counter() - start
    return {"rows": count, "seconds": seconds, "grown_bytes": _peak_bytes() - start_bytes}


def _peak_bytes() -> int:
    """Return the process's peak memory, with the pages of mapped files that it touched."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _reader(folder: Path) -> pa.RecordBatchReader:
    """Return the table as a stream that is read from the Parquet file."""
    file = pq.ParquetFile(folder / "e.parquet", pre_buffer=False)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())


def main() -> None:
    """Measure every format, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "NAME", "FORM"))
    arguments = parser.parse_args()
    if arguments.child:
        folder, name, form = arguments.child
        print(json.dumps(read(Path(folder), name, form)))
        return
    results = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:  # noqa: S108
        write(Path(folder), arguments.rows)
        for name in FORMATS:
            for form in ("read", "read_arrow"):
                command = [sys.executable, __file__, "--child", folder, name, form]
                runs = [
                    json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                    for _ in range(arguments.repeats)
                ]
                if any(run["rows"] != arguments.rows for run in runs):
                    raise RuntimeError(f"{name} has other rows than were written")
                seconds = statistics.median(run["seconds"] for run in runs)
                grown = statistics.median(run["grown_bytes"] for run in runs)
                rate = arguments.rows / seconds / 1e6
                results.append({"format": name, "form": form, "mrows_per_s": rate, "grown_bytes": grown})
                print(f"{name:12} {form:10} {rate:7.2f} M rows/s  {grown / 1e6:7.1f} MB")
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"rows": arguments.rows, "results": results, **provenance()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
