"""Tables of predictions: the key of each node beside its prediction, in the order of the source, whole or absent."""

from __future__ import annotations

import errno
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from tasks import task_arrays, write_tasks

from gloader.cli.prediction_table import write_by_key
from gloader.dataset.table_file import is_table_file
from gloader.errors import ConfigError, StoreWriteError
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

N = 40_000  # more than two blocks


def nodes(keys: Any = None, order: Any = None) -> Any:
    """Return a table of nodes whose source had the keys ``keys``, stored in the order ``order``."""
    table = SimpleNamespace(num_nodes=N, has_keys=keys is not None, original_ids=order)
    table.keys_of = lambda ids: keys[ids if order is None else order[ids]]
    return table


def chunks(values: Any, step: int = 7_001) -> Any:
    return (values[start : start + step] for start in range(0, len(values), step))


def read(path: Path, kind: str = "text") -> pa.Table:
    # pyarrow would read numbers from 2**63 on as floats.
    types = pc.ConvertOptions(column_types={"key": pa.uint64()} if kind == "uint64" else {})
    return pq.read_table(path) if path.suffix == ".parquet" else pc.read_csv(path, convert_options=types)


KEYS = {
    "text": np.array([f'a, "{i}"' for i in range(N)], object),
    "int64": np.arange(N) - 2**62,
    "uint64": np.arange(N, dtype=np.uint64) + 2**63,
    "uuid": np.array([str(uuid.UUID(int=i)) for i in range(N)], object),
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_moved", [False, True])
def test_keys_stand_beside_their_predictions(tmp_path: Path, suffix: str, kind: str, is_moved: bool) -> None:
    order = np.random.default_rng(0).permutation(N) if is_moved else None
    values = np.random.default_rng(1).random((N, 2)).astype(np.float32)
    write_by_key(tmp_path / f"p{suffix}", nodes(KEYS[kind], order), chunks(values), ["value_a", "value_b"])
    table = read(tmp_path / f"p{suffix}", kind)
    assert table.column_names == ["key", "value_a", "value_b"]
    assert table["key"].to_pylist() == KEYS[kind].tolist()
    found = np.stack([table[name].to_numpy() for name in table.column_names[1:]], axis=1)
    assert np.array_equal(found.astype(np.float32), values)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_classes_have_their_names_and_nodes_without_keys_their_ids(tmp_path: Path, suffix: str) -> None:
    classes = np.arange(N) % 3
    write_by_key(
        tmp_path / f"p{suffix}", nodes(), chunks(classes[:, None]), ["class"], class_names=["x", "y", "z"]
    )
    table = read(tmp_path / f"p{suffix}")
    assert table.column_names == ["id", "class", "name"]
    assert table["id"].to_pylist() == list(range(N))
    assert table["class"].to_pylist() == classes.tolist()
    assert table["name"].to_pylist() == [("x", "y", "z")[each] for each in classes]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("has_times", [False, True])
def test_rows_of_a_table_have_the_names_of_their_nodes_and_their_times(
    tmp_path: Path, suffix: str, has_keys: bool, has_times: bool
) -> None:
    arrays = task_arrays(90, num_nodes=40, times=has_times)
    table = write_tasks(tmp_path / "d", {"t": arrays}).task_table("t")
    order = np.random.default_rng(0).permutation(40)
    given = nodes(KEYS["text"] if has_keys else None, order)
    given.original_ids_of = lambda ids: order[ids]
    write_by_key(tmp_path / f"p{suffix}", given, chunks(np.arange(90), 7), ["class"], table=table)
    found = read(tmp_path / f"p{suffix}")
    ids = order[arrays.nodes]
    expected = {"key": KEYS["text"][ids]} if has_keys else {"id": ids}
    expected |= {} if arrays.times is None else {"time": arrays.times}
    expected["class"] = np.arange(90)
    assert found.to_pydict() == {name: column.tolist() for name, column in expected.items()}


def test_only_two_suffixes_are_tables(tmp_path: Path) -> None:
    assert not is_table_file(tmp_path / "p.npy")
    assert is_table_file(tmp_path / "p.CSV")
    with pytest.raises(ConfigError, match=r"p\.npy is no \.csv and no \.parquet file"):
        write_by_key(tmp_path / "p.npy", nodes(), chunks(np.arange(N)), ["class"])


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two columns of .* would have one name: id, id; write a \.npy"):
        write_by_key(tmp_path / "p.csv", nodes(), chunks(np.arange(N)), ["id"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_error_leaves_no_file(tmp_path: Path, suffix: str) -> None:
    def broken() -> Any:
        yield np.arange(30_000)
        raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        write_by_key(tmp_path / f"p{suffix}", nodes(), broken(), ["class"])
    full = FaultyOS(fail_at=1, repeat=10**6, error=errno.ENOSPC, calls={"write"})
    with pytest.raises(StoreWriteError):
        write_by_key(tmp_path / f"p{suffix}", nodes(), chunks(np.arange(N)), ["class"], os_io=full)
    assert list(tmp_path.iterdir()) == []
