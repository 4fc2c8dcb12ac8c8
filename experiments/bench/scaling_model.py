"""The step time of 1 to 8 ranks that share a loader, simulated from measured stage times and link rates.

The model. Position t of the stream is step t // R of rank t % R. Sampling has T servers; reading, gathering, handing
over and planning have one each, as the loader has one thread each; batches pass them in order. Between two stages one
batch waits; a rank owns K feature buffers, and reading waits for one of its rank; a batch gives its buffer back when
the next one arrives. Every rank copies its batch to its device, computes, and meets the others in the all-reduce.

Assumptions. Stage times are constants, those of a batch of one rank, and do not grow with R: cores, memory and the disk
serve a stage as fast beside R computing ranks as beside one. A batch is sampled once for its trace, and once more
unless it was kept; both count. Each device has its own link (``--link``, bytes per second); the all-reduce is a ring
over one link per rank (``--network``): 2 (R - 1) / R of the gradient, and a latency per hop. Staged and packed
superbatches are read ahead, so that their reading counts with its mean per batch.

Validation: 1, 2 and 4 gloo ranks on this machine, every stage slowed down to a given time by sleeping, so that cores
and disk do not matter; the stage times of the run with one rank, and what handing over and the all-reduce take,
predict the steps of all three.

    python experiments/bench/scaling_model.py --workdir /var/tmp --out experiments/results/DATE-scaling-model.json

``--machines`` answers for 1 to 64 machines instead, which read alone or share a sweep (`machines_model.py`, where the
assumptions are): from the rates and counts that are given, by default those of papers100M on the SSD of the study, and
compared with what `machines.py` measured on 1, 2 and 4 (``--measured``).

    python experiments/bench/scaling_model.py --machines --measured experiments/results/DATE-machines.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machines_model
from ranks import be_rank, is_rank, run_group

from gloader.lab.bench.environment import provenance
from gloader.ssd_store.cost.exchange_cost import NetworkRates

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM_STEPS = 20
_MOST_BUFFERS = 8  # more make no difference

SERIAL = ("plan_s", "read_s", "gather_s", "share_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds of each stage for a batch of one rank, and what surrounds them."""

    sample_s: float
    plan_s: float
    read_s: float
    gather_s: float
    share_s: float  # handing a batch over to another rank
    transfer_s: float
    compute_s: float
    samplers: int  # T
    buffers: int  # K, of each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step, and what is busy longest."""

    ranks: int
    step_s: float
    efficiency: float  # the slowest resource alone over the step
    bottleneck: str


def simulate(stages: Stages, ranks: int, *, reduce_s: float, steps: int = 200) -> Prediction:
    """Return the steady step time of ``ranks`` ranks. Pure; a recurrence over batches and stages."""
    count = steps * ranks
    samplers = [0.0] * stages.samplers
    ahead = stages.samplers + 2 * ranks  # sampled batches that may wait
    read, gathered, shared, planned = ([0.0] * count for _ in range(4))
    began_gather, began_share, began_read = ([0.0] * count for _ in range(3))
    arrived = [[0.0] * steps for _ in range(ranks)]  # when a rank takes a batch over
    done = 0.0  # of the last step, with its all-reduce
    ends = []
    for step in range(steps):
        for rank in range(ranks):
            t = step * ranks + rank
            server = samplers.index(min(samplers))
            samplers[server] = (
                max(samplers[server], began_read[t - ahead] if t >= ahead else 0.0) + stages.sample_s
            )
            planned[t] = max(planned[t - 1] if t else 0.0, samplers[server]) + stages.plan_s
            # A buffer comes back when the batch behind its batch is taken over.
            freed = arrived[rank][step - stages.buffers + 1] if step >= stages.buffers else 0.0
            handed = began_gather[t - 2] if t > 1 else 0.0  # one batch may wait between reading and gathering
            began_read[t] = max(read[t - 1] if t else 0.0, planned[t], freed, handed)
            read[t] = began_read[t] + stages.read_s
            waits = began_share[t - 2] if t > 1 else 0.0
            began_gather[t] = max(gathered[t - 1] if t else 0.0, read[t], waits)
            gathered[t] = began_gather[t] + stages.gather_s
            began_share[t] = max(shared[t - 1] if t else 0.0, gathered[t])
            shared[t] = began_share[t] + (stages.share_s if rank else 0.0)
        for rank in range(ranks):
            arrived[rank][step] = max(shared[step * ranks + rank], done)
        done = (
            max(arrived[rank][step] for rank in range(ranks))
            + stages.transfer_s
            + stages.compute_s
            + reduce_s
        )
        ends.append(done)
    half = steps // 2
    step_s = (ends[-1] - ends[half - 1]) / (steps - half)
    load = _loads(stages, ranks, reduce_s)
    bottleneck = max(load, key=lambda name: load[name])
    return Prediction(ranks=ranks, step_s=step_s, efficiency=load[bottleneck] / step_s, bottleneck=bottleneck)


