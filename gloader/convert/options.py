"""The user's options for a source and for its conversion.

A source is a graph in another format, such as ``edges:FILE`` or ``ogb:NAME``; a conversion writes it as a dataset.
`SourceOptions` go to the function that opens a source, and `PrepareOptions` to the conversion. Both are made from the
flags of `gloader prepare`, or from keywords. `EdgeNames` names the columns with edge times and edge features. An edge
split divides a relation's edges into train, valid and test, to predict edges. `edge_shares` reads the shares of the
three parts ("80/10/10", or (0.8, 0.1, 0.1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from gloader.core.malformed import shown
from gloader.errors import ConfigError
from gloader.plan.available import default_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from gloader.core.ids import RangePart
    from gloader.dataset.encoders import Missing


NONE: Final = "none"  # given instead of a column name, it leaves out times or features


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeNames:
    """The user's column names for edge times and edge features.

    None means the source's usual names, if such columns exist. "none" means that edges get no times or features.
    """

    time: str | None = None
    features: str | None = None

    @property
    def takes_times(self) -> bool:
        """True if edges keep their times."""
        return self.time != NONE

    @property
    def takes_features(self) -> bool:
        """True if edges keep their features."""
        return self.features != NONE

    def pick_time(self, there: Collection[str], usual: tuple[str, ...] = ("edge_time",)) -> str | None:
        """Return the time column among the existing columns ``there``, or None. Pure.

        ``usual`` are the names to look for if the user gave none.
        """
        return _pick(self.time, there, usual)

    def pick_features(self, there: Collection[str], usual: tuple[str, ...]) -> str | None:
        """Return the feature column among the existing columns ``there``, or None; as `pick_time`. Pure."""
        return _pick(self.features, there, usual)

    def require(
        self, *, has_times: bool, has_features: bool, there: Iterable[str] | None = None, where: str
    ) -> None:
        """Raise ConfigError for names that the user gave and the source lacks.

        Parameters
        ----------
        has_times, has_features : True if edges of any relation have times, or features
        there : names of the existing edge columns; None means that this kind of source has no such columns
        where : the source, for messages

        Raises
        ------
        ConfigError
            A name was not found. The message lists the columns.
        """
        requests = (("--edge-time", self.time, has_times), ("--edge-features", self.features, has_features))
        for flag, name, is_found in requests:
            if name in (None, NONE) or is_found:
                continue
            names = [] if there is None else sorted(set(there))
            existing = f"they have {', '.join(names)}" if names else "they have no named columns"
            raise ConfigError(f"{flag} {name}: the edges of {where} have no such column; {existing}")


USUAL_NAMES: Final = EdgeNames()


def _pick(requested: str | None, there: Collection[str], usual: tuple[str, ...]) -> str | None:
    """Return the first candidate name among the existing columns ``there``, or None."""
    candidates = usual if requested is None else () if requested == NONE else (requested,)
    return next((name for name in candidates if name in there), None)


EdgeShares: TypeAlias = tuple[float, float, float]  # shares of train, valid and test in an edge split
TRAIN = "train"
PARTS = (TRAIN, "valid", "test")  # the parts of an edge split, and the names of their link tables
_TOLERANCE = 1e-6  # relative error that the sum of the shares may have


def edge_shares(given: str | Sequence[float]) -> EdgeShares:
    """Return the shares for train, valid and test, which add up to 1. Pure.

    Parameters
    ----------
    given : "80/10/10" or three numbers; they add up to 1 or to 100

    Raises
    ------
    ConfigError
        The shares are not three numbers above 0, or do not add up.
    """
    try:
        shares = [float(each) for each in (given.split("/") if isinstance(given, str) else given)]
    except (TypeError, ValueError):
        shares = []
    if len(shares) != len(PARTS):
        raise ConfigError(
            f"edge split {shown(given)}: write the shares of train, valid and test, such as 80/10/10"
        )
    total = sum(shares)
    whole = 1.0 if abs(total - 1) <= abs(total - 100) else 100.0  # the sum that was meant
    if not abs(total - whole) <= _TOLERANCE * whole:
        raise ConfigError(f"edge split {shown(given)} adds up to {total:g}; it must be 100, as 80/10/10 is")
    for name, share in zip(PARTS, shares, strict=True):
        if share <= 0:
            raise ConfigError(
                f"edge split {shown(given)} leaves the table {name!r} empty; each of the three must be above 0"
            )
    train, valid, test = (share / total for share in shares)
    return train, valid, test


# The receipt is a conversion's record of the data that it found and used. These are the names of its lines on unused
# data, and on a labelled type at which no relation ends.
NOT_USED: Final = "not used"
NO_NEIGHBOURS: Final = "no neighbours"
OrderName: TypeAlias = Literal["none", "degree", "community"]  # see `PrepareOptions.order`
SplitBy: TypeAlias = Literal["random", "time"]  # see `PrepareOptions.edge_split_by`
LabelsAs: TypeAlias = Literal["classes", "values"]  # see `SourceOptions.labels_as`
# The fill for a missing feature: 0, the mean of the training rows, or this mean and one more column that is 1.
Fill: TypeAlias = Literal["zero", "mean", "flag"]
FILLS: Final[tuple[Fill, ...]] = get_args(Fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options for a source besides its name. Each kind of source, such as ``edges:FILE``, reads only some of them."""

    features: Path | None = None  # for edges:FILE, the file with feature rows
    labels: Path | None = None  # for edges:FILE, the file with labels
    splits: Path | None = None  # for edges:FILE, the file with splits
    src: str | None = None  # for edges:FILE, the column of sources; None means that it is found by name
    dst: str | None = None  # for edges:FILE, the column of destinations; None means that it is found by name
    nodes: Path | None = None  # for edges:FILE, the table of nodes, whose keys the edges name
    node_key: str | None = (
        None  # for edges:FILE, the keys' column in ``nodes``; None means that it is found by name
    )
    columns: str | None = None  # for edges:FILE, the columns of ``nodes`` that become features
    keys: bool = False  # for edges:FILE, the ends are keys, which make the nodes
    # For edges:FILE, what becomes of an edge whose key no node has; None means an error.
    dangling: Literal["error", "drop", "node"] | None = None
    edge_time: str | None = None  # the column of edge times; None means edge_time, if it exists
    edge_features: str | None = None  # the columns of edge features; None means the usual names
    root: Path | None = None  # for ogb:NAME, the folder for downloaded data
    task_tables: str | None = None  # for relbench:DIR, the tasks to take, such as "churn,sales"; None for all
    needs_labels: bool = True  # False if edges are predicted, so that nodes may be unlabelled
    # Labels are classes (N,), or values (N, k) to predict. None means that the array decides; see `to_labels`.
    labels_as: LabelsAs | None = None
    seed: int = 0  # seed for random splits, and for synthetic graphs without a seed
    memory_budget_bytes: int | None = None  # None means half of the free memory

    @property
    def edge_names(self) -> EdgeNames:
        """The columns with edge times and edge features."""
        return EdgeNames(time=self.edge_time, features=self.edge_features)

    @property
    def budget_bytes(self) -> int:
        """The memory budget, or its default."""
        return default_budget_bytes() if self.memory_budget_bytes is None else self.memory_budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """Changes to a source's edges in a conversion. The default changes nothing."""

    symmetrize: bool = False  # both directions of every edge, each once; implies deduplicate
    self_loops: bool = False  # exactly one self loop per node, of weight 1; given loops are dropped
    deduplicate: bool = False  # parallel edges become one; their weights add up

    @property
    def merges(self) -> bool:
        """True if parallel edges become one."""
        return self.deduplicate or self.symmetrize


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options for a conversion; see `EdgeRules` for the first three."""

    # In a graph with several relations: their names, such as "cites". True means all relations within a node type.
    symmetrize: bool | tuple[str, ...] = False
    self_loops: bool = False
    deduplicate: bool = False
    # In a graph with several types: add rev_NAME for each relation without a reverse.
    add_reverse: bool = False
    # The stored feature dtype: float32, float16, bfloat16 or int8. None means float32, and refuses integers that would
    # be rounded. "float32" rounds them.
    dtype: str | None = None
    edge_dtype: str | None = None  # the stored edge feature dtype, with the same values
    allow_nan: bool = False  # features may be NaN or infinite
    missing: Fill | None = None  # the fill for NaN and infinity in features; None refuses them
    order: OrderName = "none"  # node order: as in the source, by falling out-degree, or by community
    # The shares of edges in the link tables train, valid and test; edges of the last two are left out of the graph.
    # None means no edge split.
    edge_split: EdgeShares | None = None
    # "random" splits by a hash of each pair; "time" puts the earliest edges first.
    edge_split_by: SplitBy = "random"
    edge_split_relation: str | None = None  # the relation to split; None means the only relation
    edge_split_seed: int = 0  # key of a random edge split
    reverse: tuple[tuple[str, str], ...] = ()  # pairs of a relation and its reverse relation
    # Link tables (lists of edges to predict) in files: NAME=FILE or NAME@RELATION=FILE.
    edge_tables: tuple[str, ...] = ()
    # The part of all feature and edge feature rows that this machine writes. None means all rows.
    ranges: RangePart | None = None
    memory_budget_bytes: int | None = None  # None means half of the free memory
    overwrite: bool = False  # replace an existing dataset

    @property
    def stored_dtype(self) -> str:
        """The stored feature dtype."""
        return self.dtype or "float32"

    @property
    def stored_edge_dtype(self) -> str:
        """The stored edge feature dtype."""
        return self.edge_dtype or "float32"

    @property
    def missing_rule(self) -> Missing:
        """The rule for missing features, as an encoder takes it. Raises ConfigError for options that contradict."""
        if self.missing is not None and self.missing not in FILLS:
            raise ConfigError(f"missing {shown(self.missing)}; allowed: {', '.join(FILLS)}")
        if self.missing is not None and self.allow_nan:
            raise ConfigError(
                f"--missing {self.missing} replaces missing features, and --allow-nan keeps them; give one of the two"
            )
        return self.missing or ("keep" if self.allow_nan else "error")

    @property
    def num_parts(self) -> int:
        """The number of parts into which ``ranges`` cuts each matrix. 1 means that all rows are written."""
        return 1 if self.ranges is None else self.ranges.of

    @property
    def rules(self) -> EdgeRules:
        """The first three options as a value. ``symmetrize`` is True if any relation is symmetrized."""
        return EdgeRules(
            symmetrize=bool(self.symmetrize), self_loops=self.self_loops, deduplicate=self.deduplicate
        )

    @property
    def recorded_split(self) -> dict[str, object]:
        """The edge split as entries of the commit record (``dataset.json``), empty without a split."""
        if self.edge_split is None:
            return {}
        shares = "/".join(f"{100 * share:g}" for share in self.edge_split)
        relation = (
            {} if self.edge_split_relation is None else {"edge_split_relation": self.edge_split_relation}
        )
        by: dict[str, object] = {"edge_split": shares, "edge_split_by": self.edge_split_by}
        seed = {"edge_split_seed": self.edge_split_seed} if self.edge_split_by == "random" else {}
        return by | seed | relation

    @property
    def symmetrized(self) -> tuple[str, ...]:
        """The named relations to symmetrize."""
        return () if isinstance(self.symmetrize, bool) else self.symmetrize


def relation_pair(text: str) -> tuple[str, str]:
    """Return the two relations in a text such as "buys=bought_by". Raises ConfigError for other texts. Pure."""
    relation, sign, back = text.partition("=")
    if not (relation and sign and back):
        raise ConfigError(
            f"--reverse {shown(text)}: write a relation and its reverse relation, such as buys=bought_by"
        )
    return relation, back
