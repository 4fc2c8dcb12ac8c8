"""A numbering whose disk fills up or whose process is killed: an error, and files in one folder alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from gloader.convert.csc import spill
from gloader.convert.keys.numbering import Numbering
from gloader.core.keys import text_chunk
from gloader.errors import StoreWriteError

if TYPE_CHECKING:
    from pathlib import Path


def number(folder: Path) -> None:
    """Number 3000 keys in a budget that spills, and read them all."""
    keys = text_chunk([f"key-{i}" for i in range(3000)])
    with Numbering("a", "text", folder=folder, budget_bytes=1 << 16) as numbering:
        stream = numbering.open_stream("e.csv")
        stream.append(keys)
        stream.append(keys)
        stream.close()
        assert numbering.resolve().spilled_bytes
        for _ in numbering.ids(stream, 500):
            pass
        for _ in numbering.keys(500):
            pass


def test_a_full_disk_at_any_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = spill.append_bytes, [0, 0]

    def limited(path: Path, array: Any) -> None:
        calls[0] += 1
        if calls[0] == calls[1]:
            raise StoreWriteError(errno.ENOSPC, "No space left on device")
        write(path, array)

    monkeypatch.setattr(spill, "append_bytes", limited)
    number(tmp_path)
    total, calls[0] = calls[0], 0
    assert total > 100
    for last in [*range(1, total, 37), total]:
        calls[:] = [0, last]
        with pytest.raises(StoreWriteError, match="No space left"):
            number(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    keys = text_chunk([f"key-{i}" for i in range(3000)])
    for name in ("keys-a-head-words", "keys-a-order-0", "keys-a-ids-00003", "keys-a-made-00003-lengths"):
        with Numbering("a", "text", folder=tmp_path, budget_bytes=1 << 16) as numbering:
            stream = numbering.open_stream("e.csv")
            stream.append(keys)
            stream.close()
            numbering.resolve()
            os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 1)
            with pytest.raises(StoreWriteError, match=f"temporary file .*{name} became shorter"):
                list(numbering.ids(stream, 500) if "order" in name or "ids" in name else numbering.keys(500))
        assert list(tmp_path.iterdir()) == []


def test_a_killed_numbering_leaves_files_in_its_folder_alone(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "spill", tmp_path / "cwd"
    folder.mkdir()
    elsewhere.mkdir()
    code = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from gloader.convert.csc import spill
        from gloader.convert.keys.numbering import Numbering
        from gloader.core.keys import text_chunk

        write = spill.append_bytes

        def dying(path, array):
            write(path, array)
            if "-part-00005" in path.name:
                os.kill(os.getpid(), signal.SIGKILL)

        spill.append_bytes = dying
        numbering = Numbering("a", "text", folder=Path(sys.argv[1]), budget_bytes=1 << 16)
        stream = numbering.open_stream("e.csv")
        for start in range(0, 9000, 1000):
            stream.append(text_chunk([f"key-{i}" for i in range(start, start + 1000)]))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=elsewhere, env={**os.environ, "TMPDIR": str(elsewhere)}, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = {path.name for path in folder.iterdir()}
    assert left
    assert all(name.startswith("keys-a-") for name in left)
    assert list(elsewhere.iterdir()) == []
