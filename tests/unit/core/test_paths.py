"""Folders that need not exist yet."""

from pathlib import Path

import pytest

from gloader.core.paths import home_dir, nearest_existing


def test_nearest_existing_climbs(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert nearest_existing(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"XDG_CACHE_HOME": "/big/caches"}, "/big/caches/gloader"),
        ({}, "/me/.cache/gloader"),
        ({"XDG_CACHE_HOME": "caches"}, "/me/.cache/gloader"),
        ({"XDG_CACHE_HOME": ""}, "/me/.cache/gloader"),
        ({"GLOADER_HOME": "~/mine", "XDG_CACHE_HOME": "/big"}, "/me/mine"),
    ],
)
def test_the_home_is_the_users_cache_folder_unless_named(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], expected: str
) -> None:
    for name in ("GLOADER_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (named | {"HOME": "/me"}).items():
        monkeypatch.setenv(name, value)
    assert home_dir() == Path(expected)
