"""``igbh:DIR``: the heterogeneous graph of the Illinois Graph Benchmark, in all of its sizes (Khatua et al., KDD'23).

Relations are as in MLPerf's R-GAT benchmark and the script of GraphLearn-for-PyTorch that it stands on: every relation
has a reverse, and citations, stripped of self loops and with one for each paper, go both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.hetero_source import HeteroSource, NodeSource, RelationSource, ReversedEdges
from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.file_features import NpyFeatures
from gloader.convert.readers.node_arrays import random_splits, require_node_memory
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.source import EdgeChunk
from gloader.convert.sources.igb import DIM, find_labels, first_labels, open_floats, parse_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.convert.options import SourceOptions
    from gloader.convert.source import EdgeStream
    from gloader.types import Relation

_TYPES: Final = ("paper", "author", "institute", "fos")
_LARGE_TYPES: Final = ("journal", "conference")
_CITES: Final[Relation] = ("paper", "cites", "paper")
_RELATIONS: Final[tuple[Relation, ...]] = (
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
)
_LARGE_RELATIONS: Final[tuple[Relation, ...]] = (
    ("paper", "published", "journal"),
    ("paper", "venue", "conference"),
)
# Papers of the full size, and how many of them, the first ones, have a label; the other sizes are labelled throughout.
_FULL_PAPERS: Final = 269_346_174
_FULL_LABELLED: Final = {19: 227_130_858, 2983: 157_675_969}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndirectedEdges:
    """Both directions of every edge but self loops, and two self loops of each node behind them.

    As the reference makes them: it drops self loops, adds one for each node, and appends the reverse of everything.
    Parallel edges stay.
    """

    edges: EdgeStream
    num_nodes: int

    @property
    def num_edges(self) -> int | None:
        """None: how many self loops are dropped is known when they are read."""
        return None

    @property
    def has_weights(self) -> bool:
        """Always false."""
        return False

    @property
    def has_times(self) -> bool:
        """Always false."""
        return False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges, at most ``max_edges`` at a time, or 2."""
        half = max(1, max_edges // 2)
        for chunk in self.edges.chunks(half):
            kept = chunk.src != chunk.dst
            src, dst = chunk.src[kept], chunk.dst[kept]
            yield EdgeChunk(src=np.concatenate([src, dst]), dst=np.concatenate([dst, src]), weight=None)
        for start in range(0, self.num_nodes, half):
            loops = np.tile(np.arange(start, min(self.num_nodes, start + half), dtype=np.int64), 2)
            yield EdgeChunk(src=loops, dst=loops, weight=None)


def open_igbh(argument: str, options: SourceOptions) -> HeteroSource:
    """Open ``igbh:DIR`` or ``igbh:DIR@2983``, where DIR is the folder of a size, such as ``igbh/tiny``.

    The classes are 19 unless 2983 are asked for or only they are there. The labelled papers are dealt out 60/20/20 at
    random by ``options.seed``. The arrays of the large and full sizes have no header: they are raw float32. Journals
    and conferences are there in these two alone.

    Raises
    ------
    ConfigError
        IGB has no labels of so many classes.
    SourceError
        A file is missing, truncated or malformed.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    folder, classes = parse_folder(argument, prefix="igbh")
    processed = _processed(folder)
    is_large = any((processed / name).is_dir() for name in _LARGE_TYPES)
    features = {
        name: NpyFeatures.open(open_floats(processed / name / "node_feat.npy", row_shape=(DIM,)))
        for name in _TYPES + (_LARGE_TYPES if is_large else ())
    }
    num_papers = features["paper"].num_rows
    num_classes, label_file = find_labels(processed / "paper", classes)
    require_node_memory(num_papers, options.budget_bytes, features["paper"].file.where)
    num_labelled = _FULL_LABELLED[num_classes] if num_papers == _FULL_PAPERS else num_papers
    labels = first_labels(label_file, num_nodes=num_papers, num_labelled=num_labelled)
    return HeteroSource(
        name=f"igbh-{folder.resolve().name}-{num_classes}",
        origin=f"igbh:{argument}",
        nodes=tuple(
            NodeSource(name=name, num_nodes=rows.num_rows, features=rows) for name, rows in features.items()
        ),
        relations=_relations(
            processed, _RELATIONS + (_LARGE_RELATIONS if is_large else ()), num_papers=num_papers
        ),
        labelled="paper",
        num_classes=num_classes,
        labels=labels,
        splits=random_splits(labels, seed=options.seed),
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the folders that hold what `open_igbh` reads; raises ConfigError as it does."""
    del options
    processed = _processed(parse_folder(argument, prefix="igbh")[0])
    relations = (_CITES, *_RELATIONS, *_LARGE_RELATIONS)
    return [processed / name for name in (*_TYPES, *_LARGE_TYPES)] + [
        processed / "__".join(relation) / "edge_index.npy" for relation in relations
    ]


def _processed(folder: Path) -> Path:
    return folder / "processed" if (folder / "processed").is_dir() else folder


def _relations(
    processed: Path, relations: tuple[Relation, ...], *, num_papers: int
) -> tuple[RelationSource, ...]:
    """Return the citations both ways, the other relations, and behind all of them their reverses."""
    given = [_relation(processed, relation) for relation in relations]
    cites = _relation(processed, _CITES)
    both_ways = RelationSource(
        relation=_CITES,
        edges=UndirectedEdges(edges=cites.edges, num_nodes=num_papers),
        edge_file=cites.edge_file,
        is_symmetric=True,
    )
    reverses = [
        RelationSource(
            relation=(each.relation[2], f"rev_{each.relation[1]}", each.relation[0]),
            edges=ReversedEdges(edges=each.edges),
            edge_file=each.edge_file,
        )
        for each in given
    ]
    return (both_ways, *given, *reverses)


def _relation(processed: Path, relation: Relation) -> RelationSource:
    path = processed / "__".join(relation) / "edge_index.npy"
    edges = PairEdges.open(NpyFile.open(path), prefers_rows=True)
    return RelationSource(relation=relation, edges=edges, edge_file=path)
