from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_forward import dense_rows
from typed_batches import CITES, HAS, NUM_NODES, TOPIC_OF, WRITES, full_batch, random_edges, small_schema

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import HETERO_MODELS, HeteroNetwork, Schema, build_hetero_model, conv
from gloader.models.adjacency import Adjacency, Part
from gloader.samplers import CscGraph
from gloader.samplers.graph import HeteroGraph
from gloader.types import HeteroReadyBatch, Relation

C = 3


def _model(
    name: str,
    schema: Schema | None = None,
    *,
    num_layers: int = 2,
    out_dim: int = C,
    has_head=True,
    **settings,
) -> HeteroNetwork:
    config = ModelConfig(**{"name": name, "hidden": 8, "heads": 2, "dropout": 0.0} | settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_hetero_model(
            config, schema or small_schema(), out_dim=out_dim, num_layers=num_layers, has_head=has_head
        )


def _x(schema: Schema) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(count, schema.feature_dims[name], generator=generator)
        for name, count in schema.num_nodes.items()
    }


def _batch(
    schema: Schema | None = None, *, edges=None, seeds=(4, 0, 2), num_hops: int = 2
) -> HeteroReadyBatch:
    schema = schema or small_schema()
    return full_batch(schema, edges or random_edges(schema, seed=3), seeds, num_hops=num_hops, x=_x(schema))


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("name", HETERO_MODELS)
def test_every_parameter_gets_a_gradient_in_every_step(name: str, num_layers: int, batch_norm: bool) -> None:
    """Also where relations have no edge and types no node, as ranks that average gradients need it."""
    schema = small_schema()
    for edges in (random_edges(schema, seed=3), {key: [] for key in schema.relations}):
        model = _model(name, num_layers=num_layers, batch_norm=batch_norm, dropout=0.5)
        batch = _batch(edges=edges, num_hops=num_layers)
        logits = model(batch)
        assert logits.shape == (3, C)
        torch.nn.functional.cross_entropy(logits, batch.y).backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key
            assert parameter.grad.to_dense().isfinite().all(), key
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_only_the_looked_at_learned_rows_have_gradients(name: str) -> None:
    model, batch = _model(name), _batch(edges=random_edges(small_schema(), seed=3, num_edges=1))
    model(batch).sum().backward()
    gradient = model.embs["field"].grad
    assert gradient.is_sparse
    assert gradient.coalesce().indices()[0].tolist() == sorted(batch.nodes["field"].tolist())


def test_what_does_not_reach_the_logits_has_no_parameters() -> None:
    """The types of a last layer but the labelled one, and a type that is no source of anything."""
    schema = small_schema(relations=(CITES, WRITES, HAS, TOPIC_OF))
    model = _model("rgcn", schema)
    assert list(model.embs) == []
    assert model.layers[0].types == ("paper", "author")
    assert model.layers[1].types == ("paper",)
    assert set(model.layers[1].relations) == {CITES, WRITES}
    assert not any("field" in name for name, _ in model.named_parameters())
    assert torch.isfinite(model(_batch(schema))).all()


