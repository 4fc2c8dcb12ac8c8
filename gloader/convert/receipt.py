"""The receipt for a conversion: short texts on the source's content, its use in the dataset, and findings to check.

The conversion (`prepare`) makes a `Receipt`, which wraps the source's streams, so that edges and rows are counted while
the conversion reads them. At the end, `Receipt.lines` returns the texts. They are printed, logged and stored in the
dataset.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.options import NO_NEIGHBOURS, NOT_USED
from gloader.convert.readers.checked_rows import CheckedRows
from gloader.convert.readers.filled_rows import FilledRows
from gloader.convert.source import RandomSplits, edges_over
from gloader.dataset.schema import relation_text
from gloader.dataset.values import has_label, label_kind_of
from gloader.types import EDGE, NO_TIME, NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.options import EdgeRules, PrepareOptions
    from gloader.convert.source import (
        EdgeChunk,
        EdgeStream,
        FeatureStream,
        GraphSource,
        NodeSource,
        RelationSource,
        Splits,
    )
    from gloader.dataset.values import LabelKind
    from gloader.types import IdArray, Relation

_MARKED_SHARE: Final = 64  # marks of nodes with edges take at most 1/64 of the memory budget
_LABELS_COUNTED: Final = 1 << 20  # labels per step of counting
_MOST_CLASSES: Final = 8  # with more classes or label columns, a line has only the range of their sizes
NO_SPLIT: Final = "none was given"  # in the line on splits that are random because the source has none
_MOST_PARTS: Final = 6  # maximum number of types or relations in a line


def marked_bytes(num_nodes: int, budget_bytes: int) -> int:
    """Return the bytes for marking nodes with edges, one per node, or 0 if they would take too much memory. Pure.

    The marks show which nodes are isolated. Without memory for them, isolated nodes are not counted.
    """
    return num_nodes if num_nodes <= budget_bytes // _MARKED_SHARE else 0


@dataclass(slots=True)
class _Tally:
    """Counts and ranges for a relation's edges, gathered while they are read."""

    is_whole: bool = False  # True if the edges were read to the end
    num_loops: int = 0  # self loops
    low: int = 0  # the smallest node id
    high: int = -1  # the largest node id; -1 before the first edge
    earliest: int | None = None  # the earliest edge time, in seconds
    latest: int | None = None  # the latest edge time, in seconds

    def add(self, chunk: EdgeChunk, *, is_within: bool) -> None:
        """Count a chunk's edges. ``is_within`` is True for a relation within one type, which may have self loops."""
        if not len(chunk.src):
            return
        self.num_loops += int(np.count_nonzero(chunk.src == chunk.dst)) if is_within else 0
        low = min(int(chunk.src.min()), int(chunk.dst.min()))
        self.low = low if self.high < 0 else min(self.low, low)
        self.high = max(self.high, int(chunk.src.max()), int(chunk.dst.max()))
        if chunk.time is not None and len(times := chunk.time[chunk.time != NO_TIME]):
            earliest, latest = int(times.min()), int(times.max())
            self.earliest = earliest if self.earliest is None else min(self.earliest, earliest)
            self.latest = latest if self.latest is None else max(self.latest, latest)


