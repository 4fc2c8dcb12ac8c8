"""The description of a raw data folder of DGL's GraphBolt, and its arrays.

`Metadata` is the content of a ``metadata.yaml`` (DGL's "YAML specification" of ``OnDiskDataset``). It opens the arrays
that the file names. A `SeedSet` is an entry of a task's training, validation or test set. The source
``graphbolt:DIR`` makes a graph from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.convert.options import PARTS
from gloader.convert.readers.arrays import mapped_array
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.torch_file import load_tensor
from gloader.core.malformed import read_yaml_mapping, shown
from gloader.dataset.schema import MAX_NODES
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


_METADATA: Final = "metadata.yaml"
_SETS: Final = dict(zip(PARTS, ("train_set", "validation_set", "test_set"), strict=True))
# Names of ids in a set: of nodes (n,), and of node pairs (n, 2).
_SEEDS: Final = ("seeds", "seed_nodes", "node_pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSet:
    """An entry of a task's training, validation or test set."""

    part: str  # train, valid or test
    type: str | None  # a node type or a relation such as "a:r:b"; None in a graph of one type
    arrays: Mapping[str, NDArray[Any]]  # by name, such as seeds and labels
    where: str  # the file and the key, for messages

    @property
    def seeds(self) -> NDArray[Any]:
        """The nodes (n,) or pairs (n, 2)."""
        name = next(name for name in _SEEDS if name in self.arrays)
        seeds = self.arrays[name]
        return seeds[:, 0] if seeds.shape[1:] == (1,) else seeds

    @property
    def has_pairs(self) -> bool:
        """True if the seeds are pairs of nodes."""
        return self.seeds.ndim == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The content of a ``metadata.yaml``."""

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Metadata:
        """Read the description in ``folder``.

        Raises
        ------
        SourceError
            The description is missing or malformed, or the folder is the output of GraphBolt's preprocessing.
        """
        path = folder / _METADATA
        raw = "give the raw folder, whose metadata.yaml lists the files of nodes and edges"
        if not path.is_file() and (folder / "preprocessed").is_dir():
            raise SourceError(f"{folder} has only GraphBolt's preprocessed data, which is never read; {raw}")
        content = read_yaml_mapping(
            path,
            what="the description",
            holds="the graph, features and tasks of a data set",
            error=SourceError,
        )
        if "graph" not in content and "graph_topology" in content:
            raise SourceError(f"{path} describes GraphBolt's preprocessed data, which is never read; {raw}")
        return cls(folder=folder, content=content)

    @property
    def path(self) -> Path:
        """The description."""
        return self.folder / _METADATA

    def files(self) -> list[Path]:
        """Return the description, and every file that it may name. Pure."""
        found, values = [self.path], list[Any]([self.content])
        while values:
            value = values.pop()
            if isinstance(value, dict):
                path = value.get("path")
                found += [self.folder / path] if isinstance(path, str) else []
                values += value.values()
            elif isinstance(value, list):
                values += value
        return found

    def where(self, key: str) -> str:
        """Return the file and the key, for messages."""
        return f"{self.path}: {key}"

    def entries(self, owner: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
        """Return the list of mappings under ``key``, or an empty list. Raises SourceError for another value."""
        value = owner.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise SourceError(
                f"{self.where(where)} is {shown(value)}; it must be a list of entries with keys"
            )
        return value

    def text(self, entry: Mapping[str, Any], key: str, where: str) -> str:
        """Return the text under ``key``. Raises SourceError for another value."""
        value = entry.get(key)
        if not isinstance(value, str) or not value:
            raise SourceError(f"{self.where(where)} has the {key} {shown(value)}; it must be a text")
        return value

    def file(self, entry: Mapping[str, Any], where: str) -> Path:
        """Return the path of an entry's file."""
        return self.folder / self.text(entry, "path", where)

    def array(self, entry: Mapping[str, Any], where: str) -> NDArray[Any]:
        """Return the array in an entry's file, which is memory-mapped. Raises SourceError."""
        path, form = self.file(entry, where), entry.get("format")
        if form == "numpy":
            return mapped_array(NpyFile.open(path))
        if form == "torch":
            return load_tensor(path, missing=f"{self.where(where)} names it")
        raise SourceError(f"{self.where(where)} has the format {shown(form)}; it must be numpy or torch")

    def types(self) -> dict[str | None, int]:
        """Return the number of nodes of each type. The type of a graph of one type may be None."""
        found: dict[str | None, int] = {}
        for entry in self.entries(self.graph, "nodes", "graph.nodes"):
            count, name = entry.get("num"), type_of(entry)
            if type(count) is not int or not 0 <= count <= MAX_NODES:
                raise SourceError(
                    f"{self.where('graph.nodes')} has the num {shown(count)}; it is a number of nodes"
                )
            found[name] = count
        if not found:
            raise SourceError(f"{self.where('graph.nodes')} is missing; it lists the numbers of nodes")
        return found

    @property
    def graph(self) -> Mapping[str, Any]:
        """The part ``graph``, with nodes and edges."""
        value = self.content.get("graph")
        if not isinstance(value, dict):
            raise SourceError(f"{self.where('graph')} is {shown(value)}; it must have nodes and edges")
        return value

    def features(self, domain: str) -> dict[str | None, dict[str, NDArray[Any]]]:
        """Return the arrays of nodes or edges, by type and name. ``domain`` is "node" or "edge"."""
        found: dict[str | None, dict[str, NDArray[Any]]] = {}
        for owner, key in ((self.content, "feature_data"), (self.graph, "feature_data")):
            for entry in self.entries(owner, key, key):
                if entry.get("domain") != domain:
                    continue
                name = self.text(entry, "name", key)
                arrays = found.setdefault(type_of(entry), {})
                if name in arrays:
                    raise SourceError(f"{self.where(key)} has {domain} data {name!r} twice for one type")
                arrays[name] = self.array(entry, f"{key}.{name}")
        return found

    def sets(self) -> list[list[SeedSet]]:
        """Return the sets of each task."""
        return [
            [
                self._seed_set(entry, part, f"tasks.{key}")
                for part, key in _SETS.items()
                for entry in self.entries(task, key, f"tasks.{key}")
            ]
            for task in self.entries(self.content, "tasks", "tasks")
        ]

    def _seed_set(self, entry: Mapping[str, Any], part: str, where: str) -> SeedSet:
        """Return an entry of a set, with its arrays."""
        data = self.entries(entry, "data", f"{where}.data")
        arrays = {
            self.text(each, "name", where): self.array(each, f"{where}.{each.get('name')}") for each in data
        }
        found = SeedSet(part=part, type=type_of(entry), arrays=arrays, where=self.where(where))
        if not set(arrays) & set(_SEEDS):
            raise SourceError(f"{found.where} has {', '.join(arrays) or 'no data'}; it must have seeds")
        if found.seeds.shape[1:] not in ((), (2,)):
            raise ShapeError(f"{found.where} has seeds of shape {found.seeds.shape}; they are (n,) or (n, 2)")
        return found


def type_of(entry: Mapping[str, Any]) -> str | None:
    """Return an entry's type, or None. Some published descriptions call it type_name."""
    name = entry.get("type", entry.get("type_name"))
    return None if name is None else str(name)
