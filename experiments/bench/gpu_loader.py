"""The loader in front of a device: the same batches, the promised hit rate, and how much of loading shows."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from gpu_findings import GpuFinding, Sizes, compared, not_checked, promised

from gloader import Dataset, Loader
from gloader.bench.graphs import synthetic_graph
from gloader.core.units import format_bytes
from gloader.device import CpuDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.types import ReadyBatch

DIM, NUM_CLASSES = 128, 16
SETTINGS: dict[str, Any] = {"fanouts": (10, 10), "memory_budget": "16GB"}
COMPARED_BATCHES = 8
CACHED_SHARE = 0.1  # of the rows
POINTS = 2.0  # of hit rate that a presampled cache may miss
EXPOSED = 5.0  # percent of a step
TIMED_BATCHES = 60


def check_loader(sizes: Sizes) -> Iterator[GpuFinding]:
    """Load from a synthetic graph, with a CPU that rehearses in the place of a GPU that is not there."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gloader-gpu-", dir=sizes.workdir))
        dataset = _write(Path(folder), sizes)
        if not sizes.is_gpu:
            rehearsing = CpuDevice(rehearses=True)
            stack.enter_context(
                mock.patch("gloader.pipeline.open_device_tier.open_device", return_value=rehearsing)
            )
        yield from _same_batches(dataset, sizes)
        yield _hit_rate(dataset, sizes)
        for features in ("ram", "ssd"):
            yield _exposed(dataset, sizes, features)


def _same_batches(dataset: Dataset, sizes: Sizes) -> Iterator[GpuFinding]:
    with mock.patch("gloader.pipeline.open_device_tier.open_device", return_value=CpuDevice()):
        expected = _digests(dataset, sizes, place="cpu", features="ram", device_cache=0)
    row = 4 * DIM
    some = 4 * dataset.num_nodes + int(CACHED_SHARE * dataset.num_nodes) * row
    for features, cache in itertools.product(("ram", "ssd"), (0, some, dataset.num_nodes * row)):
        found = _digests(dataset, sizes, place=str(sizes.place), features=features, device_cache=cache)
        yield compared(
            f"batches, features in {features}, device cache of {format_bytes(cache)}", found == expected
        )


def _hit_rate(dataset: Dataset, sizes: Sizes) -> GpuFinding:
    """Compare the presampled cache with the rows that the next epoch wants most."""
    num_rows = int(CACHED_SHARE * dataset.num_nodes)
    size = 4 * dataset.num_nodes + num_rows * 4 * DIM
    counts = np.zeros(dataset.num_nodes, dtype=np.int64)
    with _loader(dataset, sizes, str(sizes.place), features="ram", device_cache=size) as loader:
        for _ in range(2):  # the second is not the epoch that was presampled
            counts[:] = 0
            for batch in loader:
                counts[batch.nodes] += 1
        rate = loader.stats.device_hits / max(loader.stats.rows_gathered, 1)
    best = np.sort(counts)[-num_rows:].sum() / counts.sum()
    return promised(
        "hit rate of the presampled cache below the best static one",
        100 * (best - rate),
        unit="points",
        most=POINTS,
        note=f"{100 * rate:.1f} % of {100 * best:.1f} %, {CACHED_SHARE:.0%} of the rows",
    )


def _exposed(dataset: Dataset, sizes: Sizes, features: str) -> GpuFinding:
    """Time a computation that takes 1.3 times as long as loading, alone and behind the loader."""
    name = f"loading that shows in a step, features in {features}"
    if not sizes.is_gpu:
        return not_checked(
            name, "there is no GPU: model and loader share the cores", promise=f"at most {EXPOSED:g} %"
        )
    size = 4 * dataset.num_nodes + int(CACHED_SHARE * dataset.num_nodes) * 4 * DIM
    with _loader(dataset, sizes, str(sizes.place), features=features, device_cache=size) as loader:
        batches = _forever(loader)
        for _ in range(TIMED_BATCHES // 2):
            next(batches)
        load_s = _seconds_a_batch(batches, lambda _: None)
        once, factor = _multiplication(sizes.place)
        one_s = _seconds_alone(once, 20)
        repeats = max(round(1.3 * load_s / one_s), 1)

        def compute(batch: ReadyBatch | None) -> None:
            if batch is not None:
                factor[0, 0] = batch.x[0, 0]  # the step waits for its batch
            for _ in range(repeats):
                once()

        alone_s = _seconds_alone(lambda: compute(None), TIMED_BATCHES)
        step_s = _seconds_a_batch(batches, compute)
    return promised(
        name,
        100 * max(step_s - alone_s, 0) / step_s,
        unit="% of the step",
        most=EXPOSED,
        note=f"{1e3 * load_s:.2f} ms of loading, {1e3 * alone_s:.2f} ms of computing, {1e3 * step_s:.2f} ms together",
    )


def _multiplication(place: torch.device) -> tuple[Any, torch.Tensor]:
    factor, out = torch.randn(2048, 2048, device=place), torch.empty(2048, 2048, device=place)
    return (lambda: torch.mm(factor, factor, out=out)), factor


def _seconds_alone(work: Any, count: int) -> float:
    work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def _seconds_a_batch(batches: Iterator[ReadyBatch], compute: Any) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(TIMED_BATCHES):
        compute(next(batches))
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / TIMED_BATCHES


def _forever(loader: Loader) -> Iterator[ReadyBatch]:
    while True:
        yield from loader


def _digests(dataset: Dataset, sizes: Sizes, *, place: str, **settings: Any) -> list[str]:
    with _loader(dataset, sizes, place, **settings) as loader:
        return [_digest(batch) for batch in itertools.islice(loader, COMPARED_BATCHES)]


def _digest(batch: ReadyBatch) -> str:
    digest = hashlib.sha256(batch.nodes.tobytes())
    for tensor in (
        batch.x,
        batch.y,
        *itertools.chain(*((b.indptr, b.indices, b.edge_ids, b.src_degree) for b in batch.blocks)),
    ):
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _loader(dataset: Dataset, sizes: Sizes, place: str, **settings: Any) -> Iterator[Loader]:
    given = SETTINGS | {"batch_size": sizes.batch_size, "device": place} | settings
    if given["features"] == "ssd":
        given["cache"] = dataset.num_nodes * DIM * 4 // 10
    if not sizes.is_gpu:
        given["memory_budget"] = "2GB"
    with Loader(dataset, **given) as loader:
        yield loader


def _write(folder: Path, sizes: Sizes) -> Dataset:
    graph = synthetic_graph("rmat", num_nodes=sizes.graph_nodes, num_edges=sizes.graph_edges)
    rng = np.random.default_rng(0)
    path = folder / "rmat"
    with Dataset.create(path, name="rmat", num_nodes=graph.num_nodes, num_classes=NUM_CLASSES) as writer:
        with writer.indptr() as column:
            column.append(graph.indptr)
        with writer.indices(graph.num_edges, "int32") as column:
            column.append(graph.indices)
        with writer.features(DIM, "float32") as column:
            for start in range(0, graph.num_nodes, 1 << 18):
                num_rows = min(1 << 18, graph.num_nodes - start)
                column.append(rng.standard_normal((num_rows, DIM), dtype=np.float32))
        writer.labels(rng.integers(0, NUM_CLASSES, graph.num_nodes))
        order = rng.permutation(graph.num_nodes)
        tenth = graph.num_nodes // 10
        writer.splits(train=order[:tenth], valid=order[tenth : 2 * tenth], test=order[2 * tenth :])
    return Dataset.open(path)