@dataclass(slots=True, kw_only=True)
class Receipt:
    """Collects the receipt's values while the conversion reads rows and edges.

    Parameters
    ----------
    source : the graph before its features are wrapped
    unreached : the type with training nodes, if no relation ends there; empty otherwise
    rules : changes to the edges of all relations
    """

    source: GraphSource
    unreached: str
    rules: EdgeRules
    # Features and their stored dtype by type, and edge features and their stored dtype by relation.
    rows: dict[str, tuple[CheckedRows, str]] = field(default_factory=dict)
    edge_rows: dict[str, tuple[CheckedRows, str]] = field(default_factory=dict)
    tallies: dict[Relation, _Tally] = field(default_factory=dict)
    # Filled rows by type or relation, if missing values are replaced.
    filled: dict[str, FilledRows] = field(default_factory=dict)
    # (N,) by type: True for nodes with edges. Empty if the memory budget has no room for the marks.
    marks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: GraphSource, options: PrepareOptions) -> tuple[Receipt, GraphSource]:
        """Return an empty receipt, and the source with features that are checked and counted while they are read."""
        receipt = cls(
            source=source,
            unreached="" if options.add_reverse else _unreached(source),
            rules=options.rules,
        )
        _ = options.missing_rule  # refuses options that contradict each other
        is_train = _train_mask(source) if options.missing in {"mean", "flag"} else None

        def checked(
            name: str,
            features: FeatureStream,
            where: str,
            mask: NDArray[np.bool_] | None,
            *,
            stored_as: str | None,
            flag: str,
        ) -> CheckedRows:
            """Return features that are checked, and whose missing values are replaced if the options ask for it.

            ``mask`` marks the training rows; None means all rows. ``flag`` is the option of the dtype ``stored_as``.
            """
            if options.missing is not None:
                # A mask of another length comes with rows of a wrong number, which the checks of the source refuse.
                fits = mask is not None and len(mask) == features.num_rows
                filled = FilledRows(
                    features, missing=options.missing, is_train=mask if fits else None, where=where
                )
                receipt.filled[name] = filled
                features = filled.stream()
            return CheckedRows(
                features, where=where, stored_as=stored_as, flag=flag, allow_nan=options.allow_nan
            )

        def checked_nodes(each: NodeSource) -> NodeSource:
            """Return a node type with checked features."""
            if each.given is None:
                return each
            named = f" of {each.name!r} nodes" if source.has_names else ""
            where = each.given.where or f"{source.origin}, features{named}"
            mask = is_train if each.name == source.labelled else None
            if mask is not None and each.row_ids is not None:
                mask = mask[each.row_ids]
            rows = checked(each.name, each.given, where, mask, stored_as=options.dtype, flag="--dtype")
            receipt.rows[each.name] = rows, options.stored_dtype
            return replace(each, features=rows.stream())

        def checked_edges(each: RelationSource) -> RelationSource:
            """Return a relation with checked edge features."""
            if each.edge_features is None:
                return each
            name, where = relation_text(each.relation), f"{source.where(each)}, edge features"
            rows = checked(
                name, each.edge_features, where, None, stored_as=options.edge_dtype, flag="--edge-dtype"
            )
            receipt.edge_rows[name] = rows, options.stored_edge_dtype
            return replace(each, edge_features=rows.stream())

        return receipt, replace(
            source,
            nodes=tuple(map(checked_nodes, source.nodes)),
            relations=tuple(map(checked_edges, source.relations)),
            # A mask of the training rows, and its copy in the order of the rows.
            resident_bytes=source.resident_bytes + (0 if is_train is None else 2 * is_train.nbytes),
        )

    def counted(self, relation: Relation, edges: EdgeStream, *, budget_bytes: int) -> EdgeStream:
        """Return a relation's edges, which are counted while they are read. ``budget_bytes`` is the memory budget."""
        if not self.marks and marked_bytes(sum(self.source.num_nodes.values()), budget_bytes):
            self.marks = {name: np.zeros(count, np.bool_) for name, count in self.source.num_nodes.items()}
        first, _, last = relation
        marks = self.marks.get(first), self.marks.get(last)

        def chunks(max_edges: int) -> Iterator[EdgeChunk]:
            tally = _Tally()
            for chunk in edges.chunks(max_edges):
                yield chunk
                # When the consumer requests the next chunk, it has checked this one, so its ids are valid.
                tally.add(chunk, is_within=first == last)
                for marked, ids in zip(marks, (chunk.src, chunk.dst), strict=True):
                    if marked is not None:
                        marked[ids] = True
            tally.is_whole = True
            self.tallies[relation] = tally

        self.tallies[relation] = _Tally()
        return edges_over(edges, chunks)

    def lines(self, edges: Mapping[Relation, CscReport]) -> dict[str, str]:
        """Return the receipt: short texts by name, without empty texts.

        Parameters
        ----------
        edges : each relation's numbers of read and written edges
        """
        source = self.source
        texts = {
            "keys": source.key_note,
            "triples": source.link_note,
            "columns": "; ".join(source.column_notes),
            NOT_USED: ", ".join(source.unused),
            "edges read": _listed(self._edges_text(relation, report) for relation, report in edges.items()),
            "isolated nodes": self._isolated() if edges else "",
            NO_NEIGHBOURS: self.unreached
            and f"no relation ends at {self.unreached}, so its nodes gather nothing from others; --add-reverse adds "
            "the reverse relations",
            "feature values": _ranges(self.rows, is_named=len(source.num_nodes) > 1),
            "missing values": _listed(
                (f"{name} " if len(self.filled) > 1 else "") + rows.text()
                for name, rows in self.filled.items()
                if rows.text()
            ),
            "edge feature values": _ranges(self.edge_rows, is_named=len(self.tallies) > 1),
            **_label_texts(source.labels, source.num_classes, source.label_names),
            "split": split_text(source.splits),
        }
        return {name: text for name, text in texts.items() if text}

    def _edges_text(self, relation: Relation, report: CscReport) -> str:
        """Return the text on a relation's edges: number, ids, self loops, times and parallel edges."""
        tally, count = self.tallies.get(relation, _Tally()), report.edges_read
        texts = [f"{count:,}" if relation == EDGE else f"{relation_text(relation)} {count:,}"]
        if tally.is_whole and tally.high >= 0:
            texts += [f"ids {tally.low:,} to {tally.high:,}"] if relation == EDGE else []
            if relation[0] == relation[2]:
                texts += [f"{tally.num_loops:,} self loop{'s' * (tally.num_loops != 1)}"]
            if tally.earliest is not None:
                texts += [f"times {tally.earliest} to {tally.latest}"]
        if relation == EDGE:
            texts += [self._parallel(tally, report)]
        return ", ".join(texts)

    def _parallel(self, tally: _Tally, report: CscReport) -> str:
        """Return the number of merged parallel edges. It is unknown if they are kept, or if edges are symmetrized."""
        if not self.rules.deduplicate or self.rules.symmetrize or not tally.is_whole:
            return "parallel ones not counted"
        # Every node gets one self loop instead of the loops in the source.
        added = self.source.num_nodes[NODE] - tally.num_loops if self.rules.self_loops else 0
        return f"{report.edges_read + added - report.num_edges:,} parallel ones merged"

    def _isolated(self) -> str:
        """Return the numbers of nodes without edges, by type."""
        if not self.marks or not all(tally.is_whole for tally in self.tallies.values()):
            return "not counted: the memory budget leaves no room"
        isolated = {name: len(marks) - int(np.count_nonzero(marks)) for name, marks in self.marks.items()}
        if not any(isolated.values()):
            return "none"
        if list(isolated) == [NODE]:
            return f"{isolated[NODE]:,} of {self.source.num_nodes[NODE]:,} have no edge"
        return _listed(
            f"{count:,} of {self.source.num_nodes[name]:,} {name}"
            for name, count in isolated.items()
            if count
        )


