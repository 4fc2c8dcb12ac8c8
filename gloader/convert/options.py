"""Options of a source and of a conversion, as users give them.

`EdgeNames` says which columns hold the times and features of edges, `edge_shares` reads the shares of an edge split
("80/10/10", or (0.8, 0.1, 0.1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gloader.core.malformed import shown
from gloader.errors import ConfigError
from gloader.plan.available import default_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from gloader.core.ids import RangePart


NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeNames:
    """Names that were asked for; None: those that are usual, where they are there; "none": neither."""

    time: str | None = None
    features: str | None = None

    @property
    def takes_times(self) -> bool:
        """True if edges get times where there are any."""
        return self.time != NONE

    @property
    def takes_features(self) -> bool:
        """True if edges get features where there are any."""
        return self.features != NONE

    def pick_time(self, there: Collection[str], usual: tuple[str, ...] = ("edge_time",)) -> str | None:
        """Return the name of the times among those that are ``there``; None: there are none. Pure."""
        return _pick(self.time, there, usual)

    def pick_features(self, there: Collection[str], usual: tuple[str, ...]) -> str | None:
        """Return the name of the features among those that are ``there``; None: there are none. Pure."""
        return _pick(self.features, there, usual)

    def require(
        self, *, has_times: bool, has_features: bool, there: Iterable[str] | None = None, where: str
    ) -> None:
        """Refuse names that were asked for and were not found.

        Parameters
        ----------
        has_times, has_features : whether any edges got some
        there : names of what edges have; None: a source of this kind has no such thing
        where : the source, for messages

        Raises
        ------
        ConfigError
            Says which there are.
        """
        asked = (("--edge-time", self.time, has_times), ("--edge-features", self.features, has_features))
        for flag, name, is_found in asked:
            if name in (None, NONE) or is_found:
                continue
            names = [] if there is None else sorted(set(there))
            said = f"they have {', '.join(names)}" if names else "they have nothing by a name"
            raise ConfigError(f"{flag} {name}: the edges of {where} have no such column; {said}")


USUAL_NAMES: Final = EdgeNames()


def _pick(asked: str | None, there: Collection[str], usual: tuple[str, ...]) -> str | None:
    wanted = usual if asked is None else () if asked == NONE else (asked,)
    return next((name for name in wanted if name in there), None)


EdgeShares: TypeAlias = tuple[float, float, float]
TRAIN = "train"
PARTS = (TRAIN, "valid", "test")
_TOLERANCE = 1e-6


def edge_shares(given: str | Sequence[float]) -> EdgeShares:
    """Return the shares of train, valid and test, which add up to 1. Pure.

    Parameters
    ----------
    given : "80/10/10" or three numbers; they add up to 1 or to 100

    Raises
    ------
    ConfigError
        They are not three numbers above 0, or do not add up.
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
    whole = 1.0 if abs(total - 1) <= abs(total - 100) else 100.0
    if not abs(total - whole) <= _TOLERANCE * whole:
        raise ConfigError(f"edge split {shown(given)} adds up to {total:g}; it must be 100, as 80/10/10 is")
    for name, share in zip(PARTS, shares, strict=True):
        if share <= 0:
            raise ConfigError(
                f"edge split {shown(given)} leaves the table {name!r} empty; each of the three must be above 0"
            )
    train, valid, test = (share / total for share in shares)
    return train, valid, test


