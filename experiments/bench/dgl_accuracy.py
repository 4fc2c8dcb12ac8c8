"""Accuracy of a script of DGL: by DGL itself, and with its import lines changed, in a process that has no DGL.

    python experiments/bench/dgl_accuracy.py --data FOLDER --out experiments/results/DATE-dgl-accuracy

The script is `tests/dgl_scripts/node_classification.py`: GraphSAGE, GCN and GAT of two layers in mini-batches, accuracy
by layer-wise inference. Each graph of FOLDER is written by
``dgl.save_graphs``, and read from that file by all: DGL, gloader with features where it puts them, and gloader with
features on the SSD. Exits with 1 where a mean over the seeds is more than half a point from DGL's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from scipy import sparse

from gloader.convert.sources.dgl import quiet_dgl
from gloader.lab.bench.environment import provenance

with quiet_dgl("this comparison needs") as dgl:
    import torch

SCRIPT: Final = Path(__file__).parents[2] / "tests" / "dgl_scripts" / "node_classification.py"
MODELS: Final = ("sage", "gcn", "gat")
TOLERANCE: Final = 0.005
IMPORT_LINES: Final = re.compile(r"^(?:import|from) dgl\b(.*)$", re.MULTILINE)
# The loader lines, changed: where features lie, and what the loader may take.
LOADER_LINES: Final = ("num_workers=0,", 'num_workers=0, features="ssd", memory_budget="500MB",')
WITHOUT_DGL: Final = (
    "import runpy, sys; sys.modules['dgl'] = None; del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One graph and model: test accuracies of the seeds."""

    graph: str
    model: str
    dgl: tuple[float, ...]
    imports: tuple[float, ...]  # with the import lines changed
    loader: tuple[float, ...]  # and the loader lines, too: features on the SSD

    def differences(self) -> tuple[float, float]:
        """Return the means of both above DGL's."""
        return fmean(self.imports) - fmean(self.dgl), fmean(self.loader) - fmean(self.dgl)


def main() -> int:
    """Run every script and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=["amazon_cs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True, help="name of two files, without .json and .md")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        rows = [compare(graph, model, args, Path(folder)) for graph in args.graphs for model in MODELS]
    content = {**provenance(), "rows": [asdict(row) for row in rows]}
    args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(to_markdown(rows, content))
    worst = max(abs(each) for row in rows for each in row.differences())
    print(f"worst difference of means: {100 * worst:.2f} points")
    return int(worst > TOLERANCE)


def compare(graph: str, model: str, args: argparse.Namespace, folder: Path) -> Row:
    """Return what the seeds reach by DGL, with the import lines changed, and with the loader lines changed, too."""
    file = folder / f"{graph}.bin"
    if not file.exists():
        save_graph(args.data / graph, file)
    scripts = {"dgl": SCRIPT.read_text()}
    scripts["imports"] = IMPORT_LINES.sub(_changed, scripts["dgl"])
    scripts["loader"] = scripts["imports"].replace(*LOADER_LINES)
    common = [str(file), "--model", model, "--epochs", str(args.epochs), "--batch-size", str(args.batch_size)]
    found = {
        name: tuple(
            run(text, folder / f"with_{name}.py", [*common, "--seed", str(seed)])
            for seed in range(args.seeds)
        )
        for name, text in scripts.items()
    }
    row = Row(graph=graph, model=model, **found)
    print(row, flush=True)
    return row


def _changed(line: re.Match[str]) -> str:
    """Return an import line of DGL as one of ours."""
    return line[0].replace("dgl", "gloader.compat.dgl", 1) + ("" if line[1] else " as dgl")


def save_graph(source: Path, file: Path) -> None:
    """Write a graph as DGL does, with a self loop for each node."""
    arrays, split = np.load(source / "graph.npz"), np.load(source / "split.npz")
    features = sparse.load_npz(source / "features_csr.npz").toarray()
    sizes = np.diff(arrays["indptr"])
    dst = np.repeat(np.arange(len(sizes)), sizes)
    g = dgl.graph((torch.from_numpy(arrays["indices"].astype(np.int64)), torch.from_numpy(dst)))
    g = dgl.add_self_loop(g)
    g.ndata["feat"] = torch.from_numpy(np.ascontiguousarray(features))
    g.ndata["label"] = torch.from_numpy(arrays["labels"])
    for mask, name in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        g.ndata[mask] = torch.zeros(len(sizes), dtype=torch.bool)
        g.ndata[mask][torch.from_numpy(split[name])] = True
    dgl.save_graphs(str(file), [g])


def run(text: str, script: Path, arguments: list[str]) -> float:
    """Run a script in a process of its own, without DGL unless it imports it; return its test accuracy."""
    script.write_text(text)
    has_dgl = "import dgl\n" in text
    start = [str(script)] if has_dgl else ["-c", WITHOUT_DGL, str(script)]
    home = {"GLOADER_HOME": str(script.parent / "home")}
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | home,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return float(found["test"])


def to_markdown(rows: list[Row], content: dict[str, Any]) -> str:
    """Return a table with a line for each graph and model."""
    lines = [
        f"`{content['command']}`",
        "",
        "Test accuracy in percent, mean and standard deviation over the seeds.",
        "",
        "| graph | model | DGL | import lines changed | loader lines changed, features on the SSD |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{100 * fmean(each):.2f} +- {100 * stdev(each):.2f}"
            for each in (row.dgl, row.imports, row.loader)
        ]
        lines.append(f"| {row.graph} | {row.model} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
