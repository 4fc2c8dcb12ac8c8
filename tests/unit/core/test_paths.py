"""Folders that need not exist yet."""

from pathlib import Path

from gloader.core.paths import nearest_existing


def test_nearest_existing_climbs(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert nearest_existing(tmp_path) == tmp_path
