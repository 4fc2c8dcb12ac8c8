"""One loader for all ranks of a machine: the first of them samples, plans, reads and gathers for all."""

from gloader.distributed.host import LoaderHost
from gloader.distributed.host_run import HostRun
from gloader.distributed.open import open_for_rank, telling_others
from gloader.distributed.place import Place, find_place
from gloader.distributed.remote_tier import RemoteTier
from gloader.distributed.team import Team

__all__ = [
    "HostRun",
    "LoaderHost",
    "Place",
    "RemoteTier",
    "Team",
    "find_place",
    "open_for_rank",
    "telling_others",
]
