"""Plans of the static device cache: which rows it holds for a whole run, how many fit, and in which slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.static import SlotMap, hottest_first
from gloader.cache.trace import NO_ROWS
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.config import DeviceHotness
    from gloader.types import IdArray


_MAP_BYTES: Final = 4  # a node's entry of the slot map
_SCALE_BYTES: Final = 4  # a row's factor, of int8 features
_STEP_MARGIN: Final = 1.2  # batches are larger than the one that was tried
# Of what is free, if no step was tried: a guess that leaves the model the other half.
_UNTRIED_SHARE: Final = 0.5
_SLACK_BYTES: Final = 512 << 20  # workspaces of libraries, fragmentation
# Several ranks: NCCL takes 0.5 to 1.6 GB, of which what it sends later comes when it is first sent.
_SLACK_OF_RANKS_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceCachePlan:
    """The rows of a static device cache: slot i holds the row of ``rows[i]``."""

    num_nodes: int  # N
    rows: IdArray  # (D,) distinct node ids, ascending
    expected_hit_rate: float | None = None  # share of accesses that these rows serve; None: not counted

    @property
    def holds_all(self) -> bool:
        """Whether every row is on the device, so that nothing below has to bring any."""
        return 0 < self.num_nodes == len(self.rows)

    def slot_map(self) -> NDArray[np.int32]:
        """Return the slot of each node (N,), -1 where it has none.

        Raises
        ------
        PlanError
            A row is out of range or repeats.
        """
        return SlotMap(self.num_nodes, self.rows).slot_of

    def holds(self) -> NDArray[np.bool_]:
        """Return which nodes' rows (N,) are on the device."""
        held = np.zeros(self.num_nodes, dtype=np.bool_)
        held[self.rows] = True
        return held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceShare:
    """Which rows of a batch the device brings itself, for those that bring the others."""

    # It reads rows that it does not hold from host memory itself: nothing is gathered for it.
    reaches_all: bool = False
    held: NDArray[np.bool_] | None = None  # (N,) which rows it holds; None: none, or all where `holds_all`
    holds_all: bool = False

    def num_held(self, nodes: IdArray) -> int:
        """Return how many rows of ``nodes`` (U,) the device holds."""
        if self.holds_all:
            return len(nodes)
        return 0 if self.held is None else int(np.count_nonzero(self.held[nodes]))

    def positions_left(self, nodes: IdArray) -> IdArray | None:
        """Return the positions (M,) of ``nodes`` (U,) whose rows the host gathers; None for all of them."""
        return None if self.held is None else np.flatnonzero(~self.held[nodes])


def rows_that_fit(
    num_bytes: int, *, num_nodes: int, row_bytes: int, has_scale: bool = False, has_all_scales: bool = False
) -> int:
    """Return how many rows a device cache of ``num_bytes`` holds: all N, or what is left beside the slot map. Pure.

    Parameters
    ----------
    num_bytes : of device memory
    num_nodes : N
    row_bytes : R, as stored: rows are widened when they are gathered
    has_scale : rows are int8, each with a float32 factor
    has_all_scales : the factors of all N rows are there too, for those that the host brings as they are stored
    """
    each = row_bytes + (_SCALE_BYTES if has_scale else 0)
    if each * num_nodes <= num_bytes:
        return num_nodes  # without a map: a row's slot is its id
    beside = (_MAP_BYTES + (_SCALE_BYTES if has_all_scales else 0)) * num_nodes
    return min(max(num_bytes - beside, 0) // each, num_nodes)


def cache_bytes(
    num_rows: int, *, num_nodes: int, row_bytes: int, has_scale: bool = False, has_all_scales: bool = False
) -> int:
    """Return the bytes of a device cache, its map included. Pure.

    Parameters
    ----------
    num_rows : rows that it holds
    num_nodes : N; a cache of all of them has no map
    row_bytes : R, as stored
    has_scale : rows are int8, each with a float32 factor
    has_all_scales : the factors of all N rows are there too, for those that the host brings as they are stored
    """
    each_node = _MAP_BYTES + (_SCALE_BYTES if has_all_scales else 0)
    beside = each_node * num_nodes if 0 < num_rows < num_nodes else 0
    return beside + num_rows * (row_bytes + (_SCALE_BYTES if has_scale else 0))


def automatic_bytes(
    free_bytes: int,
    *,
    step_bytes: int | None,
    batch_bytes: int,
    batches_ahead: int,
    has_other_ranks: bool = False,
) -> int:
    """Return how many bytes of a device a cache may take. Pure.

    What is free, less the most that one step of the model took, the batches that are there beside the one it works
    on, and a slack; half of what is free if no step was tried.

    Parameters
    ----------
    free_bytes : free memory before the step, the model's parameters already there
    step_bytes : the most that a step took beyond that, its batch included; None: none was tried
    batch_bytes : features and blocks of one batch
    batches_ahead : batches on the device beside the step's own
    has_other_ranks : whether the device talks to those of other ranks
    """
    slack = _SLACK_OF_RANKS_BYTES if has_other_ranks else _SLACK_BYTES
    ahead = batches_ahead * batch_bytes
    if step_bytes is None:
        return max(int(_UNTRIED_SHARE * free_bytes) - ahead - batch_bytes, 0)
    return max(free_bytes - int(_STEP_MARGIN * (step_bytes + ahead)) - slack, 0)


def plan_device_cache(
    scores: NDArray[np.integer] | NDArray[np.floating],
    num_rows: int,
    *,
    tail: NDArray[np.integer] | None = None,
    accesses: NDArray[np.integer] | None = None,
) -> DeviceCachePlan:
    """Return the plan that holds the ``num_rows`` nodes of largest score. Pure.

    Parameters
    ----------
    scores : (N,) accesses counted in presampled batches, inclusion probabilities or out-degrees
    num_rows : rows to hold; N and more hold all
    tail : (N,) ranks the nodes without a score, which fill what is left; None: those stay out
    accesses : (N,) counts, for the expected hit rate; None: it is not known
    """
    num_nodes = len(scores)
    if num_rows >= num_nodes:
        return whole_device_cache(num_nodes)
    rows = hottest_first(scores, num_rows)
    if tail is not None and len(rows) < num_rows:
        rest = np.where(scores > 0, 0, tail)
        rows = np.concatenate([rows, hottest_first(rest, num_rows - len(rows))])
    total = 0 if accesses is None else int(accesses.sum())
    served = None if accesses is None or not total else int(accesses[rows].sum()) / total
    return DeviceCachePlan(num_nodes=num_nodes, rows=np.sort(rows), expected_hit_rate=served)


def whole_device_cache(num_nodes: int) -> DeviceCachePlan:
    """Return the plan of a device that holds every row. Pure."""
    return DeviceCachePlan(
        num_nodes=num_nodes, rows=np.arange(num_nodes, dtype=np.int64), expected_hit_rate=1.0
    )


def no_device_cache(num_nodes: int) -> DeviceCachePlan:
    """Return the plan of a device that holds no rows. Pure."""
    return DeviceCachePlan(num_nodes=num_nodes, rows=NO_ROWS)


def parse_hotness(name: str) -> DeviceHotness:
    """Return ``name`` as the ranking that it names. Pure.

    Raises
    ------
    ConfigError
        It names none.
    """
    if name == "presampled":
        return "presampled"
    if name == "vip":
        return "vip"
    if name == "degree":
        return "degree"
    raise ConfigError(f"device_hotness={name!r} is not one of 'presampled', 'vip', 'degree'")
