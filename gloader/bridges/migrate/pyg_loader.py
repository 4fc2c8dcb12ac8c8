"""The call of a loader of PyG, as gloader's loader of the same name takes it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.calls import items_of, literal
from gloader.bridges.migrate.loading import table_of
from gloader.bridges.migrate.pyg_names import DROPPED, REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.bridges.migrate.calls import Item
    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Use


_NEGATIVES: Final = ": a table that `--edge-split` makes has no labels, so negatives are drawn"
_NEGATIVES_AT: Final = {"neg_sampling": 9, "neg_sampling_ratio": 10}
_SAYS_NEGATIVES: Final = frozenset({"edge_label", "neg_sampling", "neg_sampling_ratio"})
_DEFAULTS: Final = {"subgraph_type": "directional", "directed": True, "disjoint": False, "replace": False}


def data_argument(use: Use) -> ast.expr | None:
    """Return what a loader is given as its graph. Pure."""
    return use.written(0, "data")


def change_loader(draft: Draft, use: Use, *, has_labels: bool) -> None:
    """Change the arguments of a loader: those that go, those that say another thing, those that nothing takes.

    Parameters
    ----------
    draft, use : of the script, and of the loader in it
    has_labels : the link tables may have labels of their own, and negatives, as OGB's do
    """
    draft.note_unknown(use)
    needs_negatives, call = False, use.call
    if call is None:
        return
    if use.name.endswith("LinkNeighborLoader"):
        _name_the_table(draft, use)
        needs_negatives = not has_labels and not _has_negatives(use)
    items = sorted(items_of(call), key=lambda item: draft.edits.start(item.first))
    goes = _judge(draft, items, end=draft.edits.end(call) - 1, needs_negatives=needs_negatives)
    stays = [item for number, item in enumerate(items) if number not in goes]
    if needs_negatives and stays and not any(item.name in _SAYS_NEGATIVES for item in items):
        at, new = draft.edits.end(stays[-1].last), 'neg_sampling="binary"'
        can_go = draft.edits.replace(at, at, f", {new}")
        draft.note(use.node, "neg_sampling=", new + _NEGATIVES, can_go=can_go)
    for mapping in use.spread:
        if id(mapping) not in draft.replaced:
            draft.replaced.add(id(mapping))
            _judge(draft, items_of(mapping), end=draft.edits.end(mapping) - 1)


def _has_negatives(use: Use) -> bool:
    """Return whether a loader of links may be given negatives: by a name, or by what is not known."""
    given = [use.written(place, name) for name, place in _NEGATIVES_AT.items()]
    values = [each for each in given if each is not None]
    return not use.is_written or any(
        not isinstance(each, ast.Constant) or bool(each.value) for each in values
    )


def _judge(draft: Draft, items: Sequence[Item], *, end: int, needs_negatives: bool = False) -> list[int]:
    """Change the items of a call, or of a mapping, which a bracket at ``end`` closes; return the numbers that go."""
    goes: list[int] = []
    says_negatives = next((item.name for item in items if item.name in _SAYS_NEGATIVES), None)
    for number, item in enumerate(items):
        name, value, said = item.name, literal(item.value), f"{item.name}="
        if not isinstance(name, str):
            continue
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            goes.append(number)
            draft.find(item.value, said, "ignored", "what a loader does anyway")
        elif name == "replace" and value is True:
            _replace(draft, item, "sampler", "neighbor:replace=true")
        elif name == "weight_attr":
            _replace(draft, item, "sampler", "weighted")
        elif name in {"directed", "replace"}:
            advice = f"give {name}={_DEFAULTS[name]}: others are not known before the script runs"
            draft.find(item.value, said, "missing", advice)
        elif name in _SAYS_NEGATIVES and needs_negatives and name != says_negatives:
            goes.append(number)
            draft.find(item.value, said, "ignored", "negatives are drawn, and come with labels")
        elif name in _SAYS_NEGATIVES and needs_negatives:
            _replace(draft, item, "neg_sampling", "binary", why=_NEGATIVES)
        elif name == "edge_label":
            goes.append(number)
            draft.find(
                item.value, said, "ignored", "negatives come with labels, and so do tables that have some"
            )
        elif name in DROPPED:
            goes.append(number)
            draft.find(item.value, said, "ignored", DROPPED[name])
        elif name in REFUSED:
            draft.find(item.value, said, "missing", REFUSED[name])
    ranges = [(item.first, item.last) for item in items]
    if goes and not draft.edits.delete_items(ranges, goes, end):
        draft.by_hand(items[goes[0]].value, ", ".join(f"{items[number].name}=" for number in goes))
    return goes


def _replace(draft: Draft, item: Item, name: str, value: str, *, why: str = "") -> None:
    new = f'{name}="{value}"' if isinstance(item.first, ast.keyword) else f'"{name}": "{value}"'
    can_go = draft.edits.replace(draft.edits.start(item.first), draft.edits.end(item.last), new)
    draft.note(item.value, f"{item.name}=", new + why, can_go=can_go)


def _name_the_table(draft: Draft, use: Use) -> None:
    """Name a link table in the place of pairs, by what the script calls the graph, the pairs and the loader."""
    pairs = use.written(2, "edge_label_index")
    if pairs is None:
        draft.steps.split_edges(None)
        return
    node = use.place.statement
    said = [each for each in (data_argument(use), pairs) if each is not None]
    said += node.targets if isinstance(node, ast.Assign) else []
    table = table_of([draft.edits.of(each) for each in said])
    can_go = draft.edits.replace_node(pairs, f'"{table}"')
    found = f'the link table "{table}" (tables are train, valid and test)'
    draft.note(pairs, "edge_label_index=", found, can_go=can_go)
    draft.steps.split_edges(pairs.elts[0] if isinstance(pairs, ast.Tuple) and pairs.elts else None)
