"""Options of a source and of a conversion, as users give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - flags are made of these classes at run time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gloader.convert.readers.edge_names import EdgeNames
from gloader.core.malformed import shown
from gloader.errors import ConfigError
from gloader.plan.available import default_budget_bytes

if TYPE_CHECKING:
    from gloader.convert.links.shares import EdgeShares
    from gloader.core.row_ranges import RangePart

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
        """Whether parallel edges become one."""
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
        """What the commit record says of the edge split: nothing where there is none."""
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
