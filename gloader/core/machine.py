"""The machine that a process belongs to, and the limit on its open files.

A host is a computer. A machine is normally a host. To try a run of several machines on one host, a user sets the
environment variable GLOADER_MACHINE, with one name for all processes of the same machine. `require_descriptors` checks
the limit on open files before a loader opens more.
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


MACHINE_VARIABLE: Final = "GLOADER_MACHINE"  # the environment variable with a machine's name

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # a random id that Linux draws at every start
_MOST_CHARACTERS: Final = 64  # largest length of a machine's name
# The name is also a folder name: no separator, and no leading dot.
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_MOST_CHARACTERS - 1}}}", re.ASCII)


def named_machine(environ: Mapping[str, str] = os.environ) -> str:
    """Return the machine name in GLOADER_MACHINE, or an empty text.

    Processes on one host with different names belong to different machines. Each machine has its own loader, memory and
    temporary files. Machines communicate only by the network.

    Raises
    ------
    ConfigError
        The value is not a valid machine name.
    """
    name = environ.get(MACHINE_VARIABLE, "")
    if name and not _NAME.fullmatch(name):
        raise ConfigError(
            f"{MACHINE_VARIABLE}={shown(name)} is no name for a machine: use 1 to {_MOST_CHARACTERS} letters, "
            "digits, dots, dashes and underscores, and begin with a letter or a digit"
        )
    return name


def shown_machine() -> str:
    """Return the machine's name for messages: its own name, or the host's name."""
    return named_machine() or os.uname().nodename


def host_id() -> str:
    """Return this host's unique id: its boot id, or the host's name if there is no boot id."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename


def machine_id() -> str:
    """Return a unique id for this process's machine, also among machines on the same host."""
    name = named_machine()
    return f"{host_id()} {name}" if name else host_id()


def folder_of_machine(folder: Path) -> Path:
    """Return this machine's own folder in ``folder``, or ``folder`` itself if the machine has no name."""
    name = named_machine()
    return folder / name if name else folder


def distinct_names(names: Sequence[str], first_ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the machines' names. A name of several machines gets the machine's first rank as a suffix. Pure.

    Parameters
    ----------
    names : each machine's name
    first_ranks : the rank of each machine's first process
    """
    return tuple(
        f"{name} (rank {rank})" if names.count(name) > 1 else name
        for name, rank in zip(names, first_ranks, strict=True)
    )


_LOG = logging.getLogger(__name__)
_OPEN: Final = Path("/proc/self/fd")  # a folder with one entry per open file
# Assumed number of open files if the folder cannot be read.
_USUALLY_OPEN: Final = 64
# Number of files that other code may open meanwhile: kernel caches, logs, a library's socket.
SPARE: Final = 24


def require_descriptors(more: int) -> None:
    """Ensure that the process can open ``more`` files. Raise the soft limit if needed and allowed.

    Parameters
    ----------
    more : number of additional files, at most

    Raises
    ------
    StoreOpenError
        The hard limit is too small. The message gives the needed and the allowed number of files.
    """
    needed = _num_open() + more + SPARE
    # The soft limit applies now. A process may raise its soft limit up to the hard limit.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        _LOG.info("the limit on open files was raised from %d to %d", soft, needed)
        return
    suggested = 1 << (needed - 1).bit_length()  # the next power of two
    text = (
        f"up to {needed:,} files are open together, for the tables and relations of this dataset, and the system "
        f"allows {hard:,}: run `ulimit -n {suggested}` before (in a container: --ulimit nofile={suggested})"
    )
    raise StoreOpenError(errno.EMFILE, text)


def _num_open() -> int:
    """Return the number of files that the process has open."""
    try:
        return len(os.listdir(_OPEN))  # noqa: PTH208 - names alone
    except OSError:
        return _USUALLY_OPEN
