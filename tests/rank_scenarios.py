"""Scenarios for the ranks of a test; run by `rank_server`, each function on every rank."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedding_scenarios import evaluating, refused, slow_step, training, typed  # noqa: F401 - run by name
from exchange_scenarios import DyingTransport, cutting, deaf, dying, exchanging, leaving  # noqa: F401 - run by name
from torch import distributed

import gloader
from gloader.core.negatives import parse_negatives
from gloader.device import CpuDevice
from gloader.distributed import agree, client_run, device_agreement
from gloader.distributed import open as distributed_open
from gloader.distributed.exchange import notes
from gloader.distributed.exchange.exchange import Exchange
from gloader.distributed.exchange.host_group import Launch
from gloader.errors import RankError
from gloader.pipeline import gather
from gloader.pipeline.open import device_tier
from gloader.pipeline.open import tiers as open_tiers
from gloader.pipeline.send import Transfer
from gloader.samplers import HeteroGraph
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.testing.rehearsed_network import ThrottledTransport
from gloader.training.group import RankGroup
from gloader.types import HeteroReadyBatch, LinkBatch, ReadyBatch

DEFAULTS: dict[str, Any] = {"fanouts": [4, 3], "memory_budget": "200MB", "threads": 2}
MODES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "direct": {"features": "ssd", "cache": 9600, "io_strategy": "direct"},
    "packed": {"features": "ssd", "cache": 9600, "superbatch": 4, "io_strategy": "packed"},
    "weighted": {"features": "ssd", "cache": 9600, "superbatch": 4, "sampler": "labor"},
    "merged": {"features": "ssd", "cache": 9600, "superbatch": 4, "layout": "merged"},
    "swept": {
        "features": "ssd",
        "cache": 9600,
        "superbatch": 4,
        "topology": "sweep",
        "spill_budget": "64MB",  # also where temporary files are in memory
    },
}


def build(dataset: str, **settings: Any) -> Any:
    """Return a loader of the kind that the dataset is for, or with ``edges`` of links; ``mode`` is one of MODES."""
    mode = MODES[settings.pop("mode", "direct")]
    opened = gloader.Dataset.open(dataset)
    if "edges" in settings:
        negatives = parse_negatives(settings.pop("negatives", "uniform:1"))
        return gloader.LinkLoader(opened, negatives=negatives, **(DEFAULTS | mode | settings))
    kind = gloader.HeteroLoader if opened.kind == "hetero" else gloader.Loader
    return kind(opened, **(DEFAULTS | mode | settings))


def digest(batch: ReadyBatch | HeteroReadyBatch | LinkBatch) -> str:
    """Return a digest of every array of a batch."""
    if isinstance(batch, LinkBatch):
        pairs = (batch.pairs.tolist(), batch.labels.tolist(), batch.edge_ids.tolist(), batch.num_positives)
        return f"{digest(batch.batch)} {hashlib.sha256(str(pairs).encode()).hexdigest()}"
    found = hashlib.sha256(f"{batch.id} {batch.num_seeds}".encode())
    is_typed = isinstance(batch, HeteroReadyBatch)
    nodes = [*batch.nodes.values()] if is_typed else [batch.nodes]
    x = [*batch.x.values()] if is_typed else [batch.x]
    arrays = [*nodes, *(rows.numpy() for rows in x), batch.y.numpy()]
    arrays += [] if batch.row_ids is None else [batch.row_ids]
    of_rows = (batch.weights, batch.row_seeds, *(batch.typed.row_age or {}).values())
    arrays += [tensor.numpy() for tensor in of_rows if tensor is not None]
    for block in [block for hop in batch.blocks for block in hop.values()] if is_typed else batch.blocks:
        found.update(f"{block.num_src} {block.num_dst}".encode())
        arrays += [
            block.indptr.numpy(),
            block.indices.numpy(),
            block.edge_ids.numpy(),
            block.src_degree.numpy(),
        ]
        if block.edge_weight is not None:
            arrays.append(block.edge_weight.numpy())
        if block.edge_x is not None:
            arrays.append(block.edge_x.numpy())
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def warm_up(dataset: str) -> None:
    """Load every kernel."""
    for mode in MODES:
        with build(dataset, mode=mode, batch_size=16) as loader:
            list(loader)


def epochs(dataset: str, *, epochs: int = 1, **settings: Any) -> dict[str, Any]:
    """Return the digests of all batches, and what the last epoch moved."""
    with build(dataset, **_without_place(settings)) as loader:
        digests = [[digest(batch) for batch in loader] for _ in range(epochs)]
        stats = dataclasses.asdict(loader.stats)
        return {
            "digests": digests,
            "stats": stats,
            "length": len(loader),
            "text": loader.explain(),
            "state": loader.state_dict(),
            "edges": sum(topology.num_edges for topology in _topologies(loader)),
            "bottleneck": loader.bottleneck(),
        }


def recording(dataset: str, rank: int, files: str, **settings: Any) -> list[int]:
    """Record two epochs, each rank to a file of its own; return the batches of an epoch, and buffers as planned."""
    settings.pop("world"), settings.pop("folder")
    with build(dataset, trace=True, epochs=2, **settings) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        loader.write_trace(Path(files) / f"{rank}.json")
        return [len(loader), loader.memory_plan.num_buffers]


def breaking(dataset: str, **settings: Any) -> list[list[str]]:
    """Return the digests of an epoch that ends early, of the next one, and from a saved state on."""
    with build(dataset, **_without_place(settings)) as loader:
        first = []
        state = loader.state_dict()
        for batch in loader:
            first.append(digest(batch))
            if len(first) == 2:
                state = loader.state_dict()
                time.sleep(0.2)  # so that a thread that sends waits for this loop as it is left
                break
        second = [digest(batch) for batch in loader]
        loader.load_state_dict(state)
        rest = [digest(batch) for batch in loader]
        return [first, second, rest]


def on_machines(dataset: str, rank: int, names: list[str], **settings: Any) -> dict[str, Any]:
    """Return the digests of an epoch on the machine ``names[rank]``, and what the ranks of it share."""
    os.environ["GLOADER_MACHINE"] = names[rank]
    group = RankGroup.current()
    teams: list[Any] = []
    inner = agree.assemble

    def assemble(*args: Any) -> Any:
        teams.append(inner(*args))
        return teams[-1]

    distributed_open.assemble = assemble
    open_tiers.default_budget_bytes = lambda: 480 << 20
    with build(dataset, **_without_place(settings)) as loader:
        (team,) = teams
        return {
            "digests": [digest(batch) for batch in loader],
            "ranks": team.ranks,
            "hosts": team.hosts,
            "machines": team.machines,
            "num_loaders": team.num_loaders,
            "budget": loader._held.tier.plan.budget_bytes if team.is_host else None,
            "machines_here": group.machines_here,
            "local_rank": group.local_rank,
        }


def rehearsed(
    dataset: str,
    datasets: list[str],
    rank: int,
    world: int,
    folder: str | Path,
    names: list[str],
    network: dict[str, float] | None = None,
    ending: dict[str, int] | None = None,
    breaks: Sequence[dict[str, Any]] = (),
    odd: dict[str, dict[str, Any]] | None = None,
    epochs: int = 1,
    **settings: Any,
) -> dict[str, Any]:
    """Load on the machine ``names[rank]`` from its own dataset and spill folder; see `machines.load_on`."""
    settings |= (odd or {}).get(names[rank], {})
    if ending is not None:
        # Collectives are counted: the network is measured by one step, however fast it is.
        Exchange.__init__.__kwdefaults__["rates_s"] = 0.0  # type: ignore[index]
        notes.PATIENCE_S = 2.0
    os.environ["GLOADER_MACHINE"] = names[rank]
    inner = Launch.connect
    connected: list[Any] = []

    def connect(launch: Any) -> Any:
        transport: Any = inner(launch)
        if network is not None:
            transport = ThrottledTransport(transport, **network)
        if ending is not None and ending["rank"] == rank and ending["group"] == len(connected):
            transport = DyingTransport(transport, call=ending["collective"], number=ending["signal_number"])
        connected.append(transport)
        return transport

    Launch.connect = connect
    spill = Path(folder) / f"spill-{names[rank]}"
    spill.mkdir(mode=0o700, exist_ok=True)
    with build(datasets[rank], spill_dir=str(spill), **settings) as loader:
        digests, stats = [], []
        for epoch in range(epochs):
            ends = [one["batches"] for one in breaks if one["epoch"] == epoch and rank in one["ranks"]]
            most = ends[0] if ends else None
            digests.append([digest(batch) for batch in itertools.islice(loader, most)])
            stats.append(dataclasses.asdict(loader.stats))
        text = loader.explain()
    return {
        "digests": digests,
        "bytes_read": [one["bytes_read"] for one in stats],
        "stats": stats,
        "text": text,
        "groups": len(connected),
        "left": sorted(path.name for path in spill.iterdir()),
    }


def surveying(dataset: str, rank: int, world: int, folder: str | Path, names: list[str]) -> dict[str, Any]:
    """Survey the network between machines of these names; return the survey as JSON, and what is left of it."""
    from gloader.cli.machine_check import network_findings, to_json, what_to_do
    from gloader.distributed.network.interfaces import open_sockets
    from gloader.distributed.network.survey import survey_network

    os.environ["GLOADER_MACHINE"] = names[rank]
    distributed.destroy_process_group()
    before = open_sockets()
    store = distributed.FileStore(f"{folder}/survey", world)
    survey = survey_network(store, rank=rank, world_size=world, timeout_s=5.0, seconds=0.02)
    return {
        **to_json(survey),
        "findings": [dataclasses.asdict(finding) for finding in network_findings(survey)],
        "text": what_to_do(survey),
        "left": sorted(open_sockets().keys() - before.keys()),
        "variable": os.environ["GLOO_SOCKET_IFNAME"],
        "has_group": distributed.is_initialized(),
    }


def building(dataset: str, rank: int, odd: dict[str, Any], **settings: Any) -> None:
    """Build a loader that has other settings on rank 1."""
    settings.pop("world"), settings.pop("folder")
    with build(dataset, **(settings | (odd if rank == 1 else {}))) as loader:
        next(iter(loader))


def of_two_kinds(dataset: str, rank: int, **settings: Any) -> None:
    """Build a typed loader on rank 1, of the same dataset."""
    kind = gloader.HeteroLoader if rank else gloader.Loader
    with kind(gloader.Dataset.open(dataset), **(DEFAULTS | _without_place(settings))):
        pass


def killed(dataset: str, rank: int, folder: str | Path, **settings: Any) -> None:
    """Iterate for ever, slowly; the test kills a rank."""
    settings.pop("world")
    with build(dataset, **settings) as loader:
        while True:
            for batch in loader:
                assert batch.num_seeds
                (Path(folder) / f"ready-{rank}").touch()
                time.sleep(0.02)


def failing(dataset: str, rank: int, part: str, on: int, **settings: Any) -> None:
    """Iterate; a stage of rank ``on`` raises in its fourth batch."""
    settings.pop("world"), settings.pop("folder")
    with build(dataset, **settings) as loader:
        calls = iter(range(1000))

        def boom(inner: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(calls) == 4:
                    raise OSError("boom in the stage")
                return inner(*args, **kwargs)

            return call

        if rank == on and part == "gather":
            (ssd,) = loader._held.tier.ssd
            ssd = dataclasses.replace(ssd, slots=_Failing(ssd.slots, "copy_hits", boom))
            loader._held.tier = dataclasses.replace(loader._held.tier, ssd=(ssd,))
        elif rank == on:
            Transfer.send = boom(Transfer.send)
        # For longer than an epoch: a rank that is ahead of the one that fails would end before it hears of that.
        for _ in range(100):
            for _ in loader:
                time.sleep(0.01)


def holding(dataset: str, rank: int, most: int, **settings: Any) -> dict[str, Any]:
    """Hold up to ``most`` batches on rank 1 while others are taken from four buffers; a view is enough to hold one."""
    settings.pop("world"), settings.pop("folder")
    with build(dataset, **settings) as loader:
        if rank == 0:
            ring = loader._held.host._peers[0].outbox.ring
            ring._rows = (120,)
            ring._max_bytes = 4 * 120 * 24 * 4
            ring._patience_s = 0.2
        held, copies, taken = [], [], 0
        for batch in loader:
            taken += 1
            if rank == 1:
                nodes = torch.from_numpy(batch.nodes)
                held.append((batch.x[1:], nodes, batch.blocks[0].edge_ids, batch.blocks[-1].src_degree))
                copies.append([tensor.clone() for tensor in held[-1]])
                del held[:-most], copies[:-most]
            del batch
        distributed.barrier()
        lent = len(loader._held.host._peers[0].outbox._lent) if rank == 0 else 0
        distributed.barrier()
        pairs = [pair for group in zip(held, copies, strict=True) for pair in zip(*group, strict=True)]
        return {
            "same": all(bool((a == b).all()) for a, b in pairs),
            "pairs": len(pairs),
            "taken": taken,
            "lent": lent,
        }


def lazy(dataset: str, rank: int, **settings: Any) -> None:
    """Rank 1 does not take its batches, without holding any."""
    settings.pop("world"), settings.pop("folder")
    with build(dataset, **settings) as loader:
        if rank == 0:
            loader._held.host._peers[0].outbox.ring._max_bytes = 2 * 120 * 24 * 4
        batches = iter(loader)
        next(batches)
        try:
            if rank == 0:
                list(batches)
        finally:
            distributed.barrier()


def closing(dataset: str, rank: int, **settings: Any) -> int:
    """Take an epoch; rank 0 is done, and closes, long before rank 1 took its last batches."""
    settings.pop("world"), settings.pop("folder")
    taken = 0
    with build(dataset, **settings) as loader:
        for batch in loader:
            taken += batch.num_seeds > 0
            if rank == 1:
                time.sleep(0.03)
    return taken


def apart(dataset: str, rank: int, **settings: Any) -> None:
    """Begin at different places, or not at all."""
    settings.pop("world"), settings.pop("folder")
    late = settings.pop("late", False)
    with build(dataset, **settings) as loader:
        if rank == 1 and late:
            distributed.barrier()
            return
        if rank == 1:
            state = loader.state_dict()
            loader.load_state_dict(state | {"next": [0, 2]})
        try:
            next(iter(loader))
        finally:
            if late:
                distributed.barrier()


def alone(dataset: str, rank: int, world: int, **settings: Any) -> list[list[str]]:
    """Return the digests of a private loader that takes its place from the process group."""
    settings.pop("folder")
    assert (rank, world) == (distributed.get_rank(), distributed.get_world_size())
    with build(dataset, sharing="private", **settings) as loader:
        return [digest(batch) for batch in loader]


def late_group(dataset: str, rank: int, world: int, folder: str | Path, **settings: Any) -> Any:
    """Use a loader that was built before the process group; then say what one of DGL's names asks in the group."""
    from gloader.compat.dgl import dataloading

    distributed.destroy_process_group()
    early = build(dataset, **settings)  # as of a script that starts the group later
    distributed.init_process_group("gloo", init_method=f"file://{folder}/late", rank=rank, world_size=world)
    found = []
    opened, sampler = gloader.Dataset.open(dataset), dataloading.NeighborSampler([2])

    others = {name: value for name, value in DEFAULTS.items() if name != "fanouts"}

    def loaded(**ddp: bool) -> list[int]:
        with dataloading.DataLoader(opened, opened.train, sampler, batch_size=10, **ddp, **others) as stream:
            return [int(seed) for _, seeds, _ in stream for seed in seeds]

    for use in (lambda: next(iter(early)), loaded):
        try:
            use()
            found.append("")
        except gloader.errors.ConfigError as error:
            found.append(str(error))
    early.close()
    return found, loaded(use_ddp=True), loaded(use_ddp=False)


