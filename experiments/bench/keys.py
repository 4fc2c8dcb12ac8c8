"""Keys of nodes numbered out of core, beside integer ids read by today's way, and beside pandas in memory.

    python experiments/bench/keys.py --workdir FOLDER --out experiments/results/DATE-keys

Part "factorize" numbers text and integer keys in memory as `pandas.factorize` does, of a column of Python texts and of
a column of arrow texts. Part "prepare" numbers both ends of edges with text keys from a Parquet file, within the
budget, and converts the same edges with ids 0..N-1 to a dataset. Part "large" numbers different keys of many times the
budget, and reads ids and keys back; the peak is that of the anonymous memory above the memory before it.

Every round runs every contender; a figure is the median over the rounds, and a ratio is that of one round, of which the
median is taken. Processor seconds are those of all threads. They count where other processes share the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gloader.convert.keys.numbering import Numbering
from gloader.convert.keys.values import interleaved, key_chunk
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.read_ahead import read_ahead
from gloader.convert.readers.parquet_table import open_parquet
from gloader.convert.registry import open_source
from gloader.lab.bench.environment import provenance
from gloader.observe.peak_memory import anonymous_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.core.keys import KeyChunk

ROWS: Final = 1 << 20  # keys per chunk
TEXT_ROWS: Final = 1 << 14  # rows per batch of texts, as a conversion reads them
ID_ROWS: Final = 1 << 18  # the same for integers
LARGE_ROWS: Final = 1 << 16  # keys per chunk of part "large": a few MB, which count in the peak


def main() -> None:
    """Measure, print, write JSON."""
    options = _options()
    result: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}
    options.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-keys-", dir=options.workdir) as name:
        for part in options.parts:
            result[part] = {"factorize": factorize, "prepare": prepared, "large": large}[part](
                options, Path(name)
            )
            print(json.dumps({part: result[part]}, indent=1), flush=True)
    result |= provenance()
    if options.out is not None:
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def factorize(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return seconds and ratios of keys that are in memory."""
    rng = np.random.default_rng(0)
    picked = rng.integers(0, options.distinct, options.keys)
    out: dict[str, Any] = {}
    for kind in ("text", "int64"):
        column = pa.array(picked * 1_000_003)
        columns = {"pandas": column.to_numpy()}
        if kind == "text":
            column = texts(options.distinct).take(pa.array(picked))
            columns = {"pandas": column.to_numpy(zero_copy_only=False)}
            columns["pandas of arrow"] = pd.array(column, dtype=pd.ArrowDtype(pa.large_string()))

        def ours(column: pa.Array = column, kind: Any = kind) -> None:
            with Numbering("a", kind, folder=folder, budget_bytes=2**32) as numbering:
                stream = numbering.open_stream("keys")
                for start in range(0, len(column), ROWS):
                    stream.append(key_chunk(column.slice(start, ROWS), kind, first_row=start, where="keys"))
                stream.close()
                numbering.resolve()
                np.concatenate(list(numbering.ids(stream, ROWS)))

        contenders: dict[str, Callable[[], object]] = {"gloader": ours}
        for name, values in columns.items():
            contenders[name] = lambda values=values: pd.factorize(values)
        out[kind] = rounds(contenders, options.rounds)
    return out


