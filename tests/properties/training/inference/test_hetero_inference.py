"""Layer-wise inference of several types is the forward of the whole graph, whatever the budget and the relations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_forward import dense_logits, dense_rows
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import DeviceCachePlan
from gloader.config import ModelConfig
from gloader.device import DeviceTier, RowFormat, StaticCache
from gloader.errors import BudgetError, ConfigError
from gloader.models import CodeColumn, HeteroNetwork, Schema, build_hetero_model
from gloader.samplers import CscGraph
from gloader.samplers.graph import HeldScan, HeteroGraph
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference import placement
from gloader.training.inference.layer_plan import Extent, plan_inference
from gloader.training.inference.layer_rows import RamRows
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.inference.placement import OutputRoom
from gloader.types import Relation

H = 8
# Activations go to the disk, and every layer still fits.
SMALL_BUDGETS = {"rsage": 9_000, "rgcn": 9_000, "rgat": 12_000}
SIZES = {"paper": 60, "author": 45, "institute": 7, "field": 11, "nobody": 0}
DIMS = {"paper": 5, "institute": 3, "field": 4, "nobody": 2}
RELATIONS: tuple[Relation, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("institute", "employs", "author"),
    ("paper", "has", "field"),  # leads nowhere
    ("nobody", "reads", "paper"),
    ("paper", "extends", "paper"),
)
NAMES = ("rsage", "rgcn", "rgat")
# A paper's last feature and a field's first one may be codes.
CODES = {
    "paper": (CodeColumn(name="venue", column=4, num_values=9, digest="", dim=6),),
    "field": (CodeColumn(name="level", column=0, num_values=3, digest="", dim=2),),
}


class Gpu(RehearsedDevice):
    """A rehearsed GPU with so much memory."""

    def __init__(self, *, free: int) -> None:
        super().__init__()
        self.free = free

    def free_bytes(self) -> int:
        return self.free


class SlabRows(RamRows):
    """Stands in for `SsdRows` where syncing files would only cost time."""

    def __init__(self, folder: Path, *, num_rows: int, num_slabs: int) -> None:
        super().__init__(num_rows=num_rows, width=H)  # the widest; the logits are fewer columns

    def read(self, start: int, stop: int, out: np.ndarray) -> None:
        out[:] = self._array[start:stop, : out.shape[1]]


def relation_graph(random: np.random.Generator, relation: Relation, num_edges: int) -> CscGraph:
    """A relation with a hub, and nodes without edges."""
    sources, destinations = SIZES[relation[0]], SIZES[relation[2]]
    num_edges = num_edges if sources and destinations else 0
    hub = random.random(num_edges) < 0.4
    ends = np.sort(np.where(hub, 3, random.integers(0, max(1, destinations - 2), num_edges)))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=destinations))]).astype(np.int64)
    indices = random.integers(0, max(1, sources), num_edges).astype(np.int32)
    return CscGraph(indptr=indptr, indices=indices, num_sources=sources)


def typed_graph(seed: int, num_edges: Mapping[Relation, int] | int) -> HeteroGraph:
    random = np.random.default_rng(seed)
    counts = dict.fromkeys(RELATIONS, num_edges) if isinstance(num_edges, int) else num_edges
    return HeteroGraph(
        num_nodes=SIZES, relations={key: relation_graph(random, key, counts[key]) for key in RELATIONS}
    )


def matrices(seed: int, codes: Mapping[str, tuple[CodeColumn, ...]] | None = None) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = {name: random.normal(size=(SIZES[name], dim)).astype(np.float32) for name, dim in DIMS.items()}
    for name, columns in (codes or {}).items():
        for each in columns:
            x[name][:, each.column] = random.integers(-1, each.num_values, SIZES[name])
    return x


def typed_network(
    name: str,
    seed: int = 0,
    *,
    num_layers: int = 3,
    targets: tuple[str, ...] = ("paper",),
    codes=None,
    **form,
) -> HeteroNetwork:
    schema = Schema(
        num_nodes=SIZES,
        feature_dims={"author": 0, **DIMS},
        relations=RELATIONS,
        targets=targets,
        codes=codes or {},
    )
    config = ModelConfig(name=name, hidden=H, heads=2, batch_norm=True)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build_hetero_model(config, schema, num_layers=num_layers, **{"out_dim": 3} | form)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                torch.nn.init.uniform_(module.running_mean, -1, 1)
                torch.nn.init.uniform_(module.running_var, 0.5, 2)
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):  # a bias of zero would hide where it is forgotten
                torch.nn.init.uniform_(parameter, -1, 1)
    return network


def inference(graph: HeteroGraph, x: Mapping[str, np.ndarray], budget: int, **more) -> HeteroInference:
    features = {name: RamFeatures(rows) for name, rows in x.items()}
    return HeteroInference(graph=graph, features=features, target="paper", memory_budget_bytes=budget, **more)


def extent_of(graph: HeteroGraph, *, num_outputs: int) -> Extent:
    return Extent(
        num_nodes=SIZES,
        relations=tuple(key for key, topology in graph.relations.items() if topology.num_edges),
        outputs={"paper": num_outputs},
    )


def logits(job: HeteroInference, network: HeteroNetwork, nodes: np.ndarray) -> torch.Tensor:
    return torch.cat([torch.empty(0, 3), *(part for _, part in job.logits(network, nodes))])


@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 100),
    num_edges=st.fixed_dictionaries({relation: st.sampled_from([0, 1, 40, 300]) for relation in RELATIONS}),
    budget=st.sampled_from([5_000, 10_000, 20_000, 40_000, 1_000_000]),
    nodes=st.lists(st.integers(0, 59), max_size=8) | st.just(list(range(60))),
    free=st.sampled_from([*[None] * 6, 30_000, 10_000_000]),
    codes=st.sampled_from([None, CODES]),
)
def test_equals_the_forward_of_the_whole_graph(name, seed, num_edges, budget, nodes, free, codes) -> None:
    graph, x = typed_graph(seed, num_edges), matrices(seed, codes)
    network = typed_network(name, seed, codes=codes)
    expected = dense_logits(network, graph, x)[nodes].float()
    job = inference(graph, x, budget, device=None if free is None else Gpu(free=free))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SsdRows", SlabRows)
        try:
            found = logits(job, network, np.array(nodes, dtype=np.int64))
        except BudgetError:
            assert budget < 20_000
            return
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert network.training


@pytest.mark.parametrize("name", NAMES)
def test_equals_it_with_activations_on_the_ssd_and_leaves_nothing_there(name, private_tmpdir: Path) -> None:
    graph, x = typed_graph(3, 300), matrices(3)
    network, nodes = typed_network(name), np.array([7, 0, 59, 7])
    plans = plan_inference(network.layers, extent_of(graph, num_outputs=4), budget_bytes=SMALL_BUDGETS[name])
    assert any(plan.is_on_disk for plan in plans[0].values())
    assert not all(plan.is_on_disk for plan in plans[0].values())
    assert max(len(plan.slabs) for layer in plans for plan in layer.values()) > 1
    assert min(plan.edges_per_piece for layer in plans for plan in layer.values()) < 120  # of a hub of 120
    expected = dense_logits(network, graph, x)[nodes].float()
    found = logits(inference(graph, x, SMALL_BUDGETS[name]), network, nodes)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert list(private_tmpdir.glob("gloader-infer-*")) == []


@pytest.mark.parametrize(
    ("node_type", "num_layers"), [("author", 1), ("author", 2), ("institute", 1), ("paper", 3)]
)
def test_activations_of_any_type_and_layer_are_those_of_the_whole_graph(node_type, num_layers) -> None:
    graph, x = typed_graph(4, 200), matrices(4)
    network = typed_network("rgat")
    rows = dense_rows(network, graph, x, num_layers=num_layers)[node_type].float()
    order = np.random.default_rng(5).permutation(SIZES[node_type])
    job = inference(graph, x, SMALL_BUDGETS["rgat"])
    for nodes, further in ((np.arange(len(order)), {"order": order}), (order, {})):
        parts = list(job.activations(network, num_layers, node_type, nodes, **further))
        found = torch.cat([part for _, part in parts])
        torch.testing.assert_close(found, rows[order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["small", 1 << 20])
def test_embeddings_of_every_target_are_open_for_reads_in_any_order(
    name, budget, private_tmpdir: Path
) -> None:
    """As of users and items, between which links are scored."""
    graph, x = typed_graph(4, 200), matrices(4)
    targets = ("author", "paper")
    network = typed_network(name, targets=targets, out_dim=H, has_head=False)
    expected = dense_rows(network, graph, x, num_layers=3)
    budget = 2 * SMALL_BUDGETS[name] if budget == "small" else budget
    job = inference(graph, x, budget)
    job.require_memory(network, num_outputs=None)
    with job.embedded(network) as embedded:
        assert tuple(embedded) == targets
        assert bool(list(private_tmpdir.glob("gloader-infer-*"))) == (budget < 1 << 20)
        for node_type, rows in embedded.items():
            assert (rows.num_rows, rows.width) == (SIZES[node_type], H)
            order = np.random.default_rng(1).integers(0, rows.num_rows, 20)
            found = np.empty((20, H), np.float32)
            rows.take(order, found)
            np.testing.assert_allclose(found, expected[node_type][order].float(), atol=1e-5, rtol=1e-4)
            rows.read(2, 7, found[:5])
            np.testing.assert_allclose(found[:5], expected[node_type][2:7].float(), atol=1e-5, rtol=1e-4)
    assert network.training
    assert list(private_tmpdir.glob("gloader-infer-*")) == []


@pytest.mark.parametrize("name", ["rsage", "rgat"])
def test_what_a_head_makes_of_all_nodes_is_open_too(name) -> None:
    graph, x = typed_graph(4, 200), matrices(4)
    network = typed_network(name)
    found = np.empty((4, 3), np.float32)
    with inference(graph, x, 1 << 20).embedded(network) as embedded:
        embedded["paper"].take(np.array([7, 0, 59, 7]), found)
        expected = dense_logits(network, graph, x)
        np.testing.assert_allclose(found, expected[[7, 0, 59, 7]].float(), atol=1e-5, rtol=1e-4)
        embedded["paper"].read(56, 60, found)
    np.testing.assert_allclose(found, expected[56:].float(), atol=1e-5, rtol=1e-4)


def test_both_ends_are_computed_in_one_pass() -> None:
    graph, x = typed_graph(5, 200), matrices(5)
    features = {name: CountedFeatures(rows) for name, rows in x.items()}
    network = typed_network("rsage", num_layers=1, targets=("author", "paper"), out_dim=H, has_head=False)
    job = HeteroInference(graph=graph, features=features, target="paper", memory_budget_bytes=1 << 20)
    with job.embedded(network):
        pass
    # Papers: for the table to authors, for their own rows and the table of one relation at once, for that of the other.
    assert (features["paper"].counts == 3).all()
    assert (features["institute"].counts == 1).all()


class CountedFeatures(RamFeatures):
    """Features that know how often each row was read."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.counts = np.zeros(len(array), dtype=np.int64)

    def read_into(self, rows, out, /, *, at=None):
        np.add.at(self.counts, rows, 1)
        return super().read_into(rows, out, at=at)


