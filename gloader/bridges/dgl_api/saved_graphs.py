"""Files of ``dgl.save_graphs`` as graphs: prepared once, then read from the dataset."""

from __future__ import annotations

import logging
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from gloader.bridges.dgl_api.dataset_graph import DGLGraph
from gloader.bridges.dgl_api.missing import missing
from gloader.bridges.dgl_api.names import FEATURE, NODE, RELATION, WEIGHT
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import DATASET_MANIFEST, ensure_dataset, prepared_path
from gloader.convert.readers.dgl_file import DglFile
from gloader.core.near_names import near_options
from gloader.core.paths import file_slug
from gloader.dataset import Dataset
from gloader.errors import SourceError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from gloader.convert.readers.stored_array import StoredArray


_LOG = logging.getLogger(__name__)
# Names that a dataset has others for, see `gloader.convert.sources.dgl_homogeneous`.
_FEATURES: Final = ("features", "x")
_WEIGHTS: Final = ("edge_weight", "w")
_EDGES_IN_DATASET: Final = frozenset({FEATURE, WEIGHT, *_WEIGHTS, "edge_time"})


@near_options("load_graphs", PrepareOptions.__dataclass_fields__)
def load_graphs(
    filename: str | os.PathLike[str], idx_list: list[int] | None = None, **changes: Any
) -> tuple[list[DGLGraph], dict[str, torch.Tensor]]:
    """Return the graph of a file that ``dgl.save_graphs`` wrote, or of a dataset, and the labels of graphs beside it.

    A file is prepared the first time, as by ``gloader prepare dgl:FILE``, into the folder of gloader's datasets
    (``$GLOADER_HOME``), and a warning says so. Features then lie on the SSD. Node data of other names is read from the
    file when it is asked for; edge data of other names is not taken, since a dataset has edges in an order of its own.

    Parameters
    ----------
    filename : a file of one graph, of one type or of several; or the folder of a dataset
    idx_list : None or [0]
    changes : of the edges, where a file is prepared: ``self_loops=True``, ``symmetrize=True``, ``deduplicate=True``
        and others of `gloader.convert.options.PrepareOptions`

    Raises
    ------
    DglFeatureError
        Other graphs than the first are asked for.
    SourceError
        Nothing is there; says how it is made.
    GloaderError
        The file cannot be read or prepared.
    """
    if idx_list not in (None, [0]):
        raise missing(
            "load_graphs(idx_list=...) of other graphs than the first", "save one graph in each file"
        )
    path = Path(filename)
    if not path.exists():
        raise SourceError(_absent(path))
    if path.is_dir():
        return [DGLGraph(Dataset.open(path))], {}
    # Graphs whose edges are predicted have no labels, and need none.
    source, options = SourceOptions(needs_labels=False), PrepareOptions(**changes)
    target = prepared_path(f"dgl:{path}", source, options)
    if not (target / DATASET_MANIFEST).is_file():
        _LOG.warning("%s: prepared into %s, once%s", path, target, _same_by_command(path, changes))
    graph = DGLGraph(Dataset.open(ensure_dataset(f"dgl:{path}", source, options)))
    file = DglFile.open(path)
    _add_columns(graph, file)
    return [graph], {name: torch.from_numpy(column.load()) for name, column in file.beside.items()}


def _same_by_command(path: Path, changes: Mapping[str, Any]) -> str:
    """Return the words that name the command, where every change of the edges is a flag without a value. Pure."""
    if any(value is not True for value in changes.values()):
        return ""
    flags = "".join(f" --{name.replace('_', '-')}" for name in changes)
    source = shlex.quote(f"dgl:{path}")
    return f"; the same by a command: gloader prepare {source} data/{file_slug(path.stem)}{flags}"


def _absent(path: Path) -> str:
    if path.suffix:
        return f"{path} is not there; make it where DGL is: dgl.save_graphs({str(path)!r}, [g])"
    return f"{path} is not there; make it once: gloader prepare dgl:FILE {path}, of a FILE of dgl.save_graphs"


def _add_columns(graph: DGLGraph, file: DglFile) -> None:
    """Give the data of ``graph`` what the file has, by the file's names."""
    is_typed = not graph.is_homogeneous
    for ntype, columns in zip(file.node_types, file.node_columns, strict=True):
        nodes = graph.node_frame(ntype if is_typed else NODE)
        for name, column in columns.items():
            if name not in nodes:
                is_feature = name in _FEATURES and FEATURE not in columns
                nodes.add(name, nodes[FEATURE] if is_feature else partial(_loaded, column))
    left = set()
    for relation, columns in zip(file.edge_types, file.edge_columns, strict=True):
        edges = graph.edge_frame(relation if is_typed else RELATION)
        for name in _WEIGHTS:
            if name in columns and WEIGHT in edges:
                edges.add(name, partial(edges.__getitem__, WEIGHT))
        left |= columns.keys() - _EDGES_IN_DATASET
    if left:
        _LOG.warning(
            "%s: edge data %s not taken: a dataset has edges in an order of its own, that of g.edges(); write them to "
            "g.edata in that order",
            file.path,
            ", ".join(map(repr, sorted(left))),
        )


def _loaded(column: StoredArray) -> torch.Tensor:
    return torch.from_numpy(column.load())
