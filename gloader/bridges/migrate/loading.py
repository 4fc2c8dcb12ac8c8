"""Lines that load a graph into memory, as lines that open a prepared dataset."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.calls import argument, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.bridges.migrate.source_text import Edits


OGB_CLASSES: Final = frozenset(
    f"ogb.{task}.{module}{library}{name}"
    for task, name in (("nodeproppred", "NodePropPredDataset"), ("linkproppred", "LinkPropPredDataset"))
    for library in ("Dgl", "Pyg")
    for module in ("", f"dataset_{library.lower()}.")
)
"""OGB's loaders of one graph, by their dotted names."""
OGB_UNFIT: Final = {
    "ogbn-proteins": "has 112 labels per node and no node features",
    "ogbl-biokg": "is a knowledge graph of 51 relations with a split that tells them apart",
    "ogbl-vessel": "has features and edges in a layout of its own",
    "ogbl-wikikg2": "is a knowledge graph, whose 535 relations are told apart by numbers beside its edges",
}
"""What `gloader prepare ogb:NAME` refuses: the rest of a sentence that begins with the name."""
OGB_TYPED: Final = {"ogbn-mag": "paper"}
"""Data sets of several types of nodes, and the one that has labels."""
EDGE_SPLIT: Final = "--edge-split 80/10/10"
"""The flag of `gloader prepare` that makes link tables of edges."""
_PLAIN: Final = re.compile(r"[\w.-]+")
# Data sets of DGL whose name is given, where others are given a folder.
_NAMED: Final = ("dgl.data.CitationGraphDataset", "dgl.data.FraudDataset")
_TABLES: Final = (("valid", re.compile(r"val")), ("test", re.compile(r"test")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where the prepared dataset of a loading line is to be."""

    path: str  # data/reddit; data/NAME where the script computes the name
    expression: str  # Python text of it
    name: str  # of the data set


def folder_of(call: ast.Call, dotted: str, edits: Edits) -> Folder:
    """Return a folder for the data set that ``call`` loads, named as it is. Pure."""
    is_ogb, is_pyg = dotted in OGB_CLASSES, dotted.startswith("torch_geometric.")
    given = argument(call, 1 if is_pyg else 0, "name")  # PyG's root comes first
    if given is not None and (is_ogb or is_pyg or dotted in _NAMED):
        name = literal(given)
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            return _plain(name if is_ogb else name.lower(), name)
        if isinstance(given, ast.Name | ast.Attribute):
            return Folder(path="data/NAME", expression=f'f"data/{{{edits.of(given)}}}"', name="NAME")
    if is_ogb:
        return _plain("graph", "NAME")
    last = dotted.rpartition(".")[2]
    short = re.sub(r"(Graph)?Dataset$", "", last) or "graph"
    return _plain(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", short).lower(), last)


def saved_graph(call: ast.Call) -> tuple[str, str]:
    """Return a folder for the graph in the file that ``call`` loads, and the source that reads it. Pure."""
    name = literal(argument(call, 0, "f"))
    if not isinstance(name, str):
        return "data/graph", "pyg:FILE"
    return f"data/{stem_of(name)}", shlex.quote(f"pyg:{name}")


def stem_of(file: str) -> str:
    """Return the name of a file as that of a folder. Pure."""
    return re.sub(r"\W+", "-", file.rpartition("/")[2].partition(".")[0]).lower() or "graph"


def idx_split(owner: str, torch: str, *, ntype: str | None = None) -> str:
    """Return the text of what OGB's ``get_idx_split()`` returns, of the dataset that ``owner`` names. Pure."""
    parts = (
        f'"{name}": {of_type(f"{torch}.tensor({owner}.{name})", ntype)}'
        for name in ("train", "valid", "test")
    )
    return f"{{{', '.join(parts)}}}"


def of_type(text: str, ntype: str | None) -> str:
    """Return the text of a mapping from a type of nodes to what ``text`` says; without a type, of that alone. Pure."""
    return text if ntype is None else f'{{"{ntype}": {text}}}'


def table_of(words: Sequence[str]) -> str:
    """Return which link table is meant, by what a script calls the edges and the loader. Pure."""
    said = " ".join(words)
    return next((name for name, pattern in _TABLES if pattern.search(said)), "train")


def _plain(folder: str, name: str) -> Folder:
    return Folder(path=f"data/{folder}", expression=f'"data/{folder}"', name=name)
