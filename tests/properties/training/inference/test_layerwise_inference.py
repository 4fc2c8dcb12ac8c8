"""Layer-wise inference is the forward of the whole graph, whatever the budget and wherever activations live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gloader.config import ModelConfig
from gloader.errors import BudgetError, ConfigError
from gloader.models import CodeColumn, build_model
from gloader.samplers import CscGraph
from gloader.ssd_store import RamFeatures
from gloader.ssd_store.spill.claim import SpillClaim, SpillOwner, remove_dead_spills
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference import placement
from gloader.training.inference.layer_plan import Extent, LayerPlan, plan_inference
from gloader.training.inference.layer_rows import RamRows
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.inference.placement import SCRATCH_PREFIX
from gloader.types import EDGE, NODE, DeviceBlock

N, F, H, C = 60, 5, 8, 3
FE = 3  # features of an edge
PLAIN = ("graphsage", "gcn", "gat", "mlp", "gat with edges", "gine with edges")
NAMES = (*PLAIN, *(f"residual {name}" for name in PLAIN))
# Networks that read learned numbers in place of codes, in the first and last of two columns.
CODED = ("coded graphsage", "coded gat with edges", "coded residual graphsage")
CODES = tuple(
    CodeColumn(name=f"c{column}", column=column, num_values=4, digest="", dim=dim)
    for column, dim in ((1, 2), (F - 1, 5))
)
SMALL_BUDGET = 9_200  # activations go to the disk, and every layer still fits


def _graph(seed: int, num_edges: int, hub_share: float) -> CscGraph:
    rng = np.random.default_rng(seed)
    destinations = np.sort(np.where(rng.random(num_edges) < hub_share, 7, rng.integers(0, N - 3, num_edges)))
    indptr = np.zeros(N + 1, dtype=np.int64)
    np.cumsum(np.bincount(destinations, minlength=N), out=indptr[1:])
    return CscGraph(indptr=indptr, indices=rng.integers(0, N, num_edges).astype(np.int32))


def _whole(graph: CscGraph) -> DeviceBlock:
    """The graph as one block, which is what fan-out -1 gives when every node is a seed."""
    return DeviceBlock(
        indptr=torch.tensor(graph.indptr, dtype=torch.int32),
        indices=torch.tensor(graph.indices),
        edge_ids=torch.arange(graph.num_edges),
        src_degree=torch.tensor(np.diff(graph.indptr)).float(),
        num_src=N,
        num_dst=N,
        edge_x=torch.tensor(_edge_matrix(graph)),
    )


def _edge_matrix(graph: CscGraph) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(size=(graph.num_edges, FE)).astype(np.float32)


def _job(
    name: str, graph: CscGraph, x: NDArray[np.float32], budget: int, device: Gpu | None = None
) -> HeteroInference:
    return HeteroInference.of_one_type(
        graph=graph,
        features=RamFeatures(x),
        memory_budget_bytes=budget,
        device=device,
        edge_features=RamFeatures(_edge_matrix(graph)) if name.endswith("edges") else None,
    )


def _model(name: str, *, add_self_loops: bool, seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        codes, name = CODES if name.startswith("coded") else (), name.removeprefix("coded ")
        is_residual, plain = name.startswith("residual"), name.removeprefix("residual ")
        config = ModelConfig(
            name=plain.split(maxsplit=1)[0],
            hidden=H,
            heads=2,
            batch_norm=not is_residual,
            residual=is_residual,
        )
        model = build_model(
            config,
            in_dim=F,
            out_dim=C,
            num_layers=3,
            add_self_loops=add_self_loops,
            edge_dim=FE if name.endswith("edges") else 0,
            codes=codes,
        )
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)):
        norm.running_mean.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
        norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(seed))
    return model


def _plans(model, budget: int) -> list[LayerPlan]:
    extent = Extent(num_nodes={NODE: N}, relations=(EDGE,), outputs={NODE: N})
    plans = plan_inference(model.layers, extent, budget_bytes=budget)
    return [types[NODE] for types in plans]


class SlabRows(RamRows):
    """Stands in for `SsdRows` where syncing files would only cost time."""

    def __init__(self, folder: Path, *, num_rows: int, num_slabs: int) -> None:
        super().__init__(
            num_rows=num_rows, width=2 * H
        )  # the widest, of residual layers; other layers write fewer columns

    def read(self, start: int, stop: int, out: NDArray[np.float32]) -> None:
        out[:] = self._array[start:stop, : out.shape[1]]


class Gpu(RehearsedDevice):
    """A rehearsed GPU with so much memory."""

    def __init__(self, *, free: int) -> None:
        super().__init__()
        self.free = free

    def free_bytes(self) -> int:
        return self.free


def _check(
    name,
    *,
    graph: CscGraph,
    add_self_loops: bool,
    seed: int,
    budget: int,
    nodes: list[int],
    device: Gpu | None = None,
) -> None:
    model = _model(name, add_self_loops=add_self_loops, seed=seed)
    x = np.random.default_rng(seed).normal(size=(N, F)).astype(np.float32)
    for each in CODES if name.startswith("coded") else ():
        x[:, each.column] = np.random.default_rng(seed).integers(-1, each.num_values, N)
    wanted = np.array(nodes, dtype=np.int64)
    wanted.flags.writeable = False  # as a dataset's splits are
    with torch.no_grad():
        expected = model.eval()(torch.tensor(x), [_whole(graph)] * 3)[nodes]
    model.train()
    job = _job(name, graph, x, budget, device)
    try:
        found = [logits for _, logits in job.logits(model, wanted)]
    except BudgetError:
        assert budget < SMALL_BUDGET
        return
    torch.testing.assert_close(torch.cat([*found, torch.empty(0, C)]), expected, atol=2e-5, rtol=1e-4)
    assert model.training


@pytest.mark.parametrize("name", [*NAMES, *CODED])
@given(
    seed=st.integers(0, 100),
    num_edges=st.sampled_from([0, 1, 50, 600]),
    hub_share=st.sampled_from([0.0, 0.5]),
    add_self_loops=st.booleans(),
    budget=st.sampled_from([4_000, SMALL_BUDGET, 10_000, 13_000, 17_000, 1_000_000]),
    nodes=st.lists(st.integers(0, N - 1), unique=True, max_size=8) | st.just(list(range(N))),
    free=st.sampled_from([*[None] * 6, 20_000, 10_000_000]),  # copies by threads take their time
)
def test_equals_the_forward_of_the_whole_graph(
    name, seed, num_edges, hub_share, add_self_loops, budget, nodes, free
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SsdRows", SlabRows)
        graph = _graph(seed, num_edges, hub_share)
        _check(
            name,
            graph=graph,
            add_self_loops=add_self_loops,
            seed=seed,
            budget=budget,
            nodes=nodes,
            device=None if free is None else Gpu(free=free),
        )


@pytest.mark.parametrize("name", [*NAMES, *CODED])
def test_equals_it_with_activations_on_the_ssd_and_leaves_nothing_there(name, private_tmpdir: Path) -> None:
    graph = _graph(3, 600, 0.5)
    _check(name, graph=graph, add_self_loops=True, seed=3, budget=SMALL_BUDGET, nodes=[7, 0, 59])
    assert list(private_tmpdir.glob("gloader-infer-*")) == []


@pytest.mark.parametrize(
    "name", ["graphsage", "gine with edges", "residual graphsage", "residual gine with edges"]
)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("budget", [SMALL_BUDGET, 1_000_000])
def test_activations_of_a_layer_are_those_of_the_whole_graph_in_any_order(name, num_layers, budget) -> None:
    graph, model = _graph(5, 400, 0.3), _model(name, add_self_loops=True, seed=5)
    x = np.random.default_rng(5).normal(size=(N, F)).astype(np.float32)
    order = np.random.default_rng(6).permutation(N)
    rows = torch.tensor(x)
    model.eval()
    with torch.no_grad():
        for depth, conv in enumerate(model.convs[:num_layers]):
            entered = model.enter(depth, NODE, rows)
            rows = conv(entered, entered, _whole(graph))
        assert torch.equal(model.below(num_layers)(torch.tensor(x), [_whole(graph)] * num_layers), rows)
    model.train()
    job = _job(name, graph, x, budget)
    found = list(job.activations(model, num_layers, NODE, np.arange(N), order=order))
    torch.testing.assert_close(torch.cat([part for _, part in found]), rows[order], atol=2e-5, rtol=1e-4)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [SMALL_BUDGET, 1_000_000])
def test_embeddings_of_all_nodes_are_open_for_reads_in_any_order(name, budget, private_tmpdir: Path) -> None:
    graph, model = _graph(6, 400, 0.3), _model(name, add_self_loops=True, seed=6)
    x = np.random.default_rng(6).normal(size=(N, F)).astype(np.float32)
    with torch.no_grad():
        expected = model.eval()(torch.tensor(x), [_whole(graph)] * 3).numpy()
    model.train()
    job = _job(name, graph, x, budget)
    job.require_memory(model, num_outputs=None)
    with job.embedded(model) as made:
        rows = made[NODE]
        assert (rows.num_rows, rows.width) == (N, C)
        assert len(list(private_tmpdir.glob("gloader-infer-*"))) == (budget == SMALL_BUDGET)
        found = np.empty((N, C), np.float32)
        for start in range(0, N, 7):
            rows.read(start, min(start + 7, N), found[start : start + 7])
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-4)
        wanted = np.array([59, 3, 3, 0])
        taken = np.empty((4, C), np.float32)
        rows.take(wanted, taken)
        np.testing.assert_array_equal(taken, found[wanted])
    assert model.training
    assert torch.is_grad_enabled()
    assert list(private_tmpdir.glob("gloader-infer-*")) == []


class NotedFeatures(RamFeatures):
    """Features that know which rows were read, in order."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        super().__init__(array)
        self.read: list[int] = []

    def read_into(self, rows, out, /, *, at=None):
        self.read += rows.tolist()
        return super().read_into(rows, out, at=at)


