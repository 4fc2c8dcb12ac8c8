"""Random runs of an embedding's rows in three threads, bit for bit beside `torch.nn.Embedding(sparse=True)`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from embedding_runs import Oracle, first_weights, opened, run
from hypothesis import given
from hypothesis import strategies as st

from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
from gloader.ssd_store.embedding.row_pieces import least_staging_bytes

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

OPTIMIZERS = [RowwiseAdagrad(), Adagrad(lr_decay=0.1, initial_accumulator_value=0.1), SparseAdam(lr=0.01)]


@given(
    seed=st.integers(0, 2**32),
    optimizer=st.sampled_from(OPTIMIZERS),
    num_rows=st.integers(1, 200),
    dim=st.integers(1, 20),
    num_batches=st.integers(1, 30),
    superbatch=st.integers(1, 12),
    depth=st.integers(1, 4),
    spare=st.sampled_from([0, 0, 0.1, 1]),
    staging=st.sampled_from([1, 3, 10000]),
    spill_bytes=st.sampled_from([None, 1 << 14, 1 << 24]),
    is_ahead=st.booleans(),
)
def test_a_run_has_the_bits_of_torch(
    seed: int,
    optimizer: RowwiseAdagrad,
    num_rows: int,
    dim: int,
    num_batches: int,
    superbatch: int,
    depth: int,
    spare: float,
    staging: int,
    spill_bytes: int | None,
    is_ahead: bool,
) -> None:
    """Also with repeated rows, batches without a step, restarts, checkpoints, reads and another opening between."""
    random = np.random.default_rng(seed)
    skew = random.choice([1, 3])
    batches = [
        (num_rows * random.random(random.integers(0, max(2, num_rows // 2))) ** skew).astype(np.int64)
        for _ in range(num_batches)
    ]
    capacity = max(1, *(len(np.unique(batch)) for batch in batches)) + int(spare * num_rows)
    oracle = Oracle(first_weights(num_rows, dim), optimizer)
    skipped = set(np.flatnonzero(random.random(num_batches) < 0.1).tolist())
    everything = np.arange(num_rows)
    with TemporaryDirectory() as parent, ExitStack() as stack:

        def reopened(record: str | None) -> None:
            nonlocal rows
            stack.close()
            rows = stack.enter_context(
                opened(
                    Path(parent) / "table",
                    optimizer,
                    num_rows=num_rows,
                    dim=dim,
                    capacity=capacity,
                    depth=depth,
                    staging_bytes=staging * least_staging_bytes(dim + optimizer.state_width(dim)),
                    spill_bytes=spill_bytes,
                    record=record,
                )
            )

        rows = None
        reopened(None)

        def between(batch: int) -> None:
            chance = random.random()
            ids = random.integers(0, num_rows, 20)
            if chance < 0.2:
                np.testing.assert_array_equal(rows.read(ids), oracle.result[ids])
            elif chance < 0.3:
                for first, piece in rows.pieces(37):
                    np.testing.assert_array_equal(piece, oracle.result[first : first + 37])
            elif chance < 0.4:
                rows.checkpoint("last", {"batch": batch})
            if batch not in skipped:
                oracle.step(batch, batches[batch])

        at = 0
        while at < num_batches:
            stop = int(random.integers(at, num_batches)) + 1
            run(
                rows,
                batches,
                superbatch=superbatch,
                start=at,
                stop=stop,
                lookahead=is_ahead,
                between=between,
                skipped=skipped,
                ahead=int(random.integers(1, 5)),
            )
            at = stop
            assert rows.num_steps == oracle.num_steps
            is_checkpointed = random.random() < 0.5
            if is_checkpointed:
                rows.checkpoint(f"at-{at}", {})
            rows.restart()
            np.testing.assert_array_equal(rows.read(everything), oracle.result)
            if is_checkpointed and random.random() < 0.7:
                reopened(f"at-{at}")
                np.testing.assert_array_equal(rows.read(everything), oracle.result)
                assert rows.num_steps == oracle.num_steps
