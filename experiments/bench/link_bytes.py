"""Bytes that a batch moves over the link to a GPU, counted where they are handed to the device: no GPU is needed.

    python experiments/bench/link_bytes.py --out experiments/results/DATE-link-bytes.json

A batch of a graph with skewed random edges, of the size of one of ogbn-products, goes to a device that keeps no rows,
in each dtype that rows are stored in, and to one that holds every row. "as float32" is what the same batch takes
where every row is widened on the host, ids have 64 bits and edge ids come along. Every count repeats exactly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gloader.cache import no_device_cache, whole_device_cache
from gloader.device import CpuDevice, RowFormat
from gloader.lab.bench.environment import provenance
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.open.device_tier import hold_rows
from gloader.pipeline.row_task import Answers
from gloader.pipeline.send import Transfer
from gloader.samplers import CscGraph, NeighborSampler
from gloader.samplers.graph import float_in_degrees
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.device import Device
    from gloader.types import SampledBatch

_STORED: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}
_LABEL_BYTES, _ID_BYTES, _DEGREE_BYTES = 8, 8, 4


class CountingDevice:
    """Takes what a GPU would be sent, and counts it; a Device of another kind than the CPU only by its name."""

    is_asynchronous = True

    def __init__(self) -> None:
        self._inner = CpuDevice()
        self.small_bytes = 0
        self.row_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Count the small arrays."""
        self.small_bytes += sum(array.nbytes for array in arrays)
        return self._inner.upload(arrays)

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Count the rows."""
        self.row_bytes += rows.nbytes
        self._inner.copy(rows, out)


def main() -> None:
    """Count for every dtype, print a line each, and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2_449_029)
    parser.add_argument("--in-edges", type=int, default=25, help="of each node")
    parser.add_argument(
        "--skew", type=float, default=4.0, help="power of the random numbers that sources are"
    )
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    graph = _graph(options.nodes, options.in_edges, options.skew)
    seeds = np.random.default_rng(1).permutation(options.nodes)[: options.batch_size].astype(np.int64)
    batch = NeighborSampler(graph, options.fanouts, seed=1).sample(BatchId(epoch=0, index=0), seeds)
    degree = float_in_degrees(graph.offsets, batch.nodes)
    results = [_count(batch, degree, dtype, options.dim, no_device_cache(options.nodes)) for dtype in _STORED]
    # Where the device holds every row, their dtype makes no difference: int8 fills it soonest.
    results.append(_count(batch, degree, "int8", options.dim, whole_device_cache(options.nodes)))
    for result in results:
        print(_line(result), flush=True)
    if options.out is not None:
        sizes = {name: value for name, value in vars(options).items() if name != "out"}
        found = {"settings": sizes, **_sizes(batch), "results": results, **provenance()}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def _graph(num_nodes: int, in_edges: int, skew: float) -> CscGraph:
    sources = num_nodes * np.random.default_rng(0).random(num_nodes * in_edges) ** skew
    return CscGraph(
        indptr=np.arange(num_nodes + 1, dtype=np.int64) * in_edges, indices=sources.astype(np.int32)
    )


def _count(
    batch: SampledBatch, degree: NDArray[np.float32], dtype: str, dim: int, plan: DeviceCachePlan
) -> dict[str, Any]:
    stored, device = _STORED[dtype], CountingDevice()
    scale = np.ones(plan.num_nodes, dtype=np.float32) if dtype == "int8" else None
    form = RowFormat(dtype=stored, dim=dim, is_bfloat16=dtype == "bfloat16", scale=scale)
    tier = hold_rows(cast("Device", device), plan, form=form, as_stored=True)
    num_rows = 0 if tier.brings_all else len(batch.nodes)
    host = HostBatch(
        sampled=batch,
        x=(np.ones((num_rows, dim), dtype=stored),),
        src_degree=degree,
        superbatch=0,
        ends_superbatch=False,
    )
    Transfer([tier]).send(host, Answers(labels=np.zeros(batch.num_seeds, dtype=np.int64)))
    return {
        "dtype": dtype,
        "all_on_device": tier.brings_all,
        "rows": device.row_bytes,
        "small": device.small_bytes,
        "rows_as_float32": 4 * dim * num_rows,
        "small_with_edge_ids": _small_with_edge_ids(batch),
    }


def _small_with_edge_ids(batch: SampledBatch) -> int:
    blocks = sum(block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in batch.blocks)
    return blocks + _LABEL_BYTES * batch.num_seeds + (_ID_BYTES + _DEGREE_BYTES) * len(batch.nodes)


def _sizes(batch: SampledBatch) -> dict[str, int]:
    return {
        "rows_of_batch": len(batch.nodes),
        "edges_of_batch": sum(block.num_edges for block in batch.blocks),
    }


def _line(result: dict[str, Any]) -> str:
    name = "all on the device" if result["all_on_device"] else result["dtype"]
    before = result["rows_as_float32"] + result["small_with_edge_ids"]
    rows, small = result["rows"] / 1e6, result["small"] / 1e6
    return (
        f"{name:>17}: {rows:6.1f} MB of rows and {small:4.1f} MB beside them ({rows + small:6.1f} MB; "
        f"{before / 1e6:6.1f} MB as float32 with edge ids)"
    )


if __name__ == "__main__":
    main()
