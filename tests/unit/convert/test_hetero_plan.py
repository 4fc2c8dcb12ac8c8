"""The demands of a typed conversion, before any input is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gloader.convert.options import PrepareOptions
from gloader.convert.prepare import plan_source
from gloader.convert.readers.arrays import array_features, ends_edges
from gloader.convert.source import GraphSource, MeanOf, NodeSource, RelationSource, Splits

MIB = 2**20
WRITES = ("author", "writes", "paper")
NOBODY = np.empty(0, np.int64)


def source(*, features: MeanOf | None) -> GraphSource:
    """Few papers and edges, and authors whose features would be 100 MB in float32."""
    ends = np.arange(20)
    return GraphSource(
        name="made",
        origin="made",
        nodes=(
            NodeSource(name="paper", num_nodes=20, features=array_features(np.ones((20, 256), np.float32))),
            NodeSource(name="author", num_nodes=100_000, features=features),
        ),
        relations=(RelationSource(relation=WRITES, edges=ends_edges(ends, ends, where="made")),),
        labelled="paper",
        num_classes=2,
        labels=ends % 2,
        splits=Splits(train=ends[:5], valid=NOBODY, test=NOBODY),
    )


@pytest.mark.parametrize("budget_bytes", [48 * MIB, 64 * MIB, 256 * MIB])
def test_the_sums_of_derived_features_are_planned_within_the_budget(
    tmp_path: Path, budget_bytes: int
) -> None:
    options = PrepareOptions(memory_budget_bytes=budget_bytes)
    plain = plan_source(source(features=None), tmp_path / "d", options)
    derived = plan_source(source(features=MeanOf(relation=WRITES)), tmp_path / "d", options)
    sums = min(4 * 256 * 100_000, budget_bytes - 32 * MIB)
    assert plain.memory_bytes + sums // 2 < derived.memory_bytes <= budget_bytes
    assert {name: rows.dim for name, rows in derived.rows.items()} == {"paper": 256, "author": 256}
    assert derived.dataset_bytes - plain.dataset_bytes > 100_000 * 256 * 4
