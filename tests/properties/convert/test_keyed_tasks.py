"""Random tables of nodes, edges and rows to predict give the nodes, times and labels of a plain oracle."""

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

from gloader.convert.csc.edge_rules import plan_relations
from gloader.convert.key_numbers import numbered
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.registry import open_source
from gloader.errors import SourceError

NONE = np.iinfo(np.int64).min
KEYS = st.one_of(
    st.lists(
        st.text(st.characters(codec="ascii"), min_size=1, max_size=3), min_size=2, max_size=9, unique=True
    ),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=9, unique=True),
)
TIMES = st.integers(-(10**13), 10**15)  # microseconds
PARTS = ("train", "valid", "test")


@st.composite
def shops(draw: Any) -> dict[str, Any]:
    """Return users with keys and times, items with perhaps times, edges, and rows to predict."""
    keys = draw(KEYS)
    num_users = draw(st.integers(1, len(keys)))
    num_items = draw(st.integers(1, 4))
    row = st.tuples(
        st.sampled_from(keys), TIMES, st.sampled_from(["no", "yes", "a", None]), st.floats(0, 4, width=16)
    )
    item = st.integers(0, num_items - 1)
    return {
        "users": keys[:num_users],
        "times": draw(st.lists(st.none() | TIMES, min_size=num_users, max_size=num_users)),
        "made": draw(st.none() | st.lists(st.none() | TIMES, min_size=num_items, max_size=num_items)),
        "num_items": num_items,
        "edges": draw(st.lists(st.tuples(st.sampled_from(keys[:num_users]), item), max_size=12)),
        "parts": {part: draw(st.lists(row, max_size=8)) for part in PARTS if draw(st.booleans())},
        "has_times": draw(st.booleans()),
        "dangling": draw(st.sampled_from(["error", "drop"])),
    }


def seconds(times: list[int | None]) -> list[int]:
    return [NONE if time is None else time // 10**6 for time in times]


def expected(shop: dict[str, Any]) -> dict[str, Any] | None:
    """Return the rows of each part: nodes, times, names of labels, weights. None if a key is refused."""
    parts = {}
    for part, rows in shop["parts"].items():
        kept = [row for row in rows if row[0] in shop["users"]]
        if len(kept) < len(rows) and shop["dangling"] == "error":
            return None
        parts[part] = (
            [shop["users"].index(key) for key, *_ in kept],
            seconds([time for _, time, _, _ in kept]) if shop["has_times"] else None,
            [label for _, _, label, _ in kept],
            [weight for *_, weight in kept],
        )
    return parts


def write(shop: dict[str, Any], folder: Path) -> None:
    kind, when = pa.array(shop["users"]).type, pa.timestamp("us")
    users = {"id": shop["users"], "at": pa.array(shop["times"], when)}
    pq.write_table(pa.table(users), folder / "users.parquet")
    numbers = np.arange(shop["num_items"])
    made = pa.array(shop["made"] or [None] * len(numbers), when)
    pq.write_table(pa.table({"id": numbers, "at": made}), folder / "items.parquet")
    src, dst = [key for key, _ in shop["edges"]], [item for _, item in shop["edges"]]
    pq.write_table(
        pa.table({"u": pa.array(src, kind), "i": pa.array(dst, pa.int64())}), folder / "edges.parquet"
    )
    entries = []
    for part, rows in shop["parts"].items():
        keys, times, labels, weights = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = {
            "u": pa.array(keys, kind),
            "t": pa.array(times, when),
            "y": pa.array(labels, pa.string()),
            "w": pa.array(weights, pa.float64()),
        }
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")
        time = "time: t, " if shop["has_times"] else ""
        entries.append(f"{part}: {{file: {part}.parquet, node: u, {time}label: y, weight: w}}")
    (folder / "graph.yaml").write_text(
        "nodes:\n  user: {file: users.parquet, key: id, time: at}\n"
        f"  item: {{file: items.parquet, key: id{'' if shop['made'] is None else ', time: at'}}}\n"
        "edges: {buys: {file: edges.parquet, src: user.u, dst: item.i}}\n"
        f"tables: {{task: {{type: user, {', '.join(entries)}}}}}\n"
        f"dangling: {shop['dangling']}\n"
    )


def timed(relation: Any) -> list[tuple[int, int, int | None]]:
    return [
        (src, dst, None if chunk.time is None else int(chunk.time[i]))
        for chunk in relation.edges.chunks(5)
        for i, (src, dst) in enumerate(zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True))
    ]


@given(shop=shops())
def test_rows_and_edges_are_those_of_the_oracle(shop: dict[str, Any]) -> None:
    names = sorted({label for rows in shop["parts"].values() for _, _, label, _ in rows} - {None})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(shop, folder)
        (folder / "spill").mkdir()
        wanted = expected(shop)
        if not shop["parts"] or (not names and wanted is not None):
            reason = "has no part" if not shop["parts"] else "has no label in any row"
            with pytest.raises(SourceError, match=reason), numbers(folder):
                pass
            return
        if wanted is None:
            with pytest.raises(SourceError, match="which no row of"), numbers(folder):
                pass
            return
        with numbers(folder) as graph:
            assert [table.name for table in graph.tables] == [f"task.{part}" for part in wanted]
            for table, (nodes, times, labels, weights) in zip(graph.tables, wanted.values(), strict=True):
                assert table.nodes.tolist() == nodes
                assert (None if table.times is None else table.times.tolist()) == times
                assert [None if y < 0 else table.label_names[y] for y in table.labels.tolist()] == labels
                assert (table.label_names, table.num_classes) == (tuple(names), len(names))
                assert table.weights.tolist() == weights
            users, items = graph.nodes
            assert users.row_times.tolist() == seconds(shop["times"])
            made = None if shop["made"] is None else seconds(shop["made"])
            assert (None if items.row_times is None else items.row_times.tolist()) == made
            buys, back = (each.source for each in plan_relations(graph, PrepareOptions(add_reverse=True)))
            ends = [(shop["users"].index(key), item) for key, item in shop["edges"]]
            assert timed(buys) == [(src, dst, seconds(shop["times"])[src]) for src, dst in ends]
            assert timed(back) == [(dst, src, None if made is None else made[dst]) for src, dst in ends]


def numbers(folder: Path) -> Any:
    source: Any = open_source(f"tables:{folder}", SourceOptions(memory_budget_bytes=10**8))
    return numbered(source, folder / "spill", PrepareOptions(), budget_bytes=10**8, progress=NO_PROGRESS)