def test_which_types_reach_the_logits_is_told_layer_by_layer() -> None:
    chain = Schema(
        num_nodes={"a": 1, "b": 1, "c": 1, "d": 1},
        feature_dims=dict.fromkeys("abcd", 1),
        relations=(("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d")),
        targets=("c",),
    )
    assert chain.reaching(3) == (("a", "b", "c"), ("a", "b", "c"), ("b", "c"), ("c",))
    assert chain.reaching(0) == (("c",),)
    ends = replace(chain, targets=("d", "b"))
    assert ends.reaching(2) == (("a", "b", "c", "d"), ("a", "b", "c", "d"), ("b", "d"))
    assert chain.relations_into("c") == (("b", "r", "c"),)


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_a_type_that_is_no_destination_passes_its_own_rows_on(name: str) -> None:
    schema = small_schema(relations=(CITES, WRITES))
    batch = _batch(schema, num_hops=3)
    model = _model(name, schema, num_layers=3)
    assert model.layers[0].types == ("paper", "author")
    assert torch.isfinite(model(batch)).all()


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_one_type_without_relations_is_an_mlp(name: str) -> None:
    schema = Schema(num_nodes={"node": 5}, feature_dims={"node": 4}, relations=(), targets=("node",))
    model, batch = _model(name, schema), _batch(schema, edges={})
    assert model(batch).shape == (3, C)


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_layers_compute_alike_from_blocks_and_in_two_steps(name: str) -> None:
    """On all in-edges, in two pieces and slabs of columns, as inference goes over a graph."""
    schema = small_schema()
    model, batch = _model(name).eval(), _batch()
    layer, hop = model.layers[0], batch.blocks[0]
    x: Mapping[str, torch.Tensor] = dict(batch.x) | {
        "field": model.learned["field"].detach()[torch.from_numpy(batch.nodes["field"])]
    }
    counts = {
        destination: hop[relation].num_dst for relation in layer.relations for destination in relation[2:]
    }
    with torch.no_grad():
        expected = layer.forward(x, hop, counts)
        for node_type in layer.types:
            slabs = []
            for start in range(0, layer.out_dim, layer.column_step * 2 if name == "rsage" else 4):
                columns = slice(start, start + (2 if name == "rsage" else 4))
                own_rows = x[node_type][: counts[node_type]]
                total = layer.own(node_type, own_rows, columns)
                for relation in schema.relations_into(node_type):
                    along, block = layer.relations[relation], hop[relation]
                    table = along.project(x[relation[0]], torch.empty(0), columns)
                    own = along.project_own(own_rows, columns)
                    assert tuple(
                        part.shape[1] if part.dim() > 1 else 1 for part in table
                    ) == along.table_widths(columns.stop - columns.start)
                    assert tuple(part.shape[1] for part in own) == along.own_widths(
                        columns.stop - columns.start
                    )
                    part = Part(
                        nodes=torch.arange(len(own_rows)),
                        degree=block.indptr.diff().float(),
                        pieces=_halves(block),
                    )
                    total = total + along.propagate(table, own, part, columns)
                slabs.append(total)
            torch.testing.assert_close(torch.cat(slabs, dim=1), expected[node_type], atol=1e-5, rtol=1e-4)


def _halves(block):
    """Return the edges of ``block`` in two pieces: the odd positions of each list, and the even ones."""
    ends = block.indptr.tolist()
    for first in (0, 1):
        lists = [list(range(ends[v], ends[v + 1]))[first::2] for v in range(block.num_dst)]
        picked = torch.tensor([edge for found in lists for edge in found], dtype=torch.int64)
        indptr = torch.tensor(np.cumsum([0, *map(len, lists)]), dtype=torch.int32)
        yield Adjacency(indptr, block.indices[picked], num_src=block.num_src)


@pytest.mark.parametrize("name", HETERO_MODELS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_both_orders_of_work_give_the_same_result(name, is_weighted, monkeypatch) -> None:
    batch, model = _batch(), _model(name)
    if is_weighted:
        batch = _weighted(batch)
    results = []
    for order in (True, False):
        monkeypatch.setattr(conv, "multiplies_first", lambda order=order, **_: order)
        results.append(model(batch))
    torch.testing.assert_close(*results)


def _weighted(batch: HeteroReadyBatch, *, weight: float | None = None) -> HeteroReadyBatch:
    generator = torch.Generator().manual_seed(5)
    hops = [
        {
            relation: replace(
                block,
                edge_weight=torch.rand(len(block.indices), generator=generator) + 0.5
                if weight is None
                else torch.full((len(block.indices),), weight),
            )
            for relation, block in hop.items()
        }
        for hop in batch.blocks
    ]
    return replace(batch, blocks=tuple(hops))


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_weights_of_edges_that_are_all_alike_change_nothing(name: str) -> None:
    batch, model = _batch(), _model(name)
    torch.testing.assert_close(model(_weighted(batch, weight=3.0)), model(batch))
    assert not torch.allclose(model(_weighted(batch)), model(batch))


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_logits_in_bf16_are_those_of_float32_but_for_rounding(name: str) -> None:
    batch, model = _batch(), _model(name)
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(batch)
    rounded.float().sum().backward()
    assert not torch.equal(rounded.float(), exact)
    assert float(((rounded.float() - exact).norm() / exact.norm()).detach()) < 2.0**-6


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_a_type_of_one_node_is_normalised_by_what_was_seen_before(name: str) -> None:
    """One seed without edges: torch would refuse it; the statistics stay as they are."""
    model = _model(name, batch_norm=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    edges = {key: [] for key in small_schema().relations}
    assert torch.isfinite(model(_batch(edges=edges, seeds=[4]))).all()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_learned_rows_are_as_wide_as_features_are() -> None:
    alike = small_schema(feature_dims={"paper": 6, "author": 6, "field": 0})
    assert _model("rgcn", alike).learned["field"].shape == (NUM_NODES["field"], 6)
    # Where features differ, or nothing has any, as wide as a hidden row.
    assert _model("rgcn").learned["field"].shape == (NUM_NODES["field"], 8)
    none = small_schema(feature_dims=dict.fromkeys(NUM_NODES, 0))
    assert {rows.shape[1] for rows in _model("rgcn", none).learned.values()} == {8}


def test_names_of_any_spelling_are_names_of_modules() -> None:
    names = {"items": 5, "v1.2": 4, "a-b": 2}
    relations = (("v1.2", "pop", "items"), ("a-b", "r.r", "items"))
    schema = Schema(
        num_nodes=names, feature_dims=dict.fromkeys(names, 0), relations=relations, targets=("items",)
    )
    model = _model("rsage", schema, batch_norm=True)
    model(_batch(schema)).sum().backward()
    assert list(model.embs) == ["<items>", "v1#2", "a-b"]
    assert list(model.learned) == list(names)
    assert list(model.convs[0]) == ["v1#2__pop__items", "a-b__r#r__items"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "gat"}, "model 'gat' is not known; allowed: rsage, rgcn, rgat"),
        ({"name": "rgat", "hidden": 9}, "hidden is 9, which 2 heads do not divide"),
        ({"name": "rgat", "has_head": False}, "out_dim is 3, which 2 heads do not divide"),
        ({"name": "rgcn", "out_dim": 0}, "out_dim is 0; a model needs at least 1"),
        ({"name": "rgcn", "hidden": 0}, "hidden is 0; a model needs at least 1"),
        ({"name": "rgcn", "num_layers": 0}, "layers is 0; a model needs at least 1"),
        ({"name": "rgcn", "dropout": 1.0}, "dropout is 1.0; allowed: 0 up to"),
    ],
)
def test_settings_that_are_not_allowed_are_named(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        _model(**settings)


def test_types_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="the output names the type 'book'; there are 'paper', 'author'"):
        small_schema(targets=("book",))
    with pytest.raises(ConfigError, match="the model has no target type"):
        small_schema(targets=())
    with pytest.raises(ConfigError, match="a:r:book names the type 'a'; there are 'paper'"):
        small_schema(relations=(("a", "r", "book"),))


