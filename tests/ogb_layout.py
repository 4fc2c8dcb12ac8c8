"""Small data sets in the on-disk layouts of OGB, OGB-LSC and IGB."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

SPLITS = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking", "ogbn-papers100M": "time"}
DIMS = {"ogbn-arxiv": 128, "ogbn-products": 100, "ogbn-papers100M": 128}


def write_ogb(root: Path, name: str, *, num_nodes=60, num_edges=300, seed=0) -> Path:
    """Write data set ``name`` of OGB's node-property list with made-up content; return its folder."""
    random = np.random.default_rng(seed)
    folder = root / name.replace("-", "_")
    for part in ("raw", "processed", f"split/{SPLITS[name]}"):
        (folder / part).mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("made up\n")
    edges = random.integers(0, num_nodes, (2, num_edges))
    features = random.standard_normal((num_nodes, DIMS[name])).astype(np.float32)
    labels = random.integers(0, 40, (num_nodes, 1))
    num_labelled = num_nodes
    raw = folder / "raw"
    if name == "ogbn-papers100M":
        num_labelled = num_nodes // 2
        floats = np.where(np.arange(num_nodes)[:, None] < num_labelled, labels, np.nan).astype(np.float32)
        np.savez_compressed(
            raw / "data.npz",
            edge_index=edges,
            num_nodes_list=[num_nodes],
            num_edges_list=[num_edges],
            node_feat=features,
            node_year=np.full((num_nodes, 1), 2015),
        )
        np.savez_compressed(raw / "node-label.npz", node_label=floats)
    else:
        write_csv(raw / "edge.csv.gz", edges.T)
        write_csv(raw / "num-node-list.csv.gz", np.array([num_nodes]))
        write_csv(raw / "num-edge-list.csv.gz", np.array([num_edges]))
        write_csv(raw / "node-feat.csv.gz", features)
        write_csv(raw / "node-label.csv.gz", labels)
        write_csv(raw / "node_year.csv.gz", np.full((num_nodes, 1), 2015))
    order = random.permutation(num_labelled)
    cuts = np.split(order, [num_labelled * 3 // 5, num_labelled * 4 // 5])
    for part, ids in zip(("train", "valid", "test"), cuts, strict=True):
        write_csv(folder / "split" / SPLITS[name] / f"{part}.csv.gz", ids)
    return folder


LINK_SPLITS = {
    "ogbl-citation2": "time",
    "ogbl-collab": "time",
    "ogbl-ddi": "target",
    "ogbl-ppa": "throughput",
}


def write_ogbl(
    root: Path, name: str, *, num_nodes=40, num_edges=200, held_out=30, seed=0, as_tensors=False
) -> Path:
    """Write data set ``name`` of OGB's link-property list with made-up content; return its folder."""
    import torch

    random = np.random.default_rng(seed)
    folder = root / name.replace("-", "_")
    raw, split = folder / "raw", folder / "split" / LINK_SPLITS[name]
    for part in (raw, folder / "processed", split):
        part.mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("made up\n")
    edges = random.integers(0, num_nodes, (num_edges, 2))
    write_csv(raw / "edge.csv.gz", edges)
    write_csv(raw / "num-node-list.csv.gz", np.array([num_nodes]))
    write_csv(raw / "num-edge-list.csv.gz", np.array([num_edges]))
    if name == "ogbl-ppa":
        write_csv(raw / "node-feat.csv.gz", np.eye(58, dtype=int)[random.integers(0, 58, num_nodes)])
    elif name != "ogbl-ddi":
        write_csv(raw / "node-feat.csv.gz", random.standard_normal((num_nodes, 128)).astype(np.float32))
    if name == "ogbl-citation2":
        write_csv(raw / "node_year.csv.gz", np.full((num_nodes, 1), 2015))
    if name == "ogbl-collab":
        write_csv(raw / "edge_weight.csv.gz", random.integers(1, 5, (num_edges, 1)))
        years = random.integers(1990, 2018, num_edges)
        write_csv(raw / "edge_year.csv.gz", years)
    for part in ("train", "valid", "test"):
        pairs = edges if part == "train" else random.integers(0, num_nodes, (held_out, 2))
        if name == "ogbl-citation2":
            held = {"source_node": pairs[:, 0].copy(), "target_node": pairs[:, 1].copy()}
            if part != "train":
                held["target_node_neg"] = random.integers(0, num_nodes, (held_out, 10))
        else:
            held = {"edge": pairs}
            if name == "ogbl-collab":
                held |= {
                    "weight": np.ones(len(pairs), int),
                    "year": years if part == "train" else np.full(len(pairs), 2018),
                }
            if part != "train":
                held["edge_neg"] = random.integers(0, num_nodes, (2 * held_out, 2))
        torch.save(
            {key: torch.from_numpy(each) if as_tensors else each for key, each in held.items()},
            split / f"{part}.pt",
        )
    return folder


MAG_RELATIONS = {
    ("author", "affiliated_with", "institution"): 40,
    ("author", "writes", "paper"): 120,
    ("paper", "cites", "paper"): 150,
    ("paper", "has_topic", "field_of_study"): 90,
}
MAG_NODES = {"author": 35, "field_of_study": 12, "institution": 6, "paper": 50}


def write_ogbn_mag(root: Path, *, seed=0) -> Path:
    """Write ogbn-mag's files with made-up content; return its folder."""
    random = np.random.default_rng(seed)
    folder = root / "ogbn_mag"
    raw, split = folder / "raw", folder / "split" / "time" / "paper"
    for part in (raw / "node-feat" / "paper", raw / "node-label" / "paper", split, folder / "processed"):
        part.mkdir(parents=True)
    (folder / "RELEASE_v2.txt").write_text("made up\n")
    write_table(raw / "num-node-dict.csv.gz", MAG_NODES, [MAG_NODES.values()])
    write_table(raw / "triplet-type-list.csv.gz", None, sorted(MAG_RELATIONS))
    for name, labelled in (("feat", True), ("label", True)):
        has = [[node_type == "paper" and labelled for node_type in MAG_NODES]]
        write_table(raw / f"nodetype-has-{name}.csv.gz", MAG_NODES, has)
    write_table(split.parent / "nodetype-has-split.csv.gz", MAG_NODES, has)
    for (source, name, destination), count in MAG_RELATIONS.items():
        relation = raw / "relations" / f"{source}___{name}___{destination}"
        relation.mkdir(parents=True)
        ends = [MAG_NODES[source], MAG_NODES[destination]]
        write_csv(relation / "edge.csv.gz", random.integers(0, ends, (count, 2)))
        write_csv(relation / "num-edge-list.csv.gz", np.array([count]))
        write_csv(relation / "edge_reltype.csv.gz", np.zeros((count, 1), int))
    papers = MAG_NODES["paper"]
    features = random.standard_normal((papers, 128)).astype(np.float32)
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", features)
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", np.full((papers, 1), 2015))
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", random.integers(0, 349, (papers, 1)))
    parts = np.split(random.permutation(papers), [30, 40])
    for part, ids in zip(("train", "valid", "test"), parts, strict=True):
        write_csv(split / f"{part}.csv.gz", ids)
    return folder


def write_table(path: Path, names, rows) -> None:
    with gzip.open(path, "wt") as file:
        for row in [*([names] if names else []), *rows]:
            file.write(",".join(map(str, row)) + "\n")


def write_mag240m(root: Path, *, num_papers: int, authors=9, institutions=2) -> Path:
    """Write MAG240M's files with made-up content; return its folder."""
    import torch

    random = np.random.default_rng(0)
    base = root / "mag240m_kddcup2021"
    paper, cites = base / "processed" / "paper", base / "processed" / "paper___cites___paper"
    paper.mkdir(parents=True)
    cites.mkdir()
    labelled = num_papers * 4 // 5
    labels = random.integers(0, 153, num_papers).astype(np.float32)
    labels[labelled:] = np.nan
    np.save(paper / "node_feat.npy", random.standard_normal((num_papers, 768)).astype(np.float16))
    np.save(paper / "node_label.npy", labels)
    np.save(cites / "edge_index.npy", random.integers(0, num_papers, (2, 4 * num_papers)).astype(np.int32))
    counts = {"paper": num_papers, "author": authors, "institution": institutions}
    for relation in ("author___writes___paper", "author___affiliated_with___institution"):
        ends = [counts[relation.split("___")[0]], counts[relation.split("___")[2]]]
        (base / "processed" / relation).mkdir()
        pairs = random.integers(0, ends, (3 * authors, 2)).astype(np.int32)
        np.save(base / "processed" / relation / "edge_index.npy", pairs.T)
    torch.save({**counts, "num_classes": 153}, base / "meta.pt")
    ids = np.arange(num_papers)
    first = num_papers * 3 // 5
    splits = {"train": ids[:first], "valid": ids[first:labelled]}
    hidden = dict.fromkeys(("test-dev", "test-whole", "test-challenge"), ids[labelled:])
    torch.save(splits | hidden, base / "split_dict.pt")
    return base


def write_csv(path: Path, array) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, array, delimiter=",", fmt="%.9g" if array.dtype.kind == "f" else "%d")
