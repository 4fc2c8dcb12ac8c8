"""Disks of known rates: this machine's, held back by a control group (version 1, as root), and their profiles.

A what-if of a disk is about rates. So that what is asked and what is done are the same thing, runs of known disks have
a profile of their own that says what the control group allows, instead of what a probe finds in a tenth of a second.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes
from gloader.errors import ConfigError
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.io_rates import MEDIUM_BYTES, SEQUENTIAL_BYTES, SMALL_BYTES, WIDE_BYTES
from gloader.ssd_store.cost.profile import remember_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS: Final = Path("/sys/fs/cgroup/blkio")
_DEPTH: Final = 64  # of the reads in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a control group lets a run have of the disk."""

    read_bytes_per_s: float
    reads_per_s: float  # of any size
    write_bytes_per_s: float

    def scaled(self, *, reads: float = 1.0, random: float = 1.0, writes: float = 1.0) -> Disk:
        """Return a disk that is so many times as fast. Pure.

        Parameters
        ----------
        reads : of bytes and requests
        random : of requests alone
        writes : of bytes written
        """
        return replace(
            self,
            read_bytes_per_s=self.read_bytes_per_s * reads,
            reads_per_s=self.reads_per_s * reads * random,
            write_bytes_per_s=self.write_bytes_per_s * writes,
        )

    @property
    def name(self) -> str:
        """Its rates, for people and for folders."""
        return (
            f"{self.read_bytes_per_s / 1e6:.0f}MBps-{self.reads_per_s:.0f}iops-"
            f"{self.write_bytes_per_s / 1e6:.0f}MBps-written"
        )

    @property
    def profile(self) -> DeviceProfile:
        """What a probe would find, if it took long enough: a read waits for its request, or for its bytes."""

        def per_s(size: int) -> float:
            return min(self.reads_per_s, self.read_bytes_per_s / size)

        return DeviceProfile(
            random_reads_per_s=per_s(SMALL_BYTES),
            medium_reads_per_s=per_s(MEDIUM_BYTES),
            wide_reads_per_s=per_s(WIDE_BYTES),
            read_bytes_per_s=SEQUENTIAL_BYTES * per_s(SEQUENTIAL_BYTES),
            write_bytes_per_s=self.write_bytes_per_s,
            mixed_writes=2.0,  # a control group holds back reads and writes apart
            queue_depth=_DEPTH,
            is_direct=True,
            # Otherwise rates that no SSD has would be measured again.
            is_confirmed=True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rates as a JSON object."""
        return {
            "read_bytes_per_s": self.read_bytes_per_s,
            "reads_per_s": self.reads_per_s,
            "write_bytes_per_s": self.write_bytes_per_s,
        }


@contextmanager
def held_back(folder: Path, disk: Disk | None, groups: Path = GROUPS) -> Iterator[Path | None]:
    """Make a control group that has no more than ``disk`` of the device under ``folder``, and remove it.

    Yields
    ------
    the group; None where ``disk`` is None

    Raises
    ------
    ConfigError
        No such group can be made: a run would have another disk than it is said to have.
    """
    if disk is None:
        yield None
        return
    group = groups / f"gloader-replay-{os.getpid()}"
    device = os.stat(folder).st_dev  # noqa: PTH116 - of its file system
    limits = {
        "read_bps": disk.read_bytes_per_s,
        "read_iops": disk.reads_per_s,
        "write_bps": disk.write_bytes_per_s,
    }
    try:
        group.mkdir()
        for name, limit in limits.items():
            words = f"{os.major(device)}:{os.minor(device)} {int(limit)}"
            (group / f"blkio.throttle.{name}_device").write_text(words)
    except OSError as error:
        _remove(group)
        raise ConfigError(
            f"the disk cannot be held back to {format_bytes(int(disk.read_bytes_per_s))}/s ({error}): this needs the "
            "control group blkio of version 1, as root"
        ) from error
    try:
        yield group
    finally:
        _remove(group)


def home_of(workdir: Path, disk: Disk | None) -> Path:
    """Return the folder that is GLOADER_HOME of runs with ``disk``, whose profile lies there anew.

    Nothing that a run before found out changes the next one. Where the disk is not held back, the folder is that of the
    benchmark, with what was measured last.
    """
    if disk is None:
        return workdir / "home"
    home = workdir / "homes" / disk.name
    shutil.rmtree(home, ignore_errors=True)
    with _home(home):
        remember_profile(workdir, disk.profile)
    return home


@contextmanager
def _home(home: Path) -> Iterator[None]:
    """Have the user's folder be ``home`` inside the block."""
    before = os.environ.get("GLOADER_HOME")
    os.environ["GLOADER_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOADER_HOME"]
        else:
            os.environ["GLOADER_HOME"] = before


def _remove(group: Path) -> None:
    """Remove a group whose last process may still be on its way out."""
    for _ in range(50):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
