"""Records of networks: the names in checkpoints, the first weights, and the outputs of known weights."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gloader

# The only modules here that are not public: a change of their place is a change of these lines.
from gloader.training.checkpoint.save import Checkpoint
from gloader.training.open_model import open_model
from gloader.training.predict import embed, score_pairs
from gloader.training.run_settings import train_settings
from gloader.training.train import task_of

from .worlds import words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .worlds import Worlds

SHOWN = 3  # rows of an output that are recorded one by one, beside the sums of all
PAIRS = np.array([[0, 1], [5, 17], [19, 2], [250, 200], [3, 3]])


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network for a dataset, as ``gloader train`` makes it of ``settings``."""

    world: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] = ()  # whose hidden rows are recorded; (): those of the labelled type

    def parts(self, worlds: Worlds, scratch: Path) -> dict[str, Any]:
        """Return the names of the weights, their first values, and outputs for a batch and for the whole graph."""
        dataset = worlds[self.world]
        given: dict[str, Any] = {
            "hidden": 8,
            "heads": 2,
            "fanouts": self._fanouts,
            "batch_size": 32,
            "epochs": 1,
        }
        settings = train_settings(given | dict(self.settings))
        spec = task_of(settings, dataset).spec
        torch.manual_seed(0)
        network: Any = spec.build()
        own = network.state_dict()
        known = {name: _known(name, weight) for name, weight in own.items()}
        network.load_state_dict(known)
        checkpoint = Checkpoint(
            run_id="", settings={}, spec=spec, fingerprint=dataset.fingerprint, weights=known, progress={}
        )
        return {
            "weights": [
                f"{name} {str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
                for name, weight in own.items()
            ],
            "first weights": [_short(weight.double().abs().sum().item()) for weight in own.values()],
            **self._on_a_batch(network.eval(), dataset),
            **self._on_the_graph(checkpoint, dataset, scratch),
        }

    def _on_a_batch(self, network: Any, dataset: gloader.Dataset) -> dict[str, Any]:
        """Return the output for the first batch, and sums over the gradient of each weight."""
        given: dict[str, Any] = {
            "fanouts": self._fanouts,
            "batch_size": 32,
            "seed": 11,
            "epochs": 1,
            "features": "ram",
        }
        is_typed = self.settings["model"] in {"rsage", "rgcn", "rgat"}
        if self._is_for_links:
            open_loader, given["typed"] = gloader.LinkLoader, is_typed
            given["edges"] = self.settings.get("edges", "train")
            given["negatives"] = self.settings.get("negatives", "uniform:1")
        else:
            open_loader = gloader.HeteroLoader if is_typed else gloader.Loader
        with open_loader(dataset, memory_budget="200MB", **given) as loader:
            batch = next(iter(loader))
            takes_batch = is_typed or self._is_for_links
            output = network(batch) if takes_batch else network(batch.x, batch.blocks)
            output.square().sum().backward()
        gradients = [
            0.0 if weight.grad is None else _short(weight.grad.to_dense().double().abs().sum().item())
            for weight in network.parameters()
        ]
        return {"output for a batch": _shown(output.detach()), "gradients": gradients}

    def _on_the_graph(
        self, checkpoint: Checkpoint, dataset: gloader.Dataset, scratch: Path
    ) -> dict[str, Any]:
        """Return what inference makes of all neighbours: rows of the layers, and logits or scores."""
        found = {}
        for name in self.types or (dataset.labelled.name,):
            for layer in range(1, len(self._fanouts) + 1):
                with embed(
                    dataset,
                    checkpoint,
                    layer=layer,
                    node_type=name,
                    scratch=scratch,
                    memory_budget_bytes=200_000_000,
                ) as rows:
                    found[f"layer {layer} of {name}"] = _shown(np.concatenate([*rows.chunks]))
        if self._is_for_links:
            scores = score_pairs(dataset, checkpoint, PAIRS, scratch=scratch, memory_budget_bytes=200_000_000)
            return found | {"scores": _shown(scores)}
        nodes = np.arange(dataset.labelled.num_nodes)
        with open_model(
            dataset, checkpoint, budget_bytes=200_000_000, device="cpu", scratch=scratch
        ) as opened:
            rows = [part.numpy().copy() for _, part in opened.inference.logits(opened.model, nodes)]
        return found | {"logits": _shown(np.concatenate(rows))}

    @property
    def _fanouts(self) -> list[int]:
        return self.settings.get("fanouts", [4, 3])

    @property
    def _is_for_links(self) -> bool:
        return self.settings.get("task") == "link"