def own_seeds(dataset: str, rank: int, world: int, **settings: Any) -> int:
    """Give each rank seeds of its own, as scripts do that split them by hand; ``apart`` says so."""
    settings.pop("folder")
    seeds = gloader.Dataset.open(dataset).train[rank::world]
    alone = {"rank": 0, "world_size": 1} if settings.pop("apart", False) else {}
    with build(dataset, seeds=seeds, **settings, **alone) as loader:
        return sum(batch.num_seeds for batch in loader)


def with_devices(dataset: str, rank: int, then: str, sizes: list[int], **settings: Any) -> Any:
    """Do the scenario ``then`` on devices of these sizes that go the way of a GPU."""
    reaches = settings.pop("reaches", [False] * len(sizes))[rank]
    rehearses = settings.pop("rehearses", True)
    is_late = rehearses is True or (rehearses and rehearses[rank])
    device = RehearsedDevice(reads_in_place=reaches) if is_late else CpuDevice()
    device_tier.open_device = device_agreement.open_device = lambda place: device
    scenario = globals()[then]
    if isinstance(device, RehearsedDevice):
        client_run.pin_segment = lambda memory, place: device.pin_memory(memory)
    else:
        return scenario(dataset, rank=rank, device_cache=sizes[rank], **settings)
    try:
        # A loop that fails only launches: nobody waits for the batches that it got.
        with device.computing() if then == "failing" else contextlib.nullcontext():
            return scenario(dataset, rank=rank, device_cache=sizes[rank], **settings)
    finally:
        # What was under way as the loader was closed is done now: its memory must have been there until then.
        device.finish()
        assert (device.faults, device.num_pinned) == ([], 0)


