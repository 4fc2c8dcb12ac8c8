"""Training with embeddings: the same bits wherever the rows are, checkpoints, evaluation and predictions."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gloader.config import (
    EmbedConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    TrainSettings,
)
from gloader.dataset import Dataset
from gloader.errors import BudgetError, CheckpointError, ConfigError, StateError
from gloader.loader import HeteroLoader
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.predict import embed, predict
from gloader.training.train import FitResult, RunFiles

PAPERS, AUTHORS, FIELDS, CLASSES = 180, 240, 24, 3
MODEL = ModelConfig(name="rgcn", hidden=8, dropout=0.1)
OPTIM = OptimConfig(epochs=3, lr=0.02)
LOADER = LoaderSettings.of(fanouts=(3, 2), batch_size=8, threads=1, memory_budget=1_500_000_000)
EMBED = EmbedConfig(dims={"*": 6}, lr=0.2)
BATCHES = 15  # of 120 training papers


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Papers with features of noise, and authors and fields without features, who write in classes."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, PAPERS)
    order = random.permutation(PAPERS)
    authors = random.integers(0, AUTHORS // CLASSES, 8 * PAPERS) * CLASSES + np.repeat(labels, 8)
    writes = np.stack([authors, np.repeat(np.arange(PAPERS), 8)])
    topics = np.stack([np.arange(PAPERS), random.integers(0, FIELDS, PAPERS)])
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("papers") / "dataset",
        name="papers",
        num_nodes={"paper": PAPERS, "author": AUTHORS, "field": FIELDS},
        features={"paper": random.normal(size=(PAPERS, 5)).astype(np.float32)},
        edges={
            ("author", "writes", "paper"): writes,
            ("paper", "by", "author"): writes[::-1].copy(),
            ("field", "of", "paper"): topics[::-1].copy(),
        },
        labels={"paper": labels},
        num_classes=CLASSES,
        train=np.sort(order[:120]),
        valid=np.sort(order[120:150]),
        test=np.sort(order[150:]),
        edge_split="80/10/10",
        edge_split_relation="author:writes:paper",
    )


class InterruptingLoader(HeteroLoader):
    """Fails instead of handing out batch ``fail_at``, counted over all epochs."""

    fail_at = 0

    def __iter__(self):
        for batch in super().__iter__():
            if batch.id.epoch * BATCHES + batch.id.index == self.fail_at:
                raise RuntimeError("the power went out")
            yield batch


def fit(
    dataset, *, embed=EMBED, model=MODEL, optim=OPTIM, loader=LOADER, factory=None, settings=None, **files
):
    """Train with these parts of the settings."""
    given = TrainSettings(model=model, optim=optim, loader=loader, embed=embed, **(settings or {}))
    return train.fit(dataset, given, files=RunFiles(**files), loader_factory=factory)


def figures(result: FitResult) -> list[object]:
    """All figures that depend on the bits of the rows."""
    run = result.runs[0]
    return [run.test_acc, *((each.loss, each.valid_acc) for each in run.epochs)]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(papers: Dataset) -> FitResult:
    """A run with everything in memory."""
    return fit(papers)


def test_rows_learn_what_no_feature_knows(whole: FitResult) -> None:
    run = whole.runs[0]
    assert run.test_acc is not None
    assert run.test_acc > 0.8
    assert run.epochs[-1].loss < run.epochs[0].loss / 2


@pytest.mark.parametrize(
    "changed",
    [
        {"features": "ssd", "cache": 400, "threads": 2},
        {"features": "ssd", "cache": 0, "superbatch": 1},
        {"superbatch": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("cache", [None, 0.35])
def test_the_bits_do_not_depend_on_where_rows_are(papers, whole, changed, cache) -> None:
    found = fit(papers, loader=LOADER.changed(**changed), embed=replace(EMBED, cache=cache))
    assert figures(found) == figures(whole)


@pytest.mark.parametrize("optimizer", ["adagrad", "sparse-adam"])
def test_the_other_optimizers_are_as_independent_of_the_cache(papers, whole, optimizer) -> None:
    config = replace(EMBED, optimizer=optimizer)
    in_memory = fit(papers, embed=config)
    assert figures(fit(papers, embed=replace(config, cache=0.35))) == figures(in_memory)
    assert figures(in_memory) != figures(whole)


@pytest.mark.parametrize("fail_at", [3, BATCHES, 2 * BATCHES + 5])
def test_a_resumed_run_is_the_uninterrupted_one(papers, whole, tmp_path: Path, caplog, fail_at: int) -> None:
    optim, out = replace(OPTIM, checkpoint_every=4), tmp_path / "run"
    InterruptingLoader.fail_at = fail_at
    config = replace(EMBED, cache=0.35)
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(papers, optim=optim, embed=config, factory=InterruptingLoader.from_settings, out=out)
    assert "steps since the last record" not in caplog.text
    # A run that saved nothing leaves no rows.
    assert (out / "embeddings").exists() == (fail_at > 4)
    resumed = fit(papers, optim=optim, embed=config, out=out, resume=True)
    assert figures(resumed) == figures(whole)
    _require_tidy(out)


def _require_tidy(out: Path) -> None:
    """Require that the folder has the records that the checkpoint names, and no others."""
    saved = load_checkpoint(out).embeddings
    assert saved is not None
    assert [path.name for path in out.glob("embeddings*")] == [saved.folder.name]
    for name in ("author", "field"):
        records = {path.name.partition(".")[0] for path in (saved.folder / name).glob("0*")}
        assert records == {saved.present, saved.best}


def test_a_finished_run_goes_on_for_more_epochs(papers, whole, tmp_path: Path) -> None:
    fit(papers, optim=replace(OPTIM, epochs=2), out=tmp_path)
    assert figures(fit(papers, out=tmp_path, resume=True)) == figures(whole)


def test_the_best_rows_are_tested_and_not_the_last(papers, tmp_path: Path) -> None:
    """At a rate at which later epochs are worse."""
    wild = replace(EMBED, lr=3.0, optimizer="sparse-adam")
    found = fit(papers, embed=wild, optim=replace(OPTIM, epochs=6), out=tmp_path).runs[0]
    saved = load_checkpoint(tmp_path).embeddings
    assert found.best_epoch < 5
    assert saved is not None
    assert (saved.best, saved.present) == (f"{found.best_epoch + 1:05}-0000000", "00006-0000000")
    short = fit(papers, embed=wild, optim=replace(OPTIM, epochs=found.best_epoch + 1)).runs[0]
    assert short.test_acc == found.test_acc


def test_lines_of_metrics_count_the_bytes_of_rows(papers, tmp_path: Path) -> None:
    fit(papers, embed=replace(EMBED, cache=0.35), optim=replace(OPTIM, checkpoint_every=4), out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["embedding_bytes_read"] > 0 < line["embedding_bytes_written"] for line in lines)
    fit(papers, embed=EmbedConfig(), out=tmp_path, overwrite=True)
    assert "embedding_bytes_read" not in (tmp_path / "metrics.jsonl").read_text()


def test_an_early_end_keeps_the_best_rows(papers, tmp_path: Path) -> None:
    wild = replace(EMBED, lr=3.0, optimizer="sparse-adam")
    found = fit(papers, embed=wild, optim=replace(OPTIM, epochs=40, patience=2), out=tmp_path).runs[0]
    assert len(found.epochs) == found.best_epoch + 3


def test_predictions_read_the_best_rows_and_change_nothing(papers, tmp_path: Path) -> None:
    result = fit(papers, out=tmp_path).runs[0]
    before = digests(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    predicted = predict(papers, checkpoint)
    assert (predicted == papers.labels)[papers.test].mean() == result.test_acc
    with embed(papers, checkpoint, layer=1, node_type="author") as rows:
        assert np.concatenate(list(rows.chunks)).shape == (AUTHORS, 8)
    assert digests(tmp_path) == before


def test_a_checkpoint_without_its_rows_says_what_is_missing(papers, tmp_path: Path) -> None:
    fit(papers, out=tmp_path / "run")
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "run" / "checkpoint.pt", tmp_path / "alone")
    with pytest.raises(CheckpointError, match=r"copied together with the folder 'embeddings' beside it"):
        predict(papers, load_checkpoint(tmp_path / "alone"))


def test_a_new_run_replaces_the_rows_of_an_older_one_only_when_it_begins(papers, tmp_path: Path) -> None:
    first = fit(papers, out=tmp_path)
    before = digests(tmp_path)
    # Refused: the budget has no room for a batch.
    with pytest.raises(BudgetError):
        fit(papers, loader=LOADER.changed(memory_budget=1_000_000), out=tmp_path, overwrite=True)
    assert digests(tmp_path) == before
    again = fit(papers, out=tmp_path, overwrite=True)
    assert figures(again) == figures(first)
    saved = load_checkpoint(tmp_path).embeddings
    assert saved is not None
    assert saved.folder.name.startswith("embeddings-")
    _require_tidy(tmp_path)
    # A third run finds the plain name free again, and one without embeddings leaves none.
    fit(papers, out=tmp_path, overwrite=True)
    _require_tidy(tmp_path)
    fit(papers, embed=EmbedConfig(), out=tmp_path, overwrite=True)
    assert not list(tmp_path.glob("embeddings*"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(EMBED, dims={"*": 7}), r"embed is \{'\*': 6\} there and \{'\*': 7\} here"),
        (
            replace(EMBED, optimizer="adagrad"),
            "embed_optimizer is 'rowwise-adagrad' there and 'adagrad' here",
        ),
        (replace(EMBED, lr=0.3), "embed_lr is 0.2 there and 0.3 here"),
        (EmbedConfig(), r"embed is \{'\*': 6\} there and None here"),
    ],
)
def test_resuming_with_other_rows_is_refused(papers, tmp_path: Path, config, message: str) -> None:
    fit(papers, optim=replace(OPTIM, epochs=1), out=tmp_path)
    before = digests(tmp_path)
    with pytest.raises((CheckpointError, StateError), match=message):
        fit(papers, embed=config, out=tmp_path, resume=True)
    assert digests(tmp_path) == before


def test_another_cache_may_resume(papers, whole, tmp_path: Path) -> None:
    fit(papers, optim=replace(OPTIM, epochs=2), embed=replace(EMBED, cache=0.35), out=tmp_path)
    found = fit(
        papers,
        embed=replace(EMBED, cache=0.6),
        loader=LOADER.changed(features="ssd"),
        out=tmp_path,
        resume=True,
    )
    assert figures(found) == figures(whole)


def test_a_cache_below_a_batch_says_what_is_needed(papers) -> None:
    with pytest.raises((BudgetError, ConfigError), match=r"all rows of a batch are in memory until its step"):
        fit(papers, embed=replace(EMBED, cache=1000))


def test_a_graph_of_one_type_has_rows_beside_its_features(communities: Dataset, tmp_path: Path) -> None:
    model = replace(MODEL, name="graphsage")
    config = EmbedConfig(dims={"node": 4}, lr=0.05)
    ram = fit(communities, model=model, embed=config, out=tmp_path)
    ssd = fit(
        communities,
        model=model,
        embed=replace(config, cache=0.7),
        loader=LOADER.changed(features="ssd", cache=900),
    )
    assert figures(ssd) == figures(ram)
    predicted = predict(communities, load_checkpoint(tmp_path))
    assert (predicted == communities.labels)[communities.test].mean() == ram.runs[0].test_acc
    without = fit(communities, model=model, embed=EmbedConfig())
    assert figures(without) != figures(ram)
    assert ram.runs[0].num_parameters > without.runs[0].num_parameters + 4 * 240


@pytest.mark.parametrize("cache", [None, 0.8])
def test_links_are_learned_by_the_rows_of_their_ends(papers, tmp_path: Path, cache) -> None:
    settings = {"task": "link", "links": LinkConfig(negatives="uniform:2")}
    config = EmbedConfig(dims={"author": 6, "paper": 3, "field": 2}, lr=0.1, cache=cache)
    loader = LOADER.changed(batch_size=4)
    found = fit(
        papers, embed=config, settings=settings, loader=loader, optim=replace(OPTIM, epochs=2), out=tmp_path
    )
    assert found.runs[0].epochs[-1].loss < found.runs[0].epochs[0].loss
    with embed(papers, load_checkpoint(tmp_path), node_type="author") as rows:
        assert np.concatenate(list(rows.chunks)).shape == (AUTHORS, 8)
