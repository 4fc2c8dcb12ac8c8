"""Parts of a dataset: whatever the sizes, their pages together are those of a copy, and all else is equal in each."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typed_sources import IN, WRITES, typed_graph

import gloader.convert.csc.spill as spill_module
import gloader.convert.edge_rows as edge_rows_module
import gloader.convert.prepare as prepare_module
from gloader.convert.options import PrepareOptions
from gloader.convert.prepare import prepare
from gloader.convert.source import MeanOf
from gloader.core.ids import RangePart
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.manifest import STORE_MANIFEST
from gloader.ssd_store.write.new_directory import NewDirectory

DTYPES = ("float32", "float16", "bfloat16", "int8")
PAGE = 4096


def write_store(path, rows, dtype, part, chunk):
    with NewDirectory(path, manifest_name=STORE_MANIFEST, part=part) as directory:
        with directory.features("features", num_rows=len(rows), dim=rows.shape[1], dtype=dtype) as column:
            for start in range(0, len(rows), chunk):
                column.append(rows[start : start + chunk])
        return directory.commit("feature_store", {})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_rows=st.integers(0, 4000),
    dim=st.sampled_from([1, 3, 100, 1024, 1500]),
    of=st.integers(2, 9),
    dtype=st.sampled_from(DTYPES),
    chunk=st.integers(1, 3000),
)
def test_the_pages_of_all_parts_are_the_whole_file(tmp_path_factory, num_rows, dim, of, dtype, chunk):
    folder = tmp_path_factory.mktemp("parts")
    num_rows = min(num_rows, 12_000_000 // (4 * dim))
    rows = np.random.default_rng(num_rows).standard_normal((num_rows, dim)).astype(np.float32)
    copy = write_store(folder / "copy", rows, dtype, None, chunk)
    whole = np.fromfile(folder / "copy" / "features.npy", np.uint8)
    union = np.zeros_like(whole)
    union[:PAGE] = whole[:PAGE]
    written = 0
    for part in range(of):
        path = folder / str(part)
        made = write_store(path, rows, dtype, RangePart(part=part, of=of), chunk)
        assert made.arrays == copy.arrays
        found = np.fromfile(path / "features.npy", np.uint8)
        assert found.shape == whole.shape
        held = made.held_rows("features")
        first, past = (PAGE + PAGE * page for page in held.span(made.arrays["features"].row_bytes, PAGE))
        assert not found[PAGE:first].any()
        assert not found[past:].any()
        union[first:past] = found[first:past]
        written += past - first
        for name in ("features.pages", "features.scale.npy", "features.scale.pages"):
            if (folder / "copy" / name).exists():
                assert (path / name).read_bytes() == (folder / "copy" / name).read_bytes()
        with FeatureStore.open(path, verify="open") as store, FeatureStore.open(folder / "copy") as other:
            assert store.held == (held.first, held.past)
            ids = np.arange(held.first, held.past)
            ours, theirs = np.empty((2, len(ids), dim), np.float32)
            store.read_into(ids, ours)
            other.read_into(ids, theirs)
            np.testing.assert_array_equal(ours, theirs)
        assert verify_dataset(path).is_ok
    np.testing.assert_array_equal(union, whole)
    assert written <= whole.size - PAGE + (of - 1) * PAGE


def linked(path, **options):
    random = np.random.default_rng(3)
    edges = random.integers(0, 700, (2, 3000))
    return Dataset.from_numpy(
        path,
        features=random.standard_normal((700, 33)).astype(np.float32),
        labels=random.integers(0, 3, 700),
        edge_index=edges,
        edge_features=random.standard_normal((3000, 17)).astype(np.float32),
        edge_time=random.integers(0, 999, 3000),
        links=None if "edge_split" in options else {"train": {"edge_index": edges[:, :50]}},
        **options,
    )


def typed(path, **options):
    graph = typed_graph(papers=400, authors=300, places=40)
    source = graph.source()
    paper, author, place = source.nodes
    author = replace(author, features=MeanOf(relation=WRITES))
    place = replace(place, features=MeanOf(relation=IN))
    source = replace(source, nodes=(place, author, paper))
    if "ranges" in options:
        options["ranges"] = RangePart.parse(options["ranges"])
    prepare(source, path, PrepareOptions(memory_budget_bytes=40 * 10**6, **options))
    return Dataset.open(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("write", "options"),
    [
        (linked, {}),
        (linked, {"order": "degree", "symmetrize": True, "self_loops": True}),
        (linked, {"edge_split": (0.8, 0.1, 0.1)}),
        (typed, {}),
    ],
)
def test_every_way_of_writing_a_dataset_gives_parts_of_the_same_copy(tmp_path, write, options, dtype):
    options |= {"edge_dtype": dtype} if write is linked else {}
    copy = write(tmp_path / "copy", dtype=dtype, **options)
    assert copy.ranges is None
    of = 3
    parts = [write(tmp_path / str(p), dtype=dtype, ranges=f"{p}/{of}", **options) for p in range(of)]
    tables = {rows.name: rows for rows in copy.feature_rows(edges=True)}
    for number, dataset in enumerate(parts):
        assert dataset.fingerprint == copy.fingerprint
        assert (dataset.ranges.part, dataset.ranges.of) == (number, of)
        assert dataset.ranges.tables.keys() == tables.keys()
        assert dict(dataset.arrays) == dict(copy.arrays)
        for record in copy.arrays.values():
            files = [record.pages_file]
            files += [] if record.name.endswith("features") else [record.file]
            for file in files:
                assert (dataset.root / file).read_bytes() == (copy.root / file).read_bytes(), file
        assert verify_dataset(dataset.root).is_ok
        assert "row-ranges" in json.loads((dataset.root / "dataset.json").read_text())["required_features"]
    for name, rows in tables.items():
        found = []
        for dataset in parts:
            (ours,) = [each for each in dataset.feature_rows(edges=True) if each.name == name]
            first, past = dataset.ranges.held(name)
            out = np.empty((past - first, rows.feature_dim), np.float32)
            with ours.open_features() as store:
                store.read_into(np.arange(first, past), out)
            found.append(out)
        np.testing.assert_array_equal(np.concatenate(found), rows.all_rows())


def test_rows_put_in_order_on_the_disk_take_a_part_of_it_at_a_time(tmp_path, monkeypatch):
    """Of nodes and of edges: each pass over the source deals out the rows of a part of the places."""
    plan_nodes, plan_edges = prepare_module.plan_prepare, edge_rows_module.plan_edge_rows

    def forty_at_a_time(*args, **how):
        plan = plan_nodes(*args, **how)
        return replace(plan, rows={"node": replace(plan.rows["node"], range_rows=40)})

    monkeypatch.setattr(prepare_module, "plan_prepare", forty_at_a_time)
    monkeypatch.setattr(
        edge_rows_module,
        "plan_edge_rows",
        lambda *args, **how: replace(plan_edges(*args, **how), range_rows=100, range_edges=500),
    )
    append = spill_module.append_bytes
    peaks: dict[str, int] = {}

    def counted(file, rows):
        append(file, rows)
        now = sum(other.stat().st_size for other in file.parent.glob("rows-*"))
        peaks[current] = max(peaks.get(current, 0), now)

    monkeypatch.setattr(spill_module, "append_bytes", counted)
    current = "copy"
    copy = linked(tmp_path / current, order="degree", edge_dtype="float16")
    assert peaks["copy"] == max(700 * 33 * 4, 3000 * 17 * 2)
    for part in range(4):
        current = str(part)
        dataset = linked(tmp_path / current, ranges=(part, 4), order="degree", edge_dtype="float16")
        assert dataset.fingerprint == copy.fingerprint
        assert peaks[current] < 0.3 * peaks["copy"]


def test_means_that_are_made_again_have_the_same_bits(tmp_path, monkeypatch):
    """In many blocks, each of which streams what it averages from its first row on."""
    plan = prepare_module.plan_means
    monkeypatch.setattr(
        prepare_module,
        "plan_means",
        lambda **how: replace(plan(**how), block_rows=70, block_edges=40, chunk_rows=9),
    )
    copy = typed(tmp_path / "copy", dtype="bfloat16")
    for part in ("0/2", "1/2"):
        assert typed(tmp_path / part[0], dtype="bfloat16", ranges=part).fingerprint == copy.fingerprint