def _loads(stages: Stages, ranks: int, reduce_s: float) -> dict[str, float]:
    """Return how long each resource is busy with one step of all ranks. Pure."""
    load = {name[:-2]: ranks * getattr(stages, name) for name in SERIAL}
    load["share"] = (ranks - 1) * stages.share_s
    load["sample"] = ranks * stages.sample_s / stages.samplers
    load["compute"] = stages.transfer_s + stages.compute_s + reduce_s
    return load


def ring_reduce_s(ranks: int, *, num_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Return the seconds of a ring all-reduce. Pure."""
    return 2 * (ranks - 1) * (num_bytes / ranks / bytes_per_s + latency_s)


def main() -> None:
    """Validate on this machine, then predict 1 to 8 ranks; print tables and write the numbers."""
    args = _parse()
    if args.machines:
        _model_machines(args)
        return
    checks = _validate(args) if args.validate else []
    stages = Stages(
        sample_s=args.sample,
        plan_s=args.plan,
        read_s=args.read,
        gather_s=args.gather,
        share_s=args.share,
        transfer_s=args.batch_bytes / args.link,
        compute_s=args.compute,
        samplers=args.samplers,
        buffers=args.buffers,
    )
    curve = [
        simulate(
            stages,
            ranks,
            reduce_s=ring_reduce_s(
                ranks, num_bytes=args.model_bytes, bytes_per_s=args.network, latency_s=args.latency
            ),
        )
        for ranks in range(1, 9)
    ]
    print(_table(checks, curve))
    if args.out is not None:
        result = {"stages": asdict(stages), "validation": checks, "ranks": [asdict(point) for point in curve]}
        result |= provenance()
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def _model_machines(args: argparse.Namespace) -> None:
    """Predict 1 to 64 machines; compare with measured ones where there are any."""
    case = replace(
        machines_model.PAPERS,
        network=NetworkRates(bytes_per_s=args.machine_network, latency_s=args.machine_latency),
        rates=replace(
            machines_model.PAPERS.rates,
            read_bytes_per_s=args.disk_read,
            pack_read_bytes_per_s=args.disk_read,
            write_bytes_per_s=args.disk_write,
        ),
        memory_bytes=args.staging,
        compute_s=args.compute,
        model_bytes=args.model_bytes,
    )
    points = [machines_model.predict(case, count) for count in machines_model.MACHINES]
    result = machines_model.to_json(case, points)
    print(
        "\n".join(
            [
                "Assumptions:",
                *(f"- {text}" for text in machines_model.ASSUMPTIONS),
                "",
                machines_model.LEGEND,
                "",
            ]
        )
    )
    print(machines_model.table(points))
    if args.measured is not None:
        result["measured"] = machines_model.compare(args.measured)
        print("\n" + machines_model.comparison(result["measured"]))
    if args.out is not None:
        args.out.write_text(json.dumps(result | provenance(), indent=1) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = parser.add_argument_group(
        "measured seconds per batch (`loader.stats.stage_seconds` over its batches)"
    )
    for name, seconds in (
        ("sample", 0.030),
        ("plan", 0.002),
        ("read", 0.006),
        ("gather", 0.004),
        ("share", 0.001),
        ("compute", 0.030),
    ):
        stages.add_argument(f"--{name}", type=float, default=seconds)
    parser.add_argument("--samplers", type=int, default=8)
    parser.add_argument("--buffers", type=int, default=5)
    parser.add_argument("--batch-bytes", type=float, default=80e6)
    parser.add_argument("--link", type=float, default=24e9, help="host to device, bytes per second")
    parser.add_argument("--network", type=float, default=100e9, help="between devices, bytes per second")
    parser.add_argument("--latency", type=float, default=10e-6, help="of a hop between devices, seconds")
    parser.add_argument("--model-bytes", type=float, default=4e6)
    parser.add_argument("--validate", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--steps", type=int, default=40, help="measured, for the validation")
    parser.add_argument("--workdir", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    machines = parser.add_argument_group("machines, with --compute and --model-bytes from above")
    machines.add_argument("--machines", action="store_true", help="model 1 to 64 machines in place of ranks")
    machines.add_argument(
        "--measured", type=Path, default=None, help="a result of machines.py to compare with"
    )
    machines.add_argument("--machine-network", type=float, default=1.25e9, help="bytes per second, each way")
    machines.add_argument("--machine-latency", type=float, default=1e-4)
    machines.add_argument("--disk-read", type=float, default=1.05e9)
    machines.add_argument("--disk-write", type=float, default=1.8e9)
    machines.add_argument(
        "--staging", type=int, default=0, help="bytes of memory for missing rows; else packs"
    )
    return parser.parse_args()


# Slowed-down stages: compute is the slowest of all ranks alone; then gathering is, from two ranks or from four on.
THROTTLES = (
    {"sample_s": 0.030, "plan_s": 0.0, "read_s": 0.006, "gather_s": 0.005, "compute_s": 0.040},
    {"sample_s": 0.020, "plan_s": 0.0, "read_s": 0.012, "gather_s": 0.018, "compute_s": 0.025},
    {"sample_s": 0.060, "plan_s": 0.0, "read_s": 0.010, "gather_s": 0.005, "compute_s": 0.035},
)


def _validate(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare predictions with steps of this machine."""
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepare import prepare
    from gloader.convert.registry import open_source

    checks = []
    with tempfile.TemporaryDirectory(dir=args.workdir) as folder:
        spec = "synthetic:rmat,nodes=20000,edges=100000,dim=16,classes=8,seed=5"
        prepare(open_source(spec, SourceOptions()), Path(folder) / "graph", PrepareOptions())
        for throttle in THROTTLES:
            measured: Stages | None = None
            for world in (1, 2, 4):
                config = {
                    "dataset": f"{folder}/graph",
                    "throttle": throttle,
                    "steps": args.steps,
                    "threads": 3,
                }
                ranks = run_group(__file__, world, config)
                if measured is None:
                    measured = Stages(**ranks[0]["stages"])
                predicted = simulate(
                    replace(measured, share_s=ranks[0]["share_s"]), world, reduce_s=ranks[0]["reduce_s"]
                )
                step_s = max(rank["step_s"] for rank in ranks)
                checks.append(
                    {
                        "throttle": throttle,
                        "stages": asdict(measured),
                        "ranks": world,
                        "measured_s": step_s,
                        "predicted_s": predicted.step_s,
                        "bottleneck": predicted.bottleneck,
                        "error": predicted.step_s / step_s - 1,
                    }
                )
    return checks


def _table(checks: list[dict[str, Any]], curve: list[Prediction]) -> str:
    lines = []
    if checks:
        lines += [
            "| slowed down | ranks | measured | predicted | error | slowest |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {', '.join(f'{name[:-2]} {1e3 * value:.0f}' for name, value in check['throttle'].items() if value)} ms "
            f"| {check['ranks']} | {1e3 * check['measured_s']:.1f} ms | {1e3 * check['predicted_s']:.1f} ms "
            f"| {check['error']:+.1%} | {check['bottleneck']} |"
            for check in checks
        ]
        lines += [f"\nlargest error {max(abs(check['error']) for check in checks):.1%}\n"]
    lines += ["| ranks | step | batches/s | efficiency | slowest |", "|---|---|---|---|---|"]
    lines += [
        f"| {point.ranks} | {1e3 * point.step_s:.1f} ms | {point.ranks / point.step_s:.0f} | {point.efficiency:.2f} "
        f"| {point.bottleneck} |"
        for point in curve
    ]
    return "\n".join(lines)


# --- on a rank


def _work(config: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch import distributed

    import gloader
    from gloader.pipeline import gather
    from gloader.samplers.neighbor import NeighborSampler
    from gloader.ssd_store import DirectMisses

    throttle = config["throttle"]
    meters = {name: _Meter(throttle[name]) for name in ("sample_s", "read_s", "gather_s", "compute_s")}
    sample, read = NeighborSampler.sample, DirectMisses.read_into
    NeighborSampler.sample = meters["sample_s"].around(sample)  # type: ignore[method-assign]
    DirectMisses.read_into = meters["read_s"].around(read)  # type: ignore[method-assign]
    gather.gather_cached = meters["gather_s"].around(gather.gather_cached)
    compute = meters["compute_s"].around(lambda: None)
    share = _Meter(0.0)
    gradient = torch.zeros(1000)
    world = distributed.get_world_size()
    with gloader.Loader(
        gloader.Dataset.open(config["dataset"]),
        fanouts=[3, 3],
        batch_size=16,
        memory_budget="150MB",
        features="ssd",
        cache="100KB",
        io_strategy="direct",
        io="buffered",  # the disk of the validation is the time to sleep
        superbatch=4,  # small, so that what is sampled ahead is soon there
        threads=config["threads"],
    ) as loader:
        held = loader._held  # noqa: SLF001 - what is measured here has no public name
        for peer in held.host._peers if held.host is not None else ():  # noqa: SLF001
            peer.outbox.deliver = share.around(peer.outbox.deliver)  # type: ignore[method-assign]
        ends: list[float] = []
        batches = iter(loader)
        for step in range(_WARM_STEPS + config["steps"]):
            if step == _WARM_STEPS:
                for meter in (*meters.values(), share):
                    meter.restart()
            next(batches)
            compute()
            distributed.all_reduce(gradient)
            ends.append(time.perf_counter())
        found = {name: meter.mean_s for name, meter in meters.items()}
        found["sample_s"] *= meters["sample_s"].count / (config["steps"] * world)
        seconds = loader.stats.stage_seconds
        ring = getattr(held.tier, "ring", None)  # None on a rank that is loaded for
        buffers = 0 if ring is None else ring.max_bytes // (ring.rows * 4 * loader.features.dim)
    return {
        "step_s": (ends[-1] - ends[_WARM_STEPS - 1]) / config["steps"],
        "reduce_s": _reduce_s(gradient),
        "share_s": share.mean_s,
        "stages": found
        | {
            "plan_s": seconds["inspect"] / max(loader.stats.batches * world, 1),
            "share_s": 0.0,
            "transfer_s": seconds["transfer"] / max(loader.stats.batches, 1),
            "samplers": config["threads"],
            "buffers": min(_MOST_BUFFERS, buffers),
        },
    }


class _Meter:
    """Slows a stage down to a given time, and measures what it then takes. Thread-safe enough for a mean."""

    def __init__(self, seconds: float) -> None:
        self._least_s = seconds
        self.restart()

    def restart(self) -> None:
        """Forget what was measured."""
        self._sum_s, self.count = 0.0, 0

    @property
    def mean_s(self) -> float:
        """Seconds per call."""
        return self._sum_s / max(self.count, 1)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, slowed down and measured."""

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            found = function(*args, **kwargs)
            time.sleep(max(0.0, self._least_s - (time.perf_counter() - began)))
            self._sum_s += time.perf_counter() - began
            self.count += 1
            return found

        return call


def _reduce_s(gradient: Any) -> float:
    """Return the median time of an all-reduce that nobody is late for."""
    from statistics import median

    from torch import distributed

    seconds = []
    for _ in range(30):
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(gradient)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


if __name__ == "__main__":
    if is_rank():
        be_rank(_work)
    else:
        main()
