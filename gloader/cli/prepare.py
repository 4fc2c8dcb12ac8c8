"""`gloader prepare`: conversion of a source into a dataset directory, or into a dataset at a URL.

A source names data in another format, such as ``ogb:ogbn-arxiv``. `prepare` is the command: it checks the flags, calls
`gloader.convert.prepare.prepare`, and prints a table of results. For a URL the dataset is made in a temporary folder
and then uploaded. The receipt is the converter's record of the data that it found and used. A link table lists edges to
predict; a relation is an edge type.
"""

import shlex
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from gloader.cli.conversion_view import convert_view
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.convert.options import (
    NOT_USED,
    TRAIN,
    Fill,
    LabelsAs,
    OrderName,
    PrepareOptions,
    SourceOptions,
    SplitBy,
    edge_shares,
    relation_pair,
)
from gloader.convert.registry import SOURCE_FORMS, is_source, open_source
from gloader.core.dtypes import FeatureDtype
from gloader.core.flag_values import REPEATED, Size
from gloader.core.ids import RangePart
from gloader.core.paths import is_url, require_no_url, shown_url
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import ConfigError
from gloader.types import ENTITY, RELATION

if TYPE_CHECKING:
    from gloader.convert.prepare import PrepareReport, RelationReport


_RECORD = "dataset.json"  # file that makes a folder a dataset


def is_prepared(source: str) -> bool:
    """Return whether ``source`` is a dataset's folder instead of a source."""
    # The text may not be a path at all.
    with suppress(OSError, ValueError):
        return not is_source(source) and (Path(source) / _RECORD).is_file()
    return False


def draft_folder(held: ExitStack) -> Path:
    """Return the path of a dataset folder to make. It is removed with its content when ``held`` closes.

    It is below $GLOADER_SPILL_DIR or the system's temporary folder. After a kill, a later run removes it.
    """
    from gloader.ssd_store.spill.folder import SpillFolder

    # The budget is 0, because it counts only spilled files. The conversion itself checks that the disk has room.
    return held.enter_context(SpillFolder(budget_bytes=0)).path / "dataset"


def upload(screen: Screen, root: Path, url: str, *, overwrite: bool) -> dict[str, object]:
    """Upload the dataset ``root`` to ``url``, with progress on the screen; return the result for ``--json``."""
    # This import is late, because the format needs numpy.
    from gloader.convert.upload import upload_dataset

    with convert_view(screen) as progress:
        report = upload_dataset(root, url, overwrite=overwrite, progress=progress)
    screen.say(
        f"{format_bytes(report.num_bytes)} in {report.num_files:,} objects at {report.url}, "
        f"in {format_seconds(report.seconds)}"
    )
    return {"path": report.url, "uploaded": asdict(report)}


# Maximum number of characters in a receipt's line on the screen.
_RECEIPT_WIDTH = 300


