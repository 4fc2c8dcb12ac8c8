"""Rows of a task table in the batches of PyG: their numbers, labels, weights and ages are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tasks import task_arrays, write_tasks

from gloader import Dataset, HeteroLoader, Loader

pytest.importorskip("torch_geometric")

from gloader.adapters.pyg import to_data, to_hetero_data

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 16, "memory_budget": "100MB", "threads": 1}


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root: Path = tmp_path_factory.mktemp("rows") / "d"
    tables = {"churn.train": task_arrays(33), "plain.train": task_arrays(33, times=False, weights=False)}
    return write_tasks(root, tables)


def test_a_batch_of_rows_keeps_all_that_it_has(dataset: Dataset) -> None:
    with Loader(dataset, table="churn", **SETTINGS) as loader:
        for batch in loader:
            data = to_data(batch)
            assert data.input_id.tolist() == batch.row_ids.tolist()  # type: ignore[union-attr]
            assert data.y is batch.y
            assert data.row_weight is batch.weights
            assert data.row_age is batch.row_age
            assert data.row_age.shape == data.n_id.shape
            assert "row_seeds" not in data


def test_a_typed_batch_of_rows_keeps_all_that_it_has(dataset: Dataset) -> None:
    with HeteroLoader(dataset, table="churn", **SETTINGS) as loader:
        for batch in loader:
            store = to_hetero_data(batch, labelled="node")["node"]
            assert store.input_id.tolist() == batch.row_ids.tolist()  # type: ignore[union-attr]
            assert store.row_weight is batch.weights
            assert store.row_age is batch.row_age["node"]  # type: ignore[index]


def test_rows_without_times_have_the_seed_of_each(dataset: Dataset) -> None:
    with Loader(dataset, table="plain", **SETTINGS) as loader:
        batches = [(batch, to_data(batch)) for batch in loader if batch.row_seeds is not None]
    assert batches
    for batch, data in batches:
        assert data.row_seeds is batch.row_seeds
        seeds = data.n_id[: data.batch_size][data.row_seeds]
        np.testing.assert_array_equal(seeds, np.asarray(batch.nodes)[batch.row_seeds])  # type: ignore[index]
        assert "row_weight" not in data
        assert "row_age" not in data
