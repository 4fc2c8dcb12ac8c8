"""A conversion knows before it starts what its link tables take."""

import numpy as np
import pytest
from convert_helpers import ListEdges, write_folder
from typed_sources import typed_graph

from gloader.convert.links.edge_parts import edge_rows
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import plan_source, prepare
from gloader.convert.prepare_plan import link_sizes
from gloader.convert.source import LinkSource
from gloader.convert.sources.npy import open_npy

MB = 10**6


@pytest.mark.parametrize("options", [{"edge_split": (0.8, 0.1, 0.1)}, {"edge_tables": "given"}])
def test_disk_is_counted_before_anything_is_written(tmp_path, options):
    write_folder(tmp_path / "in", num_nodes=100, num_edges=20_000)
    if "edge_tables" in options:
        np.save(tmp_path / "t.npy", np.zeros((2, 30_000), int))
        options = {"edge_tables": (f"train={tmp_path / 't.npy'}",)}
    source = open_npy(str(tmp_path / "in"), SourceOptions())
    bare = plan_source(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=60 * MB))
    given = PrepareOptions(memory_budget_bytes=60 * MB, **options)
    plan = plan_source(source, tmp_path / "out", given)
    assert not (tmp_path / "out").exists()
    report = prepare(source, tmp_path / "out", given)
    assert bare.dataset_bytes < report.dataset_bytes <= plan.dataset_bytes < 1.3 * report.dataset_bytes
    assert bare.memory_bytes <= plan.memory_bytes <= 60 * MB


def test_disk_of_typed_tables_is_counted(tmp_path):
    graph = typed_graph()
    np.save(tmp_path / "t.npy", np.zeros((2, 30_000), int))
    given = PrepareOptions(memory_budget_bytes=60 * MB, edge_tables=(f"t@cites={tmp_path / 't.npy'}",))
    plan = plan_source(graph.source(), tmp_path / "out", given)
    report = prepare(graph.source(), tmp_path / "out", given)
    assert report.dataset_bytes <= plan.dataset_bytes < 1.3 * report.dataset_bytes


def test_large_tables_are_in_the_plan(tmp_path):
    # A file with holes: nothing of it is read.
    np.lib.format.open_memmap(tmp_path / "t.npy", "w+", np.int32, (2, 3 * 10**6)).flush()
    given = PrepareOptions(memory_budget_bytes=60 * MB, edge_tables=(f"t@cites={tmp_path / 't.npy'}",))
    plan = plan_source(typed_graph().source(), tmp_path / "out", given)
    assert plan.scratch_bytes == 120 * 10**6
    assert plan.memory_bytes > 50 * MB
    write_folder(tmp_path / "in")
    given = PrepareOptions(memory_budget_bytes=60 * MB, edge_tables=(f"t={tmp_path / 't.npy'}",))
    plan = plan_source(open_npy(str(tmp_path / "in"), SourceOptions()), tmp_path / "out", given)
    assert plan.scratch_bytes == 120 * 10**6
    assert plan.memory_bytes > 50 * MB


def table(num_rows):
    return LinkSource(name="t", rows=edge_rows(ListEdges([], is_counted=num_rows is not None)), where="made")


def test_rows_that_spill_take_temporary_disk():
    class Counted:
        has_times = True

        def __init__(self, num_edges):
            self.num_edges = num_edges

    few, many = (
        link_sizes([], Counted(count), num_nodes=1000, budget_bytes=20 * MB) for count in (1000, 10**6)
    )
    assert (few.scratch_bytes, many.scratch_bytes) == (0, 40 * 10**6)
    assert few.memory_bytes < many.memory_bytes <= 20 * MB
    assert many.dataset_bytes == 40 * 10**6  # a time beside each row
    unknown = link_sizes([table(None)], None, num_nodes=1000, budget_bytes=20 * MB)
    assert (unknown.dataset_bytes, unknown.scratch_bytes) == (0, 0)
    assert unknown.memory_bytes >= many.memory_bytes
    assert link_sizes([], None, num_nodes=1000, budget_bytes=1).memory_bytes == 0
