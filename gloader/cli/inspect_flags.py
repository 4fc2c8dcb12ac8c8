"""Flags of `gloader inspect`."""

from dataclasses import dataclass

from cyclopts import Parameter

from gloader.core.flag_values import Fanout, Size


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class InspectFlags:
    """Flags of the batches that are sampled."""

    fanout: Fanout = (15, 10, 5)
    """Neighbours sampled per node, one number per layer, the hop next to the seeds first; -1 takes all."""
    batch_size: int = 1024
    """Training nodes per batch."""
    batches: int | None = None
    """Batches to sample. Default: a whole epoch, with --topology 64."""
    superbatch: int = 64
    """Batches that are planned together."""
    seed: int = 0
    """Key of the order and the sampling."""
    threads: int | None = None
    """Sampling threads. Default: one for each core of this process."""
    memory_budget: Size = None
    """Memory for the traces, and with --topology that of the loader. Default: half of what is free."""
    spill_budget: Size = None
    """With --topology: disk that the loader may take; a quarter of what is free, up to four times the features, when
    not given."""
