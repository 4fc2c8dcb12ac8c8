"""`Dataset` offers the conversions from and to arrays in memory."""

from pathlib import Path

import numpy as np

from gloader import Dataset


def test_arrays_come_back_as_they_went_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((30, 4)).astype(np.float32)
    edges = rng.integers(0, 30, (2, 90))
    dataset = Dataset.from_numpy(
        tmp_path / "d", features=features, labels=rng.integers(0, 3, 30), edge_index=edges
    )
    arrays = dataset.to_numpy()
    order = arrays.get("original_ids", np.arange(30))
    np.testing.assert_array_equal(arrays["features"], features[order])
    again = Dataset.from_pyg(dataset.to_pyg(), tmp_path / "p")
    np.testing.assert_array_equal(again.to_numpy()["features"], arrays["features"])