def held(dataset: str, *, epochs: int = 2, **settings: Any) -> dict[str, Any]:
    """Return the digests of all batches, what the device holds, and how many rows of the last epoch it brought."""
    with build(dataset, **_without_place(settings)) as loader:
        tier = loader._held.tier.device_tiers[0]
        rows = np.empty(0, dtype=np.int64) if tier.cache is None else tier.cache.plan.rows
        digests: list[list[str]] = []
        hits = 0
        names: set[str] = set()  # of every batch: at the last one the rank that loads may have closed already
        for _ in range(epochs):
            digests.append([])
            hits = 0
            for batch in loader:
                digests[-1].append(digest(batch))
                hits += int(np.isin(batch.nodes, rows).sum())
                names |= {thread.name for thread in threading.enumerate()}
        return {
            "digests": digests,
            "rows": rows.tolist(),
            "staged": tier.staged_dtype.name,
            "hits": hits,
            "sends": "gloader-send" in names,
            "stats": dataclasses.asdict(loader.stats),
            "text": loader.explain(),
        }


def meeting(dataset: str, *, batch_size: int, gpu: str, rank: int, **settings: Any) -> dict[str, Any]:
    """Build a loader on a device with little memory, the ``gpu`` of every rank; return what was done in which order."""
    done: list[str] = []
    inner, little = distributed.all_reduce, RehearsedDevice()

    class Small:
        def __getattr__(self, name: str) -> Any:
            return getattr(little, name)

        def free_bytes(self) -> int:
            done.append("measured")
            return 2 << 30  # what several ranks leave to those that talk

        def most_bytes_of(self, step: Any) -> int:
            step()
            return 0

    def all_reduce(tensor: torch.Tensor) -> None:
        done.append("talked")
        inner(tensor)

    agree.distributed.all_reduce = all_reduce
    agree.gpu_of = lambda place: gpu.format(rank=rank) or None
    device_tier.open_device = device_agreement.open_device = lambda place: Small()
    with build(
        dataset,
        batch_size=batch_size,
        device_dry_run=lambda batch: done.append("tried"),
        **_without_place(settings),
    ) as loader:
        cache = loader._held.tier.device_tiers[0].cache
        return {"done": done, "rows": 0 if cache is None else len(cache.plan.rows)}


