"""The machines of a launch: who loads on each, which rows each has, and how they connect."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gloader.distributed.exchange.host_group import HostGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.config import ExchangeMode
    from gloader.core.row_ranges import RowRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The machines of a launch: who loads on each, and which rows each has."""

    hosts: tuple[int, ...]  # the ranks that load, in the order of the rows that they own
    names: tuple[str, ...]  # of their machines
    rank: int  # of this process, one of the hosts
    key: str  # of this loader, the same on all machines
    mode: ExchangeMode
    parts: tuple[RowRanges, ...]  # of the rows that each machine has; empty: each has all
    timeout_s: float  # of silence; 0: for ever
    verify: bool  # whether rows are compared with their checksums
    groups: Iterator[int] = field(default_factory=itertools.count)  # all machines make as many, in one order

    @property
    def index(self) -> int:
        """The number of this machine."""
        return self.hosts.index(self.rank)

    @property
    def must_exchange(self) -> bool:
        """Whether no machine reads alone."""
        return bool(self.parts) or self.mode == "always"

    def connect(self) -> HostGroup:
        """Return a group of the hosts, which connects when it is first used: all of them make one now."""
        return HostGroup(
            self.hosts,
            self.names,
            rank=self.rank,
            name=f"{self.key}-{next(self.groups)}",
            timeout_s=self.timeout_s,
        )