def _known(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return values between -0.35 and 0.35 that depend on the name and the position alone; variances are positive.

    They are so fine that no sum is 0 by chance: the gradient of a ReLU would depend on a rounding there.
    """
    if not weight.dtype.is_floating_point:
        return weight
    mixed = words(weight.numel(), zlib.crc32(name.encode()) % 2**31) >> np.uint64(40)
    values = torch.from_numpy((mixed.astype(np.float32) / 2**24 - 0.5) * np.float32(0.7))
    return (values.abs() + 0.5 if name.endswith("running_var") else values).reshape(weight.shape)


def _shown(rows: Any) -> list[list[float]]:
    """Return the first rows, and the sum and the sum of squares of each column."""
    table = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    whole = np.concatenate([table[:SHOWN], table.sum(axis=0)[None], np.square(table).sum(axis=0)[None]])
    return [[_short(value) for value in row] for row in whole.tolist()]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _one(model: str, world: str = "one type linked", **settings: Any) -> Network:
    return Network(world=world, settings={"model": model} | settings)


def _typed(model: str, *types: str, **settings: Any) -> Network:
    return Network(world="typed linked", settings={"model": model} | settings, types=types or ("paper",))


_LINKS: dict[str, Any] = {"task": "link", "eval_edges": ("train", "train")}
NETWORKS: dict[str, Network] = {
    "graphsage": _one("graphsage"),
    "graphsage, batch norm": _one("graphsage", batch_norm=True),
    "gcn": _one("gcn"),
    "gat": _one("gat"),
    "gat without edge features": _one("gat", "one type"),
    "gine": _one("gine"),
    "gine, batch norm": _one("gine", batch_norm=True),
    "mlp": _one("mlp"),
    "sign": _one("sign", "hop columns", fanouts=[0]),
    "sign, batch norm": _one("sign", "hop columns", fanouts=[0], batch_norm=True),
    "sgc": _one("sgc", "hop columns", fanouts=[0]),
    "residual graphsage": _one("graphsage", residual=True),
    "residual gcn": _one("gcn", "one type", residual=True),
    "residual gat": _one("gat", residual=True),
    "graphsage on ordered rows": _one("graphsage", "ordered by degree"),
    "rsage": _typed("rsage"),
    "rsage, batch norm": _typed("rsage", batch_norm=True),
    "rgcn": _typed("rgcn"),
    "rgat": _typed("rgat"),
    "rsage on one type": _one("rsage", "one type"),
    "rgcn on one type": _one("rgcn", "one type"),
    "rgat on one type": _one("rgat", "one type"),
    "links: graphsage, dot": _one("graphsage", **_LINKS),
    "links: gat, mlp": _one("gat", decoder="mlp", **_LINKS),
    "links: gcn, classes": _one(
        "gcn",
        decoder="mlp",
        edges="classes",
        negatives="none",
        **(_LINKS | {"eval_edges": ("classes", "classes")}),
    ),
    "links: rsage, mlp": _typed("rsage", "author", "paper", decoder="mlp", **_LINKS),
    "links: rgcn, dot": _typed("rgcn", "author", "paper", **_LINKS),
    "links: rgat, mlp": _typed("rgat", "author", "paper", decoder="mlp", **_LINKS),
}
