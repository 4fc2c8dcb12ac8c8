"""A link loader's task: a link table, the negatives drawn for its edges, and the edges to exclude.

`gloader.pipeline.seeds` makes a `LinkTask` from the arguments of `gloader.LinkLoader`. When the loader opens,
`LinkTask.bind` opens the tables, and turns rows of the link table into seeds, around which a batch is sampled.

- A link table lists the edges that the model predicts; they need not be edges of the graph.
- A negative is a pair of nodes drawn as a wrong answer. Strict negatives are never edges of the graph.
- An excluded edge is left out when a batch is sampled, so that the model does not see the edge that it predicts.
- A held table is in memory. Other tables are read from the disk, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from gloader.config import Exclude
from gloader.core.flag_values import require_choice
from gloader.core.negatives import Table, checked_negatives
from gloader.core.units import format_bytes
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError
from gloader.samplers.link_seeds import LinkSeeds

if TYPE_CHECKING:
    from contextlib import ExitStack

    from gloader.config import LoaderSettings
    from gloader.core.negatives import Negatives
    from gloader.core.order import RowOrder
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.samplers import HeteroGraph, Topology

# Largest share of the memory budget for held link tables. A table on the disk costs one page read per row.
_HELD_SHARE = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLinks:
    """A link table's row order that yields seeds, and the memory of the held tables."""

    order: RowOrder  # gives each batch's table rows, and turns them into seeds
    held_bytes: int  # memory of the held tables
    text: str  # a line that names the prediction task


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTask:
    """Predicted edges, and the negatives drawn for them."""

    table: LinkTable  # lists the predicted edges
    negatives: Negatives | None  # the kind and number of drawn negatives; None draws none
    negative_table: LinkTable | None  # the link table from which `Table` negatives are taken
    exclude: Exclude  # "none", "self" (the predicted edges) or "reverse" (these and their reverses)
    duplicates: bool  # whether edges parallel to an excluded edge are excluded too

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        edges: str,
        *,
        negatives: Negatives | str | None,
        exclude: Exclude,
        duplicates: bool,
    ) -> LinkTask:
        """Return the task that these loader arguments describe.

        Raises
        ------
        ConfigError
            The dataset has no such table, ``exclude`` is not a valid value, or ``negatives`` has a wrong type.
        """
        require_choice("exclude", exclude, get_args(Exclude))
        negatives = checked_negatives(negatives)
        table = dataset.link_table(edges)
        require_labels(table, negatives, instead="negatives=gloader.Uniform(1)")
        return cls(
            table=table,
            negatives=negatives,
            negative_table=dataset.link_table(negatives.name) if isinstance(negatives, Table) else None,
            exclude=exclude,
            duplicates=duplicates,
        )

    @property
    def seed_types(self) -> tuple[str, ...]:
        """The seeds' node types."""
        source, _, destination = self.table.relation
        return tuple(dict.fromkeys((source, destination)))

    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the batches, without the dataset, as JSON values by name."""
        return {
            "links": self.table.name,
            "negatives": str(self.negatives),
            "exclude": self.exclude,
            "exclude_duplicates": self.duplicates,
        }

    def bind(
        self,
        order: RowOrder,
        topology: Topology | HeteroGraph,
        settings: LoaderSettings,
        stack: ExitStack,
        *,
        budget_bytes: int,
    ) -> BoundLinks:
        """Open the tables, and return ``order`` with seeds in place of its rows.

        Parameters
        ----------
        order : the order of the table's rows
        topology : the graph, for strict negatives and duplicates
        settings : the loader's settings
        stack : closes the tables
        budget_bytes : the full memory budget

        Raises
        ------
        ConfigError
            The table has nothing to predict or to exclude, or the negatives' node type is empty.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError, FormatError
            A table cannot be read.
        """
        max_held = int(_HELD_SHARE * budget_bytes)
        io = settings.reading.io
        table = stack.enter_context(self.table.open(max_bytes=max_held, io=io))
        held, negative_table = table.held_bytes, None
        if self.negative_table is not None and self.negative_table.name != self.table.name:
            negative_table = stack.enter_context(self.negative_table.open(max_bytes=max_held - held, io=io))
            held += negative_table.held_bytes
        seeds = LinkSeeds(
            topology,
            table,
            negatives=self.negatives,
            exclude=self.exclude,
            duplicates=self.duplicates,
            seed=settings.sampling.seed,
            has_times=settings.sampling.time_strategy != "none",
            negative_table=negative_table,
        )
        size = format_bytes(self.table.num_bytes)
        where = (
            f"{size} held" if self.table.num_bytes <= max_held else f"rows of {size} are read by each batch"
        )
        text = (
            f"links: {order.num_items:,} edges of {self.table.name!r} ({relation_text(self.table.relation)}, {where}), "
            f"negatives {self.negatives or 'none'}, left out: {self._excluded}"
        )
        bound = replace(order, expand=seeds.of, expand_bytes=seeds.call_bytes(order.batch_size))
        return BoundLinks(order=bound, held_bytes=held, text=text)

    @property
    def _excluded(self) -> str:
        """The excluded edges as text for the user."""
        if self.exclude == "none":
            return "none, messages pass over predicted edges that are in the graph"
        edges = "these edges" if self.exclude == "self" else "these edges and their reverses"
        return f"{edges}, with parallel edges" if self.duplicates else edges


def require_labels(table: LinkTable, negatives: Negatives | None, *, instead: str) -> None:
    """Raise ConfigError if neither labels nor negatives separate the right pairs of ``table`` from wrong pairs.

    Parameters
    ----------
    table : the table of predicted edges
    negatives : negatives drawn for these edges, if any
    instead : the caller's keyword for drawn negatives, for the message
    """
    if negatives is None and not table.has_labels:
        raise ConfigError(
            f"the link table {table.name!r} has no labels, and no negatives are drawn, so that every pair is right: "
            f"pass {instead} for a negative beside each edge, or prepare the table with labels"
        )