@Parameter(name="*", group=Group("Conversion", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFlags:
    """Flags of the conversion."""

    memory_budget: Size = None
    """Memory that the conversion may use, such as 1GB. Default: half of the free memory."""
    dtype: FeatureDtype | None = None
    """Stored dtype of the features. Default: float32; integers that it would round, and floats that it would turn into
    0, are refused."""
    edge_dtype: FeatureDtype | None = None
    """Stored dtype of edge features; the same rules hold."""
    allow_nan: Annotated[bool, Parameter(negative=())] = False
    """Accept NaN and infinity in features, and count them."""
    missing: Fill | None = None
    """Value for missing features (NaN, infinity, empty fields): 0 (zero), the mean of the training rows (mean), or the
    mean beside a column that is 1 (flag)."""
    order: OrderName = "none"
    """Order of the rows on disk: as given (none), by falling out-degree, or community by community."""
    symmetrize: Annotated[bool | list[str], REPEATED] = False
    """Store both directions of every edge, each once. With several types: for all relations within a type, or for the
    named relations."""
    add_reverse: Annotated[bool, Parameter(negative=())] = False
    """Several types: add the reverse of every relation without one; its name begins with rev_."""
    self_loops: Annotated[bool, Parameter(negative=())] = False
    """Give every node exactly one self loop."""
    deduplicate: Annotated[bool, Parameter(negative=())] = False
    """Merge parallel edges and add their weights."""
    edge_split: str | None = None
    """Split the edges into link tables train, valid and test, as in 80/10/10; edges of the last two leave the graph."""
    edge_split_by: SplitBy = "random"
    """Rule of the edge split: by a hash of the pair and --seed (random), or the earliest edges first (time)."""
    edge_split_relation: str | None = None
    """Several types: the relation to split, such as author:writes:paper."""
    reverse: Annotated[list[str], REPEATED] = field(default_factory=list)
    """Several types: a pair of relations that are each other's reverse, such as buys=bought_by."""
    edge_table: Annotated[list[str], REPEATED] = field(default_factory=list)
    """A link table, NAME=FILE or NAME@RELATION=FILE: a .npy, or Parquet or CSV with columns src, dst and, optionally,
    label and time."""
    ranges: str | None = None
    """This machine's feature rows: 0/4 is the first of four parts; other machines prepare 1/4 to 3/4."""
    overwrite: Annotated[bool, Parameter(negative=())] = False
    """Replace the dataset at OUT, in one step, when the new one is complete."""

    @property
    def makes_links(self) -> bool:
        """True if edges will be predicted."""
        return self.edge_split is not None or bool(self.edge_table)

    def options(self, seed: int = 0) -> PrepareOptions:
        """Return the options of the conversion. ``seed`` is the key for a random edge split."""
        return PrepareOptions(
            symmetrize=tuple(self.symmetrize) if isinstance(self.symmetrize, list) else self.symmetrize,
            add_reverse=self.add_reverse,
            self_loops=self.self_loops,
            deduplicate=self.deduplicate,
            dtype=self.dtype,
            edge_dtype=self.edge_dtype,
            allow_nan=self.allow_nan,
            missing=self.missing,
            order=self.order,
            edge_split=None if self.edge_split is None else edge_shares(self.edge_split),
            edge_split_by=self.edge_split_by,
            edge_split_relation=self.edge_split_relation,
            edge_split_seed=seed if self.edge_split is not None else 0,
            reverse=tuple(map(relation_pair, self.reverse)),
            edge_tables=tuple(self.edge_table),
            ranges=None if self.ranges is None else RangePart.parse(self.ranges),
            memory_budget_bytes=self.memory_budget,
            overwrite=self.overwrite,
        )


@Parameter(name="*", group=Group("Source", sort_key=0))
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """Flags of the source, besides its name."""

    features: Path | None = None
    """edges: feature rows, as a .npy, a .npz with a CSR matrix, or a table that is joined by its id column."""
    labels: Path | None = None
    """edges: labels, as a .npy or a table; -1 means no class. Not needed to predict edges."""
    labels_as: LabelsAs | None = None
    """Labels as classes, or as values to predict. Default: floats with a fraction and several columns are values."""
    splits: Path | None = None
    """edges: a .npz file with train, valid and test ids. Default: random 60/20/20."""
    src: str | None = None
    """edges: the source column, if its name is not a known one such as src, source or from."""
    dst: str | None = None
    """edges: the destination column, if its name is not a known one such as dst, target or to."""
    nodes: Path | None = None
    """edges: a table of nodes with keys, which the edges have instead of ids. --labels and --splits may be columns."""
    node_key: str | None = None
    """edges: the column of keys in --nodes. Default: the only column with a name such as id or user_id."""
    columns: str | None = None
    """edges: columns of --nodes that become features, such as age,city:category,joined:time."""
    keys: Annotated[bool, Parameter(negative=())] = False
    """edges: the ends are keys of any kind, and there is no table of nodes: the keys make the nodes."""
    dangling: Literal["error", "drop", "node"] | None = None
    """edges: an edge whose key no row of --nodes has is an error, is dropped, or makes a node. Default: error."""
    edge_time: str | None = None
    """Edge times, by which neighbour lists are sorted: a column of the edge table, an array's name, or none."""
    edge_features: str | None = None
    """Edge features: columns such as amount,kind, an array's name, a file, or none."""
    root: Path | None = None
    """ogb: folder for the downloaded data."""
    task_tables: str | None = None
    """relbench: the tasks that become tables, such as driver-dnf,driver-position. Columns that one of them may not see
    are left out. Default: all tasks of the folder."""
    seed: int = 0
    """Key of random splits, and of synthetic graphs without a seed of their own."""

    def options(self, memory_budget: int | None, *, needs_labels: bool = True) -> SourceOptions:
        """Return the options of the source, see `SourceOptions`."""
        given: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return SourceOptions(**given, needs_labels=needs_labels, memory_budget_bytes=memory_budget)


# The flags of a command line without conversion or source flags.
DEFAULT_CONVERSION, DEFAULT_SOURCE = PrepareFlags(), SourceFlags()


def prepare(
    source: Annotated[
        str,
        Parameter(
            help=f"{', '.join(SOURCE_FORMS[:-1])} or {SOURCE_FORMS[-1]}; or a prepared folder, to be uploaded to OUT"
        ),
    ],
    out: str,
    /,
    *,
    of_source: SourceFlags = DEFAULT_SOURCE,
    conversion: PrepareFlags = DEFAULT_CONVERSION,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Turn a graph into a dataset directory, within a memory budget. OUT appears when it is complete.

    Parameters
    ----------
    source
        The data to convert, in one of the forms of `SOURCE_FORMS`.
    out
        The folder to make, or a URL (s3://..., gs://..., az://..., https://..., file://...). For a URL the dataset is
        made below $GLOADER_SPILL_DIR or in the system's temporary folder, and uploaded from there.
    """
    # These imports are late: only a conversion loads numba and the sources.
    from gloader.cli.conversion_view import convert_view
    from gloader.convert.prepare import prepare as convert

    screen = Screen.open(is_json=output.json)
    if is_url(out):
        require_upload(source, out, of_source, conversion)
        if is_prepared(source):
            screen.result(upload(screen, Path(source), out, overwrite=conversion.overwrite))
            return
    else:
        require_no_url(out)
    opened = open_source(
        source, of_source.options(conversion.memory_budget, needs_labels=not conversion.makes_links)
    )
    with ExitStack() as held:
        target = draft_folder(held) if is_url(out) else Path(out)
        with convert_view(screen) as progress:
            report = convert(opened, target, conversion.options(of_source.seed), progress=progress)
        if not output.json:
            screen.console.print(facts(_part(conversion) | _describe(report)))
            screen.console.print(facts(_on_screen(report.receipt)))
        uploaded = upload(screen, target, out, overwrite=conversion.overwrite) if is_url(out) else {}
    path = shown_url(out) if is_url(out) else str(report.path)
    task = " --task link" if TRAIN in report.links else ""
    if report.tables:
        task = f" --table {next(iter(report.tables)).removesuffix('.train')}"
    model = " --model rsage" if report.kind == "hetero" else ""
    if tuple(report.node_types) == (ENTITY, RELATION) and not report.relations:
        task, model = " --task kg", " --model complex"
    train = f"gloader train --dataset {shlex.quote(path)}{task}{model}"
    if conversion.ranges is not None:
        parts = RangePart.parse(conversion.ranges).of
        train = f"torchrun --nnodes {parts} ... -m {train}, on the machines of all {parts} parts (docs/cluster.md)"
    screen.say(f"train on it: {train}")
    screen.result({**report.to_json(), "path": path, **uploaded})


def require_upload(source: str, url: str, of_source: SourceFlags, conversion: PrepareFlags) -> None:
    """Raise ConfigError if a dataset cannot be uploaded to ``url``. This check comes before hours of work.

    A prepared dataset is uploaded unchanged, so flags of the conversion and of the source are refused.
    """
    # This import is late, because the format needs numpy.
    from gloader.convert.upload import require_target

    # These two flags change no byte of the dataset.
    as_it_is = replace(conversion, overwrite=False, memory_budget=None) == DEFAULT_CONVERSION
    if is_prepared(source) and not (as_it_is and of_source == DEFAULT_SOURCE):
        raise ConfigError(
            f"{source} is a prepared dataset, which is uploaded as it is: the only flag for that is --overwrite; to "
            "convert it in another way, prepare its source again"
        )
    if conversion.ranges is not None:
        raise ConfigError(
            "--ranges is for a folder of one machine: a dataset at a URL has all rows; leave it out"
        )
    require_target(url, overwrite=conversion.overwrite)


# The next functions return lines of the closing table, as names and texts, or a text in such a line.


def _part(conversion: PrepareFlags) -> dict[str, str]:
    """Return the line on this machine's part of the feature rows (``--ranges``), if there is one."""
    if conversion.ranges is None:
        return {}
    part = RangePart.parse(conversion.ranges)
    return {"part": f"{part.part} of {part.of} of the feature rows, all of the edges"}


def _describe(report: "PrepareReport") -> dict[str, str]:
    """Return the lines on the dataset's content, size and cost."""
    ordered = f"keys {format_seconds(report.key_seconds)}, " if report.key_seconds else ""
    ordered += f"order {format_seconds(report.order_seconds)}, " if report.order != "none" else ""
    return {
        **(_tables(report) if report.kind == "hetero" else _table(report)),
        "on disk": format_bytes(report.dataset_bytes),
        "time": f"{format_seconds(report.seconds)} ({ordered}edges {format_seconds(report.edge_seconds)}, "
        f"features {format_seconds(report.feature_seconds)})",
        "peak memory": _budget(report),
    }


def _table(report: "PrepareReport") -> dict[str, str]:
    """Return the lines on a graph with one node type."""
    moved = "" if report.order == "none" else f", by {report.order}"
    return {
        "nodes": f"{report.num_nodes:,}{moved}",
        "edges": _edges(report) + (", sorted by time" if report.has_edge_times else ""),
        **_links(report),
        **_edge_features(report),
        "features": f"{report.feature_dim:,} x {report.feature_dtype}",
    }


def _tables(report: "PrepareReport") -> dict[str, str]:
    """Return a line for each node type and each relation of a graph with several types."""
    types = {
        name: f"{node_type.num_nodes:,} nodes, "
        + (f"{node_type.feature_dim:,} x {report.feature_dtype}" if node_type.feature_dim else "no features")
        + (" averaged over neighbours" if node_type.is_derived else "")
        + (", labels" if name == report.labelled and not report.tables else "")
        for name, node_type in report.node_types.items()
    }
    relations = {
        name: f"{_edges(relation)} edges{_columns(relation)}" for name, relation in report.relations.items()
    }
    tables = {f"table {name}": text for name, text in report.tables.items()}
    return {**types, **relations, **_links(report), **tables}


def _edges(counts: "PrepareReport | RelationReport") -> str:
    """Return the number of edges, and the number in the source if it differs. Flags may add or merge edges."""
    dropped = counts.edges_read - counts.num_edges
    return f"{counts.num_edges:,}" + ("" if dropped == 0 else f" from {counts.edges_read:,} read")


def _columns(relation: "RelationReport") -> str:
    """Return a text on a relation's edge features and times, or "" without them."""
    rows = f", {relation.edge_feature_dim:,} features each" if relation.edge_feature_dim else ""
    return rows + (", sorted by time" if relation.has_edge_times else "")


def _edge_features(report: "PrepareReport") -> dict[str, str]:
    """Return the line on edge features, if there are any."""
    rows = f"{report.edge_feature_dim:,} x {report.edge_feature_dtype}"
    return {"edge features": rows} if report.edge_feature_dim else {}


def _links(report: "PrepareReport") -> dict[str, str]:
    """Return a line for each link table: its rows, and how many of them are edges in the graph.

    With a reverse relation, the line also counts the rows with only their reverse edge in the graph, because messages
    over these edges may reveal the answer. The training table has no such count: its edges belong to the graph.
    """
    return {
        f"links {name}": f"{table.num_rows:,} of {table.relation}, {table.in_graph:,} of them in the graph"
        + (
            ""
            if table.reverse in (None, table.relation) or name == TRAIN
            else f", {table.reversed_in_graph:,} more the other way round in {table.reverse}"
        )
        for name, table in report.links.items()
    }


def _on_screen(receipt: dict[str, str]) -> dict[str, str]:
    """Return the receipt with shortened long lines, except the line on unused input. Pure."""
    cut = " ... (gloader info shows the rest)"
    return {
        name: text if name == NOT_USED else shorten(text, _RECEIPT_WIDTH, placeholder=cut)
        for name, text in receipt.items()
    }


def _budget(report: "PrepareReport") -> str:
    """Return a text on the peak memory, its budget, and the edges that were sorted on disk."""
    spilled = report.spilled_bytes
    peak, budget = map(format_bytes, (report.peak_bytes, report.budget_bytes))
    return f"{peak} of a budget of {budget}" + (
        f", {format_bytes(spilled)} of edges sorted on disk" if spilled else ""
    )
