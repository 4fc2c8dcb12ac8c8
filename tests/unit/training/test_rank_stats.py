from __future__ import annotations

from gloader.observe.epoch_stats import STAGES, EpochStats
from gloader.training.rank_stats import merge_stats


def _stats(**values: float) -> EpochStats:
    seconds = dict.fromkeys(STAGES, 0.0) | {"compute": values.pop("compute", 0.0)}
    return EpochStats(epoch=2, stage_seconds=seconds, **values)


def test_one_rank_is_itself() -> None:
    part = _stats(batches=3)
    assert merge_stats([part]) is part


def test_rows_add_up_steps_do_not_and_the_slowest_rank_counts() -> None:
    merged = merge_stats(
        [
            _stats(
                batches=3, seeds=40, rows_gathered=100, cache_hits=60, rows_read=40, seconds=2.0, compute=1.0
            ),
            _stats(batches=3, seeds=38, seconds=2.5, compute=1.5),
        ]
    )
    assert (merged.epoch, merged.batches, merged.seeds) == (2, 3, 78)
    assert (merged.rows_gathered, merged.rows_read, merged.hit_rate) == (100, 40, 0.6)
    assert (merged.seconds, merged.stage_seconds["compute"]) == (2.5, 1.5)