def test_a_type_that_does_not_reach_the_target_is_neither_read_nor_computed() -> None:
    graph, x = typed_graph(5, 200), matrices(5)
    features = {name: CountedFeatures(rows) for name, rows in x.items()}
    job = HeteroInference(graph=graph, features=features, target="paper", memory_budget_bytes=1 << 20)
    network = typed_network("rsage", num_layers=2)
    logits(job, network, np.arange(60))
    assert (features["field"].counts == 0).all()
    # For its own rows and its table to papers at once, for authors.
    assert (features["paper"].counts == 3).all()
    assert (features["institute"].counts == 1).all()


def test_the_edges_of_a_relation_are_scanned_once_a_layer_whose_types_it_leads_to(monkeypatch) -> None:
    graph, x = typed_graph(6, 200), matrices(6)
    read: dict[int, list[int]] = {}
    true = HeldScan.lists

    def noted(scan, starts, counts):
        places = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        read.setdefault(id(scan.array), []).extend(np.concatenate(places).tolist())
        return true(scan, starts, counts)

    monkeypatch.setattr(HeldScan, "lists", noted)
    logits(inference(graph, x, 1 << 20), typed_network("rgat"), np.arange(60))
    times = {
        relation: len(read.get(id(topology.indices), [])) / topology.num_edges
        for relation, topology in graph.relations.items()
        if topology.num_edges
    }
    # Papers are made by every layer, authors for two of them; nobody asks for fields.
    assert times == {
        ("author", "writes", "paper"): 3,
        ("paper", "cites", "paper"): 3,
        ("paper", "extends", "paper"): 3,
        ("paper", "written_by", "author"): 2,
        ("institute", "employs", "author"): 2,
        ("paper", "has", "field"): 0,
    }
    for places in read.values():
        ends = [number for number in range(1, len(places)) if places[number] < places[number - 1]]
        assert len(ends) <= 2  # in order, from the start again for each layer


