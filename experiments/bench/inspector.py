"""Measure the inspector: planning speed, misses of every policy, copying of hits. Writes one JSON file.

python experiments/bench/inspector.py --out experiments/results/DATE-inspector.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gloader.lab.bench.graphs import GraphSpec
from gloader.lab.bench.inspector import bench_inspector

WORKLOADS: dict[str, dict[str, Any]] = {
    "rmat_3_hops": {
        "graph": GraphSpec(kind="rmat", num_nodes=4_000_000, num_edges=100_000_000),
        "fanouts": (10, 10, 10),
    },
    "powerlaw_2_hops": {
        "graph": GraphSpec(kind="powerlaw", num_nodes=1_000_000, num_edges=40_000_000),
        "fanouts": (10, 10),
    },
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--superbatch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    results = {
        name: bench_inspector(superbatch=options.superbatch, repeats=options.repeats, **workload)
        for name, workload in WORKLOADS.items()
    }
    text = json.dumps(results, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