def reached(dataset: str, *, batch_size: int, **settings: Any) -> dict[str, Any]:
    """Return the digests of an epoch, how many rows the host gathered, and in which shared memory the features are."""
    pages = -(-gloader.Dataset.open(dataset).feature_bytes // mmap.PAGESIZE)
    gathered: list[int] = []
    inner = gather.gather_whole

    def gather_whole(nodes: Any, *args: Any, **kwargs: Any) -> Any:
        gathered.append(len(nodes))
        return inner(nodes, *args, **kwargs)

    gather.gather_whole = gather_whole
    with build(dataset, batch_size=batch_size, **_without_place(settings)) as loader:
        digests = [digest(batch) for batch in loader]
        inode = _features_of(loader)
        borrowed = loader.borrowed_bytes
        maps = [name for start, end, name, _ in _mappings() if end - start == pages * mmap.PAGESIZE]
        text = loader.explain()
    distributed.barrier()
    del loader
    gc.collect()
    return {
        "digests": digests,
        "gathered": sum(gathered),
        "inode": inode,
        "maps": maps.count("/memfd:gloader (deleted)"),
        "borrowed": borrowed,
        "left": _is_mapped(inode),
        "text": text,
    }


def survived(dataset: str, **settings: Any) -> dict[str, Any]:
    """Iterate until the test kills the other rank; return what is raised, and whether the features are still mapped."""
    inodes: list[int] = []
    inner = globals()["build"]

    def build(*args: Any, **kwargs: Any) -> gloader.Loader:
        loader = inner(*args, **kwargs)
        inodes.append(_features_of(loader))
        return loader

    globals()["build"] = build
    try:
        killed(dataset, **settings)
    except RankError as error:
        text = str(error)
    gc.collect()
    return {"error": text, "inode": inodes[0], "left": _is_mapped(inodes[0])}


def _features_of(loader: gloader.Loader) -> int:
    """Return the inode of the shared memory that the features are reached in; 0 if they are not."""
    held = loader._held.tier.device_tiers[0].features
    if held is None:
        return 0
    address = held.rows.data_ptr()
    for start, end, name, inode in _mappings():
        if start <= address < end:
            return inode if name.startswith("/memfd:gloader") else 0
    return 0


def _is_mapped(inode: int) -> bool:
    return any(found == inode for *_, found in _mappings())


def _mappings() -> Iterator[tuple[int, int, str, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, _, _, _, inode, *name = line.split()
        start, end = (int(place, 16) for place in places.split("-"))
        yield start, end, " ".join(name), int(inode)


def unable(dataset: str, rank: int, on: int, how: str, **settings: Any) -> None:
    """Build a loader; the device of rank ``on`` cannot hold its rows, or the rank dies while it reads them."""

    def cache(*_: Any, **__: Any) -> Any:
        if how == "dies":
            os._exit(9)
        raise MemoryError("the device is full")

    if rank == on:
        device_tier.StaticCache = cache
    with build(dataset, **_without_place(settings)):
        pass


def held_by_type(dataset: str, **settings: Any) -> dict[str, Any]:
    """Return the digests of an epoch, and which rows of each type the device holds, and reaches."""
    with build(dataset, **_without_place(settings)) as loader:
        digests = [digest(batch) for batch in loader]
        tiers = loader.device_tiers
        rows = {
            name: [] if tier.cache is None else tier.cache.plan.rows.tolist() for name, tier in tiers.items()
        }
        dtypes = {name: tier.staged_dtype.name for name, tier in tiers.items()}
        return {"digests": digests, "rows": rows, "staged": dtypes, "text": loader.explain()}


def _topologies(loader: Any) -> list[Any]:
    graph = loader.graph
    return [*graph.relations.values()] if isinstance(graph, HeteroGraph) else [graph]


class _Failing:
    def __init__(self, inner: Any, method: str, wrap: Any) -> None:
        self._inner, self._method = inner, method
        setattr(self, method, wrap(getattr(inner, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in {"rank", "world", "folder"}}
