"""The commands that prepare a dataset once, and the lines that open it instead of loading a graph.

`gloader migrate` changes a training script for DGL or PyG into a script for gloader. The changed script opens a dataset
on disk, which a command such as ``gloader prepare ogb:NAME data/NAME`` makes from the script's graph ("prepares").
`folder_of` and `saved_graph` choose the dataset's folder. `PrepareSteps` collects the commands and their flags while a
script is read. A link table is a dataset's list of edges to predict; a dataset may have "train", "valid" and "test".
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.uses import argument, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.bridges.migrate.source_text import Edits


OGB_CLASSES: Final = frozenset(
    f"ogb.{task}.{module}{library}{name}"
    for task, name in (("nodeproppred", "NodePropPredDataset"), ("linkproppred", "LinkPropPredDataset"))
    for library in ("Dgl", "Pyg")
    for module in ("", f"dataset_{library.lower()}.")
)
"""OGB's loaders for single graphs, by their dotted names."""
OGB_UNFIT: Final = {
    "ogbn-proteins": "has 112 labels per node and features of edges only; `gloader prepare ogb:ogbn-proteins FOLDER` "
    "makes node features of them, so change the lines on labels and features by hand",
    "ogbl-biokg": "is a knowledge graph of 51 relations, and its split depends on the relation",
    "ogbl-vessel": "has features and edges in another layout than OGB's other data sets",
    "ogbl-wikikg2": "is a knowledge graph, whose 535 relations are numbers next to its edges",
}
"""Why the lines about a data set stay as they are: the rest of a sentence after the name."""
OGB_TYPED: Final = {"ogbn-mag": "paper"}
"""Data sets with several node types, and the type that has labels."""
EDGE_SPLIT: Final = "--edge-split 80/10/10"
"""The flag for `gloader prepare` that makes link tables of edges."""
_PLAIN: Final = re.compile(r"[\w.-]+")  # a data set's name that can be a folder's name
# DGL's data sets with a name argument instead of a folder.
_NAMED: Final = ("dgl.data.CitationGraphDataset", "dgl.data.FraudDataset")
_TABLES: Final = (
    ("valid", re.compile(r"val")),
    ("test", re.compile(r"test")),
)  # link tables, and the text in a script's names that points to them


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder of the prepared dataset that a line of the script opens."""

    path: str  # data/reddit; data/NAME if the script computes the name
    expression: str  # the path as a Python expression, which may contain a variable of the script
    # The data set's name if the call has one, such as "ogbn-arxiv". NAME if it is computed or missing. A class for only
    # one data set has the class's name, such as "CoraGraphDataset".
    name: str


def folder_of(call: ast.Call, dotted: str, edits: Edits) -> Folder:
    """Return a folder, named after the data set that ``call`` loads. Pure.

    Parameters
    ----------
    call : the call of a data set's class
    dotted : the class's full name, such as "dgl.data.RedditDataset"
    edits : the script's text
    """
    is_ogb, is_pyg = dotted in OGB_CLASSES, dotted.startswith("torch_geometric.")
    given = argument(call, 1 if is_pyg else 0, "name")  # PyG's root comes first
    if given is not None and (is_ogb or is_pyg or dotted in _NAMED):
        name = literal(given)
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            # OGB's names keep their case, as in the command: ``gloader prepare ogb:ogbn-papers100M``.
            return _plain(name if is_ogb else name.lower(), name)
        if isinstance(given, ast.Name | ast.Attribute):
            return Folder(path="data/NAME", expression=f'f"data/{{{edits.of(given)}}}"', name="NAME")
    if is_ogb:  # the name is missing, or the result of a longer expression
        return _plain("graph", "NAME")
    # A class such as CoraGraphDataset or AmazonCoBuyComputerDataset has the data set's name in its own name. Their
    # folders are data/cora and data/amazon-co-buy-computer.
    last = dotted.rpartition(".")[2]
    short = re.sub(r"(Graph)?Dataset$", "", last) or "graph"
    return _plain(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", short).lower(), last)


def saved_graph(call: ast.Call) -> tuple[str, str]:
    """Return a folder for the graph that ``call``, a ``torch.load``, loads, and `gloader prepare`'s source. Pure."""
    name = literal(argument(call, 0, "f"))
    if not isinstance(name, str):
        return "data/graph", "pyg:FILE"
    return f"data/{stem_of(name)}", shlex.quote(f"pyg:{name}")


def stem_of(file: str) -> str:
    """Return a folder name from a file's name. Pure."""
    return re.sub(r"\W+", "-", file.rpartition("/")[2].partition(".")[0]).lower() or "graph"


def idx_split(owner: str, torch: str, *, ntype: str | None = None) -> str:
    """Return Python text that computes OGB's ``get_idx_split()`` for a gloader dataset. Pure.

    Parameters
    ----------
    owner : the dataset, as text
    torch : the script's name for the module torch
    ntype : the node type with the splits; None for one node type
    """
    parts = (
        f'"{name}": {of_type(f"{torch}.tensor({owner}.{name})", ntype)}'
        for name in ("train", "valid", "test")
    )
    return f"{{{', '.join(parts)}}}"


