"""Rows with a time see what is not later than themselves, in any schema: a plain-Python oracle of PyG's rule."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from row_worlds import World, world

from gloader import HeteroLoader
from gloader.types import NO_TIME, HeteroReadyBatch

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
LOADER: dict[str, Any] = {"memory_budget": "64MB", "threads": 1}


def trees_of(batch: HeteroReadyBatch) -> list[dict[str, list[int]]]:
    """Return the nodes of each row's tree, by type."""
    assert batch.trees is not None
    assert batch.row_ids is not None
    return [
        {name: nodes[batch.trees[name] == tree].tolist() for name, nodes in batch.nodes.items()}
        for tree in range(len(batch.row_ids))
    ]


def require_ages(drawn: World, batch: HeteroReadyBatch) -> None:
    """Check the ages against exact Python integers."""
    assert batch.row_ids is not None
    assert batch.trees is not None
    aged = {name for name, times in drawn.times.items() if times is not None}
    assert (set() if batch.row_age is None else set(batch.row_age)) == aged
    for name in aged:
        assert batch.row_age is not None
        seed_times = drawn.row_times[batch.row_ids][batch.trees[name]]
        expected = [
            np.nan if (time := drawn.time_of(name, node)) == NO_TIME else np.float32(int(seed) - time)
            for seed, node in zip(seed_times.tolist(), batch.nodes[name].tolist(), strict=True)
        ]
        np.testing.assert_array_equal(batch.row_age[name].numpy(), np.array(expected, np.float32))


worlds = st.builds(
    world, st.integers(0, 2**32), num_tables=st.integers(1, 4), num_times=st.sampled_from([1, 3, 8])
)


@given(worlds, st.integers(1, 3), st.sampled_from(["layered", "merged"]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_all_neighbours_are_the_set_of_pygs_rule_for_times_of_nodes(
    drawn: World, hops: int, layout: str, is_inclusive: bool
) -> None:
    bound = {} if is_inclusive else {"time_bound": "<"}  # "<=" is the default of a table with times
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        dataset = drawn.write(Path(folder) / "d")
        size = min(7, len(drawn.rows))
        with HeteroLoader(
            dataset, fanouts=[-1] * hops, batch_size=size, table="task", layout=layout, **bound, **LOADER
        ) as loader:
            seen = []
            for batch in loader:
                assert batch.row_ids is not None
                for row, tree in zip(batch.row_ids.tolist(), trees_of(batch), strict=True):
                    expected = drawn.tree(row, hops, is_inclusive=is_inclusive)
                    assert {name: sorted(nodes) for name, nodes in expected.items()} == {
                        name: sorted(nodes) for name, nodes in tree.items()
                    }
                    seen.append(row)
                np.testing.assert_array_equal(batch.y.numpy(), batch.row_ids % 3)
                require_ages(drawn, batch)
        assert sorted(seen) == list(range(len(drawn.rows)))


@given(
    worlds,
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from(["uniform", "last"]),
)
@settings(max_examples=15, deadline=None)
def test_no_row_of_a_tree_is_later_than_its_seed_in_any_hop(
    drawn: World, fanouts: list[int], strategy: str
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        dataset = drawn.write(Path(folder) / "d")
        with HeteroLoader(
            dataset,
            fanouts=fanouts,
            batch_size=min(5, len(drawn.rows)),
            table="task.train",
            time_strategy=strategy,
            **LOADER,
        ) as loader:
            for batch in loader:
                assert batch.row_ids is not None
                for row, tree in zip(batch.row_ids.tolist(), trees_of(batch), strict=True):
                    allowed = drawn.tree(row, len(fanouts))
                    for name, nodes in tree.items():
                        assert len(nodes) == len(set(nodes))
                        assert set(nodes) <= allowed[name]
                require_ages(drawn, batch)
