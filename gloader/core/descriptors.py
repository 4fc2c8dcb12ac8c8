"""Open files: counted against what the system lets this process have, before they are needed."""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path
from typing import Final

from gloader.errors import StoreOpenError

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
