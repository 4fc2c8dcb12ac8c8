"""Messages over a block are what DGL makes of them, and so is everything that a block says of itself."""

import pytest
import torch
from block_pairs import block_pair, dgl, pair_graphs, random_hop, typed_pair

import gloader.compat.dgl as ours
from gloader.bridges.migrate.advice import SURFACE
from gloader.errors import ConfigError, DglFeatureError, ShapeError

HOP = random_hop(30, 12, 18)
SHAPES = [(), (4,), (1,), (3, 4), (3, 1)]
MESSAGES = sorted(SURFACE["dgl.function"] - {"sum", "mean", "max", "min"})


def columns(hop, shape):
    """Return a column of each end with rows of ``shape``, away from 0."""
    generator = torch.Generator().manual_seed(5)
    sizes = {"u": hop.num_src, "v": hop.num_dst, "e": len(hop.indices)}
    return {end: torch.rand(size, *shape, generator=generator) + 0.5 for end, size in sizes.items()}


def fill(graph, named):
    """Write columns to a block, which ask for gradients; return them."""
    own = {end: column.clone().requires_grad_() for end, column in named.items()}
    graph.srcdata["x"], graph.dstdata["x"], graph.edata["x"] = own["u"], own["v"], own["e"]
    return own


def message_of(library, name, out="m"):
    return getattr(library.function, name)(*["x"] * (1 if name.startswith("copy") else 2), out)


