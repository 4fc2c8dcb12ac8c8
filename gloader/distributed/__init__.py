"""One loader for all ranks of a machine: the first rank samples, plans, reads and gathers for all."""

from gloader.distributed.agree import Membership, Team, find_membership
from gloader.distributed.client_run import RemoteTier
from gloader.distributed.host import HostRun, LoaderHost
from gloader.distributed.open import open_for_rank, telling_others

__all__ = [
    "HostRun",
    "LoaderHost",
    "Membership",
    "RemoteTier",
    "Team",
    "find_membership",
    "open_for_rank",
    "telling_others",
]