def prepared(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return seconds and ratios of edges with text keys, and of the same edges with ids."""
    rng = np.random.default_rng(1)
    pool = texts(options.distinct)
    by_key, by_id = folder / "by_key.parquet", folder / "edges.parquet"
    schemas = [pa.schema([("src", kind), ("dst", kind)]) for kind in (pa.string(), pa.int64())]
    with pq.ParquetWriter(by_key, schemas[0]) as keys, pq.ParquetWriter(by_id, schemas[1]) as ids:
        for start in range(0, options.edges, ROWS):
            ends = [
                pa.array(rng.integers(0, options.distinct, min(ROWS, options.edges - start)))
                for _ in range(2)
            ]
            ids.write_table(pa.table(ends, schema=schemas[1]))
            keys.write_table(pa.table([pool.take(each) for each in ends], schema=schemas[0]))
    del pool
    rows, labels = folder / "features.npy", folder / "labels.npy"
    np.save(rows, np.zeros((options.distinct, 1), np.float32))
    np.save(labels, np.zeros(options.distinct, np.int64))
    peaks: dict[str, int] = {}

    def read(path: Path, max_rows: int) -> Iterator[pa.RecordBatch]:
        with open_parquet(path) as file:
            yield from file.iter_batches(batch_size=max_rows, use_threads=False)

    def chunks() -> Iterator[KeyChunk]:
        for batch in read(by_key, TEXT_ROWS):
            yield interleaved(
                *(key_chunk(column, "text", first_row=0, where="e") for column in batch.columns)
            )

    def read_keys() -> None:
        with Peak() as peak, read_ahead(chunks(), name="keys") as ahead:
            for _ in ahead:
                pass
        peaks["reading"] = max(peaks.get("reading", 0), peak.num_bytes)

    def number() -> None:
        with (
            Peak() as peak,
            Numbering("a", "text", folder=folder, budget_bytes=options.budget) as numbering,
        ):
            stream = numbering.open_stream(("src", "dst"))
            with read_ahead(chunks(), name="keys") as ahead:
                for chunk in ahead:
                    stream.append(chunk)
            stream.close()
            numbering.resolve()
            for _ in numbering.ids(stream, ROWS):
                pass
        peaks["reading and numbering"] = max(peaks.get("reading and numbering", 0), peak.num_bytes)

    def convert() -> None:
        source = open_source(f"edges:{by_id}", SourceOptions(features=rows, labels=labels))
        prepare(source, folder / "out", PrepareOptions(memory_budget_bytes=options.budget, overwrite=True))

    found = rounds(
        {
            "numbering": number,
            "prepare of ids": convert,
            "reading of keys as chunks": read_keys,
            "reading of keys": lambda: [None for _ in read(by_key, TEXT_ROWS)],
            "reading of ids": lambda: [None for _ in read(by_id, ID_ROWS)],
        },
        options.rounds,
    )
    # A conversion of keys numbers them first. Its edges then come from the numbering, and not from the file.
    for clock in ("seconds", "processor_seconds"):
        ids = found[clock]["prepare of ids"]
        found[f"conversion of keys to conversion of ids, {clock}"] = round(
            (found[clock]["numbering"] + ids) / ids, 2
        )
    return found | {"peak_bytes": peaks, "budget": options.budget}


def large(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return seconds and peak of different keys of 16 bytes, each used twice."""
    _warm(folder)
    out: dict[str, Any] = {}
    started = time.perf_counter()
    with (
        Peak() as peak,
        Numbering("a", "text", folder=folder, budget_bytes=options.large_budget) as numbering,
    ):
        stream = numbering.open_stream("keys")
        for _ in range(2):
            for start in range(0, options.large_keys, LARGE_ROWS):
                numbers = np.arange(start, min(start + LARGE_ROWS, options.large_keys))
                stream.append(key_chunk(sixteen(numbers), "text", first_row=start, where="keys"))
        stream.close()
        out["append_s"] = round(time.perf_counter() - started, 2)
        report = numbering.resolve()
        out["resolved_s"] = round(time.perf_counter() - started, 2)
        done = 0
        for ids in numbering.ids(stream, LARGE_ROWS):
            expected = (np.arange(done, done + len(ids))) % options.large_keys
            if not np.array_equal(ids, expected):
                raise AssertionError("an id is wrong")
            done += len(ids)
        out["read_s"] = round(time.perf_counter() - started, 2)
        num_keys = sum(len(chunk) for chunk in numbering.keys(LARGE_ROWS))
        out["keys_read_s"] = round(time.perf_counter() - started, 2)
        out |= {"num_nodes": report.num_nodes, "spilled_bytes": report.spilled_bytes, "num_keys": num_keys}
    return out | {"peak_bytes": peak.num_bytes, "budget": options.large_budget}


def _warm(folder: Path) -> None:
    """Load every kernel, which takes memory that does not belong to the budget."""
    with Numbering("warm", "text", folder=folder, budget_bytes=2**20) as numbering:
        stream = numbering.open_stream("keys")
        stream.append(key_chunk(sixteen(np.arange(100_000)), "text", first_row=0, where="keys"))
        stream.close()
        numbering.resolve()
        for _ in (*numbering.ids(stream, ROWS), *numbering.keys(ROWS)):
            pass


def texts(count: int) -> pa.Array:
    """Return ``count`` different texts of 12 bytes."""
    numbers = pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("user", numbers, "")


def sixteen(numbers: Any) -> pa.Array:
    """Return texts of 16 bytes, which are the numbers in hexadecimal digits."""
    scattered = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(">u8").view(np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = np.empty((len(numbers), 16), np.uint8)
    data[:, 0::2] = digits[scattered.reshape(-1, 8) >> 4]
    data[:, 1::2] = digits[scattered.reshape(-1, 8) & 15]
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(data))


def rounds(contenders: dict[str, Callable[[], object]], count: int) -> dict[str, Any]:
    """Run every contender in every round. Return median seconds, and the first one's median ratio to each other."""
    clocks = {"seconds": time.perf_counter, "processor_seconds": time.process_time}
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in contenders} for clock in clocks}
    for _ in range(count):
        for name, run in contenders.items():
            started = {clock: read() for clock, read in clocks.items()}
            run()
            for clock, read in clocks.items():
                taken[clock][name].append(read() - started[clock])
    first, *others = contenders
    out: dict[str, Any] = {}
    for clock, seconds in taken.items():
        out[clock] = {name: round(statistics.median(each), 3) for name, each in seconds.items()}
        out[f"ratios of {clock}"] = {
            f"{first} to {name}": round(
                statistics.median(a / b for a, b in zip(seconds[first], seconds[name], strict=True)), 2
            )
            for name in others
        }
    return out


class Peak:
    """The peak of the process's anonymous memory above the memory at the start."""

    def __enter__(self) -> Self:
        self._before = self.num_bytes = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self.num_bytes -= self._before

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.num_bytes = max(self.num_bytes, anonymous_bytes())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="folder for temporary files")
    parser.add_argument("--parts", nargs="+", default=["factorize", "prepare", "large"])
    parser.add_argument("--out", type=Path, help="the result, without a suffix")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=20_000_000, help="keys of part factorize")
    parser.add_argument(
        "--distinct", type=int, default=5_000_000, help="different keys of the first two parts"
    )
    parser.add_argument("--edges", type=int, default=50_000_000, help="edges of part prepare")
    parser.add_argument("--budget", type=int, default=10**9, help="memory of part prepare")
    parser.add_argument("--large-keys", type=int, default=10_000_000, help="different keys of part large")
    parser.add_argument("--large-budget", type=int, default=10**8, help="memory of part large")
    return parser.parse_args()


if __name__ == "__main__":
    main()
