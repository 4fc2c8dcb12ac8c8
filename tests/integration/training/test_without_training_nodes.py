"""Classes of nodes are learned where some nodes are trained on; elsewhere a run is refused before it begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gloader import Dataset
from gloader.config import TrainSettings
from gloader.errors import ConfigError
from gloader.training.train import fit

NODES = 20
EDGES = np.random.default_rng(0).integers(0, NODES, (2, 100))
NONE = np.empty(0, np.int64)
SPLITS = {"train": NONE, "valid": NONE, "test": NONE}


@pytest.mark.parametrize("model", ["sage", "rsage"])
@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"edge_split": (0.8, 0.1, 0.1)}, "learn; predict its edges with --task link$"),
        ({}, "learn$"),
    ],
)
def test_a_run_without_training_nodes_is_refused(tmp_path, model, links, said) -> None:
    labels = np.full(NODES, -1)
    if model == "sage":
        features = np.ones((NODES, 2), np.float32)
        dataset = Dataset.from_numpy(
            tmp_path / "d", edge_index=EDGES, features=features, labels=labels, **SPLITS, **links
        )
    else:
        dataset = Dataset.from_numpy_hetero(
            tmp_path / "d", edges={("a", "to", "a"): EDGES}, labels={"a": labels}, **SPLITS, **links
        )
    settings = TrainSettings()
    settings = replace(settings, model=replace(settings.model, name=model))
    with pytest.raises(ConfigError, match=rf"/d has no training nodes with labels to {said}"):
        fit(dataset, settings, device="cpu")
