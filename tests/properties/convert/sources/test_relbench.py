"""Databases of random schemas become the graph that RelBench's own rules give, in chunks of any size.

The rules are written out with pandas, after `Table.upto`, `Dataset.validate_and_correct_db` and `make_pkey_fkey_graph`
of RelBench 3.0.2. Where the package is installed, its own database is compared too.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relbench_folders import START, Table, write_random, write_shop, write_task

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.source import GraphSource

NONE = np.iinfo(np.int64).min
TEST = START + 700 * pd.Timedelta(seconds=1)


def known(tables: dict[str, Table], *, keeps_later: bool) -> dict[str, pd.DataFrame]:
    """Return the rows up to the test time, with dangling foreign keys missing, as ``get_db`` does."""
    frames = {}
    for name, table in tables.items():
        frame = table.frame
        if table.time_col is not None and not keeps_later:
            frame = frame[frame[table.time_col] <= TEST]  # missing times are not <= anything
        frames[name] = frame.reset_index(drop=True)
    for name, table in tables.items():
        for column, parent in table.fkeys.items():
            keys = frames[name][column]
            frames[name][column] = keys.mask(keys >= len(frames[parent]))
    return frames


def seconds(times: pd.Series) -> np.ndarray:
    """Return whole seconds since 1970, rounded down, `NONE` where missing."""
    exact = times.to_numpy("datetime64[us]")
    return np.where(np.isnat(exact), NONE, exact.astype(np.int64) // 1_000_000)


def expected(tables: dict[str, Table], frames: dict[str, pd.DataFrame]) -> dict[tuple, set[tuple[int, ...]]]:
    """Return the edges of each relation as (source, destination, time of the source's row or None)."""
    times = {
        name: None if table.time_col is None else seconds(frames[name][table.time_col])
        for name, table in tables.items()
    }
    edges = {}
    for name, table in tables.items():
        for column, parent in table.fkeys.items():
            keys = frames[name][column]
            rows = np.flatnonzero(keys.notna())
            pairs = [(int(row), int(keys[row])) for row in rows]
            own, other = times[name], times[parent]
            edges[name, f"f2p_{column}", parent] = sorted(
                (row, key, 0 if own is None else int(own[row])) for row, key in pairs
            )
            edges[parent, f"p2f_{column}", name] = sorted(
                (key, row, 0 if other is None else int(other[key])) for row, key in pairs
            )
    return edges


def found(source: GraphSource, max_edges: int) -> dict[tuple, list[tuple[int, ...]]]:
    """Return the edges of a source."""
    edges = {}
    for each in source.relations:
        chunks = list(each.edges.chunks(max_edges))
        assert all(len(chunk.src) <= max_edges for chunk in chunks)
        assert all((chunk.time is not None) == each.edges.has_times for chunk in chunks)
        edges[each.relation] = sorted(
            (int(src), int(dst), 0 if chunk.time is None else int(chunk.time[row]))
            for chunk in chunks
            for row, (src, dst) in enumerate(zip(chunk.src, chunk.dst, strict=True))
        )
        assert len(edges[each.relation]) == each.edges.num_edges
    return edges


def of_all_rows(folder: Path, tables: dict[str, Table]) -> None:
    """Add a task that completes a column, so that rows after the test time are nodes too."""
    name, table = next((name, table) for name, table in tables.items() if table.time_col is not None)
    description = {
        "kind": "autocomplete",
        "task_type": "regression",
        "entity_table": name,
        "target_col": "value",
    }
    key = table.pkey or "primary_key"
    rows = pd.DataFrame({table.time_col: [START], key: [0], "value": [1.0]})
    write_task(folder, "complete", description, train=rows)


@given(
    seed=st.integers(0, 2**32),
    max_edges=st.integers(1, 40),
    max_rows=st.integers(1, 40),
    keeps_later=st.booleans(),
)
def test_edges_and_times_are_those_of_the_rules(seed, max_edges, max_rows, keeps_later):
    batches = patch("gloader.convert.readers.typed_table._BATCH_NUMBERS", max_rows)
    with tempfile.TemporaryDirectory() as place, batches:
        folder = Path(place) / "made"
        tables = write_random(folder, np.random.default_rng(seed))
        keeps_later = keeps_later and any(table.time_col for table in tables.values())
        if keeps_later:
            of_all_rows(folder, tables)
        frames = known(tables, keeps_later=keeps_later)
        source = open_source(f"relbench:{folder}", SourceOptions(memory_budget_bytes=10**8))
        assert {each.name: each.num_nodes for each in source.nodes} == {
            name: len(frame) for name, frame in frames.items()
        }
        for each in source.nodes:
            time_col = tables[each.name].time_col
            if time_col is None:
                assert each.row_times is None
            else:
                np.testing.assert_array_equal(each.row_times, seconds(frames[each.name][time_col]))
        assert found(source, max_edges) == expected(tables, frames)


@given(seed=st.integers(0, 2**32))
def test_keys_of_any_numbers_give_the_same_graph(seed):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "made"
        tables = write_random(folder, np.random.default_rng(seed))
        options = SourceOptions(memory_budget_bytes=10**8)
        plain = found(open_source(f"relbench:{folder}", options), 1000)
        for name, table in tables.items():
            for column in (*filter(None, [table.pkey]), *table.fkeys):
                table.frame[column] = 5 - 3 * table.frame[column]
            table.frame.to_parquet(folder / "db" / f"{name}.parquet", index=False)
        assert found(open_source(f"relbench:{folder}", options), 1000) == plain


needs_relbench = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("relbench", "huggingface_hub")),
    reason="relbench is not installed",
)


