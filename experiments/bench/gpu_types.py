"""Batches of several node types on the device against those on the CPU, and the networks over them."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from gpu_findings import GpuFinding, bounded, compared
from gpu_place import NUM_CLASSES, devices_opened_as, rehearsing

from gloader import Dataset, HeteroLoader
from gloader.config import ModelConfig
from gloader.device import CpuDevice
from gloader.models import Schema, build_hetero_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.types import HeteroReadyBatch

FANOUTS: Final = (8, 4)
WIDTHS: Final = {"paper": 128, "institution": 24}  # authors have none
EDGES: Final = {  # per destination
    ("author", "writes", "paper"): 3,
    ("paper", "written", "author"): 3,
    ("paper", "cites", "paper"): 10,
    ("institution", "employs", "author"): 2,
    ("author", "of", "institution"): 20,
    ("institution", "reads", "paper"): 0,
}
NAMES: Final = ("rsage", "rgcn", "rgat")
# Of logits and gradients to those on the CPU.
LOGITS, GRADIENTS = 1e-5, 1e-4
NUM_COMPARED: Final = 8


def check_types(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Bring batches there by every way that rows take, and compute one here and there."""
    dataset = _graph(sizes)
    rows = {name: dataset.node_tables[name].num_nodes * 4 * width for name, width in WIDTHS.items()}
    host = _batches(sizes, dataset, device="cpu", device_cache=0)
    there: list[HeteroReadyBatch] = []
    ways: dict[str, dict[str, Any]] = {
        "all rows from the host": {"device_cache": 0, "features": "ram"},
        "some rows of each type held": {"device_cache": sum(rows.values()) // 4, "features": "ram"},
        "all rows held": {"device_cache": 2 * sum(rows.values())},
        "features on the SSD": {
            "device_cache": sum(rows.values()) // 8,
            "features": "ssd",
            "cache": 1 << 20,
        },
    }
    for name, settings in clock.each(
        ways.items(),
        lambda item: item[0],
    ):
        there = _batches(sizes, dataset, **settings)
        wrong = [str(one.id.index) for one, other in zip(there, host, strict=True) if not _same(one, other)]
        yield compared(
            f"typed batches, {name}", not wrong, f"other batches: {', '.join(wrong)}" if wrong else ""
        )
    if there:
        yield from _networks(sizes, clock, dataset, there[0], host[0])


def _graph(sizes: Sizes) -> Dataset:
    num_nodes = {"paper": sizes.small_nodes, "author": sizes.small_nodes, "institution": 200}
    rng = np.random.default_rng(0)
    edges = {
        (source, name, destination): np.stack(
            [
                (num_nodes[source] * rng.random(degree * num_nodes[destination]) ** 2).astype(np.int64),
                np.repeat(np.arange(num_nodes[destination]), degree),
            ]
        )
        for (source, name, destination), degree in EDGES.items()
    }
    tenth = num_nodes["paper"] // 10
    order = rng.permutation(num_nodes["paper"])
    return Dataset.from_numpy_hetero(
        sizes.workdir / "types",
        num_nodes=num_nodes,
        features={
            name: rng.standard_normal((num_nodes[name], width), dtype=np.float32)
            for name, width in WIDTHS.items()
        },
        edges=edges,
        labels={"paper": rng.integers(0, NUM_CLASSES, num_nodes["paper"])},
        train=order[: 4 * tenth],
        valid=order[4 * tenth : 5 * tenth],
        test=order[5 * tenth :],
        overwrite=True,
    )


def _batches(sizes: Sizes, dataset: Dataset, **settings: Any) -> list[HeteroReadyBatch]:
    """Return the first batches of a loader, on the checked device unless ``settings`` name one."""
    other = None if sizes.is_gpu else CpuDevice() if "device" in settings else rehearsing()
    given = {"device": str(sizes.place), "batch_size": 64, "memory_budget": "1GB", **settings}
    with devices_opened_as(other), HeteroLoader(dataset, fanouts=FANOUTS, **given) as loader:
        return list(islice(loader, NUM_COMPARED))


def _tensors(batch: HeteroReadyBatch) -> Iterator[torch.Tensor]:
    yield from batch.x.values()
    yield batch.y
    for block in chain.from_iterable(hop.values() for hop in batch.blocks):
        yield from (block.indptr, block.indices, block.edge_ids, block.src_degree)


def _same(one: HeteroReadyBatch, other: HeteroReadyBatch) -> bool:
    return (one.id, list(one.x), [list(hop) for hop in one.blocks]) == (
        other.id,
        list(other.x),
        [list(hop) for hop in other.blocks],
    ) and all(
        mine.shape == theirs.shape and mine.cpu().numpy().tobytes() == theirs.cpu().numpy().tobytes()
        for mine, theirs in zip(_tensors(one), _tensors(other), strict=True)
    )


def _networks(
    sizes: Sizes, clock: Clock, dataset: Dataset, there: HeteroReadyBatch, host: HeteroReadyBatch
) -> Iterator[GpuFinding]:
    """Compute a batch in both places; every relation is aggregated by the kernels that training takes."""
    tables = dataset.node_tables
    schema = Schema(
        num_nodes={name: table.num_nodes for name, table in tables.items()},
        feature_dims={name: table.feature_dim for name, table in tables.items()},
        relations=dataset.relations,
        targets=(dataset.labelled.name,),
    )
    for name in clock.each(NAMES):
        exact = _computed(name, schema, torch.device("cpu"), host)
        found = _computed(name, schema, sizes.place, there)
        for what, mine, theirs, most in zip(
            ("logits", "gradients"), found, exact, (LOGITS, GRADIENTS), strict=True
        ):
            distance = float((mine - theirs).norm() / theirs.norm())
            title = f"{name}: {what}, relative distance to float32 on the CPU"
            yield bounded(title, distance, "", most=most, is_right=False, predicted="so")


def _computed(
    name: Any, schema: Schema, place: torch.device, batch: HeteroReadyBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and gradients of a network with the same weights wherever it is."""
    torch.manual_seed(0)
    config = ModelConfig(name=name, hidden=32, dropout=0.0)
    net = build_hetero_model(config, schema, out_dim=NUM_CLASSES, num_layers=len(FANOUTS)).to(place)
    logits = net(batch)
    torch.nn.functional.cross_entropy(logits, batch.y).backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    dense = [grad.to_dense().flatten() for grad in gradients]  # those of learned rows are sparse
    return logits.detach().cpu().double(), torch.cat(dense).cpu().double()
