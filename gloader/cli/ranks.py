"""A command's ranks: `torchrun ... -m gloader train` starts one process for each rank.

torchrun describes the launch in environment variables, which `RankLaunch` reads. `joined_ranks` makes torch's process
group, through which the ranks communicate. `screen_of` lets only rank 0 print. gloo is torch's library for
communication between CPUs, nccl the one between GPUs.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from gloader.cli.screen import Screen, make_console, show_logs
from gloader.errors import ConfigError, RankError
from gloader.training.group import RankGroup
from gloader.training.rendezvous import fresh_store, group_timeout

# Variables of the environment that torchrun sets for each rank.
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Seconds for which a rank waits before it reports that another rank failed. So the failed rank reports its cause first,
# before torchrun ends all ranks.
_REPORT_DELAY_S = 2.0
# Part of gloo's error message for a network interface that does not exist.
_NO_INTERFACE = "Unable to find address for"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLaunch:
    """The position of this process in the launch by torchrun. The defaults describe a process without torchrun."""

    world_size: int = 1  # number of ranks
    local_rank: int = 0  # number of this rank on its machine
    restarts: int = 0  # restarts of the group so far
    max_restarts: int = 0  # largest number of restarts that torchrun will try
    is_first: bool = True  # True for rank 0, the only rank that prints

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> "RankLaunch":
        """Return the launch from the environment. A process without torchrun is alone.

        Raises
        ------
        ConfigError
            A variable is not a number.
        """
        if any(name not in environ for name in _LAUNCHED):
            return cls()
        return cls(
            world_size=_number(environ, "WORLD_SIZE"),
            local_rank=_number(environ, "LOCAL_RANK"),
            restarts=_number(environ, "TORCHELASTIC_RESTART_COUNT", "0"),
            max_restarts=_number(environ, "TORCHELASTIC_MAX_RESTARTS", "0"),
            is_first=_number(environ, "RANK") == 0,
        )


@contextmanager
def joined_ranks(launch: RankLaunch, *, device: str, stall_timeout_s: float) -> Iterator[RankGroup]:
    """Join torchrun's ranks inside the block, and yield their group. Without torchrun the group is one rank.

    All ranks must call this function. An error gets a note that names the rank.

    Parameters
    ----------
    launch : this process's place among the ranks
    device : "auto", "cpu" or "cuda:0"; ranks on GPUs communicate over nccl
    stall_timeout_s : seconds without progress after which a loader ends the run; ranks wait a little longer for each
        other

    Raises
    ------
    RankError
        The ranks do not find each other within the timeout.
    """
    if launch.world_size == 1:
        yield RankGroup.alone()
        return
    _start(launch, device=device, timeout=group_timeout(stall_timeout_s))
    from torch import distributed

    rank = distributed.get_rank()
    try:
        yield RankGroup.current()
    except RankError as error:
        error.add_note(f"on rank {rank}")
        time.sleep(_REPORT_DELAY_S)
        raise
    except Exception as error:
        error.add_note(f"on rank {rank}")
        raise
    # This runs only after success. After an error it could wait for a rank that has ended.
    distributed.destroy_process_group()


def screen_of(group: RankGroup, screen: Screen) -> Screen:
    """Return ``screen`` on the first rank, and on the others a screen for errors only, on stderr."""
    if group.is_first:
        return screen
    show_logs(make_console(stderr=True))
    logging.getLogger("gloader").setLevel(logging.ERROR)
    return Screen(console=make_console(stderr=True, quiet=True), is_json=False)


def _start(launch: RankLaunch, *, device: str, timeout: timedelta) -> None:
    """Make the process group.

    The ranks find each other through torchrun's store, a small key-value server. They use a part of it that no earlier
    attempt used.
    """
    from gloader.observe.peak_memory import bare_bytes

    # The call imports torch and measures its memory. Everything after it counts as the run's memory.
    bare_bytes()
    import torch
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    from gloader.training.process import resolve_device

    place = resolve_device(device, local_rank=launch.local_rank)
    is_cuda = place.type == "cuda"
    # This precedes any other use of a GPU: CUDA's first use makes a context on the current device.
    if is_cuda:
        torch.cuda.set_device(place)
    # After a restart, the store may still hold keys of an earlier attempt, so the ranks agree on a new part.
    try:
        launch_store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        distributed.init_process_group(
            # gloo carries data outside the GPUs: settings, figures, checkpoints.
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=fresh_store(launch_store, rank=rank, world_size=world_size, timeout=timeout),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise apart(launch, error) from error


def apart(launch: RankLaunch, error: Exception) -> RankError:
    """Return the error for ranks that did not find each other because of ``error``.

    If GLOO_SOCKET_IFNAME names an interface that this machine lacks, the message names the existing interfaces.
    """
    from gloader.distributed.network.interfaces import INTERFACE_VARIABLE, list_interfaces

    text = str(error)
    if (named := os.environ.get(INTERFACE_VARIABLE)) and _NO_INTERFACE in text:
        interfaces = ", ".join(interface.name for interface in list_interfaces())
        text = (
            f"{INTERFACE_VARIABLE}={named} names an interface that this machine does not have; it has "
            f"{interfaces}"
        )
    return RankError(f"the {launch.world_size} ranks did not find one another: {text}")


def _number(environ: Mapping[str, str], name: str, missing: str | None = None) -> int:
    """Return the variable ``name`` as a number. ``missing`` is the text for an unset variable; None requires it."""
    text = environ[name] if missing is None else environ.get(name, missing)
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; torchrun sets it to a number") from error
