from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from typed_batches import small_schema

from gloader.config import HOP_MODELS, ModelConfig
from gloader.models import CodeColumn
from gloader.training import step_memory
from gloader.training.model_spec import HeteroModelSpec, LinkSpec, ModelSpec
from gloader.training.objectives import LINK_OBJECTIVES
from gloader.training.step_memory import LiveBytes, largest, parameter_bytes, step_bytes, with_blank_rows
from gloader.types import (
    BatchId,
    Block,
    HeteroBatch,
    HeteroReadyBatch,
    LinkBatch,
    Links,
    ReadyBatch,
    SampledBatch,
)

SHAPES = [(9000, 3000, 12_000), (3000, 400, 4000)]
SEEDS_ALONE = [(9000, 9000, 0)]
NO_COMPILER = """
import sys, torch
from gloader.training.train_step import Adam
from gloader.training.step_memory import LiveBytes
with LiveBytes():
    torch.ones(3).diff()
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = Adam([parameter], lr=0.1, weight_decay=0.0, decoupled=False)
parameter.sum().backward()
optimizer.step()
sys.exit("torch._dynamo" in sys.modules)
"""


def _batch(shapes=SHAPES) -> SampledBatch:
    blocks = tuple(
        Block(
            indptr=(np.arange(dst + 1) * edges // dst).astype(np.int32),
            indices=(np.arange(edges) % src).astype(np.int32),
            edge_ids=np.arange(edges),
            num_src=src,
            num_dst=dst,
        )
        for src, dst, edges in shapes
    )
    return SampledBatch(
        id=BatchId(epoch=0, index=0), nodes=np.arange(shapes[0][0]), num_seeds=shapes[-1][1], blocks=blocks
    )


def _spec(name, in_dim, hidden=32, edge_dim=0) -> ModelSpec:
    is_residual = name.startswith("residual")
    config = ModelConfig(name=name.split()[-1], hidden=hidden, batch_norm=name == "gcn", residual=is_residual)
    return ModelSpec(
        config=config,
        in_dim=in_dim,
        out_dim=7,
        num_layers=len(SHAPES) if config.name not in HOP_MODELS else 1,
        add_self_loops=True,
        edge_dim=edge_dim,
        groups=(("x", 0, in_dim // 2), ("in1.mean", in_dim // 2, in_dim))
        if config.name in HOP_MODELS
        else (),
    )


@pytest.mark.parametrize(
    ("name", "edge_dim"),
    [
        *[("graphsage", 0), ("gcn", 0), ("gat", 0), ("mlp", 0), ("gat", 16), ("gine", 16), ("gine", 100)],
        *[("residual graphsage", 0), ("residual gat", 16), ("sign", 0), ("sgc", 0)],
    ],
)
@pytest.mark.parametrize("in_dim", [64, 200])
@pytest.mark.parametrize("autocast", ["none", "bf16"])
def test_a_small_step_tells_what_the_whole_one_takes(name, edge_dim, in_dim, autocast, monkeypatch) -> None:
    batch, spec = (
        _batch(SEEDS_ALONE if name in HOP_MODELS else SHAPES),
        _spec(name, in_dim, edge_dim=edge_dim),
    )
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 200_000)
    predicted = step_bytes(spec, batch, autocast=autocast)
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 1 << 40)
    whole = step_bytes(spec, batch, autocast=autocast)
    assert whole <= predicted <= 1.2 * whole + 4 * parameter_bytes(spec)


def test_a_step_is_made_small_by_the_rows_that_its_first_layer_makes(monkeypatch) -> None:
    """Features of 4 columns, and 256 columns in every residual row: measured whole, the step would take its memory."""
    measured = []
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 200_000)
    monkeypatch.setattr(step_memory, "_measure", lambda *_, shrunk: measured.append(shrunk) or 1)
    monkeypatch.setattr(step_memory, "_WEIGHTS_PER_SAMPLE", 0)
    for name in ("graphsage", "residual graphsage"):
        step_bytes(_spec(name, 4, hidden=256), _batch())
    step_bytes(replace(_spec("graphsage", 4), codes=_codes(9, dim=300)), _batch())
    step_bytes(_spec("sign", 4, hidden=256), _batch(SEEDS_ALONE))
    rows = SHAPES[0][0]
    assert measured == [1, *(4 * width * rows // 200_000 for width in (256, 303, 2 * 256))]


@pytest.mark.parametrize("num_pairs", [600, 60_000])
@pytest.mark.parametrize(("decoder", "learns"), [("dot", "pairs"), ("mlp", "pairs"), ("mlp", "classes")])
def test_a_small_step_of_links_tells_what_the_whole_one_takes(
    decoder, learns, num_pairs, monkeypatch
) -> None:
    links = Links(
        pairs=np.zeros((num_pairs, 2), np.int32),
        labels=np.zeros(num_pairs, np.float32),
        edge_ids=np.zeros(num_pairs, np.int64),
        num_positives=num_pairs // 2,
    )
    batch, encoder = replace(_batch(), links=links), replace(_spec("graphsage", 64), out_dim=32)
    spec = LinkSpec(
        encoder=encoder,
        ends=("node", "node"),
        decoder=decoder,
        decoder_layers=3,
        learns=learns,
        num_outputs=1 if learns == "pairs" else 3,
    )
    objective = LINK_OBJECTIVES[learns]
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 200_000)
    predicted = step_bytes(spec, batch, objective=objective)
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 1 << 40)
    whole = step_bytes(spec, batch, objective=objective)
    assert whole <= 1.01 * predicted
    assert predicted <= 1.2 * whole + 4 * parameter_bytes(spec)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