def _unreached(source: GraphSource) -> str:
    """Return the labelled type if it has training nodes, and no relation ends there. Otherwise return "". Pure."""
    is_reached = any(each.relation[2] == source.labelled for each in source.relations)
    return "" if is_reached or not len(source.splits.train) else source.labelled


def _train_mask(source: GraphSource) -> NDArray[np.bool_] | None:
    """Return a mask (N,) of the labelled type's training nodes, or None for all nodes if there are none."""
    if not len(source.splits.train):
        return None
    num_nodes, ids = source.num_nodes_of(source.labelled), source.splits.train
    is_train = np.zeros(num_nodes, np.bool_)
    is_train[ids[(ids >= 0) & (ids < num_nodes)]] = True  # wrong ids are refused later, with their place
    return is_train


def split_text(splits: Splits) -> str:
    """Return the split sizes, and whether the splits are random. Pure."""
    sizes = [f"{name} {len(getattr(splits, name)):,}" for name in ("train", "valid", "test")]
    if not len(splits.train) + len(splits.valid) + len(splits.test):
        return ""
    origin = (
        f"; {NO_SPLIT}, so 60/20/20 at random by seed {splits.seed}"
        if isinstance(splits, RandomSplits)
        else ""
    )
    return ", ".join(sizes) + origin


def _listed(parts: Iterable[str]) -> str:
    """Return the first texts as one line, with the number of the others."""
    texts = list(parts)
    more = len(texts) - _MOST_PARTS
    return "; ".join(texts[:_MOST_PARTS]) + (f"; and {more} more" if more > 0 else "")


def _ranges(rows: Mapping[str, tuple[CheckedRows, str]], *, is_named: bool) -> str:
    """Return the texts of `_range` for all matrices. If ``is_named``, each begins with the type or relation."""
    return _listed(
        (f"{name} " if is_named else "") + _range(checked, stored) for name, (checked, stored) in rows.items()
    )


def _range(checked: CheckedRows, stored: str) -> str:
    """Return a feature matrix's range of values, a change of dtype, and numbers of NaN and infinite values.

    ``stored`` is the stored dtype.
    """
    seen, given = checked.seen, str(checked.features.dtype)
    changed = "" if given == stored else f", {given} -> {stored}"
    if seen is None:
        return f"not counted{changed}"
    span = f"{seen.low:g} to {seen.high:g}" if seen.low <= seen.high else "none finite"
    bad = [
        f"{count:,} {what}"
        for count, what in ((seen.num_nan, "NaN"), (seen.num_infinite, "infinite"))
        if count
    ]
    return f"{span}{changed}, {' and '.join(bad) or 'no NaN'}"


