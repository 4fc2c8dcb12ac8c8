"""Measure the sampler on both workloads and write one JSON file.

python experiments/bench/sampler.py --out experiments/results/DATE-sampler.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gloader.lab.bench.graphs import GraphSpec
from gloader.lab.bench.sampler import bench_sampler

WORKLOADS: dict[str, dict[str, Any]] = {
    "rmat_3_hops": {
        "graph": GraphSpec(kind="rmat", num_nodes=2_000_000, num_edges=60_000_000),
        "fanouts": (10, 10, 10),
    },
    "powerlaw_2_hops": {
        "graph": GraphSpec(kind="powerlaw", num_nodes=1_000_000, num_edges=60_000_000),
        "fanouts": (10, 10),
    },
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    results = {
        name: bench_sampler(
            threads=options.threads, batches=options.batches, repeats=options.repeats, **workload
        )
        for name, workload in WORKLOADS.items()
    }
    text = json.dumps(results, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