@pytest.mark.parametrize("name", MESSAGES)
def test_each_message_is_that_of_dgl(name):
    pair = block_pair(HOP)
    for shape in ((), (4,), (3, 4)):
        for library, graph in ((ours, pair.ours), (dgl, pair.theirs)):
            fill(graph, columns(HOP, shape))
            graph.apply_edges(message_of(library, name))
        torch.testing.assert_close(pair.ours.edata["m"], pair.theirs.edata["m"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", ["copy_u", "copy_e", "u_mul_e", "e_mul_u", "u_add_v", "u_dot_v"])
def test_sums_and_their_gradients_are_those_of_dgl(name, op):
    for shape in ((), (4,), (3, 4)):
        found = []
        for library, graph in zip((ours, dgl), (block_pair(HOP).ours, block_pair(HOP).theirs), strict=True):
            own = fill(graph, columns(HOP, shape))
            graph.update_all(message_of(library, name), getattr(library.function, op)("m", "out"))
            result = graph.dstdata["out"]
            (result * torch.arange(result.numel()).view_as(result).cos()).sum().backward()
            grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in own.values()]
            found.append([result, *grads])
        for each, wanted in zip(*found, strict=True):
            torch.testing.assert_close(each, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("right", SHAPES)
@pytest.mark.parametrize("left", SHAPES)
def test_rows_of_different_shapes_are_aligned_as_by_dgl(left, right):
    rows, weight = columns(HOP, left)["u"], columns(HOP, right)["e"]
    results = []
    for library, graph in zip((ours, dgl), (block_pair(HOP).ours, block_pair(HOP).theirs), strict=True):
        graph.srcdata["x"], graph.edata["w"] = rows, weight
        graph.update_all(library.function.u_mul_e("x", "w", "m"), library.function.sum("m", "out"))
        results.append(graph.dstdata["out"])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.reliability("S9")
@pytest.mark.filterwarnings("ignore:grad and param do not obey")  # of torch, of gradients without rows
@pytest.mark.parametrize("ends", [(0, 0), (0, 4), (5, 0), (5, 3)])
def test_a_block_without_edges_gives_zeros(ends):
    hop = random_hop(*ends, 0)
    for name in MESSAGES:
        for shape in SHAPES:
            block = block_pair(hop).ours
            fill(block, columns(hop, shape))
            # DGL drops the last dimension of a product of rows, and keeps 1 of it.
            shape_out = (*shape[:-1], 1) if "dot" in name and shape else shape
            for op in ("sum", "mean", "max", "min"):
                block.update_all(message_of(ours, name), getattr(ours.function, op)("m", op))
                assert torch.equal(block.dstdata[op], torch.zeros(hop.num_dst, *shape_out)), (name, shape, op)
                block.dstdata[op].sum().backward()
            scores = torch.rand(0, *shape, requires_grad=True)
            ours.nn.functional.edge_softmax(block, scores).sum().backward()
            assert scores.grad.shape == scores.shape


def test_whole_numbers_are_added_up_too():
    block = block_pair(HOP).ours
    block.edata["n"] = torch.ones(18)
    block.update_all(ours.function.copy_e("n", "m"), ours.function.sum("m", "degree"))
    assert torch.equal(block.dstdata["degree"].long(), block.in_degrees())


def test_a_function_of_edges_sees_both_ends():
    pair = block_pair(HOP)
    named = columns(HOP, (4,))
    for graph in (pair.ours, pair.theirs):
        fill(graph, named)
        graph.apply_edges(lambda edges: {"m": edges.src["x"] + 2 * edges.dst["x"] + 3 * edges.data["x"]})
    torch.testing.assert_close(pair.ours.edata["m"], pair.theirs.edata["m"])

    def messages(edges):
        assert len(edges) == edges.batch_size() == 18
        src, dst, number = edges.edges()
        assert torch.equal(edges.src["x"], named["u"][src])
        assert torch.equal(number, torch.arange(18))
        return {"m": edges.dst["x"] * dst.view(-1, 1)}

    for library, graph in ((ours, pair.ours), (dgl, pair.theirs)):
        total = library.function.sum("m", "out")
        graph.update_all(messages, total, lambda nodes: {"twice": 2 * nodes.data["out"]})
    torch.testing.assert_close(pair.ours.dstdata["twice"], pair.theirs.dstdata["twice"])


def test_the_softmax_over_in_edges_is_that_of_dgl():
    pair = block_pair(HOP)
    scores = torch.randn(18, 3, 1, generator=torch.Generator().manual_seed(1))
    wanted = dgl.nn.functional.edge_softmax(pair.theirs, scores)
    for softmax in (ours.nn.functional.edge_softmax, ours.ops.edge_softmax, ours.nn.edge_softmax):
        torch.testing.assert_close(softmax(pair.ours, scores), wanted)
    with pytest.raises(DglFeatureError, match="over all in-edges of each destination"):
        ours.ops.edge_softmax(pair.ours, scores, norm_by="src")
    rows = torch.arange(60.0).view(30, 2)
    for found, theirs in zip(
        ours.utils.expand_as_pair(rows, pair.ours), dgl.utils.expand_as_pair(rows, pair.theirs), strict=True
    ):
        assert torch.equal(found, theirs)
    assert ours.utils.expand_as_pair(5) == (5, 5)


def test_what_is_written_in_a_local_scope_is_forgotten():
    block = block_pair(HOP).ours
    block.srcdata["x"] = torch.zeros(30, 2)
    with pytest.raises(RuntimeError, match="in the block"), block.local_scope():
        block.srcdata["x"] = torch.ones(30, 2)
        block.dstdata["y"] = torch.ones(12, 2)
        block.edata["z"] = torch.ones(18)
        raise RuntimeError("in the block")
    assert torch.equal(block.srcdata["x"], torch.zeros(30, 2))
    assert "y" not in block.dstdata
    assert "z" not in block.edata


def test_a_block_says_of_itself_what_dgls_says():
    pair = block_pair(HOP)
    for name in (
        "num_src_nodes",
        "num_dst_nodes",
        "number_of_src_nodes",
        "number_of_dst_nodes",
        "num_nodes",
        "num_edges",
    ):
        assert getattr(pair.ours, name)() == getattr(pair.theirs, name)(), name
    for name in (
        "ntypes",
        "srctypes",
        "dsttypes",
        "etypes",
        "canonical_etypes",
        "is_block",
        "idtype",
        "device",
    ):
        assert getattr(pair.ours, name) == getattr(pair.theirs, name), name
    for name in ("in_degrees", "out_degrees"):
        assert torch.equal(getattr(pair.ours, name)(), getattr(pair.theirs, name)())
        assert torch.equal(getattr(pair.ours, name)([1, 3]), getattr(pair.theirs, name)([1, 3]))
    for form in ("uv", "all"):
        for found, wanted in zip(
            pair.ours.edges(form=form), pair.theirs.edges(form=form, order="eid"), strict=True
        ):
            assert torch.equal(found, wanted)
    assert torch.equal(pair.ours.srcnodes(), pair.theirs.srcnodes())
    assert torch.equal(pair.ours.dstnodes(), pair.theirs.dstnodes())
    assert pair.ours.int() is pair.ours.long() is pair.ours.to("cpu") is pair.ours
    assert "edges={('_N', '_E', '_N'): 18}" in repr(pair.ours)


def test_pairs_of_nodes_are_a_graph_whose_edges_keep_their_order():
    src, dst = torch.tensor([3, 0, 3, 1]), torch.tensor([2, 1, 0, 1])
    pair = pair_graphs(src, dst, 4)
    rows = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
    results = []
    for library, graph in ((ours, pair.ours), (dgl, pair.theirs)):
        with graph.local_scope():
            graph.ndata["h"] = rows
            graph.apply_edges(library.function.u_dot_v("h", "h", "score"))
            graph.update_all(library.function.copy_u("h", "m"), library.function.mean("m", "h2"))
            graph.update_all(library.function.copy_e("score", "m"), library.function.sum("m", "total"))
            results.append((graph.edata["score"], graph.ndata["h2"], graph.ndata["total"]))
        assert "h" not in graph.ndata
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(pair.ours.edges(), pair.theirs.edges(), strict=True):
        assert torch.equal(found, wanted)
    assert pair.ours.num_nodes() == 4
    assert not pair.ours.is_block


def test_a_block_of_several_types_has_data_by_type():
    num_src, num_dst = {"a": 20, "b": 9}, {"a": 8, "b": 3}
    hops = {("a", "writes", "b"): random_hop(20, 3, 25), ("b", "made_by", "a"): random_hop(9, 8, 11, seed=2)}
    pair = typed_pair(hops, num_src, num_dst)
    assert set(pair.ours.canonical_etypes) == set(pair.theirs.canonical_etypes)
    for graph in (pair.ours, pair.theirs):
        graph.srcdata["h"] = {name: torch.arange(2.0 * size).view(size, 2) for name, size in num_src.items()}
        assert sorted(graph.srcdata["h"]) == ["a", "b"]
        assert graph.num_src_nodes("a") == 20
        assert graph.num_dst_nodes("b") == 3
        assert graph.num_edges("made_by") == 11
        assert graph["writes"].num_edges() == 25
        graph.edges["made_by"].data["w"] = torch.arange(11.0)
        assert graph.srcnodes["b"].data["h"].shape == (9, 2)
    pair.ours.update_all(ours.function.u_mul_e("h", "w", "m"), ours.function.sum("m", "o"), etype="made_by")
    pair.theirs.update_all(dgl.function.u_mul_e("h", "w", "m"), dgl.function.sum("m", "o"), etype="made_by")
    torch.testing.assert_close(pair.ours.dstnodes["a"].data["o"], pair.theirs.dstnodes["a"].data["o"])
    assert list(pair.ours.dstdata["o"]) == ["a"]
    with pytest.raises(ConfigError, match="there are 2 types or relations: name one of"):
        pair.ours.in_degrees()
    with pytest.raises(ConfigError, match="'reads' is no relation: there are"):
        pair.ours.num_edges("reads")


def test_what_cannot_be_is_refused_in_words():
    block = block_pair(HOP).ours
    with pytest.raises(ShapeError, match="'x' has 4 rows; 30 are needed"):
        block.srcdata["x"] = torch.ones(4)
    with pytest.raises(KeyError, match=r"h: the columns are '_ID'"):
        block.edata["h"]
    with pytest.raises(DglFeatureError, match=r"\(nodes.mailbox\): give a reduction by name"):
        block.update_all(ours.function.copy_u("x", "m"), lambda nodes: {"y": nodes.mailbox["m"].sum(1)})
    with pytest.raises(
        DglFeatureError, match=r"DGLBlock.ndata: the nodes of a block are sources or destinations"
    ):
        block.ndata  # noqa: B018
    with pytest.raises(DglFeatureError, match=r"DGLBlock.adj"):
        block.adj()
    assert not hasattr(block, "_batch_num_nodes")
