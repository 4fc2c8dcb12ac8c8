"""The machine of a process, and the number of files that the process may open.

A machine is a host, or the part of a host that GLOADER_MACHINE names. Open files are counted before a loader needs
them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.core.malformed import shown
from gloader.errors import ConfigError, StoreOpenError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MACHINE_VARIABLE: Final = "GLOADER_MACHINE"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_CHARACTERS: Final = 64
# Names folders, too: no separator, and no dot in front.
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_MOST_CHARACTERS - 1}}}", re.ASCII)


def named_machine(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name that GLOADER_MACHINE gives to this process's machine; empty where it gives none.

    Processes of one host with different names are of different machines: each has a loader, memory and temporary
    files of its own, and they talk by the network alone.

    Raises
    ------
    ConfigError
        It is no name for a machine.
    """
    name = environ.get(MACHINE_VARIABLE, "")
    if name and not _NAME.fullmatch(name):
        raise ConfigError(
            f"{MACHINE_VARIABLE}={shown(name)} is no name for a machine: give it 1 to {_MOST_CHARACTERS} letters, "
            "digits, dots, dashes and underscores, of which the first is a letter or a digit"
        )
    return name


def shown_machine() -> str:
    """Return what messages call this process's machine: its name, else that of the host."""
    return named_machine() or os.uname().nodename


def host_id() -> str:
    """Return what tells this host from others: the id of its boot, or its name where /proc is missing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename


def machine_id() -> str:
    """Return what tells this process's machine from others, those of the same host included."""
    name = named_machine()
    return f"{host_id()} {name}" if name else host_id()


def folder_of_machine(folder: Path) -> Path:
    """Return the folder below ``folder`` of this machine alone; ``folder`` itself where machines have no names."""
    name = named_machine()
    return folder / name if name else folder


def distinct_names(names: Sequence[str], first_ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the names of machines, those that several have with the first rank behind them. Pure.

    Parameters
    ----------
    names : of each machine
    first_ranks : of each machine
    """
    return tuple(
        f"{name} (rank {rank})" if names.count(name) > 1 else name
        for name, rank in zip(names, first_ranks, strict=True)
    )


_LOG = logging.getLogger(__name__)
_OPEN: Final = Path("/proc/self/fd")
_USUALLY_OPEN: Final = 64  # where that is not said
SPARE: Final = 24  # kernels' caches, logs, a socket of a library: what comes and goes beside


def require_descriptors(more: int) -> None:
    """Have room for ``more`` open files beside those that are open; raise the soft limit where that suffices.

    Parameters
    ----------
    more : open files that are needed at most

    Raises
    ------
    StoreOpenError
        The hard limit has no room for them: it says how many are needed and allowed.
    """
    needed = _num_open() + more + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        _LOG.info("%d files may be open at a time: their limit was raised from %d", needed, soft)
        return
    typed = 1 << (needed - 1).bit_length()
    text = (
        f"{needed:,} files may be open at a time, for the tables and relations of this dataset, and the system allows "
        f"{hard:,}: run `ulimit -n {typed}` before (in a container: --ulimit nofile={typed})"
    )
    raise StoreOpenError(errno.EMFILE, text)


def _num_open() -> int:
    try:
        return len(os.listdir(_OPEN))  # noqa: PTH208 - names alone
    except OSError:
        return _USUALLY_OPEN
