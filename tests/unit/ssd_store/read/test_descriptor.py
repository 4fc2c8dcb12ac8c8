"""A descriptor is closed by its block, and where a signal cuts its opening or closing short."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gloader.ssd_store.read.descriptor import Descriptor
from gloader.ssd_store.read.device_file import DeviceFile


def is_open(path: Path) -> bool:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return any(link.readlink() == path for link in links)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    return file


def test_it_is_open_in_its_block_and_closed_behind_it(path: Path) -> None:
    file = Descriptor(path)
    with file as number:
        assert os.fstat(number).st_size == 4096
        assert is_open(path)
    assert not is_open(path)
    assert file.number == -1
    file.close()


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Descriptor(tmp_path)
    with pytest.raises(FileNotFoundError):
        Descriptor(tmp_path / "nothing")
    assert not is_open(tmp_path)


@pytest.mark.parametrize("kind", [Descriptor, DeviceFile])
def test_a_signal_while_it_is_opened_leaves_nothing_open(
    path: Path, kind: type[Descriptor] | type[DeviceFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def interrupted(*args: Any, **kwargs: Any) -> int:
        fd = open_file(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return fd

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "open", interrupted)
        kind(path)
    assert not is_open(path)


def test_a_signal_while_it_is_closed_leaves_nothing_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def interrupted(fd: int) -> None:
        signal.raise_signal(signal.SIGINT)
        close(fd)

    file = Descriptor(path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "close", interrupted)
        file.close()
    assert not is_open(path)
