"""The calls of DGL's loaders and samplers, as `gloader.compat.dgl` takes them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import ADVICE, canonical
from gloader.bridges.migrate.calls import items_of, literal
from gloader.bridges.migrate.dgl_names import ALLOWED, EDGE_SAMPLER, LOADERS, NEEDLESS, REFUSED, SAMPLERS
from gloader.bridges.migrate.loading import table_of

if TYPE_CHECKING:
    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Use


_LABELS: Final = (
    "without negatives the link table needs labels: prepare it with --edge-table (docs/links.md), or give "
    "negative_sampler=negative_sampler.Uniform(1)"
)


def change_loading(draft: Draft, use: Use) -> None:
    """Judge the arguments of a loader or a sampler, and name a link table where the seeds are ids of edges."""
    name, statement = canonical(use.name), use.place.statement
    if name in SAMPLERS and isinstance(statement, ast.ClassDef) and use.node in statement.bases:
        draft.find(use.node, f"class {statement.name}", "missing", ADVICE["dgl.dataloading.Sampler"])
    if name not in LOADERS | SAMPLERS | {EDGE_SAMPLER}:
        return
    draft.note_unknown(use)
    if use.call is None:
        return
    given = [(item.name, item.value) for node in (use.call, *use.spread) for item in items_of(node)]
    for said, value in given:
        if said in NEEDLESS:
            draft.find(use.node, f"{said}=", "ignored", NEEDLESS[said])
        elif said in REFUSED and name in LOADERS:
            draft.find(value, f"{said}=", "missing", REFUSED[said])
        elif said in ALLOWED:
            _check(draft, said, value)
    if name in LOADERS:
        _change_seeds(draft, use)
    if name == EDGE_SAMPLER and use.is_written and use.written(4, "negative_sampler") is None:
        draft.find(use.node, use.name, "missing", _LABELS)


def _check(draft: Draft, name: str, value: ast.expr) -> None:
    allowed, advice = ALLOWED[name]
    if not isinstance(value, ast.Constant):
        if name == "mask":
            draft.find(value, f"{name}=", "perhaps missing", advice)
    elif value.value not in allowed:
        draft.find(value, f"{name}=", "missing", advice)


def _change_seeds(draft: Draft, use: Use) -> None:
    sampler = use.argument(2, "graph_sampler")
    edges = use.written(1, "indices") or use.written(1, "eids")
    if sampler is None or sampler.kind != "edge sampler" or edges is None or isinstance(literal(edges), str):
        return
    statement = use.place.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    table = table_of([draft.edits.of(each) for each in (edges, *targets)])
    can_go = draft.edits.replace_node(edges, f'"{table}"')
    found = f'the link table "{table}" (tables are train, valid and test)'
    draft.note(edges, "ids of edges", found, can_go=can_go)
    draft.steps.split_edges(edges.keys[0] if isinstance(edges, ast.Dict) and len(edges.keys) == 1 else None)
