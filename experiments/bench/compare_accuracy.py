"""The evaluation that all contenders share: weights they saved, on the same sampled validation batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from compare_child import make_model

from gloader import Loader

if TYPE_CHECKING:
    from pathlib import Path

    from gloader import Dataset
    from gloader.types import IdArray


class Evaluator:
    """Holds the validation batches of a comparison, sampled once with the fan-outs of training.

    It runs after all measurements, in the process that started them: nobody's clock, memory or page cache sees it.
    """

    def __init__(self, dataset: Dataset, nodes: IdArray, job: dict[str, Any]) -> None:
        self._model = make_model(job, dataset.feature_dim, dataset.num_classes).eval()
        with Loader(
            dataset,
            seeds=nodes,
            fanouts=job["fanouts"],
            batch_size=job["batch_size"],
            shuffle=False,
            epochs=1,
            features="ssd",
            spill_budget=0,
        ) as loader:
            self._batches = [(batch.x.clone(), batch.y.clone(), batch.blocks) for batch in loader]

    def accuracies(self, weights: Path) -> list[float]:
        """Return the accuracy after each epoch that a run saved in ``weights``."""
        paths = sorted(weights.glob("*.npy"), key=lambda path: int(path.stem))
        return [self._accuracy(np.load(path)) for path in paths]

    @torch.no_grad()
    def _accuracy(self, vector: np.ndarray) -> float:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), self._model.parameters())
        right = total = 0
        for x, y, blocks in self._batches:
            right += int((self._model(x, blocks).argmax(dim=1) == y).sum())
            total += len(y)
        return right / max(total, 1)
