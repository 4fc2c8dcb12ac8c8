"""Tables of a made-up publication graph: papers, their authors and the venues that they appear in.

    python examples/publications.py FOLDER

writes edge tables, features, labels and the graph.yaml that names them into the folder; `gloader prepare tables:FOLDER`
makes a dataset of it (docs/hetero.md). Topics show in the citations, in who writes and a little in the features of
papers; authors have no features, venues have narrower ones.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NUM_TOPICS, DIM, VENUE_DIM = 8, 32, 12
WRITES, CITES, IN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")

GRAPH_YAML = """\
name: publications
nodes:
  paper: {features: paper_features.npy, labels: paper_topics.npy, splits: paper_splits.npz}
  author: {num_nodes: AUTHORS}
  venue: {features: venue_features.npy}
edges:
  author:writes:paper: writes.npy
  paper:cites:paper: {file: cites.csv, src: citing, dst: cited}
  paper:in:venue: in.npy
"""


@dataclass(frozen=True, kw_only=True)
class Publications:
    """The graph as arrays."""

    num_nodes: dict[str, int]
    features: dict[str, np.ndarray[Any, Any]]
    edges: dict[tuple[str, str, str], np.ndarray[Any, Any]]  # (2, E) sources and destinations
    labels: np.ndarray[Any, Any]  # (papers,) topics
    splits: dict[str, np.ndarray[Any, Any]]


def make_publications(num_papers: int = 12_000, *, seed: int = 0) -> Publications:
    """Return a graph of ``num_papers`` papers, two thirds as many authors and a venue for every 100."""
    random = np.random.default_rng(seed)
    num_nodes = {
        "paper": num_papers,
        "author": 2 * num_papers // 3,
        "venue": max(NUM_TOPICS, num_papers // 100),
    }
    topics = {name: random.integers(0, NUM_TOPICS, count) for name, count in num_nodes.items()}

    def of_topic(name: str, wanted: np.ndarray[Any, Any], share: float) -> np.ndarray[Any, Any]:
        """Return a node of the type for each of ``wanted``: for ``share`` of them of that topic, else any."""
        order = np.argsort(topics[name], kind="stable")
        first = np.searchsorted(topics[name][order], np.arange(NUM_TOPICS + 1))
        own = first[wanted] + (random.random(len(wanted)) * np.diff(first)[wanted]).astype(np.int64)
        return np.where(
            random.random(len(wanted)) < share, order[own], random.integers(0, num_nodes[name], len(wanted))
        )

    papers = topics["paper"]
    written = random.integers(0, num_papers, 3 * num_papers)
    citing = random.integers(0, num_papers, 5 * num_papers)
    every = np.arange(num_papers)
    centers = random.standard_normal((NUM_TOPICS, DIM))
    order = random.permutation(num_papers)
    train, valid, test = np.split(order, [num_papers // 2, 3 * num_papers // 4])
    return Publications(
        num_nodes=num_nodes,
        features={
            "paper": (centers[papers] + 3 * random.standard_normal((num_papers, DIM))).astype(np.float32),
            "venue": random.standard_normal((num_nodes["venue"], VENUE_DIM)).astype(np.float32),
        },
        edges={
            WRITES: np.stack([of_topic("author", papers[written], 0.7), written]),
            CITES: np.stack([citing, of_topic("paper", papers[citing], 0.6)]),
            IN: np.stack([every, of_topic("venue", papers, 0.7)]),
        },
        labels=papers,
        splits={"train": np.sort(train), "valid": np.sort(valid), "test": np.sort(test)},
    )


def write_tables(folder: Path, graph: Publications) -> None:
    """Write ``graph`` as a table for each relation, arrays of nodes, and graph.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    for relation in (WRITES, IN):
        np.save(
            folder / f"{relation[1]}.npy", graph.edges[relation].T
        )  # a row is an edge: source, destination
    np.savetxt(
        folder / "cites.csv",
        graph.edges[CITES].T,
        fmt="%d",
        delimiter=",",
        header="citing,cited",
        comments="",
    )
    for node_type, rows in graph.features.items():
        np.save(folder / f"{node_type}_features.npy", rows)
    np.save(folder / "paper_topics.npy", graph.labels)
    np.savez(folder / "paper_splits.npz", **graph.splits)
    text = GRAPH_YAML.replace("AUTHORS", str(graph.num_nodes["author"]))
    (folder / "graph.yaml").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--papers", type=int, default=12_000)
    options = parser.parse_args()
    write_tables(options.folder, make_publications(options.papers))
    print(f"wrote {options.folder}")


if __name__ == "__main__":
    main()
