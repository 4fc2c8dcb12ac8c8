"""A loader of several types reports rows held and read by type, and its counts are those of the batches."""

from pathlib import Path

import pytest

from .typed import NUM_NODES, WIDTHS, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_counts_of_each_type_are_those_of_its_batches_and_add_up(tmp_path: Path, strategy: str) -> None:
    typed = write_typed(tmp_path / "graph")
    with open_loader(
        typed, features="ssd", cache=60 * ROW, io_strategy=strategy, spill_dir=tmp_path
    ) as loader:
        gathered = dict.fromkeys(WIDTHS, 0)
        for batch in loader:
            for name in WIDTHS:
                gathered[name] += len(batch.nodes[name])
        stats, plan, text = loader.stats, loader.memory_plan, loader.explain()
        reports = loader.reports
        assert loader.bottleneck()
    assert {name: counts["rows_gathered"] for name, counts in stats.tables.items()} == gathered
    for name, counts in stats.tables.items():
        assert counts["rows_gathered"] == counts["cache_hits"] + counts["rows_read"]
        assert stats.of_table(name).hit_rate == counts["cache_hits"] / counts["rows_gathered"]
        found = [report for report in reports if report.table == name]
        assert sum(report.misses for report in found) == counts["rows_read"]
    for name in next(iter(stats.tables.values())):
        assert sum(counts[name] for counts in stats.tables.values()) == getattr(stats, name)
    assert len(plan.cache_rows) == 2
    assert (
        sum(rows * 4 * WIDTHS[name] for name, rows in zip(WIDTHS, plan.cache_rows, strict=True)) <= 60 * ROW
    )
    for name, rows in zip(WIDTHS, plan.cache_rows, strict=True):
        assert dict(plan.parts)[f"host cache of {name}"] >= rows * 4 * WIDTHS[name]
        share = 100 * rows / NUM_NODES[name]
        assert f"  {name}: {rows:,} rows ({share:.1f}%) of {4 * WIDTHS[name]} B; about " in text
        assert f"\n{name}: " in text
    assert plan.total_bytes == sum(num_bytes for _, num_bytes in plan.parts)


def test_packs_of_small_tables_have_a_page_for_each_batch_of_each(tmp_path: Path) -> None:
    typed = write_typed(tmp_path / "graph")
    with open_loader(typed, features="ssd", cache=0, io_strategy="packed", spill_dir=tmp_path) as loader:
        ssd = loader._held.tier.ssd
        room = min(table.retrieval.spill_bytes for table in ssd)
        # Two superbatches at a time, of all batches of an epoch each.
        assert room >= 2 * len(ssd) * len(loader) * 4096


def test_types_in_memory_or_without_features_are_told_of_too(tmp_path: Path) -> None:
    typed = write_typed(tmp_path / "graph")
    with open_loader(typed, features="ram") as loader:
        assert len(list(loader)) == len(loader)
        assert "  features of paper: " in loader.explain()
        assert loader.stats.tables == {}
        assert loader.bottleneck()
    bare = write_typed(tmp_path / "bare", has_features=False)
    with open_loader(bare) as loader:
        assert len(list(loader)) == len(loader)
        assert "features: no node type has any" in loader.explain()
        assert "shared out" not in loader.explain()
        assert loader.memory_plan.cache_rows == ()
        assert loader.bottleneck()
