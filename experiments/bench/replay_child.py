"""One run of the benchmark of the replay: trains a few epochs, and writes what every stage did.

The job is the one word of its command line, as JSON; the result is the last line that it prints. Started by `ranks.py`,
it is one of several ranks (gloo), of which the first one records.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranks import be_rank, is_rank

if TYPE_CHECKING:
    from gloader.training.task import AnyLoader
    from gloader.training.train_step import TrainStep

Job = dict[str, Any]


def settle(job: Job) -> None:
    """Have this process be what the job says, before numpy, numba or torch look at it."""
    # As `gloader train` has it: threads that wait for work must not take the cores of those that have some.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if job["cores"] is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["cores"]])
    for group in job["groups"]:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def run(job: Job) -> dict[str, Any]:
    """Train as the job says, record it, and return what it took."""
    import torch

    from gloader import Dataset
    from gloader.training.group import RankGroup
    from gloader.training.process import private_randomness
    from gloader.training.train import resolved_settings, task_of
    from gloader.training.train_step import new_step

    dataset = Dataset.open(job["dataset"])
    device, group = torch.device("cpu"), RankGroup.current()
    settings = resolved_settings(settings_of(job), dataset)
    task = task_of(settings, dataset)
    called = time.perf_counter()
    with (
        task.open_loader(dataset, settings.loader, device_dry_run=None) as loader,
        private_randomness(device),
    ):
        opened_s = time.perf_counter() - called
        step = new_step(task, settings, device, group, num_steps=job["epochs"] * len(loader))
        before, own_before = machine_cpu_s(), time.process_time()
        epoch_s = [train_epoch(loader, step, times=job["compute"]) for _ in range(job["epochs"])]
        used = {name: seconds - before[name] for name, seconds in machine_cpu_s().items()}
        if group.is_first:
            loader.write_trace(job["trace"])
        return {
            "epoch_s": epoch_s,
            "batches": len(loader),
            "opened_s": opened_s,
            "peak_bytes": status_bytes("VmHWM"),
            "planned_bytes": loader.memory_plan.total_bytes,
            "explain": loader.explain(),
            "bottleneck": loader.bottleneck(),
            "own_cpu_s": time.process_time() - own_before,
            **used,
        }


def settings_of(job: Job) -> Any:
    """Return the settings of a training run."""
    from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings

    links = job["links"]
    return TrainSettings(
        model=ModelConfig(**job["model"]),
        optim=OptimConfig(epochs=job["epochs"]),
        loader=LoaderSettings.of(**job["loader"], epochs=job["epochs"], trace=True),
        task="node" if links is None else "link",
        links=LinkConfig(**(links or {})),
    )


def train_epoch(loader: AnyLoader, step: TrainStep, *, times: int) -> float:
    """Learn from every batch so many times; return the seconds."""
    began = time.perf_counter()
    for batch in loader:
        for _ in range(times):
            step.take(batch, is_last=batch.id.index + 1 == len(loader))
    return time.perf_counter() - began


def machine_cpu_s() -> dict[str, float]:
    """Return processor seconds since the start of the machine: of all processes, and those that it was not given."""
    fields = [int(word) for word in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]]
    ticks = os.sysconf("SC_CLK_TCK")
    # User, nice and system, then interrupts: a core that was idle, or waited for a disk, was not used.
    return {"all_cpu_s": sum(fields[i] for i in (0, 1, 2, 5, 6)) / ticks, "stolen_cpu_s": fields[7] / ticks}


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    """Run the job of the command line."""
    if is_rank():
        settle(json.loads(sys.argv[2])[3])
        be_rank(run)
        return
    job = json.loads(sys.argv[1])
    settle(job)
    print(json.dumps(run(job)))


if __name__ == "__main__":
    main()
