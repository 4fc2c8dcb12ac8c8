"""The folder that a propagation works in: for its owner, for one process, and gone at the end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gloader.errors import StoreLockedError
from gloader.ssd_store.os_io import OsIO
from gloader.training.propagation.work_folder import WorkFolder

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.ssd_store.os_io import StrPath


def test_the_folder_is_its_owners_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    with WorkFolder(tmp_path / "new" / "out") as work:
        assert work.path == tmp_path / "new" / ".out.propagate"
        assert work.path.stat().st_mode & 0o777 == 0o700
        (work.path / "part").mkdir()
        (work.path / "part" / "file").write_bytes(b"123")
        assert work.used_bytes == 3
    assert list((tmp_path / "new").iterdir()) == []


def test_an_error_keeps_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), WorkFolder(tmp_path / "out") as work:
        (work.path / "file").write_bytes(b"123")
        raise KeyboardInterrupt
    with WorkFolder(tmp_path / "out") as again:
        assert (again.path / "file").read_bytes() == b"123"
        again.empty()
        assert list(again.path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_removed_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), WorkFolder(tmp_path / "new" / "out"):
        raise ValueError("x")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    refused = pytest.raises(StoreLockedError, match=r"\.out\.propagate")
    with WorkFolder(tmp_path / "out"), refused, WorkFolder(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    class Foreign(OsIO):
        def stat(self, path: StrPath) -> os.stat_result:
            values = list(super().stat(path))
            values[4] = os.geteuid() + 1
            return os.stat_result(values)

    (tmp_path / ".out.propagate").mkdir()
    (tmp_path / ".out.propagate" / "trap").touch()
    with pytest.raises(StoreLockedError, match="belongs to another user"):
        WorkFolder(tmp_path / "out", os_io=Foreign()).__enter__()
    assert (tmp_path / ".out.propagate" / "trap").exists()
