"""Trained rows through real loaders: their bits are those of torch's own embeddings, whatever the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gloader
from gloader.dataset import Dataset
from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
from gloader.pipeline.embedding_rows import slot_bytes

from .trained import DIM, FEATURES, SAMPLING, TorchTraining, loss_of, train, weights_of, write_typed

ADAM = SparseAdam(lr=0.05)


def _adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(parameters, lr=0.05)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_typed(tmp_path_factory.mktemp("typed") / "data")


@pytest.fixture(scope="module")
def by_torch(typed: Dataset) -> dict[str, torch.Tensor]:
    """The weights of both types after three epochs of torch's own training."""
    first = {}
    for name in typed.node_types:
        with gloader.NodeEmbedding(typed, name, dim=DIM, seed=7) as embedding:
            first[name] = weights_of(embedding)
    with gloader.HeteroLoader(typed, fanouts=[3, 2], memory_budget="200MB", **SAMPLING) as loader:
        return TorchTraining(first, _adam).train(loader)


@pytest.fixture
def both(typed: Dataset, one_batch: dict[str, int]) -> Iterator[Any]:
    """A function that makes the embeddings of both types."""
    made: list[gloader.NodeEmbedding] = []

    def make(*, is_small: bool = False, **settings: Any) -> dict[str, gloader.NodeEmbedding]:
        new = {
            name: gloader.NodeEmbedding(
                typed,
                name,
                dim=DIM,
                seed=7,
                optimizer=ADAM,
                cache=one_batch[name] if is_small else None,
                **settings,
            )
            for name in typed.node_types
        }
        made.extend(new.values())
        return new

    yield make
    for embedding in made:
        embedding.close()


NUM_BATCHES = 12  # of an epoch


@pytest.fixture(scope="module")
def one_batch(typed: Dataset) -> dict[str, int]:
    """The bytes of as many slots as the largest batch has rows, by type; also of batches far ahead of the loop."""
    with gloader.HeteroLoader(typed, fanouts=[3, 2], epochs=60, **SAMPLING) as loader:
        batches = [batch.nodes for _ in range(60) for batch in loader]
    return {
        name: slot_bytes(3 * DIM) * max(len(nodes[name]) for nodes in batches) for name in typed.node_types
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "features in memory": {"features": "ram"},
    "features on the SSD": {"features": "ssd", "cache": "20%"},
    "small superbatches": {"features": "ram", "superbatch": 2},
    "superbatches of one": {"features": "ssd", "superbatch": 1},
    "packs": {"features": "ssd", "io_strategy": "packed", "superbatch": 4, "spill_budget": "20MB"},
    "one thread": {"features": "ram", "threads": 1},
    "one buffer": {"features": "ram", "buffers": 1},
    "known epochs": {"features": "ram", "epochs": 3},
    "no spill folder": {"features": "ram", "spill_budget": 0, "superbatch": 8},
}


@pytest.mark.parametrize("is_small", [False, True], ids=["whole", "one batch"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_rows_have_the_bits_of_torch(
    typed: Dataset, by_torch: dict[str, torch.Tensor], both: Any, settings: dict[str, Any], is_small: bool
) -> None:
    embeddings = both(is_small=is_small)
    common = {"fanouts": [3, 2], "memory_budget": "200MB", **SAMPLING, **settings}
    with gloader.HeteroLoader(typed, embeddings=embeddings, **common) as loader:
        train(loader, embeddings.values())
        in_training = {name: weights_of(embedding) for name, embedding in embeddings.items()}
    for name, embedding in embeddings.items():
        assert torch.equal(in_training[name], by_torch[name])
        assert torch.equal(weights_of(embedding), by_torch[name])
        assert embedding.num_steps == 3 * NUM_BATCHES


def test_rows_that_fit_are_loaded_once_and_nothing_is_read(typed: Dataset, both: Any) -> None:
    embeddings = both(is_small=False)
    with gloader.HeteroLoader(typed, fanouts=[3, 2], embeddings=embeddings, **SAMPLING) as loader:
        train(loader, embeddings.values())
        stats, text = [each.stats for each in embeddings.values()], loader.explain()
    for each in stats:
        assert each.loaded_table == each.loaded_fresh > 0
        assert each.loaded_forward == each.loaded_late == each.bytes_read == 0
    assert text.count("100% were not yet trained") == len(stats) == 2
    assert text.count("measured: 0 B read") == text.count(": 0 B read, ") / 2 == 2  # predicted, and measured


def test_a_small_cache_moves_rows(typed: Dataset, both: Any) -> None:
    """The test above says nothing if all rows stay in their slots."""
    embeddings = both(is_small=True)
    with gloader.HeteroLoader(
        typed, fanouts=[3, 2], embeddings=embeddings, features="ram", superbatch=2, **SAMPLING
    ) as loader:
        train(loader, embeddings.values())
        (counts, _) = [trained.rows.counts for trained in loader._held.tier.trained]
        text = loader.explain()
    assert min(counts.evicted_forward, counts.loaded_table, counts.evicted_table) > 0
    assert "trained rows of author: " in text
    assert re.search(
        r"predicted.*: .* read, .* written, .* of the disk\n  measured: .* read, .* written, ", text
    )
    assert "loads waited" in text


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1, lr_decay=0.01), RowwiseAdagrad(lr=0.1)])
def test_other_optimizers(typed: Dataset, one_batch: dict[str, int], optimizer: Any) -> None:
    def adagrad(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.01)

    def trained(cache: int | None) -> torch.Tensor:
        with (
            gloader.NodeEmbedding(
                typed, "author", dim=DIM, optimizer=optimizer, seed=7, cache=cache
            ) as embedding,
            gloader.HeteroLoader(
                typed, fanouts=[3, 2], embeddings={"author": embedding}, superbatch=4, **SAMPLING
            ) as loader,
        ):
            first.append(weights_of(embedding))
            train(loader, [embedding])
            return weights_of(embedding)

    first: list[torch.Tensor] = []
    small, whole = trained(one_batch["author"]), trained(None)
    assert torch.equal(small, whole)
    assert not torch.equal(small, first[0])
    if isinstance(optimizer, Adagrad):
        with gloader.HeteroLoader(typed, fanouts=[3, 2], **SAMPLING) as loader:
            assert torch.equal(TorchTraining({"author": first[0]}, adagrad).train(loader)["author"], small)


