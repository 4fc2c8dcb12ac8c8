"""Orders of seeds and rows: permutations keyed by (seed, epoch), and the batches cut from them.

A step is one update of the model: every rank computes one batch. `StepCut` cuts an epoch's items into steps, and a step
into the batches of the ranks. The items are seeds (`EpochOrder`) or rows of a link table, which lists edges to predict
(`RowOrder`). `EpochOrder` holds the permutation of its seeds. `RowOrder` computes the needed entries of a long
permutation instead. `Draws` are an epoch's random draws from the seeds, with or without replacement. The loader's
argument for them is `DrawnSeeds`. Loaders use an order through `num_batches`, `ready_epoch` and `seeds_of`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gloader.core.hashing import GOLDEN, inverse, mix64, mix_int, unmix64
from gloader.core.ids import outside
from gloader.core.kernels import njit
from gloader.errors import ConfigError, SeedError
from gloader.types import BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.types import AnySeeds, BatchId, IdArray


_ONE: Final = np.uint64(1)
_INVERSE_GOLDEN: Final = inverse(GOLDEN)  # modulo 2**64, for `_read_positions`
# Number of epochs whose permutations are held: the current epoch and the next ones. A superbatch, a group of batches
# that are planned together, may reach into the next epochs.
EPOCHS_HELD: Final = 3


def epoch_permutation(num_items: int, *, seed: int, epoch: int) -> IdArray:
    """Return a permutation of ``range(num_items)`` that depends only on (seed, epoch). Pure.

    Positions are ordered by a hash of (seed, epoch, position), so the result depends neither on a
    generator's state nor on the version of a random library.

    Parameters
    ----------
    num_items : number of positions
    seed : any integer, taken modulo 2**64
    epoch : number of the epoch, from 0

    Returns
    -------
    (num_items,) int64
    """
    key = np.uint64(_epoch_key(seed, epoch))
    words = hashed_words(num_items, seed=seed, epoch=epoch)
    with np.errstate(over="ignore"):  # hashes overflow on purpose, and only interpreted kernels would warn
        # The hash is a bijection, so no two positions tie, and each position can be computed from its hash. Sorting
        # only the hashes takes a fifth of the time of sorting positions by hash.
        words.sort()
        _read_positions(key, words)
    return words.view(np.int64)


def hashed_words(count: int, *, seed: int, epoch: int) -> NDArray[np.uint64]:
    """Return each position's hash over (seed, epoch, position), (count,). Pure."""
    words = np.empty(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        _hash_positions(np.uint64(_epoch_key(seed, epoch)), words)
    return words


@njit(cache=True, nogil=True)
def _hash_positions(key: np.uint64, words: NDArray[np.uint64]) -> None:
    """Write each position's hash into ``words`` (n,)."""
    for i in range(words.shape[0]):
        words[i] = mix64((np.uint64(i) + _ONE) * GOLDEN + key)


@njit(cache=True, nogil=True)
def _read_positions(key: np.uint64, words: NDArray[np.uint64]) -> None:
    """Replace each hash in ``words`` (n,) by its position."""
    for i in range(words.shape[0]):
        words[i] = (unmix64(words[i]) - key) * _INVERSE_GOLDEN - _ONE


def _epoch_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch's hashes. Pure."""
    return mix_int((mix_int(seed % 2**64) + epoch * int(GOLDEN)) % 2**64)


def block_permutation(num_items: int, block: int, *, seed: int, epoch: int) -> IdArray:
    """Return a permutation of ``range(num_items)`` that keeps blocks of ``block`` consecutive items together. Pure.

    The items form a circle: item 0 follows item num_items - 1. The circle is cut into blocks. The first cut depends on
    (seed, epoch), so one block may hold the last and the first items. The blocks are permuted. If ``block`` does not
    divide ``num_items``, one block is short. It comes last, so that all other blocks begin at multiples of ``block`` in
    the result. Because the first cut moves, every item is equally likely to be in the short block.

    Parameters
    ----------
    num_items : number of positions
    block : number of consecutive items that stay together
    seed, epoch : see `epoch_permutation`

    Returns
    -------
    (num_items,) int64
    """
    num_whole = num_items // block
    # The key differs from the block permutation's key. Otherwise the cut and the order would depend on each other.
    first = mix_int((_epoch_key(seed, epoch) + int(GOLDEN)) % 2**64) % max(num_items, 1)
    starts = block * epoch_permutation(num_whole, seed=seed, epoch=epoch)
    whole = (starts[:, None] + np.arange(block)).reshape(-1)
    ordered = np.concatenate([whole, np.arange(num_whole * block, num_items)])
    ordered += first
    ordered[ordered >= num_items] -= num_items
    return ordered


def shuffled_windows(ordered: IdArray, window: int, *, seed: int, epoch: int) -> IdArray:
    """Return ``ordered`` (n,) with the entries of each window permuted; windows follow each other from the start. Pure.

    Parameters
    ----------
    ordered : (n,) entries, such as the result of `block_permutation`
    window : number of entries of a window; the last one may be shorter
    seed, epoch : see `epoch_permutation`
    """
    # The key differs from those of the blocks' order and of their cut.
    key = mix_int((_epoch_key(seed, epoch) + 2 * int(GOLDEN)) % 2**64)
    shuffled = np.empty_like(ordered)
    for number, start in enumerate(range(0, len(ordered), window)):
        part = ordered[start : start + window]
        permutation = epoch_permutation(len(part), seed=key + number, epoch=epoch)
        np.take(part, permutation, out=shuffled[start : start + window])
    return shuffled


def _check_seeds(seeds: IdArray, num_nodes: int, *, may_repeat: bool) -> None:
    """Raise SeedError with up to five seeds that are no node ids, or that repeat although repeats are not allowed."""
    if len(wrong := outside(seeds, num_nodes)):
        raise SeedError(f"seeds must be node ids in 0..{num_nodes - 1}; these are not: {wrong[:5].tolist()}")
    # Splits are stored in ascending order. Sorting 100 million seeds takes two seconds.
    if may_repeat or bool(np.all(seeds[1:] > seeds[:-1])):
        return
    ordered = np.sort(seeds)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise SeedError(
            f"seeds must not repeat; these do: {np.unique(repeated)[:5].tolist()}. Take each once (numpy.unique); "
            "gloader.adapters.pyg.NeighborLoader takes seeds that repeat"
        )


class HeldEpochs:
    """A cache of the most recently requested epochs' permutations. Thread-safe.

    Parameters
    ----------
    most : number of epochs to keep
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._positions: dict[int, IdArray] = {}  # sorted by last use

    def positions(self, epoch: int, make: Callable[[], IdArray]) -> IdArray:
        """Return ``epoch``'s positions. If they are not held, one thread calls ``make`` while the others wait."""
        with self._lock:
            # The entry is removed and inserted again, which keeps the dict in the order of use. Its first entry can
            # then be dropped.
            positions = self._positions.pop(epoch, None)
            if positions is None:
                while len(self._positions) >= self._most:
                    del self._positions[next(iter(self._positions))]
                positions = make()
                positions.flags.writeable = False
            self._positions[epoch] = positions
            return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCut:
    """The rule that cuts an epoch's items into steps, and a step into one part per rank. Pure."""

    num_items: int  # items per epoch
    batch_size: int  # items per rank and step
    rank: int  # this process's rank
    world_size: int  # W, the number of ranks
    drop_last: bool  # True to drop a last step that is not full

    def check(self, *, noun: str) -> None:
        """Check the sizes and the rank. Messages call the items ``noun``.

        Raises
        ------
        ConfigError
            The rank is not below ``world_size``, or ``batch_size`` is below 1 or above the number of items.
        SeedError
            There are too few items for a single batch on each of several ranks.
        """
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is not in 0..{self.world_size - 1} (world_size {self.world_size})"
            )
        if self.batch_size > self.num_items > 0:
            raise ConfigError(
                f"batch_size {self.batch_size} is larger than the {self.num_items} {noun}; lower batch_size "
                f"(--batch-size) to at most {self.num_items}"
            )
        if self.world_size > 1 and self.num_batches == 0:
            raise SeedError(
                f"{self.num_items} {noun} give {self.world_size} ranks no batch; they would wait forever"
            )

    @property
    def global_batch_size(self) -> int:
        """Items per step of all ranks together."""
        return self.batch_size * self.world_size

    @property
    def num_batches(self) -> int:
        """Steps per epoch, equal on every rank."""
        # A last step with fewer items than ranks is dropped too, because a rank would have no item.
        full, rest = divmod(self.num_items, self.global_batch_size)
        return full + int(rest >= self.world_size and not self.drop_last)

    def bounds(self, index: int, *, rank: int | None = None) -> tuple[int, int]:
        """Return the first item and the end of a rank's part, as indices into the epoch's order.

        Parameters
        ----------
        index : number of the step within the epoch
        rank : the rank; defaults to this rank
        """
        part_number = self.rank if rank is None else rank
        first = min(index * self.global_batch_size, self.num_items)
        length = min(self.global_batch_size, self.num_items - first)
        # Cuts are at multiples of length/W, rounded down. Parts differ by at most one item; full steps divide evenly.
        begin = first + part_number * length // self.world_size
        return begin, first + (part_number + 1) * length // self.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The batches of every epoch, for one rank of ``world_size``.

    A step takes ``batch_size * world_size`` consecutive seeds of the epoch's permutation. Rank r takes the r-th of
    ``world_size`` equal parts. All ranks have equally many batches: a last step with fewer seeds than ranks is dropped,
    and a longer last step is divided as evenly as possible.

    With ``seed_blocks`` b > 1, blocks of seeds are permuted instead of single seeds. The seeds are sorted by node id
    and cut into blocks of b neighbours, see `block_permutation`. If b divides the global batch, a batch consists of
    full blocks. Otherwise a block may continue in the next batch. Such batches are less random. Their neighbourhoods
    overlap if nodes with neighbouring ids are neighbours in the graph (``gloader prepare --order community``). Then
    fewer rows are read. Without ``shuffle``, the seeds keep their order and b changes nothing.

    With a ``seed_window`` w > 1 as well, the blocks of w steps form a window, and the seeds of a window are shuffled
    together. So a batch is a random choice from a window, and the seeds of a window are few ranges of node ids, whose
    rows a disk reads at its sequential rate.

    If seeds may repeat or are drawn, a batch has each node once, at the position of its first draw.
    """

    seeds: IdArray  # (n,) node ids, unique unless they may repeat or have times
    num_nodes: int  # N
    batch_size: int  # per rank
    seed: int  # of the random permutations and draws
    shuffle: bool = True  # False keeps the order of ``seeds`` in every epoch
    drop_last: bool = False  # True to drop a last step that is not full
    rank: int = 0  # this process's rank
    world_size: int = 1  # W, the number of ranks
    seed_blocks: int = 1  # b; 1 permutes single seeds
    seed_window: int = 1  # w, the steps whose seeds are shuffled together; 1 keeps the order within blocks
    # (n,) int64 seconds, each seed's time. None samples edges of all times.
    times: IdArray | None = None
    may_repeat: bool = False  # True if ``seeds`` may contain a node more than once
    # The draws that choose an epoch's seeds. None takes each seed once.
    draws: Draws | None = None
    # (n,) the positions of the seeds in ascending order of node id; None if b is 1.
    _by_id: IdArray | None = field(init=False, repr=False, compare=False, default=None)
    # The last epochs' results of `make_positions`.
    _held: HeldEpochs = field(
        init=False, repr=False, compare=False, default_factory=lambda: HeldEpochs(EPOCHS_HELD)
    )

    def __post_init__(self) -> None:
        self.cut.check(noun="seeds")
        if self.seed_window < 1:
            raise ConfigError(f"seed_window is {self.seed_window}; it must be at least 1")
        most = self.seed_window * self.global_batch_size
        if not 1 <= self.seed_blocks <= most:
            steps = "per step" if self.seed_window == 1 else f"in the {self.seed_window} steps of a window"
            raise ConfigError(
                f"seed_blocks is {self.seed_blocks}; it must be in 1..{most}, the seeds that all ranks take {steps}"
            )
        if self.draws is not None:
            self.draws.check(len(self.seeds))
        if self.seed_blocks > 1 and (self.draws is not None or self.may_repeat):
            raise ConfigError(
                f"seed_blocks is {self.seed_blocks}; where seeds repeat or are drawn it must be 1"
            )
        _check_seeds(self.seeds, self.num_nodes, may_repeat=self.may_repeat or self.times is not None)
        if self.seed_blocks > 1:
            object.__setattr__(self, "_by_id", np.argsort(self.seeds))  # frozen; this is its constructor

    @property
    def cut(self) -> StepCut:
        """The cut of an epoch into steps and ranks' parts."""
        return StepCut(
            num_items=self.num_items,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    @property
    def global_batch_size(self) -> int:
        """Seeds per step of all ranks together."""
        return self.cut.global_batch_size

    @property
    def num_batches(self) -> int:
        """Batches per epoch, equal on every rank."""
        return self.cut.num_batches

    @property
    def num_items(self) -> int:
        """Number of seeds per epoch."""
        return len(self.seeds) if self.draws is None else self.draws.num_draws

    @property
    def num_held(self) -> int:
        """Number of seeds or positions in the longest array that this order holds, for the memory plan.

        It is doubled for draws from groups. They also hold the groups, and sort the seeds by group for each epoch.
        """
        longest = max(len(self.seeds), self.num_items)
        return longest if self.draws is None or self.draws.groups is None else 2 * longest

    def ready_epoch(self, epoch: int) -> None:
        """Compute the order of ``epoch`` and keep it for later calls."""
        self.epoch_positions(epoch)

    def seeds_of(self, batch: BatchId, *, rank: int | None = None) -> AnySeeds:
        """Return the seeds (B,) of a rank's batch, with their times, if any. ``rank`` defaults to this rank."""
        positions = self.batch_positions(batch, rank=rank)
        seeds = self.seeds[positions]
        return seeds if self.times is None else BatchSeeds(nodes=seeds, times=self.times[positions])

    def drawn_positions(self, batch: BatchId, *, rank: int | None = None) -> IdArray:
        """Return the positions in ``seeds`` that were drawn for a rank's batch, perhaps with repeats."""
        return self.batch_seeds(self.epoch_positions(batch.epoch), batch.index, rank=rank)

    def batch_positions(self, batch: BatchId, *, rank: int | None = None) -> IdArray:
        """Return the positions in ``seeds`` for a rank's batch, one position per distinct node."""
        positions = self.drawn_positions(batch, rank=rank)
        if self.draws is None and not self.may_repeat:
            return positions
        # Of each node, only its first position in the batch is kept. The batch keeps its order.
        _, firsts = np.unique(self.seeds[positions], return_index=True)
        return positions[np.sort(firsts)]

    def epoch_positions(self, epoch: int) -> IdArray:
        """Return (n,) int64, read-only: positions in ``seeds``, in the order of ``epoch``. n is `num_items`. Pure.

        The positions index arrays with one entry per seed, such as labels:
        ``values[order.batch_seeds(positions, index)]``. The positions of the latest requested epochs are kept.
        """
        return self._held.positions(epoch, lambda: self.make_positions(epoch))

    def make_positions(self, epoch: int) -> IdArray:
        """Compute the result of `epoch_positions` without keeping it. Pure."""
        num_seeds = len(self.seeds)
        if self.draws is not None:
            return self.draws.positions(num_seeds, seed=self.seed, epoch=epoch)
        if not self.shuffle:
            return np.arange(num_seeds, dtype=np.int64)
        if self._by_id is None:
            return epoch_permutation(num_seeds, seed=self.seed, epoch=epoch)
        blocks = block_permutation(num_seeds, self.seed_blocks, seed=self.seed, epoch=epoch)
        if self.seed_window > 1:
            window = self.seed_window * self.global_batch_size
            blocks = shuffled_windows(blocks, window, seed=self.seed, epoch=epoch)
        return self._by_id[blocks]

    def epoch_seeds(self, epoch: int) -> IdArray:
        """Return the seeds in the order of ``epoch``. Pure."""
        return self.seeds[self.epoch_positions(epoch)] if self.shuffle else self.seeds

    def batch_seeds(self, ordered: IdArray, index: int, *, rank: int | None = None) -> IdArray:
        """Return one rank's part of one step from ``ordered``. Pure.

        Parameters
        ----------
        ordered : (n,) one entry per seed: a result of `epoch_seeds` or `epoch_positions`
        index : number of the step within the epoch
        rank : the rank; defaults to this rank
        """
        first, last = self.cut.bounds(index, rank=rank)
        return ordered[first:last]


# `RowOrder` computes permutations of up to this many items by `epoch_permutation` and holds them, in at most half a MB
# each. Short permutations need this, because a Feistel network (see `permuted_range`) with halves of fewer than nine
# bits can produce only few orders.
_MOST_HELD: Final = 1 << 16
# Rounds of the Feistel network. Luby and Rackoff ("How to construct pseudorandom permutations from pseudorandom
# functions", SIAM J. Comput. 1988) need four rounds. Two more cost nothing compared with reading a row.
_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """The batches of every epoch over a table's rows, for one rank of ``world_size``, cut as in `EpochOrder`.

    A table may have more rows than a graph has nodes, so no memory is held per row. Thread-safe.
    """

    num_items: int  # rows of the table
    batch_size: int  # rows per rank and step
    seed: int  # of the random permutations
    shuffle: bool = True  # False takes the rows in order in every epoch
    drop_last: bool = False  # True to drop a last step that is not full
    rank: int = 0  # this process's rank
    world_size: int = 1  # W, the number of ranks
    # Function that returns the seeds for a batch and its rows (B,). None if the rows are the seeds.
    expand: Callable[[BatchId, IdArray], AnySeeds] | None = None
    expand_bytes: int = 0  # peak memory of one call of ``expand``, in bytes
    seed_blocks: int = 1  # as in `EpochOrder`, but only 1 is allowed
    seed_window: int = 1  # as in `EpochOrder`, but only 1 is allowed
    _held: HeldEpochs = field(
        init=False, repr=False, compare=False, default_factory=lambda: HeldEpochs(EPOCHS_HELD)
    )

    def __post_init__(self) -> None:
        """Raise ConfigError or SeedError if a setting is invalid or an epoch has no batch."""
        for name in ("seed_blocks", "seed_window"):
            if (value := getattr(self, name)) != 1:
                raise ConfigError(f"{name} is {value}; rows of a table have no neighbours: it must be 1")
        self.cut.check(noun="edges")

    @property
    def cut(self) -> StepCut:
        """The cut of an epoch into steps."""
        return StepCut(
            num_items=self.num_items,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    @property
    def global_batch_size(self) -> int:
        """Rows per step of all ranks together."""
        return self.cut.global_batch_size

    @property
    def num_batches(self) -> int:
        """Batches per epoch, equal on every rank."""
        return self.cut.num_batches

    @property
    def num_held(self) -> int:
        """0: the held permutation, if any, is too small for the memory plan."""
        return 0

    def ready_epoch(self, epoch: int) -> None:
        """Compute and keep the permutation of ``epoch``, if it is small."""
        if self.shuffle and self.num_items <= _MOST_HELD:
            self._permutation(epoch)

    def batch_items(self, batch: BatchId, *, rank: int | None = None) -> IdArray:
        """Return the rows (B,) of a rank's batch. ``rank`` defaults to this rank. Pure."""
        first, last = self.cut.bounds(batch.index, rank=rank)
        if not self.shuffle:
            return np.arange(first, last, dtype=np.int64)
        if self.num_items <= _MOST_HELD:
            return self._permutation(batch.epoch)[first:last]
        return permuted_range(first, last, self.num_items, seed=self.seed, epoch=batch.epoch)

    def seeds_of(self, batch: BatchId, *, rank: int | None = None) -> AnySeeds:
        """Return the seeds of a batch, made from its rows."""
        rows = self.batch_items(batch, rank=rank)
        return rows if self.expand is None else self.expand(batch, rows)

    def _permutation(self, epoch: int) -> IdArray:
        """Return the held permutation (num_items,) of ``epoch``. Only for at most `_MOST_HELD` rows."""
        return self._held.positions(
            epoch, lambda: epoch_permutation(self.num_items, seed=self.seed, epoch=epoch)
        )


AnyOrder: TypeAlias = EpochOrder | RowOrder


def permuted_range(first: int, last: int, num_items: int, *, seed: int, epoch: int) -> IdArray:
    """Return entries ``first:last`` of a permutation of ``range(num_items)`` keyed by (seed, epoch). Pure.

    A Feistel network permutes all numbers with 2h bits, where 2h is the smallest even number that suffices for
    ``num_items``. The network is applied to an entry until the result is below ``num_items`` (Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4).

    Parameters
    ----------
    first, last : range of the entries; last is not included
    num_items : length of the permutation, at most 2**62
    seed, epoch : integers, taken modulo 2**64
    """
    half = max(-(-(num_items - 1).bit_length() // 2), 1)
    keys = np.empty(_ROUNDS, dtype=np.uint64)
    key = mix_int((mix_int(seed % 2**64) + epoch * int(GOLDEN)) % 2**64)
    for number in range(_ROUNDS):
        key = mix_int((key + int(GOLDEN)) % 2**64)
        keys[number] = key
    out = np.empty(last - first, dtype=np.int64)
    with np.errstate(over="ignore"):  # interpreted hashes wrap around
        _permute(first, num_items, half, keys, out)
    return out


@njit(cache=True, nogil=True)
def _permute(first: int, num_items: int, half: int, keys: NDArray[np.uint64], out: IdArray) -> None:
    """Write the permuted values of first, first + 1, ... into ``out`` (n,).

    Parameters
    ----------
    first : the first entry
    num_items : length of the permutation
    half : bits in each of a number's two halves
    keys : (rounds,) the rounds' keys
    out : (n,) int64, written
    """
    shift = np.uint64(half)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    end = np.uint64(num_items)
    for i in range(out.shape[0]):
        value = np.uint64(first + i)
        while True:
            left, right = value >> shift, value & mask
            for key in keys:
                left, right = right, left ^ (mix64(right ^ key) & mask)
            value = (left << shift) | right
            # The network is a permutation, so a start inside the range lies on a cycle that returns to the range.
            if value < end:
                break
        out[i] = np.int64(value)


# A hash word of 64 bits becomes a number in [0, 1). Its lowest 11 bits are dropped, because a float64 holds 53 bits
# exactly. The rest is multiplied by 2**-53.
_TO_UNIT: Final = 2.0**-53
_LOW_BITS: Final = np.uint64(11)
# An odd constant that is added to the seed, so that draws and permutations have different keys.
_DRAWS: Final = 0xD1B54A32D192ED03


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """The number and the weights of an epoch's draws from n items. Thread-safe.

    Draws are computed from a hash of (seed, epoch, draw), so that a resumed epoch draws the same items.

    With groups, every group has equally many draws. The numbers of draws of a group's items differ by at most one.
    """

    num_draws: int  # per epoch
    weights: NDArray[np.float64] | None = None  # (n,) weights of the items; None draws evenly
    replace: bool = True  # True if an item may be drawn more than once
    # (n,) the group of each item, without weights; None draws from all items alike.
    groups: IdArray | None = None

    def check(self, num_items: int) -> None:
        """Raise SeedError if these draws do not fit ``num_items`` items."""
        if self.groups is not None:
            self._check_groups(self.groups, num_items)
        if self.weights is None:
            return
        if self.weights.shape != (num_items,):
            raise SeedError(f"{self.weights.shape[0]} weights for {num_items} seeds; give one for each seed")
        if not np.all(np.isfinite(self.weights)) or (self.weights < 0).any() or not self.weights.any():
            raise SeedError("weights of seeds must be finite, at least 0, and not all 0")
        if not self.replace and self.num_draws > (possible := int(np.count_nonzero(self.weights))):
            raise SeedError(
                f"{self.num_draws} draws without replacement of {possible} seeds whose weight is above 0; draw fewer"
            )

    def _check_groups(self, groups: IdArray, num_items: int) -> None:
        """Raise SeedError if ``groups`` do not fit ``num_items`` items or the number of draws."""
        if groups.shape != (num_items,):
            raise SeedError(f"{groups.shape[0]} groups for {num_items} seeds; give one for each seed")
        if self.weights is not None or not self.replace:
            raise SeedError(
                "groups of seeds are drawn alike and with repeats; give neither weights nor replace=False"
            )
        if self.num_draws % (num_groups := len(np.unique(groups))):
            raise SeedError(
                f"{self.num_draws} draws from {num_groups} groups; give a multiple, so that all have equally many"
            )

    def positions(self, num_items: int, *, seed: int, epoch: int) -> IdArray:
        """Return the drawn items (num_draws,) int64 of ``epoch``, in draw order. Pure."""
        key = mix_int((seed + _DRAWS) % 2**64)
        if self.groups is not None:
            return self._grouped_positions(self.groups, key, epoch)
        if self.replace:
            chances = _chances(self.num_draws, key, epoch)  # (num_draws,) random numbers in [0, 1)
            if self.weights is None:
                return np.minimum((chances * num_items).astype(np.int64), num_items - 1)
            sums = np.cumsum(self.weights)  # item i is drawn if sums[i - 1] <= chance * sums[-1] < sums[i]
            # The product of a chance just below 1 and the full sum may be rounded up to the full sum.
            last = int(np.flatnonzero(self.weights)[-1])
            return np.minimum(np.searchsorted(sums, chances * sums[-1], side="right"), last)
        if self.weights is None:
            # More draws than items take several permutations, the last one in part, as in torch.
            rounds = -(-self.num_draws // num_items)
            return np.concatenate(
                [
                    epoch_permutation(num_items, seed=key + number * int(GOLDEN), epoch=epoch)
                    for number in range(rounds)
                ]
            )[: self.num_draws]
        # Each item gets an exponential time with its weight as the rate. The items with the earliest times are drawn
        # (Efraimidis and Spirakis, IPL 97, 2006).
        with np.errstate(divide="ignore", invalid="ignore"):  # weights of 0 are set below
            times = -np.log1p(-_chances(num_items, key, epoch)) / self.weights
        times[self.weights == 0] = np.inf
        return np.argsort(times, kind="stable")[: self.num_draws]

    def _grouped_positions(self, groups: IdArray, key: int, epoch: int) -> IdArray:
        """Return the draws of `positions`, equally many from each group."""
        by_group = np.argsort(groups, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(groups[by_group])) + 1, len(groups))
        drawn = np.empty(self.num_draws, dtype=np.int64)
        per_group = self.num_draws // len(ends)
        start = 0
        for number, end in enumerate(ends.tolist()):
            members, start = by_group[start:end], end
            part = drawn[number * per_group : (number + 1) * per_group]
            num_rounds, num_rest = divmod(per_group, len(members))
            # A full round draws every item of the group. A permutation chooses the items of the last round. The order
            # of these draws does not matter, because all draws are permuted together below.
            part[: len(part) - num_rest] = np.tile(members, num_rounds)
            if num_rest:
                chosen = epoch_permutation(
                    len(members), seed=mix_int((key + number + 1) % 2**64), epoch=epoch
                )
                part[len(part) - num_rest :] = members[chosen[:num_rest]]
        return drawn[epoch_permutation(self.num_draws, seed=key, epoch=epoch)]

    def facts(self) -> dict[str, Any]:
        """Return the properties that identify these draws, without the weights, for a loader's saved state."""
        given = {
            "num_draws": self.num_draws,
            "replace": self.replace,
            "is_weighted": self.weights is not None,
        }
        # Without groups there is no entry, so that states from before groups existed stay valid.
        return given if self.groups is None else given | {"is_grouped": True}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnSeeds:
    """Seeds that may repeat, for the argument ``seeds`` of a node loader.

    A batch has each node once; ``loader.seed_positions`` returns the positions of its drawn seeds.
    """

    nodes: Any  # ids (n,), or ids by node type, as in `gloader.Loader`; repeats are allowed
    draws: Draws | None = None  # None takes each seed once per epoch


def _chances(count: int, key: int, epoch: int) -> NDArray[np.float64]:
    """Return (count,) numbers in [0, 1) from a hash of (key, epoch, index). Pure."""
    words = hashed_words(count, seed=key, epoch=epoch)
    return (words >> _LOW_BITS).astype(np.float64) * _TO_UNIT