NOT_USED: Final = "not used"  # the line of a receipt
OrderName: TypeAlias = Literal["none", "degree", "community"]
SplitBy: TypeAlias = Literal["random", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a source besides its name; each source reads those that concern it."""

    features: Path | None = None  # edges: a file of feature rows
    labels: Path | None = None  # edges: a file of labels
    splits: Path | None = None  # edges: a file of splits
    src: str | None = None  # edges: the column of the sources; None: by its name
    dst: str | None = None  # edges: the column of the destinations, likewise
    edge_time: str | None = None  # what the times of edges are called; None: edge_time, where that is there
    edge_features: str | None = (
        None  # what the features of edges are called, or columns of them; None: as is usual
    )
    root: Path | None = None  # ogb: the folder that holds, or will hold, the downloaded data
    needs_labels: bool = (
        True  # of nodes; False: edges are predicted, and without labels every node is unlabelled
    )
    seed: int = 0  # of random splits, and of synthetic graphs whose specification names none
    memory_budget_bytes: int | None = None  # None: half of the free memory

    @property
    def edge_names(self) -> EdgeNames:
        """The names of times and features of edges."""
        return EdgeNames(time=self.edge_time, features=self.edge_features)

    @property
    def budget_bytes(self) -> int:
        """The memory budget, or what stands for it where none is given."""
        return default_budget_bytes() if self.memory_budget_bytes is None else self.memory_budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """Changes to the edges of a source on their way into a dataset; by default none."""

    symmetrize: bool = False  # both directions of every edge, each once; implies deduplicate
    self_loops: bool = False  # exactly one self loop per node, of weight 1; given ones are dropped
    deduplicate: bool = False  # parallel edges become one; their weights add up

    @property
    def merges(self) -> bool:
        """True if parallel edges become one."""
        return self.deduplicate or self.symmetrize


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of a conversion; see `EdgeRules` for the first three."""

    # Of a typed source: the relations, such as "cites"; True: all within a type.
    symmetrize: bool | tuple[str, ...] = False
    self_loops: bool = False
    deduplicate: bool = False
    add_reverse: bool = (
        False  # typed sources: a relation back behind each that has no other; its name gets "rev_"
    )
    # Of the stored features: float32, float16, bfloat16 or int8. None: float32, and integers that it would round are
    # refused; by its name it was asked for.
    dtype: str | None = None
    edge_dtype: str | None = None  # of the stored features of edges, likewise
    allow_nan: bool = False  # features may be NaN or infinite
    order: OrderName = "none"  # of the nodes: as in the source, by falling out-degree, or by community
    # Of train, valid and test, which edges are dealt out to; the last two are left out of the graph. None: none are.
    edge_split: EdgeShares | None = None
    edge_split_by: SplitBy = "random"  # by a hash of the pair, or the earliest edges first
    edge_split_relation: str | None = None  # typed sources: whose edges; None: those of the only one
    edge_split_seed: int = 0
    reverse: tuple[
        tuple[str, str], ...
    ] = ()  # typed sources: pairs of relations, each of which leads the other back
    edge_tables: tuple[str, ...] = ()  # link tables that are given, NAME=FILE or NAME@RELATION=FILE
    ranges: RangePart | None = None  # the part of the rows of every matrix that is written; None: all
    memory_budget_bytes: int | None = None  # None: half of the free memory
    overwrite: bool = False

    @property
    def stored_dtype(self) -> str:
        """The dtype of the stored features."""
        return self.dtype or "float32"

    @property
    def stored_edge_dtype(self) -> str:
        """The dtype of the stored features of edges."""
        return self.edge_dtype or "float32"

    @property
    def num_parts(self) -> int:
        """Parts that the rows of every matrix are cut into; 1: all are written."""
        return 1 if self.ranges is None else self.ranges.of

    @property
    def rules(self) -> EdgeRules:
        """The first three as a value of their own: the rules of a source of one type."""
        return EdgeRules(
            symmetrize=bool(self.symmetrize), self_loops=self.self_loops, deduplicate=self.deduplicate
        )

    @property
    def recorded_split(self) -> dict[str, object]:
        """The edge split as the commit record has it; empty without a split."""
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
        """The relations of a typed source to symmetrize, as they were named."""
        return () if isinstance(self.symmetrize, bool) else self.symmetrize


def relation_pair(text: str) -> tuple[str, str]:
    """Return the two relations of "buys=bought_by"; raises ConfigError for another text. Pure."""
    one, sign, back = text.partition("=")
    if not (one and sign and back):
        raise ConfigError(
            f"--reverse {shown(text)}: write two relations of which each leads the other back, such as buys=bought_by"
        )
    return one, back
