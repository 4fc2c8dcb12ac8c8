"""Checks what gloader does on a GPU against the CPU, and times it, in one call of less than ten minutes.

    python experiments/bench/gpu_check.py --out experiments/results/DATE-gpu.json [--only bits,race] [--minutes 8]

It needs torch, Triton, numba, numpy and the checkout. A part that fails is a finding, and the others go on; each has a
share of the time, and says what it left out. Without a GPU it runs to the end all the same, on small inputs and with a
CPU that goes the way of a GPU, and says what it could not check.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))
if not torch.cuda.is_available() or "--cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel's module is imported

from gpu_findings import GpuFinding, not_checked
from gpu_sizes import Clock, Sizes, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module beside this one, imported when its turn comes, and the seconds that it may want on a large GPU."""

    module: str
    check: str
    seconds: float


# In the order of a first run: what would stop the others, what must not be wrong, then what takes long.
PARTS: Final = {
    "env": Part(module="gpu_env", check="check_env", seconds=10),
    "pinned": Part(module="gpu_pinning", check="check_pinned", seconds=20),
    "bits": Part(module="gpu_bits", check="check_bits", seconds=80),
    "race": Part(module="gpu_order", check="check_race", seconds=30),
    "streams": Part(module="gpu_streams", check="check_streams", seconds=40),
    "ahead": Part(module="gpu_streams", check="check_ahead", seconds=20),
    "models": Part(module="gpu_models", check="check_models", seconds=30),
    "types": Part(module="gpu_types", check="check_types", seconds=30),
    "compat": Part(module="gpu_compat", check="check_compat", seconds=15),
    "compile": Part(module="gpu_models", check="check_compiled", seconds=60),
    "inference": Part(module="gpu_inference", check="check_inference", seconds=20),
    "sampling": Part(module="gpu_sampling", check="check_sampling", seconds=40),
    "ranks": Part(module="gpu_processes", check="check_ranks", seconds=40),
    "ends": Part(module="gpu_processes", check="check_ends", seconds=40),
    "rates": Part(module="gpu_rates", check="check_rates", seconds=60),
    "others": Part(module="gpu_others", check="check_others", seconds=25),
    "contention": Part(module="gpu_contention", check="check_contention", seconds=30),
    "steps": Part(module="gpu_steps", check="check_steps", seconds=50),
    "bags": Part(module="gpu_steps", check="check_bags", seconds=20),
    "auto": Part(module="gpu_auto", check="check_auto", seconds=40),
    "training": Part(module="gpu_training", check="check_training", seconds=90),
    "loader": Part(module="gpu_loader", check="check_loader", seconds=90),
}
_GRACE_S: Final = (
    60.0  # behind the minutes; then a call that hangs is ended, with what was found so far on the disk
)


def main() -> int:
    """Run the parts; return 1 where something is wrong or failed, 0 where it is only slow or could not be checked."""
    args = _parse()
    faulthandler.dump_traceback_later(60 * args.minutes + _GRACE_S, exit=True)
    findings: list[GpuFinding] = []
    with tempfile.TemporaryDirectory(prefix="gloader-gpu-", dir=args.workdir) as folder:
        sizes = sizes_of(torch.cuda.is_available() and not args.cpu, workdir=Path(folder), scale=args.scale)
        for finding in run_parts(args.only, sizes, seconds=60 * args.minutes):
            findings.append(finding)
            print(finding.line, flush=True)
            _write(args.out, findings, sizes)  # at once: nobody knows whether the next one comes back
    faulthandler.cancel_dump_traceback_later()
    bad = [finding.name for finding in findings if finding.verdict in ("wrong", "failed")]
    print(f"\n{table_of(findings, sizes)}\n\n" + (f"WRONG: {', '.join(bad)}" if bad else "nothing is wrong"))
    return 1 if bad else 0


def run_parts(names: Sequence[str], sizes: Sizes, *, seconds: float) -> Iterator[GpuFinding]:
    """Yield the findings of the named parts, of which each may take its share of the time that is left.

    Parameters
    ----------
    names : of `PARTS`
    sizes : of the inputs
    seconds : for all of them
    """
    end = time.monotonic() + seconds
    for number, name in enumerate(names):
        part, began = PARTS[name], time.monotonic()
        wanted = sum(PARTS[other].seconds for other in names[number:])
        clock = Clock((end - began) * part.seconds / wanted)
        try:
            for finding in _findings(part, sizes, clock):
                yield replace(finding, part=name)
        except Exception:  # noqa: BLE001 - whatever it is, it is what was found
            note = traceback.format_exc()
            print(note, file=sys.stderr, flush=True)
            yield GpuFinding(name=f"{name}: to its end", verdict="failed", note=note, part=name)
        if clock.left_out:
            left = f"no time was left for: {', '.join(clock.left_out)}"
            yield replace(not_checked(f"{name}: in full", left), part=name)
        took = time.monotonic() - began
        yield GpuFinding(name=f"{name}: time", verdict="for comparison", value=took, unit="s", part=name)


def _findings(part: Part, sizes: Sizes, clock: Clock) -> Iterable[GpuFinding]:
    if clock.left_s == 0:
        clock.left_out.append("all of it")
        return ()
    try:
        module = import_module(part.module)
    except ModuleNotFoundError as error:
        if error.name != part.module:
            raise
        return (not_checked(f"what {part.module}.py checks", "this checkout does not have it"),)
    found: Iterable[GpuFinding] = getattr(module, part.check)(sizes, clock)
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    parser.add_argument("--only", type=_names, default=[*PARTS], help=f"some of {','.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=8.5, help="the parts share this time out")
    parser.add_argument("--scale", type=float, default=1.0, help="of tables and batches, for smaller devices")
    parser.add_argument(
        "--workdir", type=Path, help="folder for graphs of 2 GB; the temporary one if missing"
    )
    parser.add_argument("--cpu", action="store_true", help="do as if there was no GPU")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(PARTS)}")
    return names


def table_of(findings: Sequence[GpuFinding], sizes: Sizes) -> str:
    """Return the findings as a table in Markdown."""
    head = [
        f"GPU check on {sizes.name}, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| what | measured | must be | predicted | verdict |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(finding.row for finding in findings)])


@cache
def _origin() -> dict[str, Any]:
    from gloader.lab.bench.environment import provenance

    return provenance()


def _write(out: Path | None, findings: Sequence[GpuFinding], sizes: Sizes) -> None:
    if out is None:
        return
    result = {
        "benchmark": "gpu_check",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": sizes.name,
        **_origin(),
        "findings": [asdict(finding) for finding in findings],
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".md").write_text(table_of(findings, sizes) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
