"""Machines rehearsed on this one: gloo ranks with names, datasets and spill folders of their own, and a network."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from rank_server import Ended

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.ids import RangePart

Run = Callable[..., list[Ended]]

# Missing rows of a few batches together, in memory or in packs as it comes.
LOADING: dict[str, Any] = {"mode": "packed", "io_strategy": "auto", "batch_size": 8, "spill_budget": "64MB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What the network between the machines does."""

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """When and how a machine ends."""

    rank: int
    group: int  # the number of the group that the hosts made: 0 agrees on sizes, later ones are runs
    collective: int  # of that group, from 0
    signal_number: int = signal.SIGKILL  # or SIGSTOP: it hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """When loops of ranks end early."""

    ranks: Sequence[int]
    epoch: int
    batches: int  # that it takes


def load_on(
    run: Run,
    datasets: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    network: Network | None = None,
    ending: Ending | None = None,
    leaving: Sequence[Leaving] = (),
    odd: Mapping[str, Mapping[str, Any]] | None = None,
    timeout_s: float = 60.0,
    **settings: Any,
) -> list[Ended]:
    """Run a loader on a rank for each of ``datasets``; each returns the digests of its batches and what its disk read.

    Parameters
    ----------
    run : the fixture
    datasets : a directory for each rank: copies, or ranges of the rows; the ranks of a machine have one
    names : of the machine of each rank; defaults to one machine for each
    network : defaults to as fast as it is here
    ending : of a machine; defaults to none
    leaving : of the loops of ranks
    odd : settings of some machines
    timeout_s : ranks that hang are killed then
    settings : of the loader, and ``epochs``
    """
    return run(
        "rehearsed",
        world=len(datasets),
        datasets=[str(dataset) for dataset in datasets],
        names=list(names or [f"m{rank}" for rank in range(len(datasets))]),
        network=None if network is None else asdict(network),
        ending=None if ending is None else asdict(ending),
        breaks=[asdict(one) for one in leaving],
        odd=None if odd is None else {name: dict(how) for name, how in odd.items()},
        timeout_s=timeout_s,
        **(LOADING | settings),
    )


def results_of(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return what each rank found; all of them have to have ended well."""
    failed = [
        f"rank {rank}: {how.status} after {how.seconds:.1f} s\n{how.error}"
        for rank, how in enumerate(ended)
        if how.status
    ]
    if failed:
        pytest.fail("\n".join(failed))
    return [how.result for how in ended]


def write_parts(folder: Path, spec: str, count: int) -> list[Path]:
    """Return ``count`` datasets of the source ``spec``, each with its part of the rows.

    Parameters
    ----------
    folder : that they are written to
    spec : of a source, as in `gloader prepare`
    count : W
    """
    paths = [folder / f"part-{part}" for part in range(count)]
    for part, path in enumerate(paths):
        options = PrepareOptions(ranges=RangePart(part=part, of=count))
        prepare(open_source(spec, SourceOptions()), path, options)
    return paths
