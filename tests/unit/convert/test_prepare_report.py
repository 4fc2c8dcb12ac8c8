"""The two forms in which `gloader prepare --json` prints a report: with counts, or with types and relations."""

from pathlib import Path

from gloader.convert.prepare import PrepareReport, RelationReport, TypeReport

TIMES = {"seconds": 3.0, "edge_seconds": 1.0, "feature_seconds": 1.5}
SIZES = {
    "dataset_bytes": 9,
    "spilled_bytes": 0,
    "budget_bytes": 99,
    "peak_bytes": 8,
    "links": {},
    "receipt": {},
}
COUNTS = {"num_edges": 7, "edges_read": 8, "has_edge_times": True, "edge_feature_dim": 2}


def report(kind):
    return PrepareReport(
        path=Path("out"),
        kind=kind,
        node_types={"node": TypeReport(num_nodes=5, feature_dim=3, is_derived=False)},
        relations={"node:to:node": RelationReport(**COUNTS)},
        labelled="node",
        edge_feature_dtype="float16",
        feature_dtype="float32",
        order="none",
        order_seconds=0.5,
        **TIMES,
        **SIZES,
    )


def test_a_graph_of_one_type_has_counts():
    assert report("homogeneous").to_json() == {
        "path": "out",
        "num_nodes": 5,
        **COUNTS,
        "edge_feature_dtype": "float16",
        "feature_dim": 3,
        "feature_dtype": "float32",
        "order": "none",
        "order_seconds": 0.5,
        **TIMES,
        **SIZES,
    }


def test_a_typed_graph_has_types_and_relations():
    assert report("hetero").to_json() == {
        "path": "out",
        "node_types": {"node": {"num_nodes": 5, "feature_dim": 3, "is_derived": False}},
        "relations": {"node:to:node": COUNTS},
        "labelled": "node",
        "feature_dtype": "float32",
        **TIMES,
        **SIZES,
    }
