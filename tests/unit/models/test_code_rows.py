"""A network reads learned numbers where its features have codes: the rows of one-hot columns times a table."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from typed_batches import full_batch, random_edges, small_schema

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import CodeColumn, GraphNetwork, build_hetero_model, build_model, code_dim
from gloader.types import DeviceBlock

N, F, C = 12, 5, 3
CODES = (
    CodeColumn(name="city", column=1, num_values=6, digest="", dim=4),
    CodeColumn(name="job", column=2, num_values=3, digest="", dim=2),
)
WIDE = F + 4  # of a row in which learned numbers have replaced the codes


def _block() -> DeviceBlock:
    """A ring with another edge into each node from the node three behind."""
    indptr = torch.arange(0, 2 * N + 1, 2, dtype=torch.int32)
    sources = torch.stack([(torch.arange(N) + 1) % N, (torch.arange(N) - 3) % N], dim=1).flatten()
    return DeviceBlock(
        indptr=indptr,
        indices=sources.int(),
        edge_ids=torch.arange(2 * N),
        src_degree=torch.full((N,), 2.0),
        num_src=N,
        num_dst=N,
    )


def _features() -> torch.Tensor:
    """Rows with all codes, unseen values among them."""
    x = torch.randn(N, F, generator=torch.Generator().manual_seed(3))
    for each in CODES:
        x[:, each.column] = torch.arange(N) % (each.num_values + 1) - 1
    return x


def _build(name: str, *, in_dim: int = F, codes: tuple[CodeColumn, ...] = CODES) -> GraphNetwork:
    config = ModelConfig(
        name=name.rsplit(maxsplit=1)[-1],  # type: ignore[arg-type]
        hidden=8,
        heads=2,
        dropout=0.0,
        residual=name.startswith("residual"),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model(config, in_dim=in_dim, out_dim=C, num_layers=2, codes=codes)


def _replaced(x: torch.Tensor, tables: list[torch.Tensor]) -> torch.Tensor:
    """Return rows in which one-hot columns times a table stand for the codes."""
    hot = [
        functional.one_hot(x[:, each.column].long() + 1, each.num_values + 1).float() @ table
        for each, table in zip(CODES, tables, strict=True)
    ]
    return torch.cat([x[:, :1], *hot, x[:, 3:]], dim=1)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp", "residual graphsage", "residual gat"])
def test_outputs_and_gradients_are_those_of_one_hot_columns_times_a_table(name) -> None:
    network, plain = _build(name), _build(name, in_dim=WIDE, codes=())
    weights = network.state_dict()
    tables = [weights.pop(f"codes.node.{each.column}").clone().requires_grad_() for each in CODES]
    plain.load_state_dict(weights)
    x, blocks = _features(), [_block()] * 2
    found, expected = network(x, blocks), plain(_replaced(x, tables), blocks)
    torch.testing.assert_close(found, expected)
    for output in (found, expected):
        output.square().sum().backward()
    gradients = dict(network.named_parameters())
    for each, table in zip(CODES, tables, strict=True):
        torch.testing.assert_close(gradients[f"codes.node.{each.column}"].grad, table.grad)
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[key].grad, parameter.grad)


@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_types_have_tables_of_their_own_and_get_gradients(name) -> None:
    codes = {"paper": CODES, "author": CODES[:1], "field": ()}
    schema = small_schema(codes=codes)
    config = ModelConfig(name=name, hidden=8, heads=2, dropout=0.0)
    network = build_hetero_model(config, schema, out_dim=C, num_layers=2)
    x = {name: torch.zeros(schema.num_nodes[name], dim) for name, dim in schema.feature_dims.items()}
    edges = random_edges(schema, seed=3)
    batch = full_batch(schema, edges, (4, 0, 2), num_hops=2, x=x)
    before = network(batch)
    before.sum().backward()
    names = {key for key, _ in network.named_parameters() if key.startswith("codes.")}
    assert names == {"codes.paper.1", "codes.paper.2", "codes.author.1"}
    for key in names:
        grad = network.get_parameter(key).grad
        assert not grad.is_sparse
        assert grad.abs().sum(dim=1).nonzero().flatten().tolist() == [1]  # code 0 of every row
    # Without authors in a batch, their table still has a gradient, as the average over ranks requires.
    network.zero_grad()
    network(full_batch(schema, {key: [] for key in edges}, (4,), num_hops=2, x=x)).sum().backward()
    assert all(network.get_parameter(key).grad is not None for key in names)
    with torch.no_grad():
        network.get_parameter("codes.paper.1")[3] += 1
        torch.testing.assert_close(network(batch), before)
        x["paper"][:, 1] = 2
        assert not torch.allclose(network(full_batch(schema, edges, (4, 0, 2), num_hops=2, x=x)), before)


def test_a_type_that_does_not_reach_the_output_has_no_table() -> None:
    schema = small_schema(relations=(("paper", "cites", "paper"),), codes={"author": CODES[:1]})
    network = build_hetero_model(ModelConfig(name="rgcn", hidden=8), schema, out_dim=C, num_layers=2)
    assert not [key for key in network.state_dict() if key.startswith("codes")]


def test_the_row_of_unseen_values_begins_with_zeros_and_others_with_length_one() -> None:
    code = CodeColumn(name="city", column=0, num_values=5000, digest="", dim=50)
    table = _build("mlp", codes=(code,)).get_parameter("codes.node.0")
    assert not table[0].any()
    lengths = table[1:].norm(dim=1)
    assert lengths.mean().item() == pytest.approx(1, abs=0.02)
    assert lengths.min() > 0.5


def test_a_network_without_codes_draws_the_weights_of_before() -> None:
    weights = _build("graphsage", codes=()).state_dict()
    assert not [key for key in weights if key.startswith("codes")]
    coded = _build(
        "graphsage", in_dim=F - 1, codes=(CodeColumn(name="a", column=0, num_values=9, digest="", dim=2),)
    )
    for key, value in weights.items():
        assert torch.equal(coded.state_dict()[key], value)


@pytest.mark.parametrize(
    ("bad", "seen"), [(6, "6"), (-2, "-2"), (0.5, "0.5"), (float("nan"), "nan"), (1e30, "1.00000002e\\+30")]
)
def test_a_code_without_a_row_is_refused_with_row_and_column(bad, seen) -> None:
    x = _features()
    x[7, 1] = bad
    with pytest.raises(
        ConfigError,
        match=rf"row 7 has {seen} in feature column 1, and the network has learned numbers for the 6 values of 'city': "
        r"whole numbers from -1 to 5. The features belong to another dataset",
    ):
        _build("graphsage")(x, [_block()] * 2)


@pytest.mark.parametrize(
    ("num_values", "hidden", "width"),
    [(1, 256, 2), (1, 1, 1), (18, 256, 8), (100, 256, 21), (1000, 256, 77), (12_000, 256, 256)],
)
def test_the_width_grows_with_the_values_up_to_that_of_hidden_rows(num_values, hidden, width) -> None:
    assert code_dim(num_values, hidden) == width