def _label_texts(labels: NDArray[Any], num_classes: int, names: tuple[str, ...]) -> dict[str, str]:
    """Return the receipt's lines about the labels: the classes, or the label columns."""
    if labels.ndim == 1:
        return {"labels by class": _classes(labels, num_classes, names)}
    columns = _LabelColumns.of(labels)
    kind = label_kind_of(labels)
    if columns.num_unlabelled == len(labels):
        return {}
    return {
        "labels": columns.form(kind),
        "labels by column": columns.sizes(names, are_flags=kind != "values"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelColumns:
    """Counts of label values (N, k) by column, each (k,)."""

    known: IdArray  # number of values that are not NaN
    low: NDArray[np.float64]  # the smallest known value; infinity without any
    high: NDArray[np.float64]  # the largest known value; -infinity without any
    ones: IdArray  # number of values that are 1
    num_unlabelled: int  # nodes without any known value
    is_one_hot: bool  # True if each labelled node has exactly one 1, and all its other values are 0

    @classmethod
    def of(cls, labels: NDArray[np.float32]) -> _LabelColumns:
        """Count the values, some rows at a time."""
        width = labels.shape[1]
        known, ones = np.zeros(width, np.int64), np.zeros(width, np.int64)
        low, high = np.full(width, np.inf), np.full(width, -np.inf)
        num_unlabelled, is_one_hot = 0, width > 1
        step = max(1, _LABELS_COUNTED // (4 * width))
        for start in range(0, len(labels), step):
            part = labels[start : start + step]
            is_known, is_one = ~np.isnan(part), part == 1
            known += is_known.sum(axis=0)
            ones += is_one.sum(axis=0)
            low = np.minimum(low, np.where(is_known, part, np.inf).min(axis=0))
            high = np.maximum(high, np.where(is_known, part, -np.inf).max(axis=0))
            is_labelled = has_label(part)
            num_unlabelled += int(np.count_nonzero(~is_labelled))
            is_exact = (is_one.sum(axis=1) == 1) & ((part == 0).sum(axis=1) == width - 1)
            is_one_hot = is_one_hot and bool(is_exact[is_labelled].all())
        return cls(
            known=known,
            low=low,
            high=high,
            ones=ones,
            num_unlabelled=num_unlabelled,
            is_one_hot=is_one_hot and num_unlabelled < len(labels),
        )

    def form(self, kind: LabelKind) -> str:
        """Return the number of columns and the kind of the labels."""
        width = len(self.known)
        columns = f"{width:,} column{'s' * (width != 1)}"
        text = f"{columns} of values" if kind == "values" else f"{columns} of 0 and 1, {kind}"
        if self.is_one_hot:
            text += "; one class per node is labels.argmax(axis=1)"
        missing = f"; {self.num_unlabelled:,} nodes have none" if self.num_unlabelled else ""
        return text + missing

    def sizes(self, names: tuple[str, ...], *, are_flags: bool) -> str:
        """Return the counts by column, or their ranges over many columns. ``are_flags`` means values 0 and 1."""
        width = len(self.known)
        if width > _MOST_CLASSES:
            known = f"{_span(self.known)} known in a column"
            if are_flags:
                return f"{known}, {_span(self.ones)} of them 1"
            return f"{known}, from {self.low.min():g} to {self.high.max():g}"
        texts = []
        for name, known, ones, low, high in zip(
            names or map(str, range(width)), self.known, self.ones, self.low, self.high, strict=True
        ):
            counts = f"{ones:,} of {known:,} are 1" if are_flags else f"{known:,} from {low:g} to {high:g}"
            texts.append(f"{name}: {counts if known else 'none known'}")
        return ", ".join(texts)


def _span(counts: IdArray) -> str:
    """Return the smallest and the largest of ``counts`` (k,), or the number that all of them are."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _classes(labels: IdArray, num_classes: int, names: tuple[str, ...]) -> str:
    """Return the numbers of nodes by class, or their range for many classes. Empty without labels."""
    counts = np.zeros(num_classes, np.int64)
    for start in range(0, len(labels), _LABELS_COUNTED):
        part = labels[start : start + _LABELS_COUNTED]
        counts += np.bincount(part[part >= 0], minlength=num_classes)[:num_classes]
    unlabelled = len(labels) - int(counts.sum())
    if unlabelled == len(labels):
        return ""
    if num_classes <= _MOST_CLASSES:
        shown = names or tuple(map(str, range(num_classes)))
        text = ", ".join(f"{name}: {count:,}" for name, count in zip(shown, counts.tolist(), strict=True))
    else:
        text = f"{num_classes:,} classes of {int(counts.min()):,} to {int(counts.max()):,} nodes"
    return text + (f"; {unlabelled:,} nodes have none" if unlabelled else "")
