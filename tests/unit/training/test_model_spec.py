from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from linked import edge_arrays, write_linked
from typed_batches import RELATIONS, random_edges, small_schema

from gloader.config import LoaderSettings, ModelConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError
from gloader.models import HeteroNetwork, Schema
from gloader.training.checkpoint.save import Checkpoint, load_checkpoint, save_checkpoint
from gloader.training.model_spec import (
    HeteroModelSpec,
    LinkSpec,
    ModelSpec,
    parse_spec,
    spec_content,
    spec_of,
)

SCHEMA = small_schema()
SPEC = HeteroModelSpec(
    config=ModelConfig(name="rgat", hidden=8, heads=2), schema=SCHEMA, out_dim=3, num_layers=2
)


def _settings(name: str) -> TrainSettings:
    return TrainSettings(
        model=ModelConfig(name=name, hidden=8), loader=LoaderSettings.of(fanouts=(3, 2), batch_size=4)
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset of `small_schema`: papers with labels and 6 features, authors with 4, fields with none."""
    edges = random_edges(SCHEMA, seed=0)
    random = np.random.default_rng(0)
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("typed") / "data",
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
    """Five nodes of one type in a ring."""
    return Dataset.from_numpy(
        tmp_path_factory.mktemp("plain") / "data",
        features=np.ones((5, 4), np.float32),
        edge_index=np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]),
        labels=np.arange(5) % 2,
        train=np.arange(3),
        valid=np.array([3]),
        test=np.array([4]),
    )


def test_a_dataset_of_several_types_fixes_a_model_for_them(typed: Dataset) -> None:
    spec = spec_of(_settings("rgcn"), typed)
    assert isinstance(spec, HeteroModelSpec)
    assert spec.schema == SCHEMA
    assert list(spec.schema.num_nodes) == list(typed.node_types)
    assert (spec.out_dim, spec.num_layers) == (3, 2)


def test_a_dataset_of_one_type_takes_models_for_several_too(plain: Dataset) -> None:
    spec = spec_of(_settings("rgcn"), plain)
    assert isinstance(spec, HeteroModelSpec)
    assert spec.schema == Schema(
        num_nodes={"node": 5},
        feature_dims={"node": 4},
        relations=(("node", "to", "node"),),
        targets=("node",),
    )
    assert isinstance(spec_of(_settings("gat"), plain), ModelSpec)


def test_a_model_of_links_embeds_both_ends_as_wide_as_its_hidden_layers(
    typed: Dataset, plain: Dataset
) -> None:
    spec = spec_of(_settings("rsage"), typed, targets=("author", "paper", "author"))
    assert isinstance(spec, HeteroModelSpec)
    assert (spec.schema.targets, spec.out_dim, spec.has_head) == (("author", "paper"), 8, False)
    assert spec.build().mlp is None
    spec = spec_of(_settings("graphsage"), plain, targets=("node",))
    assert isinstance(spec, ModelSpec)
    assert spec.out_dim == 8


def test_a_model_for_one_type_is_refused_where_there_are_several(typed: Dataset) -> None:
    with pytest.raises(
        ConfigError,
        match=r"model 'graphsage' is for graphs of one node type, and dataset .* has 3: paper, author, field; models "
        r"for several are rsage, rgcn, rgat",
    ):
        spec_of(_settings("graphsage"), typed)


def test_a_checkpoint_holds_types_relations_and_learned_rows(tmp_path: Path) -> None:
    weights = SPEC.build().state_dict()
    saved = Checkpoint(
        run_id="0123",
        settings={},
        spec=SPEC,
        fingerprint="abc",
        weights=weights,
        progress={"loader": {"next": [1, 2]}},
    )
    save_checkpoint(tmp_path / "checkpoint.pt", saved)
    loaded = load_checkpoint(tmp_path)
    assert loaded.spec == SPEC
    model = loaded.model()
    assert isinstance(model, HeteroNetwork)
    assert list(model.schema.num_nodes) == list(SCHEMA.num_nodes)
    assert torch.equal(model.embs["field"], weights["embs.field"])


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        ModelSpec(config=ModelConfig(), in_dim=5, out_dim=3, num_layers=2, add_self_loops=False),
        ModelSpec(
            config=ModelConfig(name="sign"),
            in_dim=5,
            out_dim=3,
            num_layers=1,
            add_self_loops=True,
            groups=(("x", 0, 2), ("in1.mean", 2, 5)),
        ),
    ],
    ids=["several types", "one type", "hop columns"],
)
def test_a_spec_survives_json(spec) -> None:
    assert parse_spec(json.loads(json.dumps(spec_content(spec))), Path("x")) == spec


def test_features_of_edges_are_for_models_that_look_at_them(tmp_path: Path) -> None:
    write_linked(tmp_path / "data", {}, edges=edge_arrays(40, 40, 300))
    dataset = Dataset.open(tmp_path / "data")
    wide = {"graphsage": 0, "gcn": 0, "mlp": 0, "gat": 3, "gine": 3}
    for name, width in wide.items():
        spec = spec_of(_settings(name), dataset)
        assert isinstance(spec, ModelSpec)
        assert (spec.edge_dim, spec.uses_edge_features) == (width, width > 0)
        assert parse_spec(json.loads(json.dumps(spec_content(spec))), Path("x")) == spec
    settings = _settings("gat")
    settings = replace(settings, loader=settings.loader.changed(edge_features="none"))
    assert not spec_of(settings, dataset).uses_edge_features
    assert not spec_of(_settings("rgat"), dataset).uses_edge_features


def test_specs_of_earlier_versions_are_read() -> None:
    """Which called the width of the output a number of classes, and knew one type of it."""
    content = json.loads(json.dumps(spec_content(SPEC)))
    content["num_classes"] = content.pop("out_dim")
    (content["schema"]["labelled"],) = content["schema"].pop("targets")
    del content["has_head"]
    assert parse_spec(content, Path("x")) == SPEC
    plain = ModelSpec(config=ModelConfig(), in_dim=5, out_dim=3, num_layers=2, add_self_loops=False)
    content = spec_content(plain)
    content["num_classes"] = content.pop("out_dim")
    assert "groups" not in content  # nor in the checkpoints of earlier versions
    del content["edge_dim"]
    assert parse_spec(content, Path("x")) == plain


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": {}},
        {"schema": None},
        {"schema": {"types": [["paper"]], "relations": [], "labelled": "paper"}},
        {"schema": {"types": [["paper", 1, 2]], "relations": [["a", "b", "c"]], "labelled": "paper"}},
        {"schema": {"types": [["paper", 1, 2]], "relations": [], "labelled": "book"}},
        {"more": 1},
    ],
)
def test_a_malformed_schema_is_a_damaged_checkpoint(changed, tmp_path: Path) -> None:
    content = spec_content(SPEC) | changed
    with pytest.raises((TypeError, ValueError, ConfigError)):
        parse_spec(content, tmp_path)
    saved = Checkpoint(
        run_id="0123",
        settings={},
        spec=replace(SPEC, schema=SCHEMA),
        fingerprint="abc",
        weights={},
        progress={"loader": {"next": [1, 2]}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gloader.training.checkpoint.save.spec_content", lambda _: content)
        save_checkpoint(tmp_path / "checkpoint.pt", saved)
    with pytest.raises(CheckpointError, match=r"the model in .* is malformed"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "encoder",
    [SPEC, ModelSpec(config=ModelConfig(), in_dim=5, out_dim=8, num_layers=2, add_self_loops=False)],
)
def test_a_network_of_links_is_that_of_its_json(encoder) -> None:
    spec = LinkSpec(
        encoder=encoder,
        ends=("author", "paper"),
        decoder="mlp",
        decoder_layers=2,
        learns="classes",
        num_outputs=3,
    )
    content = json.loads(json.dumps(spec_content(spec)))
    assert parse_spec(content, Path("x")) == spec
    with pytest.raises(TypeError, match=r"the model of links in .* has the wrong entries"):
        parse_spec({name: value for name, value in content.items() if name != "learns"}, Path("x"))
    with pytest.raises(TypeError, match="learns 'nothing'"):
        parse_spec(content | {"learns": "nothing"}, Path("x"))
