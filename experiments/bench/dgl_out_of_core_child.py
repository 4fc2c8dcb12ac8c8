"""One run of dgl_out_of_core.py, in a process of its own; the last line of its output is JSON."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN, WARM_UP, ALLOWANCE = 64, 5, 700_000_000  # bytes for the libraries, the model and its activations


def main() -> None:
    """Join the control group, train some steps, print what they took."""
    order = json.loads(sys.argv[1])
    if order["group"] is not None:
        (Path(order["group"]) / "cgroup.procs").write_text(str(os.getpid()))
    warnings.simplefilter("ignore")
    import dgl
    import torch
    import torch.nn.functional as F  # noqa: N812 - as everywhere in torch

    from gloader import Dataset

    dataset = Dataset.open(order["dataset"])
    torch.manual_seed(0)
    first = dgl.nn.SAGEConv(dataset.feature_dim, HIDDEN, "mean")
    second = dgl.nn.SAGEConv(HIDDEN, dataset.num_classes, "mean")
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    steps: list[float] = []
    loss = torch.zeros(())
    read, started = _bytes_read(), time.perf_counter()
    for number, (x, labels, blocks) in enumerate(_batches(order["home"], dataset, order)):
        loss = F.cross_entropy(second(blocks[1], first(blocks[0], x).relu()), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        now = time.perf_counter()
        if number == WARM_UP - 1:
            read = _bytes_read()
        elif number >= WARM_UP:
            steps.append(now - started)
        started = now
        if number == WARM_UP + order["batches"] - 1:
            break
    print(
        json.dumps(
            {
                "step_s": steps,
                "bytes_read": _bytes_read() - read,
                "peak_resident_bytes": _peak_resident(),
                "loss": float(loss.detach()),
            }
        )
    )


def _batches(home: str, dataset: Any, order: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield features, labels and blocks of one batch after another."""
    if home == "store":
        yield from _from_store(dataset, order)
        return
    import dgl
    import numpy as np
    import torch

    from gloader.adapters.dgl import to_dgl

    graph = to_dgl(dataset.load_graph())
    rows = np.load(dataset.root / "features.npy", mmap_mode="r")
    if home == "memory":
        features = torch.from_numpy(np.array(rows))
    else:
        rows._mmap.madvise(mmap.MADV_RANDOM)  # noqa: SLF001 - numpy has no public way
        features = torch.from_numpy(rows)
    labels = torch.tensor(dataset.labels)
    loader = dgl.dataloading.DataLoader(
        graph,
        torch.tensor(dataset.train),
        dgl.dataloading.NeighborSampler(list(reversed(order["fanouts"]))),
        batch_size=order["batch_size"],
        shuffle=True,
    )
    for input_nodes, output_nodes, blocks in loader:
        yield features[input_nodes], labels[output_nodes], blocks


def _from_store(dataset: Any, order: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    from gloader.adapters.dgl import BlockLoader

    with BlockLoader(
        dataset,
        fanouts=order["fanouts"],
        batch_size=order["batch_size"],
        features="ssd",
        memory_budget=order["limit_bytes"] - ALLOWANCE,
        spill_dir=str(Path(order["dataset"]).parent),
    ) as loader:
        for _, _, blocks in loader:
            yield blocks[0].srcdata["feat"], blocks[-1].dstdata["label"], blocks


def _bytes_read() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise KeyError("read_bytes")


def _peak_resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise KeyError("VmHWM")


if __name__ == "__main__":
    main()