@needs_relbench
@given(seed=st.integers(0, 2**32))
def test_rows_and_keys_are_those_of_the_package(seed):
    from relbench import load_dataset

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "made"
        tables = write_random(folder, np.random.default_rng(seed))
        database = load_dataset(folder).get_db()
        frames = {name: table.df.reset_index(drop=True) for name, table in database.table_dict.items()}
        source = open_source(f"relbench:{folder}", SourceOptions(memory_budget_bytes=10**8))
        assert {each.name: each.num_nodes for each in source.nodes} == {
            name: len(frame) for name, frame in frames.items()
        }
        assert found(source, 1000) == expected(tables, frames)


@needs_relbench
def test_tasks_are_those_of_the_package(tmp_path):
    from relbench import load_dataset

    write_shop(tmp_path / "shop")
    made = load_dataset(tmp_path / "shop")
    source = open_source(f"relbench:{tmp_path / 'shop'}", SourceOptions(memory_budget_bytes=10**8))
    tables = {table.name: table for table in source.tables}
    links = {link.name: link for link in source.links}
    for name in made.get_task_names():
        task = made.load_task(name)
        for file, part in (("train", "train"), ("val", "valid"), ("test", "test")):
            table = task.get_table(file, mask_input_cols=False)
            whens = seconds(table.df[table.time_col])
            if f"{name}.{part}" in tables:
                rows = tables[f"{name}.{part}"]
                np.testing.assert_array_equal(rows.nodes, table.df[task.entity_col])
                np.testing.assert_array_equal(rows.times, whens)
                assert rows.node_type == task.entity_table
            else:
                chunks = list(links[f"{name}.{part}"].rows.chunks(10**6))
                pairs = [
                    (src, dst)
                    for src, dsts in zip(
                        table.df[task.src_entity_col], table.df[task.dst_entity_col], strict=True
                    )
                    for dst in dsts
                ]
                assert [
                    (int(src), int(dst))
                    for chunk in chunks
                    for src, dst in zip(chunk.src, chunk.dst, strict=True)
                ] == pairs
    assert len(tables) + len(links) == 3 * len(made.get_task_names())