def test_activations_go_with_the_last_type_that_reads_them(monkeypatch) -> None:
    ways = (("author", "writes", "paper"), ("institute", "employs", "author"))
    graph, x = typed_graph(7, {key: 100 if key in ways else 0 for key in RELATIONS}), matrices(7)
    events: list[str] = []
    true_open, true_close = OutputRoom.open, RamRows.close

    def opened(room, name, plan, *, num_rows, width):
        events.append(f"open {name}")
        found = true_open(room, name, plan, num_rows=num_rows, width=width)
        names[id(found)] = name
        return found

    def closed(rows):
        events.append(f"close {names[id(rows)]}")
        true_close(rows)

    names: dict[int, str] = {}
    monkeypatch.setattr(OutputRoom, "open", opened)
    monkeypatch.setattr(RamRows, "close", closed)
    logits(inference(graph, x, 1 << 20), typed_network("rsage"), np.arange(60))
    # Papers of the first layer are read for those of the second alone; authors need the other two.
    assert events[:6] == [
        "open layer-0-0",
        "open layer-0-1",
        "open layer-0-2",
        "open layer-1-0",
        "close layer-0-0",
        "open layer-1-1",
    ]
    assert sorted(events[6:8]) == ["close layer-0-1", "close layer-0-2"]
    assert events[8] == "open layer-2-0"