@pytest.mark.parametrize("name", NAMES)
def test_features_of_edges_are_read_in_order_once_a_slab_by_layers_that_look_at_them(name) -> None:
    graph, model = _graph(6, 400, 0.3), _model(name, add_self_loops=True, seed=6)
    told = NotedFeatures(_edge_matrix(graph))
    x = RamFeatures(np.zeros((N, F), np.float32))
    budget = 13_000 if name.startswith("gat") else 9_000 if "gat" in name else 5_000
    job = HeteroInference.of_one_type(graph=graph, features=x, memory_budget_bytes=budget, edge_features=told)
    for _ in job.logits(model, np.arange(N)):
        pass
    plans = _plans(model, budget)
    num_slabs = sum(len(plan.slabs) for plan in plans)
    assert num_slabs > len(plans)
    assert told.read == list(range(400)) * num_slabs * name.endswith("edges")


def test_a_network_that_wants_features_of_edges_is_refused_without_them() -> None:
    graph, model = _graph(6, 40, 0.3), _model("gine with edges", add_self_loops=True, seed=6)
    job = _job("gine", graph, np.zeros((N, F), np.float32), SMALL_BUDGET)
    with pytest.raises(ConfigError, match="the network reads 3 features per edge; the graph has 0"):
        next(job.logits(model, np.arange(N)))