def test_batches_have_the_rows_behind_the_features(typed: Dataset, both: Any) -> None:
    embeddings = both()
    with gloader.HeteroLoader(typed, fanouts=[3, 2], embeddings=embeddings, **SAMPLING) as loader:
        batch = next(iter(loader))
        paper, author = batch.embedded["paper"], batch.embedded["author"]
        assert batch.x["author"] is author
        assert author.requires_grad
        assert author.is_leaf
        assert batch.x["paper"].shape == (len(batch.nodes["paper"]), FEATURES + DIM)
        assert torch.equal(batch.x["paper"][:, FEATURES:], paper)
        assert torch.equal(author.detach(), embeddings["author"].rows(batch.nodes["author"]))
        assert batch.typed.embedded is batch.embedded


def test_a_stream_is_the_same_with_and_without_embeddings(typed: Dataset, both: Any) -> None:
    def states(**keywords: Any) -> list[Any]:
        with gloader.HeteroLoader(typed, fanouts=[3, 2], **SAMPLING, **keywords) as loader:
            seen = []
            for batch in loader:
                for embedding in keywords.get("embeddings", {}).values():
                    embedding.skip(batch)
                seen.append((loader.state_dict(), {name: ids.tolist() for name, ids in batch.nodes.items()}))
            return seen

    assert states() == states(embeddings=both())


def test_skipped_batches_change_nothing(typed: Dataset, both: Any) -> None:
    embeddings = both(is_small=True)
    before = {name: weights_of(embedding) for name, embedding in embeddings.items()}
    with gloader.HeteroLoader(typed, fanouts=[3, 2], embeddings=embeddings, **SAMPLING) as loader:
        for batch in loader:
            for embedding in embeddings.values():
                embedding.skip(batch)
    for name, embedding in embeddings.items():
        assert torch.equal(weights_of(embedding), before[name])
        assert embedding.num_steps == 0


def test_a_gradient_may_be_changed_before_the_step(typed: Dataset) -> None:
    """A clipped gradient is the gradient of the step."""
    with (
        gloader.NodeEmbedding(typed, "author", dim=DIM, optimizer=ADAM, seed=7) as embedding,
        gloader.HeteroLoader(typed, fanouts=[3, 2], embeddings={"author": embedding}, **SAMPLING) as loader,
    ):
        batch = next(iterator := iter(loader))
        before = embedding.rows(batch.nodes["author"])
        batch.x["author"].sum().backward()
        batch.embedded["author"].grad.zero_()
        embedding.step(batch)
        assert torch.equal(embedding.rows(batch.nodes["author"]), before)
        del iterator


