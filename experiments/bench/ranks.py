"""Groups of ranks (gloo, this machine) for the benchmarks: each runs a function of a script in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FLAG = "--as-rank"
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    environ: Mapping[str, str] = field(default_factory=dict)  # beside that of all
    group: Path | None = None  # a control group that it enters before it begins


def run_group(
    script: str,
    world: int,
    config: dict[str, Any],
    *,
    timeout_s: float = 600.0,
    places: Sequence[Place] | None = None,
) -> list[Any]:
    """Return what the worker function of ``script`` returns on each of ``world`` ranks.

    Parameters
    ----------
    script, world : the ranks
    config : that each of them is given
    timeout_s : all are stopped then
    places : of each rank; defaults to the same for all
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = []
        for rank, place in enumerate(places or [Place()] * world):
            command = [sys.executable, script, _FLAG, json.dumps([rank, world, folder, config])]
            if place.group is not None:
                command = ["/bin/sh", "-c", _ENTER, str(place.group), *command]
            processes.append(subprocess.Popen(command, env=env | dict(place.environ)))
        try:
            statuses = [process.wait(timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(statuses):
            raise SystemExit(f"ranks ended with {statuses}")
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(world)]


def is_rank() -> bool:
    """Return whether this process is a rank, not the script's main process."""
    return len(sys.argv) == 3 and sys.argv[1] == _FLAG


def be_rank(worker: Callable[[dict[str, Any]], Any]) -> None:
    """Join the group, run ``worker`` with the group's configuration, and hand back what it returns."""
    import torch
    from torch import distributed

    rank, world, folder, config = json.loads(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    found = worker(config)
    (Path(folder) / str(rank)).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
