"""One loader for all ranks of a machine: the first of them samples, plans, reads and gathers for all."""

from gloader.distributed.agree import Facts, Membership, Sharing, Team, assemble, find_membership
from gloader.distributed.client_run import RemoteTier
from gloader.distributed.host import LoaderHost
from gloader.distributed.host_run import HostRun
from gloader.distributed.open import open_shared, telling_others

__all__ = [
    "Facts",
    "HostRun",
    "LoaderHost",
    "Membership",
    "RemoteTier",
    "Sharing",
    "Team",
    "assemble",
    "find_membership",
    "open_shared",
    "telling_others",
]
