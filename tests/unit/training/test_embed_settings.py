"""The settings of embeddings: widths by type, their checks, and the network and checkpoint that follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typed_batches import RELATIONS, random_edges, small_schema

from gloader.config import EmbedConfig, LoaderSettings, ModelConfig, TrainSettings
from gloader.core.flag_values import parse_embed
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError
from gloader.training import embeddings
from gloader.training.checkpoint.save import Checkpoint, SavedEmbeddings, load_checkpoint, save_checkpoint
from gloader.training.dataset_checks import embedded_dims, require_dataset
from gloader.training.embeddings import cache_bytes, embedded_types, saved_of
from gloader.training.model_spec import parse_spec, spec_content, spec_of
from gloader.training.run_folder import decisive_settings, differing, is_of_the_model
from gloader.training.run_settings import train_settings

SCHEMA = small_schema()


def _settings(name: str = "rgcn", task: str = "node", **embed) -> TrainSettings:
    return TrainSettings(
        model=ModelConfig(name=name, hidden=8),
        loader=LoaderSettings.of(fanouts=(3, 2), batch_size=4),
        embed=EmbedConfig(**embed),
        task=task,
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset of `small_schema`: papers with labels and 6 features, authors with 4, fields with none."""
    edges, random = random_edges(SCHEMA, seed=0), np.random.default_rng(0)
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("typed") / "data",
        name="typed",
        num_nodes=dict(SCHEMA.num_nodes),
        features={
            name: random.normal(size=(SCHEMA.num_nodes[name], dim)).astype(np.float32)
            for name, dim in SCHEMA.feature_dims.items()
            if dim
        },
        edges={relation: np.array(edges[relation]).T for relation in RELATIONS},
        labels={"paper": np.arange(7) % 3},
        train=np.arange(4),
        valid=np.array([4]),
        test=np.array([5, 6]),
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Five nodes of one type in a ring, with 4 features."""
    return Dataset.from_numpy(
        tmp_path_factory.mktemp("plain") / "data",
        features=np.ones((5, 4), np.float32),
        edge_index=np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]),
        labels=np.arange(5) % 2,
        train=np.arange(3),
        valid=np.array([3]),
        test=np.array([4]),
    )


@pytest.mark.parametrize(
    ("words", "dims"),
    [
        (["64"], {"*": 64}),
        (["*=64"], {"*": 64}),
        (["author=3", "field=4"], {"author": 3, "field": 4}),
        (["author=3, field = 4", "16"], {"author": 3, "field": 4, "*": 16}),
    ],
)
def test_widths_are_numbers_by_type_or_for_all(words: list[str], dims: dict[str, int]) -> None:
    assert parse_embed(words) == dims


@pytest.mark.parametrize(
    "word", ["", "author", "author=", "author=0", "0", "-3", "1.5", "65537", "author=3=", "=8"]
)
def test_a_wrong_width_says_how_to_write_one(word: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is no width of an embedding; write a whole number from 1 to 65,536"
    ):
        parse_embed([word])


def test_a_type_is_given_once() -> None:
    with pytest.raises(ConfigError, match="the type 'author' is given twice"):
        parse_embed(["author=3", "author=4"])
    with pytest.raises(ConfigError, match="a width for all types is given twice"):
        parse_embed(["3", "4"])


def test_a_width_for_all_is_for_types_without_features(typed: Dataset, plain: Dataset) -> None:
    assert embedded_dims(_settings(dims={"*": 16}), typed) == {"field": 16}
    assert embedded_dims(_settings(dims={"*": 16, "author": 2}), typed) == {"author": 2, "field": 16}
    # The only type of a graph has its embedding beside the features.
    assert embedded_dims(_settings("graphsage", dims={"*": 16}), plain) == {"node": 16}
    assert embedded_dims(_settings(), typed) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            _settings(dims={"autor": 4}),
            "--embed names the type 'autor', which typed does not have; did you mean 'author'?",
        ),
        (_settings(dims={"paper": 0}), "--embed paper=0: a row has 1 number or more"),
        (
            _settings(dims={"paper": 4}, optimizer="adam"),
            "embed_optimizer='adam' is not one of 'rowwise-adagrad'",
        ),
        (_settings(dims={"paper": 4}, lr=-1.0), "--embed-lr is -1.0; allowed: a positive number"),
        (_settings(lr=0.1), "--embed-lr is for embeddings, and --embed names none; give --embed DIM"),
        (_settings(cache=0.1), "--embed-cache is for embeddings, and --embed names none"),
    ],
)
def test_settings_that_do_not_fit_are_refused(typed: Dataset, settings: TrainSettings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_dataset(settings, typed)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("model", "reads"),
    [
        ("sign", "model 'sign' reads stored hop columns"),
        ("sgc", "model 'sgc' reads stored hop columns"),
        ("correct-and-smooth", "model 'correct-and-smooth' reads no neighbours"),
        ("mlp", "model 'mlp' reads no neighbours"),
    ],
)
def test_models_that_train_few_rows_are_refused(plain: Dataset, model: str, reads: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_dataset(_settings(model, dims={"*": 4}), plain)
    assert reads in str(caught.value)
    assert "would stay as they began" in str(caught.value)


def test_an_mlp_of_links_trains_the_rows_of_both_ends(plain: Dataset) -> None:
    assert embedded_dims(_settings("mlp", task="link", dims={"*": 4}), plain) == {"node": 4}


def test_a_width_for_all_needs_a_type_without_features(tmp_path: Path) -> None:
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "data",
        name="full",
        num_nodes={"a": 3, "b": 3},
        features={"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32)},
        edges={("a", "to", "b"): np.array([[0, 1], [1, 2]])},
        labels={"b": np.arange(3) % 2},
        train=np.arange(1),
        valid=np.array([1]),
        test=np.array([2]),
    )
    with pytest.raises(
        ConfigError, match=r"all types of full have features; name the types .* such as --embed a=8"
    ):
        embedded_dims(_settings(dims={"*": 8}), dataset)
    # Rows of ``c`` are read by nobody: nothing leads from ``c`` to ``b``.
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "other",
        num_nodes={"a": 3, "b": 3, "c": 3},
        features={"b": np.ones((3, 2), np.float32)},
        edges={("a", "to", "b"): np.array([[0, 1], [1, 2]]), ("b", "to", "c"): np.array([[0, 1], [1, 2]])},
        labels={"b": np.arange(3) % 2},
        train=np.arange(1),
        valid=np.array([1]),
        test=np.array([2]),
    )
    assert spec_of(_settings(dims={"*": 8}), dataset).schema.embedded == {"a": 8}
    with pytest.raises(
        ConfigError, match="--embed is for type 'c', whose rows do not reach 'b' within 2 layers"
    ):
        spec_of(_settings(dims={"c": 8}), dataset)


def test_a_network_has_the_columns_and_no_learned_rows(typed: Dataset, plain: Dataset) -> None:
    spec = spec_of(_settings(dims={"*": 5, "author": 2}), typed)
    assert dict(spec.schema.feature_dims) == {"paper": 6, "author": 6, "field": 5}
    model = spec.build()
    assert not list(model.embs)
    assert model.layers[0].in_dims == {"paper": 6, "author": 6, "field": 5}
    assert embedded_types(spec, typed) == {"author": 2, "field": 5}
    # Other learned rows keep their width: that of features, not that of embeddings.
    assert spec_of(_settings(dims={"author": 2}), typed).schema.learned_dim is None
    small = spec_of(_settings("graphsage", dims={"*": 5}), plain)
    assert (small.in_dim, small.embed_dim) == (9, 5)
    assert embedded_types(small, plain) == {"node": 5}
    assert embedded_types(spec_of(_settings("graphsage"), plain), plain) == {}


@pytest.mark.parametrize("model", ["rgcn", "graphsage"])
def test_a_spec_with_embeddings_survives_json(typed: Dataset, plain: Dataset, model: str) -> None:
    spec = spec_of(_settings(model, dims={"*": 5}), typed if model == "rgcn" else plain)
    assert parse_spec(spec_content(spec), Path("file")) == spec
    bare = spec_content(spec_of(_settings(model), typed if model == "rgcn" else plain))
    # So that earlier builds read checkpoints without embeddings, and refuse the others.
    assert "embed" not in str(bare)


def test_a_checkpoint_names_its_records(plain: Dataset, tmp_path: Path) -> None:
    settings = _settings("graphsage", dims={"*": 5})
    spec = spec_of(settings, plain)
    saved = SavedEmbeddings(folder=tmp_path / "embeddings", present="00002-0000000", best="00001-0000000")
    checkpoint = Checkpoint(
        run_id="r",
        settings=decisive_settings(settings, world_size=1),
        spec=spec,
        fingerprint="f",
        weights={"w": torch.ones(2)},
        progress={"loader": {"next": [2, 0]}},
        embeddings=saved,
    )
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint)
    read = load_checkpoint(tmp_path)
    assert read.embeddings == saved
    ours = decisive_settings(settings, world_size=1)
    assert saved_of(read, spec, ours) == saved
    assert saved_of(read, spec, {**ours, "embed_lr": 3.0}) is None
    assert saved_of(read, replace(spec, embed_dim=4), ours) is None
    assert saved_of(None, spec, ours) is None
    for name in ("../other", ".hidden", 3):
        wrong = replace(checkpoint, embeddings=replace(saved, best=name))
        save_checkpoint(tmp_path / "checkpoint.pt", wrong)
        with pytest.raises(CheckpointError, match=r"the embeddings in .* are malformed"):
            load_checkpoint(tmp_path)


def test_rows_that_differ_are_another_model_and_rates_are_other_settings() -> None:
    base = _settings(dims={"*": 5})
    saved, settings = (decisive_settings(each, world_size=1) for each in (base, _settings(dims={"*": 6})))
    assert differing(saved, settings, epochs_done=0) == ["embed"]
    assert is_of_the_model(["embed"])
    other = decisive_settings(_settings(dims={"*": 5}, lr=0.5), world_size=1)
    assert differing(saved, other, epochs_done=0) == ["embed_lr"]
    assert not is_of_the_model(["embed_lr"])
    # The default rate is that of the optimizer, and the cache changes no result.
    same = decisive_settings(_settings(dims={"*": 5}, lr=0.01, cache=0.1), world_size=1)
    assert differing(saved, same, epochs_done=0) == []
    assert not [name for name in decisive_settings(_settings(), world_size=1) if name.startswith("embed")]


def test_the_default_rate_is_that_of_the_optimizer() -> None:
    assert EmbedConfig(optimizer="sparse-adam").learning_rate == 0.001
    assert EmbedConfig(optimizer="adagrad").learning_rate == 0.01
    assert EmbedConfig(lr=0.3).learning_rate == 0.3


def test_the_cache_is_divided_equally_and_small_types_take_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embeddings, "slot_bytes", lambda width: 4 * width + 8)
    shapes = {"a": (300, 5), "b": (10, 5), "c": (300, 5)}  # 6 numbers, one of the optimizer's, and 8 bytes
    assert cache_bytes(EmbedConfig(), shapes) == {"a": None, "b": None, "c": None}
    assert cache_bytes(EmbedConfig(cache=2320), shapes) == {"a": 1000, "b": 320, "c": 1000}
    assert cache_bytes(EmbedConfig(cache=0.5), shapes) == {"a": 4720, "b": 320, "c": 4720}
    assert cache_bytes(EmbedConfig(cache=1.0), shapes) == {"a": 9600, "b": 320, "c": 9600}
    adam = EmbedConfig(cache=0.5, optimizer="sparse-adam")
    assert cache_bytes(adam, {"a": (100, 8)}) == {"a": 100 * (24 * 4 + 8) // 2}


def test_keywords_of_embeddings_have_the_names_of_the_flags() -> None:
    found = train_settings(
        {"embed": "author=3,field=4", "embed_optimizer": "adagrad", "embed_lr": 0.5, "embed_cache": "10%"}
    )
    config = EmbedConfig(dims={"author": 3, "field": 4}, optimizer="adagrad", lr=0.5, cache=0.1)
    assert found == TrainSettings(embed=config)
    assert train_settings({"embed": 64}).embed.dims == {"*": 64}
    assert train_settings({"embed": {"author": 64}, "embed_cache": "1GB"}).embed.cache == 10**9
    assert train_settings({"lr": 0.5}).embed == EmbedConfig()
