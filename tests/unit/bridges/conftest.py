"""A small graph and native batches of it, made without a loader."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gloader.config import Layout
from gloader.samplers import CscGraph, make_sampler
from gloader.types import BatchId, Block, DeviceBlock, ReadyBatch, SampledBatch

# DGL has no wheel for Python 3.12 or later, so the extra `dgl` brings none there: these files compare with it.
if sys.version_info >= (3, 12) and find_spec("dgl") is None:
    collect_ignore_glob = ["test_dgl_*.py", "test_graphbolt_missing.py"]

NUM_NODES, DIM = 400, 6


@dataclass(frozen=True, kw_only=True)
class Arrays:
    graph: CscGraph
    features: NDArray[np.float32]
    labels: NDArray[np.int64]


@pytest.fixture(scope="session")
def arrays() -> Arrays:
    rng = np.random.Generator(np.random.Philox(7))
    degrees = rng.integers(0, 15, NUM_NODES)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = (NUM_NODES * rng.random(indptr[-1]) ** 2).astype(np.int32)
    return Arrays(
        graph=CscGraph(indptr=indptr, indices=indices),
        features=rng.standard_normal((NUM_NODES, DIM)).astype(np.float32),
        labels=rng.integers(0, 3, NUM_NODES),
    )


@pytest.fixture
def make_batch(arrays: Arrays) -> Callable[..., ReadyBatch]:
    """Return a function (fanouts, seeds, layout) -> native batch."""

    def make(fanouts: list[int], seeds: NDArray[np.int64], layout: Layout = "layered") -> ReadyBatch:
        sampler = make_sampler("neighbor", arrays.graph, fanouts, 3, layout=layout)
        return to_ready(arrays, sampler.sample(BatchId(epoch=0, index=0), seeds))

    return make


def to_ready(arrays: Arrays, sampled: SampledBatch) -> ReadyBatch:
    degrees = torch.from_numpy(arrays.graph.in_degrees(sampled.nodes).astype(np.float32))
    return ReadyBatch(
        id=sampled.id,
        x=torch.from_numpy(arrays.features[sampled.nodes]),
        y=torch.from_numpy(arrays.labels[sampled.nodes[: sampled.num_seeds]]),
        blocks=tuple(_to_device(block, degrees) for block in sampled.blocks),
        nodes=sampled.nodes,
        num_seeds=sampled.num_seeds,
    )


def _to_device(block: Block, degrees: torch.Tensor) -> DeviceBlock:
    return DeviceBlock(
        indptr=torch.from_numpy(block.indptr),
        indices=torch.from_numpy(block.indices),
        edge_ids=torch.from_numpy(block.edge_ids),
        src_degree=degrees[: block.num_src],
        num_src=block.num_src,
        num_dst=block.num_dst,
    )
