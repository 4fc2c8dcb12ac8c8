"""What is done once, so that features come from the SSD: the commands that prepare a dataset."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Final

from gloader.bridges.migrate.calls import literal
from gloader.bridges.migrate.loading import EDGE_SPLIT

_ELSEWHERE: Final = "in a shell, with the SOURCE of the graph and a folder OUT:"
_PREPARE: Final = "gloader prepare "
_FROM_PYG: Final = "import gloader; gloader.Dataset.from_pyg("
_OGB_LINKS: Final = f"{_PREPARE}ogb:ogbl"
_RELATION: Final = "--edge-split-relation "
# Flags of `gloader prepare`, as keywords of `Dataset.from_pyg`.
_KEYWORDS: Final = {
    "--symmetrize": "symmetrize=True",
    "--add-reverse": "add_reverse=True",
    "--self-loops": "self_loops=True",
    "--deduplicate": "deduplicate=True",
}
# What a flag does that a script may not expect.
_DOES: Final = {
    "--symmetrize": "both directions of each edge, each once: parallel edges become one",
    "--self-loops": "exactly one self loop for each node, whichever it had",
    "--deduplicate": "parallel edges become one, and their weights add up",
    "--add-reverse": "a relation back for each that has none",
    "--add-reverse --symmetrize": "between two types a relation back for each that has none; within a type both "
    "directions of each edge, each once",
}
_SPLIT: Final = f"{EDGE_SPLIT.split()[0]} "


def prepared_with(flags: str) -> str:
    """Return what takes the place of a change to a graph, and how far it is another. Pure."""
    does = _DOES.get(flags)
    return f"prepare the dataset with {flags}" + (f" ({does})" if does else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStep:
    """Something to do once."""

    where: str
    command: str


class PrepareSteps:
    """What is to be done once, while a script is being read."""

    def __init__(self) -> None:
        self.flags: list[str] = []  # of `gloader prepare`
        self._steps: list[PrepareStep] = []

    def add(self, where: str, command: str) -> None:
        """Note what to do once; flags come behind it."""
        step = PrepareStep(where=where, command=command)
        if step not in self._steps:
            self._steps.append(step)

    def flag(self, name: str) -> None:
        """Note a flag of `gloader prepare`."""
        if name not in self.flags:
            self.flags.append(name)

    def split_edges(self, relation: ast.expr | None, *, flag: str = EDGE_SPLIT) -> None:
        """Have link tables made of the edges of ``relation``, as a script writes it, by ``flag``; OGB's have theirs."""
        if any(step.command.startswith(_OGB_LINKS) for step in self._steps):
            return
        if not any(each.startswith(_SPLIT) for each in self.flags):
            self.flag(flag)
        names = [literal(each) for each in relation.elts] if isinstance(relation, ast.Tuple) else []
        if len(names) == 3 and all(isinstance(each, str) for each in names):
            self.flag(_RELATION + ":".join(map(str, names)))

    def complete(self) -> list[PrepareStep]:
        """Return what to do, with every flag."""
        words = "".join(f" {flag}" for flag in self.flags)
        keywords = "".join(f", {_keyword(flag)}" for flag in self.flags)
        found = []
        # Flags of a dataset that another script prepares.
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
    if flag.startswith(_RELATION):
        return f'edge_split_relation="{flag.removeprefix(_RELATION)}"'
    if flag.startswith(_SPLIT):
        shares = (int(each) / 100 for each in flag.removeprefix(_SPLIT).split("/"))
        return f"edge_split=({', '.join(map(str, shares))})"
    return _KEYWORDS[flag]