def test_a_step_in_bf16_takes_less(name) -> None:
    spec, batch = _spec(name, 64, hidden=64), _batch()
    assert step_bytes(spec, batch, autocast="bf16") < step_bytes(spec, batch)


def test_no_random_number_of_the_caller_is_drawn() -> None:
    before = torch.random.get_rng_state()
    step_bytes(_spec("graphsage", 16), _batch())
    assert torch.equal(torch.random.get_rng_state(), before)


WIDE = small_schema(
    num_nodes={"paper": 9000, "author": 5000, "field": 3000},
    feature_dims={"paper": 200, "author": 100, "field": 0},
)


def _hetero_batch() -> HeteroBatch:
    """Two hops; all types grow outwards."""
    counts = [
        {"paper": 400, "author": 0, "field": 0},
        {"paper": 2500, "author": 700, "field": 100},
        {"paper": 9000, "author": 3000, "field": 1000},
    ]
    hops = []
    for dst, src in itertools.pairwise(counts):
        hops.append(
            {
                relation: Block(
                    indptr=(np.arange(dst[relation[2]] + 1) * 8).astype(np.int32),
                    indices=(np.arange(dst[relation[2]] * 8) % src[relation[0]]).astype(np.int32),
                    edge_ids=np.arange(dst[relation[2]] * 8),
                    num_src=src[relation[0]],
                    num_dst=dst[relation[2]],
                )
                for relation in WIDE.relations
            }
        )
    return HeteroBatch(
        id=BatchId(epoch=0, index=0),
        nodes={name: np.arange(count) for name, count in counts[-1].items()},
        num_seeds=counts[0],
        blocks=tuple(reversed(hops)),
    )


@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_a_small_step_over_several_types_tells_what_the_whole_one_takes(name, monkeypatch) -> None:
    batch = _hetero_batch()
    spec = HeteroModelSpec(config=ModelConfig(name=name, hidden=32), schema=WIDE, out_dim=7, num_layers=2)
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 1_000_000)
    predicted = step_bytes(spec, batch)
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 1 << 40)
    whole = step_bytes(spec, batch)
    assert whole <= 1.01 * predicted
    assert predicted <= 1.2 * whole + 4 * parameter_bytes(spec)


def test_tables_of_learned_rows_count_as_weights_and_not_as_a_step() -> None:
    """A step over the same batch takes no more where a table has a million rows, and the table is not made."""
    small = HeteroModelSpec(config=ModelConfig(name="rgcn", hidden=16), schema=WIDE, out_dim=7, num_layers=2)
    million = {**WIDE.num_nodes, "field": 1_000_000}
    large = replace(small, schema=replace(WIDE, num_nodes=million))
    assert parameter_bytes(large) - parameter_bytes(small) == 4 * 16 * (1_000_000 - 3000)
    assert step_bytes(large, _hetero_batch()) == step_bytes(small, _hetero_batch())


def _codes(num_values: int, dim: int = 100) -> tuple[CodeColumn, ...]:
    return (CodeColumn(name="city", column=0, num_values=num_values, digest="", dim=dim),)


@pytest.mark.parametrize("name", ["graphsage", "residual gat"])
def test_a_small_step_tells_what_the_whole_one_with_learned_numbers_takes(name, monkeypatch) -> None:
    batch, spec = _batch(), replace(_spec(name, 2), codes=_codes(3000))
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 200_000)
    predicted = step_bytes(spec, batch)
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", 1 << 40)
    # The whole step, with its table: that of one value would be too small.
    monkeypatch.setattr(ModelSpec, "with_one_value", lambda spec: spec)
    whole = step_bytes(spec, batch)
    assert whole <= 1.01 * predicted
    assert predicted <= 1.2 * whole + 4 * parameter_bytes(_spec(name, 102))


