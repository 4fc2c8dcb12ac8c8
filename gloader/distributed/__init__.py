"""One loader for all ranks of a machine: the first of them samples, plans, reads and gathers for all."""

from gloader.distributed.agree import Facts, Team, assemble
from gloader.distributed.host import LoaderHost
from gloader.distributed.host_run import HostRun
from gloader.distributed.open import open_shared, telling_others
from gloader.distributed.place import Place, Sharing, find_place
from gloader.distributed.remote_tier import RemoteTier

__all__ = [
    "Facts",
    "HostRun",
    "LoaderHost",
    "Place",
    "RemoteTier",
    "Sharing",
    "Team",
    "assemble",
    "find_place",
    "open_shared",
    "telling_others",
]