def test_features_of_edges_make_pieces_smaller() -> None:
    plain, told = (
        _plans(_model(name, add_self_loops=True, seed=0), 1 << 20) for name in ("gat", "gat with edges")
    )
    assert [plan.slabs for plan in told] == [plan.slabs for plan in plain]
    # 40 bytes of an edge, and beside them 2 times 3 features, and what they add to the scores of 2 heads, twice.
    assert [plan.edges_per_piece for plan in plain] == [(1 << 16) // 40] * 3
    assert [plan.edges_per_piece for plan in told] == [(1 << 16) // (40 + 4 * (2 * FE + 2 * 2))] * 3


def test_the_small_budgets_do_use_slabs_the_disk_and_several_pieces() -> None:
    first, *_ = _plans(_model("graphsage", add_self_loops=True, seed=0), 4_000)
    assert len(first.slabs) > 1
    assert first.is_on_disk
    assert first.edges_per_piece < 100


@pytest.mark.reliability("J12")
def test_activations_on_the_disk_are_claimed_and_those_of_killed_runs_go(tmp_path: Path) -> None:
    dead = SpillClaim(tmp_path, prefix=SCRATCH_PREFIX)
    owner = replace(SpillOwner.this_process(), pid=2**22 + 1)
    (dead.path / "owner.json").write_text(owner.to_json())
    (dead.path / "layer-0").mkdir()
    dead.release()
    (tmp_path / "gloader-infer-theirs").mkdir()
    graph, model = _graph(0, 300, 0.2), _model("gcn", add_self_loops=True, seed=0)
    job = HeteroInference.of_one_type(
        graph=graph,
        features=RamFeatures(np.zeros((N, F), np.float32)),
        memory_budget_bytes=SMALL_BUDGET,
        scratch=tmp_path,
    )
    logits = job.logits(model, np.arange(N))
    next(logits)
    (folder,) = set(tmp_path.iterdir()) - {tmp_path / "gloader-infer-theirs"}
    assert folder != dead.path
    assert (folder / "owner.json").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert remove_dead_spills(tmp_path) == []
    logits.close()
    assert [path.name for path in tmp_path.iterdir()] == ["gloader-infer-theirs"]
