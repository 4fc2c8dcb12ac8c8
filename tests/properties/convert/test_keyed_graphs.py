"""Random tables with keys give the edges, features and keys of a plain oracle, in chunks of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.key_numbers import numbered
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.registry import open_source
from gloader.core.keys import key_values
from gloader.errors import SourceError

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def shops(draw: Any) -> dict[str, Any]:
    """Return the keys of users (None without a table), the edges, and what becomes of strangers."""
    kind = draw(st.sampled_from([TEXTS, NUMBERS]))
    keys = draw(st.lists(kind, min_size=2, max_size=12, unique=True))
    num_users = draw(st.integers(1, len(keys)))
    ends = st.tuples(st.sampled_from(keys), st.sampled_from(keys))
    return {
        "users": keys[:num_users] if draw(st.booleans()) else None,
        "edges": draw(st.lists(ends, min_size=1, max_size=25)),
        "dangling": draw(st.sampled_from(["error", "drop", "node"])),
        "is_typed": draw(st.booleans()),
        "max_edges": draw(st.integers(1, 30)),
    }


def expected(shop: dict[str, Any]) -> tuple[list[Any], list[tuple[int, int, int]]] | None:
    """Return all keys in order, and the edges left: source, destination and row. None if a key is refused."""
    nodes: dict[Any, int] = {key: number for number, key in enumerate(shop["users"] or [])}
    items: dict[Any, int] = {}
    makes, edges = shop["users"] is None or shop["dangling"] == "node", []
    for row, (src, dst) in enumerate(shop["edges"]):
        others = items if shop["is_typed"] else nodes
        if makes:
            nodes.setdefault(src, len(nodes))
        if shop["is_typed"] or makes:
            others.setdefault(dst, len(others))
        if src in nodes and dst in others:
            edges.append((nodes[src], others[dst], row))
        elif shop["dangling"] == "error":
            return None
    return list(nodes), edges


def described(shop: dict[str, Any]) -> str:
    nodes = "" if shop["users"] is None else "nodes: {user: {file: users.parquet, key: id, columns: [x]}}\n"
    other = "item" if shop["is_typed"] else "user"
    return (
        f"{nodes}edges: {{to: {{file: edges.parquet, src: user.a, dst: {other}.b, time: row, columns: [row]}}}}\n"
        f"dangling: {shop['dangling']}\n"
    )


@given(shop=shops())
def test_ids_stand_for_their_keys(shop: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "graph.yaml").write_text(described(shop))
        sources, destinations = zip(*shop["edges"], strict=True)
        rows = np.arange(len(sources))
        pq.write_table(pa.table({"a": sources, "b": destinations, "row": rows}), folder / "edges.parquet")
        users = shop["users"]
        if users is not None:
            pq.write_table(pa.table({"id": users, "x": 1 + np.arange(len(users))}), folder / "users.parquet")
        source: Any = open_source(
            f"tables:{folder}", SourceOptions(needs_labels=False, memory_budget_bytes=10**8)
        )
        (folder / "spill").mkdir()
        block = numbered(source, folder / "spill", PrepareOptions(), budget_bytes=10**8, progress=NO_PROGRESS)
        wanted = expected(shop)
        if wanted is None:
            with pytest.raises(SourceError, match="which no row of"), block:
                pass
            return
        keys, edges = wanted
        with block as graph:
            (relation,), nodes = graph.relations, graph.nodes[0]
            assert nodes.keys is not None
            assert relation.edge_features is not None
            found = [
                edge
                for chunk in relation.edges.chunks(shop["max_edges"])
                for edge in zip(chunk.src.tolist(), chunk.dst.tolist(), chunk.time.tolist(), strict=True)
            ]
            features = [
                float(row[0]) for part in relation.edge_features.chunks(shop["max_edges"]) for row in part
            ]
            stored = [
                key for part in nodes.keys.chunks(3) for key in key_values(part, nodes.keys.kind).tolist()
            ]
            assert (found, stored) == (edges, keys)
            assert features == [row for _, _, row in edges]
            assert relation.edges.num_edges == relation.edge_features.num_rows == len(edges)
            assert nodes.num_nodes == len(keys)
            if users is not None:
                values = [float(row[0]) for part in nodes.given.chunks(2) for row in part]
                assert values == [1.0 + i for i in range(len(users))] + [0.0] * (len(keys) - len(users))
        assert not [path for path in (folder / "spill").rglob("*") if path.is_file()]
