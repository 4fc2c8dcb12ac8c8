"""The recipe of ogbn-mag with embeddings on a made-up twin: a part of the rows in memory against all rows in memory.

    python experiments/ogb/embed_twin.py --workdir /var/tmp --out experiments/results/DATE-embed-twin

The twin has ogbn-mag's types and relations, and its numbers times ``--scale``. Each run is a `gloader train` with
``recipes/mag-embed-rgcn.yaml`` and other values of ``--embed-cache``. Features are on the SSD. Losses and scores of all
runs are to be equal in every bit; exits with 1 where they are not. Scores on made-up edges mean nothing by themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from gloader.core.units import format_bytes
from gloader.lab.bench.environment import provenance

_HERE: Final = Path(__file__).parent
_CACHES: Final = ("10%", "30%", "100%")


def main() -> int:
    """Make the twin, train on it, and write the figures. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="an existing folder on an SSD")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="path of the figures without suffix")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.workdir) as name:
        folder = Path(name)
        fabricate = [str(_HERE / "fabricate_hetero.py"), "--root", str(folder), "--scale", str(args.scale)]
        _run([*fabricate, "ogbn-mag"])
        reverses = ["--add-reverse", "--symmetrize", "cites"]
        _run(["-m", "gloader", "prepare", f"ogb:ogbn-mag@{folder}", str(folder / "data"), *reverses])
        rows = [_train(folder, cache, args.epochs) for cache in _CACHES]
    is_equal = all(row["bits"] == rows[0]["bits"] for row in rows)
    lines = ["| rows in memory | validation | test | seconds | read | written |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row['cache']} | {row['valid']:.4f} | {row['test']:.4f} | {row['seconds']:.1f} | "
        f"{format_bytes(row['bytes_read'])} | {format_bytes(row['bytes_written'])} |"
        for row in rows
    ]
    table = "\n".join(lines)
    print(f"{table}\nequal bits: {is_equal}")
    if args.out is not None:
        found = {**provenance(), "scale": args.scale, "runs": rows, "is_equal": is_equal}
        args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        text = f"# ogbn-mag's twin with embeddings on the SSD\n\n{__doc__.split('.', 1)[0]}.\n\n{table}\n"
        note = "Figures of the last epoch: seconds of training, and bytes of the embeddings. Losses and scores of all "
        args.out.with_suffix(".md").write_text(f"{text}\n{note}runs have equal bits: {is_equal}.\n")
    return 0 if is_equal else 1


def _train(folder: Path, cache: str, epochs: int) -> dict[str, Any]:
    """Train with ``cache`` and return the run's figures."""
    out = folder / f"run-{cache}"
    recipe = ["--config", str(_HERE / "recipes" / "mag-embed-rgcn.yaml"), "--epochs", str(epochs)]
    # A batch is as small a part of the twin as one of the recipe is of ogbn-mag.
    batch = [
        "--batch-size",
        "128",
        "--fanout",
        "collective:10,8",
        "--features",
        "ssd",
        "--memory-budget",
        "2GB",
    ]
    files = ["--dataset", str(folder / "data"), "--out", str(out)]
    _run(["-m", "gloader", "train", *files, *recipe, *batch, "--embed-cache", cache])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    return {
        "cache": cache,
        "valid": result["valid_acc"],
        "test": result["test_acc"],
        "bits": [[line["loss"], line["valid_acc"]] for line in lines] + [result["test_acc"]],
        "seconds": lines[-1]["seconds"],
        "bytes_read": lines[-1]["embedding_bytes_read"],
        "bytes_written": lines[-1]["embedding_bytes_written"],
        "peak_anonymous_bytes": result["peak_anonymous_bytes"],
    }


def _run(words: list[str]) -> None:
    """Run a command of this Python, and end with its output if it fails."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())