def of_type(text: str, ntype: str | None) -> str:
    """Return the text for a mapping from a node type to ``text``; without a type, ``text`` itself. Pure."""
    return text if ntype is None else f'{{"{ntype}": {text}}}'


def table_of(words: Sequence[str]) -> str:
    """Return the likely link table, from a script's names for the edges and the loader. Pure.

    For example, ("val_edges", "loader") gives "valid". Names without "val" and "test" give "train".
    """
    text = " ".join(words)
    return next((name for name, pattern in _TABLES if pattern.search(text)), "train")


def _plain(folder: str, name: str) -> Folder:
    """Return the folder data/``folder`` for the data set ``name``."""
    return Folder(path=f"data/{folder}", expression=f'"data/{folder}"', name=name)


# Texts of steps, and beginnings of their commands.
_ELSEWHERE: Final = "in a shell, with the SOURCE of the graph and a folder OUT:"
_PREPARE: Final = "gloader prepare "
_FROM_PYG: Final = "import gloader; gloader.Dataset.from_pyg("
_OGB_LINKS: Final = f"{_PREPARE}ogb:ogbl"
_RELATION: Final = "--edge-split-relation "
# Flags for `gloader prepare`, and the keywords for `Dataset.from_pyg`.
_KEYWORDS: Final = {
    "--symmetrize": "symmetrize=True",
    "--add-reverse": "add_reverse=True",
    "--self-loops": "self_loops=True",
    "--deduplicate": "deduplicate=True",
}
# Effects that a script may not expect, by a flag or by two flags in the order in which `pyg_calls` joins them.
_DOES: Final = {
    "--symmetrize": "both directions of each edge, each once: parallel edges become one",
    "--self-loops": "exactly one self loop for each node, also if it had none or several",
    "--deduplicate": "parallel edges become one, and their weights add up",
    "--add-reverse": "a reverse relation for each relation without one",
    "--add-reverse --symmetrize": "between two types a reverse relation for each relation without one; within a type "
    "both directions of each edge, each once",
}
_SPLIT: Final = f"{EDGE_SPLIT.split()[0]} "  # beginning of a flag with any shares: "--edge-split "


def prepared_with(flags: str) -> str:
    """Return text that names the ``flags`` and their effects. Pure.

    The flags replace a script's call that changes the graph, such as ``dgl.add_self_loop``.
    """
    does = _DOES.get(flags)
    return f"prepare the dataset with {flags}" + (f" ({does})" if does else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStep:
    """A command that a user runs once, to prepare the dataset."""

    where: str  # the place for the command, such as "in a shell:"
    command: str


class PrepareSteps:
    """The steps to do once, collected while a script is read."""

    def __init__(self) -> None:
        self.flags: list[str] = []  # flags for `gloader prepare`
        self._steps: list[PrepareStep] = []

    def add(self, where: str, command: str) -> None:
        """Note a step to do once; the flags are added to its command later."""
        step = PrepareStep(where=where, command=command)
        if step not in self._steps:
            self._steps.append(step)

    def flag(self, name: str) -> None:
        """Note a flag for `gloader prepare`."""
        if name not in self.flags:
            self.flags.append(name)

    def split_edges(self, relation: ast.expr | None, *, flag: str = EDGE_SPLIT) -> None:
        """Add ``flag``, which makes link tables of ``relation``. OGB's datasets have such tables and need no flag."""
        if any(step.command.startswith(_OGB_LINKS) for step in self._steps):
            return
        if not any(each.startswith(_SPLIT) for each in self.flags):
            self.flag(flag)
        names = [literal(each) for each in relation.elts] if isinstance(relation, ast.Tuple) else []
        if len(names) == 3 and all(isinstance(each, str) for each in names):
            self.flag(_RELATION + ":".join(map(str, names)))

    def complete(self) -> list[PrepareStep]:
        """Return the steps, with all flags added to their commands."""
        words = "".join(f" {flag}" for flag in self.flags)
        keywords = "".join(f", {_keyword(flag)}" for flag in self.flags)
        found = []
        # With flags but no steps, the script gets its graph from elsewhere. A general command then has the flags.
        others = (
            []
            if self._steps or not self.flags
            else [PrepareStep(where=_ELSEWHERE, command=f"{_PREPARE}SOURCE OUT")]
        )
        for step in self._steps or others:
            command = step.command
            if command.startswith(_PREPARE):
                command += words
            elif command.startswith(_FROM_PYG):
                command = f"{command.removesuffix(')')}{keywords})"
            found.append(replace(step, command=command))
        return found


def _keyword(flag: str) -> str:
    """Return a flag of `gloader prepare` as a keyword for `Dataset.from_pyg`."""
    if flag.startswith(_RELATION):
        return f'edge_split_relation="{flag.removeprefix(_RELATION)}"'
    if flag.startswith(_SPLIT):
        shares = (int(each) / 100 for each in flag.removeprefix(_SPLIT).split("/"))
        return f"edge_split=({', '.join(map(str, shares))})"
    return _KEYWORDS[flag]
