"""A kernel that does nothing but draw, for bounds that no graph of a test has. Run by Triton's interpreter."""

import numpy as np
import torch
import triton
import triton.language as tl

from gloader.device.sampling_kernels import bounded, node_key


@triton.jit
def _draw_kernel(key, nodes, draws, bounds, out, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    keys = node_key(tl.load(key).to(tl.uint64), tl.load(nodes + lane))
    draw, bound = tl.load(draws + lane).to(tl.uint64), tl.load(bounds + lane).to(tl.uint64)
    tl.store(out + lane, bounded(keys, draw, bound, lane >= 0).to(tl.int64))


def draw(key: int, nodes: np.ndarray, draws: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the draws of nodes below bounds, all (256,) int64."""
    out = torch.empty(len(nodes), dtype=torch.int64)
    words = torch.from_numpy(np.array([key], dtype=np.uint64).view(np.int64))
    _draw_kernel[(1,)](words, *map(torch.from_numpy, (nodes, draws, bounds)), out, LANES=len(nodes))
    return out.numpy()