@pytest.mark.parametrize("is_small", [False, True], ids=["whole", "one batch"])
def test_an_epoch_that_is_left_in_the_middle(typed: Dataset, both: Any, is_small: bool) -> None:
    embeddings = both(is_small=is_small)
    first = {name: weights_of(embedding) for name, embedding in embeddings.items()}
    with gloader.HeteroLoader(
        typed, fanouts=[3, 2], embeddings=embeddings, superbatch=4, **SAMPLING
    ) as loader:
        for batch in loader:
            for embedding in embeddings.values():
                embedding.skip(batch)
            if batch.id.index == 3:
                break
        train(loader, embeddings.values(), epochs=2)
    oracle = TorchTraining(first, _adam)
    with gloader.HeteroLoader(typed, fanouts=[3, 2], **SAMPLING) as loader:
        list(loader)  # the loop left epoch 0
        oracle.train(loader, epochs=2)
    for name, embedding in embeddings.items():
        assert torch.equal(weights_of(embedding), oracle.tables[name].weight.detach())


@pytest.mark.parametrize("is_small", [False, True], ids=["whole", "one batch"])
def test_resuming_at_every_checkpoint(
    typed: Dataset, one_batch: dict[str, int], tmp_path: Path, is_small: bool
) -> None:
    common: dict[str, Any] = {"fanouts": [3, 2], "superbatch": 4, "memory_budget": "200MB", **SAMPLING}
    cache = one_batch["author"] if is_small else None
    for position in [(0, 1), (0, 5), (0, 12), (1, 3), (2, 7)]:
        folder = tmp_path / f"{position}"
        with (
            gloader.NodeEmbedding(
                typed, "author", dim=DIM, optimizer=ADAM, seed=7, folder=folder, cache=cache
            ) as embedding,
            gloader.HeteroLoader(typed, embeddings={"author": embedding}, **common) as loader,
        ):
            state, num_after = None, 0
            for batch in (batch for _ in range(4) for batch in loader):
                loss_of(batch, batch.x).backward()
                embedding.step(batch)
                if (batch.id.epoch, batch.id.index + 1) == position:
                    embedding.checkpoint()
                    state = loader.state_dict()
                elif state is not None:  # work after the checkpoint, which is lost
                    num_after += 1
                    if num_after == 3:
                        break
        assert state is not None
        with (
            gloader.NodeEmbedding.open(typed, folder, cache=cache) as embedding,
            gloader.HeteroLoader(typed, embeddings={"author": embedding}, **common) as loader,
        ):
            loader.load_state_dict(state)
            assert embedding.num_steps == position[0] * NUM_BATCHES + position[1]
            train(loader, [embedding], epochs=3 - position[0] - position[1] // NUM_BATCHES)
            assert torch.equal(weights_of(embedding), _authors_alone(typed))


_ALONE: list[torch.Tensor] = []


def _authors_alone(typed: Dataset) -> torch.Tensor:
    """Return the authors' weights by torch if only they are trained."""
    if not _ALONE:
        with gloader.NodeEmbedding(typed, "author", dim=DIM, seed=7) as embedding:
            first = weights_of(embedding)
        with gloader.HeteroLoader(typed, fanouts=[3, 2], **SAMPLING) as loader:
            _ALONE.append(TorchTraining({"author": first}, _adam).train(loader)["author"])
    return _ALONE[0]


def test_evaluation_writes_nothing(typed: Dataset, both: Any, tmp_path: Path) -> None:
    folder = tmp_path / "author"
    common: dict[str, Any] = {"fanouts": [3, 2], **SAMPLING}
    with (
        gloader.NodeEmbedding(typed, "author", dim=DIM, optimizer=ADAM, folder=folder) as embedding,
        gloader.HeteroLoader(typed, embeddings={"author": embedding}, **common) as loader,
    ):
        train(loader, [embedding], epochs=1)
        embedding.checkpoint()
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        weights = weights_of(embedding)
        with gloader.HeteroLoader(
            typed, embeddings={"author": embedding.frozen()}, seeds=("paper", typed.test), **common
        ) as judge:
            for batch in judge:
                rows = batch.embedded["author"]
                assert not rows.requires_grad
                assert torch.equal(rows, weights[batch.nodes["author"]])
                assert batch.x["author"] is rows
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
        assert torch.equal(weights_of(embedding), weights)
        # Frozen rows are those of the moment of delivery.
        train(loader, [embedding], epochs=1)
        after = weights_of(embedding)
        with gloader.HeteroLoader(typed, embeddings={"author": embedding.frozen()}, **common) as judge:
            batch = next(iter(judge))
            assert torch.equal(batch.embedded["author"], after[batch.nodes["author"]])
            assert not torch.equal(batch.embedded["author"], weights[batch.nodes["author"]])


def test_edges_on_the_ssd(typed: Dataset, by_torch: dict[str, torch.Tensor], both: Any) -> None:
    embeddings = both(is_small=True)
    with gloader.HeteroLoader(
        typed, fanouts=[3, 2], embeddings=embeddings, topology="sweep", memory_budget="200MB", **SAMPLING
    ) as loader:
        train(loader, embeddings.values())
    for name, embedding in embeddings.items():
        assert torch.equal(weights_of(embedding), by_torch[name])
