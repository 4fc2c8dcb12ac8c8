"""The rendezvous: all ranks of a launch agree on a fresh part of torchrun's key-value store.

A rank is one of the processes that train together. After a restart the store still has entries of dead ranks, so each
launch uses its own part of the store: a random name that begins all later keys. The command line calls `fresh_store`
on every rank before it makes the process group.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from gloader.errors import RankError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


# Seconds between two checks of the store, which cannot wait for one of several keys.
_POLL_S = 0.02
# Seconds by which a collective's timeout exceeds the stall timeout: a stalled stage is then reported first.
_AFTER_STALL_S = 60.0


def group_timeout(stall_timeout_s: float) -> timedelta:
    """Return the timeout of a run's collectives. Pure.

    Parameters
    ----------
    stall_timeout_s : seconds after which a stage counts as stalled
    """
    return timedelta(seconds=stall_timeout_s + _AFTER_STALL_S)


def fresh_store(store: Store, *, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of ``store`` without entries of earlier ranks. All ranks get the same part.

    torchrun keeps its store over restarts, so new ranks would find the addresses of dead ranks (pytorch issue 135712).
    The restart count differs between machines, so it cannot name the part. Instead every rank sends a request with a
    random name to the first rank, which answers each request with the name of the new part.

    Parameters
    ----------
    store : torchrun's store, which all ranks reach
    rank : this process's rank
    world_size : W
    timeout : longest wait for the arrival of all ranks

    Raises
    ------
    RankError
        A rank does not arrive within ``timeout``.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    deadline = time.monotonic() + timeout.total_seconds()
    name = _publish_part(store, world_size, deadline) if rank == 0 else _request_part(store, rank, deadline)
    return PrefixStore(f"gloader/{name}", store)


def _publish_part(store: Store, world_size: int, deadline: float) -> str:
    """Choose a name for the part, and answer requests until all ranks have confirmed. Return the name. For rank 0."""
    name = secrets.token_hex(8)
    missing = set(range(1, world_size))
    # A rank is done when it confirms its arrival. An answer alone does not count: it may have gone to a dead rank.
    while missing:
        for rank in sorted(missing):
            if store.check([_request_key(rank)]):
                # Requests of earlier ranks are answered as well, but those ranks never confirm.
                store.set(_answer_key(store.get(_request_key(rank)).decode()), name)
            if store.check([_confirmation_key(name, rank)]):
                missing.remove(rank)
        if missing and time.monotonic() > deadline:
            raise RankError(
                f"rank {', '.join(map(str, sorted(missing)))} did not arrive in time; see its own error"
            )
        if missing:
            time.sleep(_POLL_S)
    return name


def _request_part(store: Store, rank: int, deadline: float) -> str:
    """Send a request, wait for the answer and confirm it; return the name of the part. For all other ranks."""
    # Each start uses a new random name, so that no answer of an earlier rendezvous fits.
    request = secrets.token_hex(8)
    store.set(_request_key(rank), request)
    while not store.check([_answer_key(request)]):
        if time.monotonic() > deadline:
            raise RankError("rank 0 did not arrive in time; see its own error")
        time.sleep(_POLL_S)
    name = store.get(_answer_key(request)).decode()
    store.set(_confirmation_key(name, rank), "yes")
    return name


def _request_key(rank: int) -> str:
    return f"gloader/asked/{rank}"


def _answer_key(request: str) -> str:
    return f"gloader/answer/{request}"


def _confirmation_key(name: str, rank: int) -> str:
    return f"gloader/came/{name}/{rank}"
