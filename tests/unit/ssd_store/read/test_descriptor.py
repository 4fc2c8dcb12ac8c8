"""A descriptor is closed by its block, and where a signal cuts its opening or closing short."""

import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gloader.ssd_store.os_io import Descriptor
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


@pytest.mark.reliability("D4")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # whose block a signal left out
def test_a_signal_at_any_line_leaves_nothing_open(path: Path) -> None:
    for moment in count():
        lines = count()

        def trace(*_: Any, moment: int = moment, lines: Iterator[int] = lines) -> Any:
            if next(lines) == moment:
                signal.raise_signal(signal.SIGINT)
            return trace

        before = sys.gettrace()
        try:
            sys.settrace(trace)
            with Descriptor(path):
                pass
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(before)
            assert not is_open(path), moment
        break
    assert moment > 20
