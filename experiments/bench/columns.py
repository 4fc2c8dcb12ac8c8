"""Columns of a table as features: seconds and peak memory of the encoders beside pandas with scikit-learn.

    python experiments/bench/columns.py --rows 2000000 --json experiments/results/DATE-columns.json

A table has six columns: two numbers (standardised, and by quantiles with 2 % missing), a city of 50 values, a product
of 20,000 values, a time and a bool. gloader reads it twice, block by block: once to fit the encoders to the training
rows (60 %), once to encode all rows as float32. The peer reads the table whole with pandas and encodes it with
scikit-learn's StandardScaler, QuantileTransformer, OneHotEncoder and OrdinalEncoder. Every case is a process of its
own. Its memory is the process's peak beyond what it holds before the table is opened, and its processor time is that of
all its threads. The cases take turns, and a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from gloader.lab.bench.environment import provenance

_TRAIN_SHARE = 0.6
_CASES = ("gloader parquet", "gloader csv", "peer parquet", "peer csv")
_SPECS = [
    {"name": "age", "as": "standard"},
    {"name": "income", "as": "quantile", "missing": "mean"},
    {"name": "city", "as": "category"},
    {"name": "product", "as": "index"},
    {"name": "joined", "as": "time"},
    "active",
]


def main() -> None:
    """Measure all cases in turns, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help="run one case on --folder and print its figures")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measured(options.case, options.folder, options.rows)))
        return
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), options.rows)
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in _CASES}
        for _ in range(options.rounds):
            for case in _CASES:
                found[case].append(_child(case, Path(folder), options.rows))
    results = {
        case: {name: median(each[name] for each in runs) for name in runs[0]} for case, runs in found.items()
    }
    print(f"{options.rows:,} rows, median of {options.rounds}")
    for case, figures in results.items():
        seconds, cpu, memory = (figures[name] for name in ("seconds", "cpu_seconds", "memory_bytes"))
        print(f"{case:16} {seconds:7.2f} s   cpu {cpu:7.2f} s   {memory / 1e6:8.0f} MB")
    if options.json:
        document = {"rows": options.rows, "rounds": options.rounds, "cases": results, **provenance()}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _write(folder: Path, num_rows: int) -> None:
    """Write the table as Parquet and as CSV."""
    random = np.random.default_rng(0)
    income = random.lognormal(10, 1, num_rows)
    columns = {
        "age": pa.array(random.integers(18, 90, num_rows)),
        "income": pa.array(income, mask=random.random(num_rows) < 0.02),
        "city": pa.array([f"city {each}" for each in range(50)]).take(
            pa.array(random.integers(0, 50, num_rows), pa.int64())
        ),
        "product": pa.array([f"p{each:05}" for each in range(20_000)]).take(
            pa.array(random.integers(0, 20_000, num_rows), pa.int64())
        ),
        "joined": pa.array(random.integers(10**9, 17 * 10**8, num_rows)).cast(pa.timestamp("s")),
        "active": pa.array(random.random(num_rows) < 0.5),
    }
    table = pa.table(columns)
    pq.write_table(table, folder / "t.parquet")
    pacsv.write_csv(table, folder / "t.csv")


def _child(case: str, folder: Path, num_rows: int) -> dict[str, Any]:
    """Run a case in a process of its own, and return its figures."""
    command = [sys.executable, __file__, "--case", case, "--folder", str(folder), "--rows", str(num_rows)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(found.stdout)
    return figures


def _measured(case: str, folder: Path, num_rows: int) -> dict[str, float]:
    """Return the seconds and the memory of a case."""
    who, form = case.split()
    path = folder / f"t.{form}"
    run = _with_gloader if who == "gloader" else _with_peer
    return run(path, num_rows)


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _held() -> int:
    """Return the memory that this process holds now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _figures(before: int, started: float, cpu: float, num_rows: int) -> dict[str, float]:
    """Return the figures of a case that began with the memory ``before`` at the times ``started`` and ``cpu``."""
    return {
        "rows": num_rows,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "memory_bytes": _peak() - before,
    }


def _with_gloader(path: Path, num_rows: int) -> dict[str, float]:
    """Fit and encode with gloader; the rows are counted and dropped."""
    from gloader.convert.columns.feature_columns import encoded_features
    from gloader.convert.columns.specs import column_specs
    from gloader.convert.readers.open_table import open_table
    from gloader.convert.readers.table_streams import ColumnNotes

    before, started, cpu = _held(), time.perf_counter(), time.process_time()
    stream, _ = encoded_features(
        open_table(path),
        column_specs(_SPECS, where="bench"),
        num_rows=num_rows,
        train_rows=np.arange(num_rows) < _TRAIN_SHARE * num_rows,
        budget_bytes=256 << 20,
        notes=ColumnNotes(),
    )
    count = sum(len(chunk) for chunk in stream.chunks(16_384))
    return _figures(before, started, cpu, count)


def _with_peer(path: Path, num_rows: int) -> dict[str, float]:
    """Fit and encode with pandas and scikit-learn."""
    import pandas as pd
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, QuantileTransformer, StandardScaler

    before, started, cpu = _held(), time.perf_counter(), time.process_time()
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, parse_dates=["joined"])
    train = frame[: int(_TRAIN_SHARE * num_rows)]
    income = frame[["income"]].fillna(train["income"].mean())
    latest = train["joined"].max()
    rows = np.column_stack(
        [
            StandardScaler().fit(train[["age"]]).transform(frame[["age"]]).astype(np.float32),
            QuantileTransformer(subsample=None, output_distribution="normal")
            .fit(income[: len(train)])
            .transform(income)
            .astype(np.float32),
            OneHotEncoder(sparse_output=False, dtype=np.float32)
            .fit(train[["city"]])
            .transform(frame[["city"]]),
            OrdinalEncoder(dtype=np.float32, handle_unknown="use_encoded_value", unknown_value=-1)
            .fit(train[["product"]])
            .transform(frame[["product"]]),
            ((latest - frame["joined"]).dt.total_seconds() / 86_400).to_numpy(np.float32)[:, None],
            frame["active"].to_numpy(np.float32)[:, None],
        ]
    )
    return _figures(before, started, cpu, len(rows))


if __name__ == "__main__":
    main()
