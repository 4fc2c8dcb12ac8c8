"""Labels that are columns of values, on the ranks of a machine: those of a private loader."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rank_scenarios import build, digest
from rank_server import Ended

from gloader import Dataset


@pytest.mark.parametrize("mode", ["ram", "packed"])
def test_shared_batches_have_the_labels_of_private_loaders(
    run: Callable[..., list[Ended]], tmp_path: Path, mode: str
) -> None:
    random = np.random.default_rng(0)
    labels = random.normal(size=(500, 6)).astype(np.float32)
    labels[random.random((500, 6)) < 0.2] = np.nan
    dataset = Dataset.from_numpy(
        tmp_path / "columns",
        features=random.normal(size=(500, 24)).astype(np.float32),
        labels=labels,
        edge_index=random.integers(0, 500, (2, 3000)),
    )
    ended = run("epochs", dataset=str(dataset.root), world=2, mode=mode, batch_size=8, epochs=2)
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * 2
    for rank, result in enumerate(each.result for each in ended):
        with build(str(dataset.root), rank=rank, world_size=2, mode=mode, batch_size=8) as loader:
            epochs = [list(loader) for _ in range(2)]
        assert result["digests"] == [[digest(batch) for batch in epoch] for epoch in epochs]
        for batch in epochs[1]:
            np.testing.assert_array_equal(batch.y.numpy(), labels[batch.nodes[: batch.num_seeds]])
