"""Every setting of a training run, as frozen dataclasses; the command line and YAML recipes are made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ModelName = Literal["graphsage", "gcn", "gat", "mlp"]
Features = Literal["auto", "ram", "ssd"]
Policy = Literal["belady", "static", "lru", "fifo", "clock", "sieve", "s3fifo", "none"]
IoStrategy = Literal["auto", "direct", "staged", "packed"]
Layout = Literal["layered", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """How mini-batches are sampled and where their features come from."""

    sampler: str = "neighbor"  # what `gloader.samplers.make_sampler` takes
    fanouts: tuple[int, ...] = (15, 10, 5)  # first hop (next to the seeds) first; -1 takes all neighbours
    layout: Layout = "layered"  # every node found so far draws in each hop, or each node once, as in PyG
    batch_size: int = 1024
    memory_budget_bytes: int | None = None  # None: half of what is free at the start
    features: Features = "auto"
    policy: Policy = "belady"
    cache_bytes: int | None = None  # host cache; None: what the budget leaves
    spill_budget_bytes: int | None = None  # disk for packs; None: a share of what is free; 0: no packs
    spill_dir: str | None = None  # where they go; None: the system's temporary folder
    io_strategy: IoStrategy = "auto"
    max_gap_bytes: int | None = None  # hole that one read goes over; None: what suits the device; 0: none
    superbatch: int | None = None  # most batches planned together; None: what the budgets allow
    superbatch_reset: bool = False  # empty the host cache at every superbatch, as Ginex does
    seed_blocks: int = 1  # neighbouring seeds that stay together in a batch
    device_cache: str | int = (
        "auto"  # rows held on a GPU: bytes, "4GB", 0 for none; "auto": what its memory allows
    )
    threads: int | None = None  # sampling threads; None: the cores this process may use
    stall_timeout_s: float = 300.0  # a stage that does nothing for so long while others wait ends the run
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: ModelName = "graphsage"
    hidden: int = 256
    dropout: float = 0.5
    batch_norm: bool = False
    heads: int = 4  # GAT only


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The optimisation of one run."""

    epochs: int = 10
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = 0.003
    weight_decay: float = 0.0
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    patience: int = 0  # epochs without a better validation accuracy before stopping; 0 never stops early
    eval_every: int = 1  # epochs between evaluations
    checkpoint_every: int = 0  # batches between checkpoints within an epoch; 0 saves after each epoch only
