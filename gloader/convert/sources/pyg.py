"""``pyg:FILE``: a graph that PyTorch Geometric saved with ``torch.save(data, FILE)``, of one type or of several."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.convert.readers.arrays import ArrayFeatures
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.convert.readers.stored_array import tell_where_cut
from gloader.convert.readers.torch_file import require_plain_archive
from gloader.convert.readers.torch_tensors import attributes_of
from gloader.convert.source import Source
from gloader.convert.sources.pyg_hetero import hetero_source, is_hetero, pyg_edges
from gloader.errors import MissingDependencyError, SourceError

if TYPE_CHECKING:
    from gloader.convert.hetero_source import AnySource
    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.edge_names import EdgeNames


def open_pyg(argument: str, options: SourceOptions) -> AnySource:
    """Open a saved ``Data`` or ``HeteroData`` (or a dictionary of its tensors) with x, edge_index, y and masks or ids.

    Without masks, ``options.seed`` decides a random split. Nothing in the file is executed: it is read with
    ``weights_only=True`` and PyTorch Geometric's own data classes, and refused otherwise.

    Raises
    ------
    SourceError
        The file is missing, is not such a file, holds other things, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        Edges have nothing by a name that ``options`` ask for.
    """
    path = Path(argument).expanduser()
    data = _unwrapped(_load(path), path)
    make = hetero_source if is_hetero(data) else data_source
    return make(
        data,
        name=path.stem,
        origin=f"pyg:{argument}",
        where=path,
        seed=options.seed,
        is_mapped=zipfile.is_zipfile(path),
        edge_names=options.edge_names,
        needs_labels=options.needs_labels,
    )


def data_source(
    data: object,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    is_mapped: bool,
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> Source:
    """Return the source over a ``Data``, a dictionary of tensors or what `torch.load` made of either.

    Parameters
    ----------
    data : the object; its tensors count
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    is_mapped : whether its tensors take no memory of their own
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError, ShapeError, ConfigError
        As `open_pyg`.
    """
    found = attributes_of(_entries(data, where), str(where))
    rows = found.features("x")
    labels = found.labels("y", num_nodes=len(rows), needs_labels=needs_labels)
    edges, edge_features = pyg_edges(found, edge_names)
    num_edges = edges.num_edges or 0
    edge_names.require(
        has_times=edges.has_times,
        has_features=edge_features is not None,
        there=found.of_edges(num_edges),
        where=str(where),
    )
    splits = found.splits(len(rows)) or random_splits(labels, seed=seed)
    return Source(
        name=name,
        origin=origin,
        num_nodes=len(rows),
        num_classes=count_classes(labels),
        edges=edges,
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=splits,
        edge_features=edge_features,
        edge_file=where if isinstance(where, Path) else None,
        resident_bytes=0 if is_mapped else sum(found.arrays[each].nbytes for each in found.used),
        said=found.said(),
        unused=tuple(found.unused(num_nodes=len(rows), num_edges=num_edges)),
    )


def _load(path: Path) -> object:
    import torch

    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; pyg: takes a file of torch.save(data)")
    require_plain_archive(path)
    tell_where_cut(path)
    try:
        # Zip files, which torch has written since 1.6, are mapped, so that features larger than memory stream.
        with torch.serialization.safe_globals(_data_classes()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # an unpickler may raise anything on a damaged or hostile file
        raise SourceError(
            f"{path} cannot be read as a saved torch_geometric Data ({_reason(error)}); if it holds other "
            "objects, save the plain tensors with torch.save(data.to_dict(), FILE)"
        ) from error


def _reason(error: Exception) -> str:
    """Return the sentence of torch's long message that says what was refused; it may quote any length of the file."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if "unsupported global" in line.lower()), lines[0])
    return line.rpartition("WeightsUnpickler error:")[2].strip().split(". ")[0].rstrip(".")[:200]


def import_data(need: str) -> Any:
    """Return PyG's class ``Data``; ``need`` says what it is for.

    Raises
    ------
    MissingDependencyError
        PyG is not installed.
    """
    with warnings.catch_warnings():
        # torch_geometric warns about torch's own deprecations at import.
        warnings.simplefilter("ignore")
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise MissingDependencyError.of_extra(need, "pyg") from error
    return Data


def _data_classes() -> list[Any]:
    # A file of plain tensors needs no PyG; one with a Data is then refused with the advice to save it as such.
    try:
        data_class = import_data("a saved Data needs torch-geometric")
    except MissingDependencyError:
        return []
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.hetero_data import HeteroData
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    storages = [BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    return [data_class, HeteroData, DataEdgeAttr, DataTensorAttr, *storages]


def _unwrapped(loaded: object, path: Path | str) -> object:
    # A processed InMemoryDataset is a tuple: data, slices, class.
    if isinstance(loaded, tuple | list) and loaded:
        if len(loaded) > 1 and loaded[1] is not None:
            raise SourceError(f"{path} holds several graphs; save one Data")
        return loaded[0]
    return loaded


def _entries(loaded: object, path: Path | str) -> Mapping[Any, Any]:
    loaded = _unwrapped(loaded, path)
    to_dict = getattr(loaded, "to_dict", None)
    if type(loaded).__name__ == "Data" and to_dict is not None:
        loaded = to_dict()
    if not isinstance(loaded, Mapping):
        raise SourceError(
            f"{path} holds a {type(loaded).__name__}; expected a torch_geometric Data or HeteroData"
        )
    return loaded
