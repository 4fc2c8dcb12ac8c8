"""The host's end of the connections of the other ranks: who they are, and that all of them came."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gloader.distributed.agree import Team
    from gloader.distributed.wire import Connection

_CONNECT_S = 30.0  # between the agreement of all ranks and their connections


def accept_all(team: Team) -> dict[int, Connection]:
    """Return the connections of the other ranks, in their order.

    Raises
    ------
    RankError
        One of them did not come.
    """
    found: dict[int, Connection] = {}
    deadline = time.monotonic() + _CONNECT_S
    try:
        while len(found) + 1 < len(team.ranks) and time.monotonic() < deadline:
            connection = team.listener.accept(deadline - time.monotonic()) if team.listener else None
            if connection is None:
                continue
            rank = _introduced(connection, team.token)
            if rank is None or rank not in team.ranks[1:] or rank in found:
                connection.close()
            else:
                found[rank] = connection
        _require_all(team.ranks[1:], found)
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return {rank: found[rank] for rank in team.ranks[1:]}


def _require_all(ranks: Sequence[int], found: Collection[int]) -> None:
    missing = [rank for rank in ranks if rank not in found]
    if missing:
        who = ", ".join(map(str, missing))
        raise RankError(f"rank {who} did not connect within {_CONNECT_S:g} s; see its own error")


def _introduced(connection: Connection, token: str) -> int | None:
    """Return the rank that a new connection says it is; None where it does not know the token."""
    try:
        received = connection.receive(1.0)
    except (EOFError, ValueError):
        return None
    message: dict[str, Any] = {} if received is None else received.message
    return int(message["rank"]) if message.get("token") == token else None
