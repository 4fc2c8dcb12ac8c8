"""What becomes of the transforms of a script of PyG."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.calls import argument, literal
from gloader.bridges.migrate.loading import EDGE_SPLIT, OGB_CLASSES
from gloader.bridges.migrate.prepare_steps import prepared_with
from gloader.bridges.migrate.pyg_names import TO_DEVICE, advice_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Use


TRANSFORMS: Final = "torch_geometric.transforms."
# What `gloader prepare` does in the place of a transform.
_FLAGS: Final = {
    "ToUndirected": "--symmetrize",
    "AddSelfLoops": "--self-loops",
    "AddRemainingSelfLoops": "--self-loops",
    "RemoveDuplicatedEdges": "--deduplicate",
    "RandomLinkSplit": EDGE_SPLIT,
}
_SPLIT: Final = f"{TRANSFORMS}RandomLinkSplit"
_SHARES: Final = (0.1, 0.2)  # of validation and of testing, by default
_MERGES: Final = frozenset({"--symmetrize", "--deduplicate"})
_EDGE_VALUES: Final = frozenset(
    {"edge_attr", "edge_weight", "edge_attr_dict", "edge_weight_dict", "weight_attr"}
)
_OTHER_VALUES: Final = (
    "; PyG adds up the values of edges that become one, and a dataset has the features of the first and, of two "
    "directions, the larger weight"
)


class Transforms:
    """The transforms of a script, and which of them its data sets apply by themselves.

    Parameters
    ----------
    draft : of the script
    datasets : calls that make data sets in memory
    is_typed : whether the graph has several types
    """

    def __init__(self, draft: Draft, datasets: Iterable[ast.Call], *, is_typed: bool) -> None:
        self._draft = draft
        self._is_typed = is_typed
        uses = draft.script.uses
        self._is_ogb = any(use.name in OGB_CLASSES for use in uses)
        names = {use.name.rpartition(".")[2] for use in uses if use.name.startswith(TRANSFORMS)}
        self._splits_edges = _SPLIT.rpartition(".")[2] in names
        named = {getattr(node, "attr", getattr(node, "arg", literal(node))) for node in ast.walk(draft.tree)}
        self._has_edge_values = bool(named & _EDGE_VALUES)
        self.changes_rows = bool(names - {*_FLAGS, "Compose", "ToDevice"})  # by what no flag does
        given = [each for call in datasets for each in (argument(call, 1, "transform"), _pre(call)) if each]
        within = [node for each in given for node in ast.walk(each)]
        self._nodes = {id(node) for node in within}
        self._names = {node.id for node in within if isinstance(node, ast.Name)}

    def judge(self, use: Use) -> None:
        """Note what becomes of one."""
        draft, last = self._draft, use.name.rpartition(".")[2]
        edits = draft.edits
        if edits.is_replaced(edits.start(use.node), edits.end(use.node)):
            draft.replaced.add(id(use.node))
        if advice := advice_of_name(use.name):
            draft.find(use.node, use.name, "missing", advice)
        elif last == "ToDevice":
            draft.find(use.node, use.name, "ignored", TO_DEVICE)
        elif last in _FLAGS and (use.name == _SPLIT or self._is_ogb or not self._is_handed(use)):
            self._change(use, [_FLAGS[last]])
        elif last != "Compose" and self._is_ogb:
            draft.find(use.node, use.name, "missing", "apply it to the batches, in the loop")
        elif last != "Compose":
            draft.find(use.node, use.name, "stays", "PyG, before the graph is saved")

    def _change(self, use: Use, flags: list[str]) -> None:
        """Note the flags that take the place of a transform, and what they do in another way."""
        draft, but = self._draft, ""
        if use.name == _SPLIT and use.call is not None:
            flags = [self._split(use.call)]
        elif use.name == f"{TRANSFORMS}ToUndirected" and self._is_typed:
            merge = None if use.call is None else argument(use.call, 1, "merge")
            flags = ["--add-reverse", *([] if literal(merge) is False else flags)]
            if merge is not None and not isinstance(literal(merge), bool):
                but = "; without --symmetrize where merge is False, which is not known before the script runs"
        elif self._is_typed and flags == ["--self-loops"]:
            but = ", which is refused where a relation runs between two types: add them to the graph before it is saved"
        if self._has_edge_values and _MERGES & set(flags):
            but += _OTHER_VALUES
        for flag in flags:
            draft.steps.flag(flag)
        draft.find(
            use.node, use.name, "perhaps missing" if but else "changes", prepared_with(" ".join(flags)) + but
        )

    def _split(self, call: ast.Call) -> str:
        """Return the flag of a RandomLinkSplit, and note of which relation it is."""
        types = argument(call, 8, "edge_types")
        relations = types.elts if isinstance(types, ast.List | ast.Tuple) else []
        if len(relations) == 1:
            self._draft.steps.split_edges(relations[0], flag=_edge_split(call))
        elif relations:
            self._draft.find(call, "edge_types=", "missing", "links are split in one relation of a dataset")
        return _edge_split(call)

    def left_out(self) -> str:
        """Return what to say of transforms that the graph is to be saved without."""
        return ", and without RandomLinkSplit" if self._splits_edges else ""

    def _is_handed(self, use: Use) -> bool:
        """Return whether a data set is made with it: what is saved of that has been transformed."""
        statement = use.place.statement
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        named = {each.id for each in targets if isinstance(each, ast.Name)}
        return id(use.node) in self._nodes or bool(named & self._names)


def _edge_split(call: ast.Call) -> str:
    """Return the flag for the shares that a RandomLinkSplit takes; where they are not known, the usual ones. Pure."""
    given = (argument(call, 0, "num_val"), argument(call, 1, "num_test"))
    shares = [
        default if each is None else literal(each) for each, default in zip(given, _SHARES, strict=True)
    ]
    parts = [round(100 * each) if isinstance(each, float) and 0 <= each < 1 else -1 for each in shares]
    if min(parts) < 0 or sum(parts) >= 100:
        return EDGE_SPLIT
    return f"{EDGE_SPLIT.split()[0]} {100 - sum(parts)}/{parts[0]}/{parts[1]}"


def without_split(call: ast.Call) -> str:
    """Return the text of a loading call without a transform that makes three graphs of one. Pure."""
    keywords = [each for each in call.keywords if "RandomLinkSplit" not in ast.unparse(each.value)]
    return ast.unparse(ast.Call(func=call.func, args=call.args, keywords=keywords))


def _pre(call: ast.Call) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == "pre_transform"), None)
