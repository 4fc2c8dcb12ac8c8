"""The test nodes are judged by the weights that were best on the validation nodes, not by the last ones."""

from __future__ import annotations

from dataclasses import replace

from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.training.train import fit

SETTINGS = TrainSettings(
    model=ModelConfig(hidden=2, dropout=0.0),
    # So small a model and so large a step that accuracy goes up and down from epoch to epoch.
    optim=OptimConfig(epochs=6, lr=0.3),
    loader=LoaderSettings.of(fanouts=(4, 4), batch_size=32, threads=1, memory_budget=400_000_000),
)


def test_the_test_accuracy_is_of_the_best_weights_and_not_of_the_last(communities: Dataset) -> None:
    (whole,) = fit(communities, SETTINGS).runs
    valid = [record.valid_acc or 0.0 for record in whole.epochs]
    assert whole.best_epoch == valid.index(max(valid))
    assert valid[-1] < max(valid), "the last epoch must be told from the best"
    # A run that ends with the best epoch has no other weights to choose.
    optim = replace(SETTINGS.optim, epochs=whole.best_epoch + 1)
    (short,) = fit(communities, replace(SETTINGS, optim=optim)).runs
    assert short.best_epoch == whole.best_epoch
    assert whole.test_acc == short.test_acc
