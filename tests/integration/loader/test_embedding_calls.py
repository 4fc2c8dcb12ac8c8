"""The calls of a `NodeEmbedding`: their order, their refusals, and what is left when a run ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import gloader
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, ShapeError, StateError, StoreError, StoreExistsError
from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
from gloader.replay.recording import read_recording

from .linked import write_linked
from .trained import AUTHORS, DIM, SAMPLING, loss_of, train, weights_of, write_typed

GIVEN: dict[str, Any] = {"fanouts": [3, 2], "memory_budget": "200MB", **SAMPLING}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_typed(tmp_path_factory.mktemp("typed") / "data")


@pytest.fixture
def embedding(typed: Dataset) -> Iterator[gloader.NodeEmbedding]:
    with gloader.NodeEmbedding(typed, "author", dim=DIM, seed=7) as embedding:
        yield embedding


def _loader(typed: Dataset, embedding: Any, **settings: Any) -> gloader.HeteroLoader:
    return gloader.HeteroLoader(typed, embeddings={"author": embedding}, **{**GIVEN, **settings})


def _raises(error: type[Exception], text: str) -> Any:
    return pytest.raises(error, match=text.replace("(", r"\(").replace(")", r"\)"))


def test_the_append_buffer_follows_from_the_table_and_the_slots(
    typed: Dataset, embedding: gloader.NodeEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.ssd_store.embedding.embedding_table._LEAST_BUFFER_BYTES", 1)
    with _loader(typed, embedding):
        assert embedding._rows.table.buffer_rows == AUTHORS // 40 > 1


def test_each_batch_is_stepped_or_skipped_before_the_next(
    typed: Dataset, embedding: gloader.NodeEmbedding
) -> None:
    with _loader(typed, embedding) as loader:
        iterator = iter(loader)
        for _ in range(3):
            embedding.skip(next(iterator))
        batch = next(iterator)
        with _raises(
            StateError,
            "batch (epoch 0, index 3) was not stepped: call embedding.step(batch) after loss.backward(), or "
            "embedding.skip(batch)",
        ):
            next(iterator)
        # The batch can still be stepped, and the epoch goes on.
        loss_of(batch, batch.x).backward()
        embedding.step(batch)
        assert next(iterator).id.index == 4
        del iterator
        train(loader, [embedding], epochs=1)


def test_the_last_batch_of_an_epoch_is_stepped_too(typed: Dataset, embedding: gloader.NodeEmbedding) -> None:
    with _loader(typed, embedding) as loader:
        iterator = iter(loader)
        for _ in range(len(loader) - 1):
            embedding.skip(next(iterator))
        next(iterator)
        with _raises(StateError, "batch (epoch 0, index 11) was not stepped"):
            next(iterator)


def test_a_batch_is_stepped_once_and_with_a_gradient(
    typed: Dataset, embedding: gloader.NodeEmbedding
) -> None:
    with _loader(typed, embedding) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        with _raises(
            StateError, "batch (epoch 0, index 0) has no gradient for the rows of 'author': call loss.backw"
        ):
            embedding.step(batch)
        loss_of(batch, batch.x).backward()
        embedding.step(batch)
        with _raises(
            StateError, "embedding.step of batch (epoch 0, index 0) comes at the wrong time: no batch is wait"
        ):
            embedding.step(batch)
        later = next(iterator)
        with _raises(
            StateError,
            "embedding.skip of batch (epoch 0, index 0) comes at the wrong time: batch (epoch 0, in",
        ):
            embedding.skip(batch)
        later.embedded["author"].grad = torch.zeros_like(later.embedded["author"])
        embedding.step(later)
        assert embedding.num_steps == 2
        del iterator


def test_a_batch_of_another_loader_is_refused(typed: Dataset, embedding: gloader.NodeEmbedding) -> None:
    with _loader(typed, embedding) as loader, gloader.HeteroLoader(typed, **GIVEN) as other:
        iterator, others = iter(loader), iter(other)
        next(iterator)
        with _raises(
            StateError, "embedding.step: batch (epoch 0, index 0) is of another loader, or without the rows"
        ):
            embedding.step(next(others))
        del iterator, others


def test_one_loader_trains_at_a_time(typed: Dataset, embedding: gloader.NodeEmbedding) -> None:
    with _loader(typed, embedding) as loader:
        with _raises(
            ConfigError,
            "another loader trains the embedding of 'author': close it first, or pass embeddings=",
        ):
            _loader(typed, embedding)
        train(loader, [embedding], epochs=1)  # the refusal changed nothing
        with _raises(
            StateError, "a loader trains the embedding of 'author': close the loader before the embedding"
        ):
            embedding.close()
    with _raises(StateError, "embedding.step: no open loader trains the embedding of 'author'"):
        embedding.step(None)  # type: ignore[arg-type]
    before = weights_of(embedding)
    with _loader(typed, embedding) as loader:
        assert torch.equal(weights_of(embedding), before)
        assert embedding.num_steps == len(loader)


@pytest.mark.parametrize("ending", ["break", "error", "close", "drop", "interrupt"])
def test_rows_survive_each_end_of_a_run(
    typed: Dataset, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are those of the last step, no thread is left, and the table's folder has only its own files."""
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    threads = set(threading.enumerate())
    with gloader.NodeEmbedding(typed, "author", dim=DIM, cache=20_000) as embedding:
        loader = _loader(typed, embedding, superbatch=4)
        expected = None

        def run() -> None:
            nonlocal expected
            for batch in loader:
                loss_of(batch, batch.x).backward()
                embedding.step(batch)
                if batch.id.index == 5:
                    expected = weights_of(embedding)
                    if ending == "error":
                        raise ZeroDivisionError
                    if ending == "interrupt":
                        raise KeyboardInterrupt
                    if ending == "close":
                        loader.close()
                    return

        if ending in ("error", "interrupt"):
            with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
                run()
            gc.collect()
        else:
            run()
        assert torch.equal(weights_of(embedding), expected)
        if ending == "drop":
            del loader, run
            gc.collect()
            assert set(threading.enumerate()) == threads
        else:
            loader.close()
        assert torch.equal(weights_of(embedding), expected)
        assert set(threading.enumerate()) == threads
        assert [path.name for path in tmp_path.iterdir()] == [embedding.folder.parent.name]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_rows_that_say_so(
    typed: Dataset, embedding: gloader.NodeEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were lost in the middle of a load are refused until the embedding is opened again."""
    with _loader(typed, embedding) as loader:
        (trained,) = loader._held.tier.trained

        def fail(*_: Any) -> None:
            raise StoreError("the disk fails")

        monkeypatch.setattr(trained.rows._pieces, "take", fail)
        with pytest.raises(StoreError, match="the disk fails"):
            train(loader, [embedding], epochs=1)
        with pytest.raises(StateError, match="open the embedding again from its last checkpoint"):
            weights_of(embedding)
    with pytest.raises(StateError, match="close it, and open the embedding again from its last checkpoint"):
        weights_of(embedding)


def test_epochs_follow_without_a_pause(typed: Dataset, embedding: gloader.NodeEmbedding) -> None:
    """The run goes on from epoch to epoch."""
    with _loader(typed, embedding) as loader:
        train(loader, [embedding], epochs=1)
        run = loader._held.run
        train(loader, [embedding], epochs=2)
        assert loader._held.run is run


def test_settings_are_refused(typed: Dataset, tmp_path: Path) -> None:
    make = gloader.NodeEmbedding
    with _raises(
        ConfigError, "an embedding takes a dataset, not 'data': pass gloader.Dataset.open(path) for a path"
    ):
        make("data", dim=4)  # type: ignore[arg-type]
    with _raises(ConfigError, "the dataset has several node types; pass one of paper, author"):
        make(typed, dim=4)
    with _raises(ConfigError, "the dataset has no node type 'authors'; did you mean 'author'?"):
        make(typed, "authors", dim=4)
    with _raises(ConfigError, "dtype='bfloat16' is not one of 'float32' in this version"):
        make(typed, "author", dim=4, dtype="bfloat16")
    for dim in (0, 4.0, 10**9):
        with _raises(ConfigError, f"dim={dim} must be a whole number in 1..65536"):
            make(typed, "author", dim=dim)  # type: ignore[arg-type]
    for optimizer in ("adam", torch.optim.Adam, RowwiseAdagrad):
        with pytest.raises(ConfigError, match="does not train rows; pass gloader"):
            make(typed, "author", dim=4, optimizer=optimizer)  # type: ignore[arg-type]
    with _raises(ConfigError, "init='zeros:3': zeros take no number; write \"zeros\""):
        make(typed, "author", dim=4, init="zeros:3")
    with _raises(ConfigError, "init='xavier' is not one of 'uniform', 'normal', 'zeros' in this version"):
        make(typed, "author", dim=4, init="xavier")
    with _raises(ConfigError, "init='normal:x': 'x' is no number; write for instance \"normal:0.05\""):
        make(typed, "author", dim=4, init="normal:x")
    with _raises(ConfigError, "'1' without a unit means bytes; write 1GB or 1MB"):
        make(typed, "author", dim=4, cache="1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreExistsError):
        make(typed, "author", dim=4, folder=tmp_path / "full")
    gc.collect()


def test_first_rows(typed: Dataset) -> None:
    """They follow from the seed, and from nothing else."""
    with (
        gloader.NodeEmbedding(typed, "author", dim=16, seed=1) as one,
        gloader.NodeEmbedding(typed, "author", dim=16, seed=1, optimizer=SparseAdam()) as same,
        gloader.NodeEmbedding(typed, "author", dim=16, seed=2) as other,
        gloader.NodeEmbedding(typed, "author", dim=16, init="normal:0.5") as normal,
        gloader.NodeEmbedding(typed, "author", dim=16, init="zeros") as zeros,
    ):
        rows = weights_of(one)
        assert torch.equal(rows, weights_of(same))
        assert not torch.equal(rows, weights_of(other))
        assert rows.abs().max() <= 0.25
        assert rows.abs().max() > 0.24
        assert abs(float(weights_of(normal).std()) - 0.5) < 0.02
        assert not weights_of(zeros).any()


def test_embeddings_are_refused(typed: Dataset, embedding: gloader.NodeEmbedding, tmp_path: Path) -> None:
    with _raises(ConfigError, "embeddings for type 'paper': this embedding is of type 'author'"):
        gloader.HeteroLoader(typed, embeddings={"paper": embedding}, **GIVEN)
    with _raises(
        ConfigError, "embeddings for type 'author': 3 is no gloader.NodeEmbedding and no frozen view of one"
    ):
        gloader.HeteroLoader(typed, embeddings={"author": 3}, **GIVEN)  # type: ignore[dict-item]
    other = write_linked(tmp_path / "linked").dataset
    with _raises(ConfigError, "embeddings for type 'author': the dataset has no such node type; it has node"):
        gloader.Loader(other, embeddings=embedding, **GIVEN)
    with (
        gloader.NodeEmbedding(other, dim=4) as node,
        _raises(ConfigError, "the embedding of 'node' belongs to another dataset than"),
    ):
        gloader.Loader(write_linked(tmp_path / "more", seed=1).dataset, embeddings=node, **GIVEN)
    with _raises(
        ConfigError,
        "this loader is for rank 0 of 2 without a process group, and ranks train an embedding together",
    ):
        _loader(typed, embedding, rank=0, world_size=2)


def test_a_budget_counts_the_rows(typed: Dataset) -> None:
    with gloader.NodeEmbedding(typed, "author", dim=2000, optimizer=SparseAdam()) as embedding:
        with pytest.raises(
            BudgetError, match=r"for trained rows of author.*Give memory_budget=\"\d+MB\" or more"
        ) as told:
            _loader(typed, embedding, memory_budget="40MB")
        enough = str(told.value).split('memory_budget="')[1].split('"')[0]
        with _loader(typed, embedding, memory_budget=enough) as loader:
            names = dict(loader.memory_plan.parts)
            assert names["trained rows of author"] > AUTHORS * 1000
            assert any(name.startswith("traces and plans of") for name in names)
            assert "trained rows of author: " in loader.explain()
            train(loader, [embedding], epochs=1)
    with gloader.NodeEmbedding(typed, "author", dim=DIM, cache=1000) as embedding:
        with pytest.raises(
            BudgetError,
            match=r"the embedding of 'author' has a cache of 1 KB.* NodeEmbedding\(cache=\d+\) or --embed-cache",
        ) as told:
            _loader(typed, embedding)
        enough = int(str(told.value).split("cache=")[1].split(")")[0])
    with (
        gloader.NodeEmbedding(typed, "author", dim=DIM, cache=enough) as embedding,
        _loader(typed, embedding) as loader,
    ):
        train(loader, [embedding], epochs=1)


def test_reading_rows(typed: Dataset, embedding: gloader.NodeEmbedding) -> None:
    everything = weights_of(embedding)
    ids = torch.tensor([5, 3, 5, AUTHORS - 1])
    assert torch.equal(embedding.rows(ids), everything[ids])
    assert embedding.rows([]).shape == (0, DIM)  # type: ignore[arg-type]
    with _raises(
        ShapeError, "nodes of type 'author' are in 0..599; these are not: [600, -1]".replace("[", r"\[")
    ):
        embedding.rows(np.array([600, 1, -1]))
    with _loader(typed, embedding) as loader:
        train(loader, [embedding], epochs=1)
        with _raises(ConfigError, "max_rows=0 must be at least 1"):
            next(embedding.pieces(0))
        for _ in range(2):  # while a loader trains them, and afterwards
            trained = weights_of(embedding)
            pieces = list(embedding.pieces(100))
            assert [first for first, _ in pieces] == [0, 100, 200, 300, 400, 500]
            assert np.array_equal(np.concatenate([rows for _, rows in pieces]), trained.numpy())
            loader.close()


def test_export(typed: Dataset, embedding: gloader.NodeEmbedding, tmp_path: Path) -> None:
    with _loader(typed, embedding) as loader:
        train(loader, [embedding], epochs=1)
        embedding.export(tmp_path / "in_training.npy", max_rows=77)
    weights = weights_of(embedding).numpy()
    for name in ("rows.npy", "rows.parquet", "rows.csv"):
        embedding.export(tmp_path / "out" / name, max_rows=77)
    assert np.array_equal(np.load(tmp_path / "in_training.npy"), weights)
    assert np.array_equal(np.load(tmp_path / "out" / "rows.npy"), weights)
    tables = [
        pyarrow.parquet.read_table(tmp_path / "out" / "rows.parquet"),
        pyarrow.csv.read_csv(tmp_path / "out" / "rows.csv"),
    ]
    for table in tables:
        assert table.column_names == ["id", "d0", "d1", "d2", "d3"]
        assert table["id"].to_pylist() == list(range(AUTHORS))
        columns = np.stack([table[f"d{column}"].to_numpy() for column in range(DIM)], 1)
        assert np.array_equal(columns.astype(np.float32), weights)
    with _raises(ConfigError, "rows.txt: an embedding is exported to a .npy, .parquet or .csv file"):
        embedding.export(tmp_path / "rows.txt")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "rows.csv",
        "rows.npy",
        "rows.parquet",
    ]


def test_opening_again(typed: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    optimizer = Adagrad(lr=0.1)
    with gloader.NodeEmbedding(typed, "author", dim=DIM, optimizer=optimizer, folder=folder) as embedding:
        with pytest.raises(StoreError):
            gloader.NodeEmbedding.open(typed, folder)  # this process has it open, and there is no record
        with _loader(typed, embedding) as loader:
            iterator = iter(loader)
            batch = next(iterator)
            with _raises(StateError, "batch (epoch 0, index 0) was not stepped"):
                embedding.checkpoint()
            embedding.skip(batch)
            del iterator
            train(loader, [embedding], epochs=1)
            for wrong in ("../x", "", "a" * 300):  # a slip costs nothing
                with pytest.raises(ConfigError):
                    embedding.checkpoint(wrong)
            embedding.checkpoint("best")
            best = weights_of(embedding)
            train(loader, [embedding], epochs=1)
            embedding.checkpoint()
            last = weights_of(embedding)
    opened = gloader.NodeEmbedding.open
    for record, rows in (("best", best), ("last", last), (None, last)):
        with opened(typed, folder, record=record) as embedding:
            assert torch.equal(weights_of(embedding), rows)
            assert embedding.optimizer == optimizer
            assert embedding.num_steps == (12 if record == "best" else 24)
    for settings, text in (
        ({"dim": 8}, "dim of this embedding is 4, and not 8"),
        ({"node_type": "paper"}, "node_type of this embedding is 'author', and not 'paper'"),
        ({"optimizer": Adagrad(eps=1e-3)}, "its optimizer has eps=0.001 instead of 1e-10"),
        ({"optimizer": RowwiseAdagrad()}, "its optimizer has name=rowwise-adagrad instead of adagrad"),
    ):
        with _raises(StateError, text):
            opened(typed, folder, **settings)
    with _raises(StateError, "dataset of this embedding is "):
        opened(write_linked(tmp_path / "linked").dataset, folder)
    with opened(typed, folder, optimizer=Adagrad(lr=0.01)) as embedding, _loader(typed, embedding) as loader:
        train(loader, [embedding], epochs=1)
        embedding.checkpoint()
        embedding.forget("best")
        with pytest.raises(ConfigError, match="has no record 'best'"):
            embedding.forget("best")
    with pytest.raises(StoreError, match="best"):
        opened(typed, folder, record="best")
    with opened(typed, folder) as embedding:
        assert embedding.optimizer == Adagrad(lr=0.01)


def test_a_temporary_table_has_no_checkpoints(embedding: gloader.NodeEmbedding) -> None:
    with _raises(
        ConfigError, "this embedding lies in a temporary folder, which is removed at the end: give NodeEmb"
    ):
        embedding.checkpoint()


def test_a_closed_embedding_says_so(typed: Dataset) -> None:
    embedding = gloader.NodeEmbedding(typed, "author", dim=DIM)
    folder = embedding.folder
    assert folder.exists()
    assert (folder.parent.stat().st_mode & 0o777) == 0o700
    embedding.close()
    embedding.close()
    assert not folder.parent.exists()
    for call in (embedding.frozen().rows, embedding.rows):
        with _raises(
            StateError, "the embedding of 'author' is closed; open it again with NodeEmbedding.open"
        ):
            call(np.arange(2))
    with _raises(StateError, "is closed"):
        _loader(typed, embedding)


def test_a_dropped_embedding_removes_its_folder(typed: Dataset) -> None:
    embedding = gloader.NodeEmbedding(typed, "author", dim=DIM)
    folder = embedding.folder.parent
    del embedding
    gc.collect()
    assert not folder.exists()


def test_a_forked_child_leaves_the_table(typed: Dataset) -> None:
    with gloader.NodeEmbedding(typed, "author", dim=DIM) as embedding:
        if (child := os.fork()) == 0:
            embedding._rows._finalizer()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert embedding.folder.exists()
        assert len(weights_of(embedding)) == AUTHORS


def test_lost_steps_are_told(typed: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        gloader.NodeEmbedding(typed, "author", dim=DIM, folder=tmp_path / "kept") as embedding,
        _loader(typed, embedding) as loader,
    ):
        train(loader, [embedding], epochs=1)
        embedding.checkpoint()
        train(loader, [embedding], epochs=1)
    assert (
        "12 steps since the last record are lost; call checkpoint() before close() to keep them"
        in caplog.text
    )


def test_a_run_with_trained_rows_is_recorded_and_gets_no_advice(
    typed: Dataset, embedding: Any, tmp_path: Path
) -> None:
    with _loader(typed, embedding, trace=True) as loader:
        train(loader, [embedding], epochs=2)
        loader.write_trace(tmp_path / "trace.json")
        assert loader.advice() == ""
        assert loader.stats.stage_seconds["stage"] > 0
    header = read_recording(tmp_path / "trace.json").header
    assert [(one.name, one.num_rows) for one in header.embeddings] == [("author", AUTHORS)]