def test_a_table_of_learned_numbers_is_counted_once_in_a_step_and_not_made() -> None:
    small, large = (replace(_spec("graphsage", 9), codes=_codes(count)) for count in (1000, 10**7))
    more = 4 * 100 * (10**7 - 1000)
    assert parameter_bytes(large) - parameter_bytes(small) == more
    assert step_bytes(large, _batch()) - step_bytes(small, _batch()) == more  # its gradient
    of_types = [
        HeteroModelSpec(
            config=ModelConfig(name="rgcn", hidden=16),
            schema=replace(WIDE, codes={"author": _codes(count)}),
            out_dim=7,
            num_layers=2,
        )
        for count in (1000, 10**7)
    ]
    bytes_of = [step_bytes(spec, _hetero_batch()) for spec in of_types]
    assert bytes_of[1] - bytes_of[0] == more


@pytest.mark.parametrize("name", ["graphsage", "gat"])
def test_a_step_with_an_embedding_takes_the_gradients_of_its_columns_too(name, monkeypatch) -> None:
    plain = _spec(name, 48)
    spec = replace(plain, embed_dim=16)
    whole, small = (_bytes_with(spec, sample, monkeypatch) for sample in (1 << 30, 2 << 20))
    assert whole == pytest.approx(small, rel=0.15)
    # The features need no gradient, and a row of a batch with an embedding has one for all of its columns at most.
    more = whole - _bytes_with(plain, 1 << 30, monkeypatch)
    assert 0 <= more <= 2 * 4 * 48 * SHAPES[0][0]


def _bytes_with(spec, sample_bytes, monkeypatch) -> int:
    monkeypatch.setattr(step_memory, "_SAMPLE_BYTES", sample_bytes)
    return step_bytes(spec, _batch())


def test_blank_rows_stand_behind_the_features_and_have_a_gradient() -> None:
    x = torch.ones(3, 2)
    batch = HeteroReadyBatch(
        id=BatchId(epoch=0, index=0),
        x={"a": x, "b": torch.ones(2, 0)},
        y=torch.zeros(1, dtype=torch.int64),
        blocks=(),
        nodes={},
        num_seeds={},
    )
    schema = replace(small_schema(), embedded={"b": 4})
    wide = with_blank_rows(batch, schema)
    assert wide.x["a"] is x
    assert (tuple(wide.x["b"].shape), wide.x["b"].requires_grad) == ((2, 4), True)
    links = LinkBatch(batch=batch, pairs=x, labels=x, edge_ids=np.arange(1), num_positives=1)
    assert with_blank_rows(links, schema).batch.x["b"].shape == (2, 4)
    assert with_blank_rows(batch, small_schema()) is batch
    one = ReadyBatch(id=batch.id, x=x, y=batch.y, blocks=(), nodes=np.arange(3), num_seeds=1)
    wide = with_blank_rows(one, replace(_spec("gcn", 6), embed_dim=4).schema)
    assert (tuple(wide.x.shape), wide.x[:, :2].tolist()) == ((3, 6), x.tolist())


def test_the_largest_batch_has_the_most_nodes_and_edges() -> None:
    small, large = _batch([(50, 10, 40)]), _batch([(50, 10, 60)])
    assert largest([small, large, small]) is large
    assert largest([]) is None


def test_weights_are_counted_without_being_made() -> None:
    model = _spec("graphsage", 64).build()
    assert parameter_bytes(_spec("graphsage", 64)) == sum(4 * p.numel() for p in model.parameters())


def test_counting_and_a_step_do_not_import_the_compiler_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], timeout=60, check=False)
    assert done.returncode == 0


KILO = 250  # floats of 1000 bytes


def test_the_peak_is_what_is_alive_at_once() -> None:
    with LiveBytes() as live:
        first = torch.zeros(3 * KILO)
        del first
        second = torch.zeros(2 * KILO)
        third = second + 1
        del second, third
    assert live.peak_bytes == 4000


def test_views_and_known_tensors_do_not_count() -> None:
    known = torch.ones(KILO)
    with LiveBytes([known]) as live:
        result = known.view(-1, 2).t()
        assert result.shape == (2, KILO // 2)
    assert live.peak_bytes == 0


def test_what_autograd_saves_counts_until_it_is_used() -> None:
    weight = torch.ones(KILO, requires_grad=True)
    with LiveBytes([weight]) as live:
        total = (weight.exp() * 2).exp().sum()
        held = live.peak_bytes
        total.backward()
    assert held >= 2000
    assert live.peak_bytes > held
