from __future__ import annotations

import numpy as np
import pytest
import torch

from gloader.config import ModelConfig, StepConfig
from gloader.errors import ConfigError
from gloader.models import build_model
from gloader.models.adjacency import Adjacency
from gloader.training.group import RankGroup
from gloader.training.replica import Replica, check_step
from gloader.types import BatchId, DeviceBlock, ReadyBatch


def _batch(num_edges: int = 2) -> ReadyBatch:
    """Two seeds, of which the first has as many neighbours and the second none."""
    sources = num_edges + 1
    block = DeviceBlock(
        indptr=torch.tensor([0, num_edges, num_edges], dtype=torch.int32),
        indices=torch.arange(num_edges, 0, -1, dtype=torch.int32),
        edge_ids=torch.arange(num_edges),
        src_degree=torch.tensor([2.0, 0.0, *[1.0] * (sources - 2)]),
        num_src=sources,
        num_dst=2,
        edge_weight=None,
    )
    return ReadyBatch(
        id=BatchId(epoch=0, index=0),
        x=torch.randn(sources, 4, generator=torch.Generator().manual_seed(0)),
        y=torch.tensor([0, 1]),
        blocks=(block,),
        nodes=np.arange(sources),
        num_seeds=2,
    )


def _model(name: str = "graphsage") -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelConfig(name=name), in_dim=4, out_dim=2, num_layers=1)


def _forward(config: StepConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return Replica(_model(), config, RankGroup.alone(), num_steps=1).forward(_batch())


def test_a_plain_step_is_the_network() -> None:
    logits, loss = _forward(StepConfig())
    batch = _batch()
    assert torch.equal(logits, _model()(batch.x, batch.blocks))
    assert torch.equal(loss, torch.nn.functional.cross_entropy(logits, batch.y))


def test_bf16_rounds_and_returns_float32() -> None:
    exact, _ = _forward(StepConfig())
    logits, loss = _forward(StepConfig(autocast="bf16"))
    assert logits.dtype == loss.dtype == torch.float32
    assert not torch.equal(logits, exact)
    assert torch.allclose(logits, exact, atol=0.05)


def test_the_network_is_compiled_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("gloader.training.replica._require_compiler", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda network, **options: asked.append(options) or network)
    logits, _ = _forward(StepConfig(compile=True))
    assert torch.equal(logits, _forward(StepConfig())[0])
    assert asked == [{"dynamic": True}]


class _Kept:
    """`functools.cached_property` as of Python 3.12, which torch's compiler follows: it has no lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.make = vars(Adjacency)[name].func

    def __get__(self, edges: Adjacency, _: object = None) -> object:
        if self.name not in vars(edges):
            vars(edges)[self.name] = self.make(edges)
        return vars(edges)[self.name]


@pytest.mark.parametrize(
    "name", ["gcn", *(pytest.param(n, marks=pytest.mark.long) for n in ("graphsage", "gat"))]
)
@pytest.mark.filterwarnings("ignore")  # torch warns of its own code while it traces
def test_one_compilation_computes_batches_of_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for torch's own compiler, with sizes that are symbols, and run as it was traced."""
    traced: list[str] = []
    compile_ = torch.compile

    def run_as_traced(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        parts = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
        traced.extend(str(node.target) for part in parts for node in part.graph.nodes)
        return graph

    for kept in ("counts", "pairs", "transposed"):
        monkeypatch.setattr(Adjacency, kept, _Kept(kept))
    monkeypatch.setattr("gloader.training.replica._require_compiler", lambda: None)
    monkeypatch.setattr(
        torch, "compile", lambda network, **how: compile_(network, backend=run_as_traced, **how)
    )
    replica = Replica(_model(name), StepConfig(compile=True), RankGroup.alone(), num_steps=1)
    plain = Replica(_model(name), StepConfig(), RankGroup.alone(), num_steps=1)
    for number, num_edges in enumerate((5, 9, 30)):
        found, expected = (each.forward(_batch(num_edges)) for each in (replica, plain))
        for tensors in (found, expected):
            tensors[1].backward()
        torch.testing.assert_close(found[0], expected[0])
        if number == 0:
            once = len(traced)
    assert len(traced) == once > 0
    # The compilers of some versions of torch know no shape of it where that of the edges is a symbol.
    assert not [target for target in traced if "csr_to_coo" in target]


def test_gradients_of_one_rank_are_those_of_the_loss() -> None:
    model = _model()
    replica = Replica(model, StepConfig(), RankGroup.alone(), num_steps=1)
    _, loss = replica.forward(_batch())
    replica.backward(loss, num_seeds=2, is_last=True)
    twin = _model()
    batch = _batch()
    torch.nn.functional.cross_entropy(twin(batch.x, batch.blocks), batch.y).backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("config", "world_size", "message"),
    [
        ({"autocast": "fp8"}, 2, "autocast is 'fp8'; allowed: none, bf16"),
        ({"grad_compress": "zip"}, 2, "grad_compress is 'zip'; allowed: none, bf16, powersgd"),
        ({"grad_compress": "bf16"}, 1, "one rank sends no gradients; start several"),
    ],
)
def test_settings_that_are_not_allowed_are_named(config, world_size, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_step(StepConfig(**config), world_size=world_size)


def test_everything_else_is_allowed() -> None:
    check_step(StepConfig(), world_size=1)
    check_step(StepConfig(autocast="bf16", compile=True, grad_compress="powersgd"), world_size=2)