def test_a_relation_without_edges_has_no_table_and_its_source_is_not_read() -> None:
    counts = dict.fromkeys(RELATIONS, 100) | {("author", "writes", "paper"): 0}
    graph, x = typed_graph(8, counts), matrices(8)
    features = {name: CountedFeatures(rows) for name, rows in x.items()}
    job = HeteroInference(graph=graph, features=features, target="paper", memory_budget_bytes=1 << 20)
    logits(job, typed_network("rsage"), np.arange(60))
    # Authors were the way from institutes to papers.
    assert (features["institute"].counts == 0).all()


def test_rows_that_the_device_holds_are_read_there() -> None:
    graph, x = typed_graph(5, 200), matrices(5)
    network, device, place = typed_network("rsage"), Gpu(free=10_000_000), torch.device("cpu")
    features = {name: CountedFeatures(rows) for name, rows in x.items()}
    plan = DeviceCachePlan(num_nodes=SIZES["paper"], rows=np.arange(SIZES["paper"]))
    form = RowFormat(dtype=np.dtype(np.float32), dim=DIMS["paper"], scale=None)
    tier = DeviceTier(device=device, cache=StaticCache(plan, form=form, place=place))
    tier.fill(RamFeatures(x["paper"]))
    job = HeteroInference(
        graph=graph,
        features=features,
        target="paper",
        memory_budget_bytes=1 << 20,
        device=device,
        tiers={"paper": tier},
    )
    found = logits(job, network, np.arange(60))
    expected = logits(inference(graph, x, 1 << 20, device=device), network, np.arange(60))
    assert torch.equal(found, expected)
    assert (features["paper"].counts == 0).all()
    assert (features["institute"].counts > 0).all()


def test_a_network_of_another_dataset_is_refused() -> None:
    graph, x = typed_graph(9, 50), matrices(9)
    network = typed_network("rsage")
    wide = x | {"institute": np.zeros((7, 4), np.float32)}
    with pytest.raises(ConfigError, match="type 'institute' has 4 features; the network takes 3"):
        logits(inference(graph, wide, 1 << 20), network, np.arange(60))
    with pytest.raises(
        ConfigError, match="type 'institute' has no features in this graph, and the network has no learned"
    ):
        logits(inference(graph, {"paper": x["paper"]}, 1 << 20), network, np.arange(60))
    network.embs["author"] = torch.nn.Parameter(torch.zeros(44, H))
    with pytest.raises(ConfigError, match="learned rows of 44 nodes of type 'author'; the graph has 45"):
        logits(inference(graph, x, 1 << 20), network, np.arange(60))


def test_a_budget_that_is_too_small_is_told_before_anything_is_read() -> None:
    graph, x = typed_graph(9, 50), matrices(9)
    features = {name: CountedFeatures(rows) for name, rows in x.items()}
    job = HeteroInference(graph=graph, features=features, target="paper", memory_budget_bytes=600)
    network = typed_network("rsage")
    for ask in (
        lambda: logits(job, network, np.arange(3)),
        lambda: job.require_memory(network, num_outputs=3),
    ):
        with pytest.raises(BudgetError, match=r"inference of type 'paper' keeps at least \S+ B .*Raise"):
            ask()
    assert (features["paper"].counts == 0).all()
