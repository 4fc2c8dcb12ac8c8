"""Checks every way a row reaches the GPU against the CPU, and times it, in one call of less than ten minutes.

    python experiments/bench/gpu_check.py --out experiments/results/DATE-gpu.json

Without a GPU it runs to the end all the same, on small inputs: the kernel under Triton's interpreter, the loader with a
CPU that goes the way of a GPU. It then says what it could not check.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if not torch.cuda.is_available() or "--cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel's module is imported

from gpu_bits import check_bits, check_pinning
from gpu_findings import GpuFinding, Sizes, not_checked, sizes_of
from gpu_loader import check_loader
from gpu_rates import check_rates

from gloader.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PARTS: dict[str, Callable[[Sizes], Iterable[GpuFinding]]] = {
    "bits": check_bits,
    "pinning": check_pinning,
    "rates": check_rates,
    "loader": check_loader,
}


def main() -> int:
    """Run every part; return 1 where something is wrong, and 0 where it is only slow or could not be checked."""
    args = _parse()
    sizes = sizes_of(torch.cuda.is_available() and not args.cpu, workdir=args.workdir, scale=args.scale)
    started = time.monotonic()
    findings: list[GpuFinding] = []
    for name, check in PARTS.items():
        if time.monotonic() - started > 60 * args.minutes:
            findings.append(not_checked(name, f"the {args.minutes:g} minutes were over"))
            continue
        for finding in check(sizes):
            findings.append(finding)
            print(finding.line, flush=True)
    text = _table(findings, sizes)
    if args.out is not None:
        args.out.write_text(json.dumps(_result(findings, sizes), indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text + "\n")
    wrong = [finding.name for finding in findings if finding.verdict == "wrong"]
    print(f"\n{text}\n\n" + (f"WRONG: {', '.join(wrong)}" if wrong else "nothing is wrong"))
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no further part after this time")
    parser.add_argument("--scale", type=float, default=1.0, help="of tables and batches, for smaller devices")
    parser.add_argument(
        "--workdir", type=Path, help="folder for a graph of a few GB; the temporary one if missing"
    )
    parser.add_argument("--cpu", action="store_true", help="do as if there was no GPU")
    return parser.parse_args()


def _table(findings: list[GpuFinding], sizes: Sizes) -> str:
    head = [
        f"GPU check on {sizes.name}, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| what | measured | promised | verdict |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *(finding.row for finding in findings)])


def _result(findings: list[GpuFinding], sizes: Sizes) -> dict[str, Any]:
    return {
        "benchmark": "gpu_check",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": sizes.name,
        **provenance(),
        "findings": [asdict(finding) for finding in findings],
    }


if __name__ == "__main__":
    raise SystemExit(main())