def _csc(relation: Relation, pairs: list[tuple[int, int]]) -> CscGraph:
    source, _, destination = relation
    by_destination = sorted(pairs, key=lambda pair: pair[1])
    counts = np.bincount([v for _, v in pairs], minlength=NUM_NODES[destination])
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        indices=np.array([u for u, _ in by_destination], dtype=np.int32),
        num_sources=NUM_NODES[source],
    )


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", HETERO_MODELS)
def test_embeddings_are_of_the_seeds_of_every_target(name: str, num_layers: int) -> None:
    """Of users and items, say, between which links are predicted."""
    schema = small_schema(targets=("author", "paper"))
    model = _model(name, schema, num_layers=num_layers, out_dim=8, has_head=False, batch_norm=True)
    edges, seeds = random_edges(schema, seed=3), {"paper": [4, 0, 2], "author": [3, 1]}
    embedded = model.embed(_batch(schema, edges=edges, seeds=seeds, num_hops=num_layers))
    assert {kind: tuple(rows.shape) for kind, rows in embedded.items()} == {"author": (2, 8), "paper": (3, 8)}
    sum(rows.square().sum() for rows in embedded.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    graph = HeteroGraph(
        num_nodes=NUM_NODES, relations={key: _csc(key, pairs) for key, pairs in edges.items()}
    )
    features = {kind: rows.numpy() for kind, rows in _x(schema).items() if rows.shape[1]}
    expected = dense_rows(model, graph, features, num_layers=num_layers)
    batch = _batch(schema, edges=edges, seeds=seeds, num_hops=num_layers)
    with torch.no_grad():
        embedded = model.eval().embed(batch)
    for kind, rows in embedded.items():
        torch.testing.assert_close(rows.double(), expected[kind][seeds[kind]], rtol=1e-4, atol=1e-5)


def test_rows_of_several_types_are_no_logits() -> None:
    schema = small_schema(targets=("author", "paper"))
    with pytest.raises(ConfigError, match="a head is for one target type, and model 'rsage' has 2: author, "):
        _model("rsage", schema)
    with pytest.raises(ConfigError, match="the model gives rows of 2 types, author, paper: call embed"):
        _model("rgcn", schema)(_batch(schema))


def test_the_wrong_number_of_hops_is_refused() -> None:
    with pytest.raises(ConfigError, match="the batch has 3 hops and the model 2 layers"):
        _model("rgcn")(_batch(num_hops=3))
