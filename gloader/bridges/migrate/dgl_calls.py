"""A DGL script's imports and calls, and their forms in `gloader.compat.dgl`, for `dgl_script`.

First come tables of the calls that return graphs, and of the arguments that change. A kind is a label for the value
that a variable holds, such as "graph" or "loader". `LIBRARY` has the kinds of DGL's values, with which `read_uses`
follows the script's variables. A "built" graph is made by the script, a "frame" is a graph's node or edge data, and
"spaces" are ``g.nodes`` and ``g.edges``. Then come the functions that change imports
(`change_import`) and the arguments of loaders and samplers (`change_loading`). Some DGL examples have a helper function
that numbers reverse edges. `leave_out_numbering` removes it, because a dataset has each edge's reverse.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import (
    ADVICE,
    BLOCK_NAMES,
    GRAPH_NAMES,
    SURFACE,
    advice_of,
    canonical,
    is_here,
)
from gloader.bridges.migrate.draft import change_from, is_needed, uses_of
from gloader.bridges.migrate.prepare_steps import OGB_CLASSES
from gloader.bridges.migrate.uses import Library, items_of, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Import, Kind, Use


LOADERS: Final = frozenset({"dgl.dataloading.DataLoader", "dgl.dataloading.NodeDataLoader"})
"""Mini-batch loaders; the second is an old name for the first, with the same arguments."""
SAMPLERS: Final = frozenset(
    f"dgl.dataloading.{name}"
    for name in ("NeighborSampler", "MultiLayerNeighborSampler", "MultiLayerFullNeighborSampler")
)
EDGE_SAMPLER: Final = "dgl.dataloading.as_edge_prediction_sampler"
MANY_GRAPHS: Final = frozenset(
    {"BA2MotifDataset", "FakeNewsDataset", "GINDataset", "GraphClassificationDataset", "LegacyTUDataset"}
    | {"MiniGCDataset", "PATTERNDataset", "CLUSTERDataset", "PPIDataset", "QM7bDataset", "QM9Dataset"}
    | {"QM9EdgeDataset", "SBMMixtureDataset", "SSTDataset", "TUDataset", "TreeGridDataset", "ZINCDataset"}
)
"""Data sets in `dgl.data` with many graphs."""
FLAGS: Final = {
    "add_self_loop": "--self-loops",
    "to_bidirected": "--symmetrize",
    "add_reverse_edges": "--symmetrize",
    "to_simple": "--deduplicate",
    "remove_self_loop": "",
}
"""Functions that change a graph, with the flag for `gloader prepare` that replaces each.

`remove_self_loop` has no flag. It is needless if the script also needs --self-loops, and otherwise it is missing.
"""
STORED: Final = frozenset({"feat", "label", "train_mask", "val_mask", "test_mask", "weight", "edge_time"})
"""A graph's data that a dataset keeps."""
NEEDLESS: Final = {
    "num_workers": "threads sample and read ahead, in place of worker processes",
    "persistent_workers": "threads sample and read ahead, in place of worker processes",
    "prefetch_factor": "the loader plans how far ahead it reads",
    "use_uva": "the graph is not pinned: features come from the SSD through a cache",
    "ddp_seed": "dgl.seed(n) is the seed of all ranks",
    "use_prefetch_thread": "batches are always read ahead",
    "use_alternate_streams": "copies to the device always run during the computation",
    "pin_prefetcher": "batches are sent through pinned memory if possible",
    "gpu_cache": "device_cache= holds hot rows on the device (docs/gpu.md)",
    "reverse_eids": "a dataset knows which edges lead back",
    "reverse_etypes": "a dataset knows which edges lead back",
}
"""Arguments that `gloader.compat.dgl` accepts for loaders and samplers, and ignores."""
REFUSED: Final = {
    "sampler": "give an epoch's nodes as indices, with shuffle=",
    "batch_sampler": "give an epoch's nodes as indices, with batch_size= and shuffle=",
    "collate_fn": "batches are made by the loader: change them in the loop",
    "generator": "dgl.seed(n) is the key for order and sampling",
    "timeout": "stall_timeout_s= sets the seconds that a stage may stand still",
    "multiprocessing_context": "threads sample and read ahead: leave it out",
}
"""Arguments for torch's loader that `gloader.compat.dgl` refuses, with the replacement for each."""
ALLOWED: Final[dict[str, tuple[tuple[object, ...], str]]] = {
    "edge_dir": (("in",), "neighbours come from in-edges: reverse the edges before the export"),
    "replace": ((False,), "neighbours are drawn without replacement"),
    "mask": ((None,), "leave the edges out before the export"),
    "prob": ((None, "weight"), 'a dataset calls the weights of its edges "weight"'),
    "exclude": (
        (None, "self", "reverse_id", "reverse_types"),
        "exclude is None, 'self', 'reverse_id' or 'reverse_types'",
    ),
}
"""The values that `gloader.compat.dgl` accepts for other arguments, with the advice for all other values."""

_BUILDERS = ("graph", "heterograph", "bipartite", "from_networkx", "from_scipy", "rand_graph", "knn_graph")
# The kind of the value that a call of each name returns.
_KINDS: Final[dict[str, Kind]] = {
    **{f"dgl.{name}": "built" for name in _BUILDERS},
    **{f"dgl.{name}": "graph" for name in ("DGLGraph", "node_subgraph", "edge_subgraph", "to_homogeneous")},
    **dict.fromkeys(LOADERS, "loader"),
    **dict.fromkeys(SAMPLERS, "sampler"),
    EDGE_SAMPLER: "edge sampler",
    "dgl.load_graphs": "loaded",
}


def kind_of_call(name: str) -> Kind:
    """Return the kind of the result if ``name`` is called. Pure."""
    if name in OGB_CLASSES:
        return "dataset"
    found = canonical(name)
    last = found.rpartition(".")[2]
    if found.startswith("dgl.data.") and last.endswith("Dataset") and last not in MANY_GRAPHS:
        return "dataset"
    return _KINDS.get(found, "graph" if found.startswith("dgl.") and last in FLAGS else "")


# Kinds of graphs, methods whose results have the kind of their graph, and the kinds of full graphs.
_GRAPHS = ("graph", "built", "block", "graph or block")
_SAME_AFTER = ("to", "int", "long", "cpu", "local_var", "formats", *FLAGS)
_WHOLE = ("graph", "built")
LIBRARY: Final = Library(
    kind_of_call=kind_of_call,
    # These functions return their graph argument, changed, so the result has the argument's kind.
    hands_on=lambda name: name.startswith("dgl.") and name.rpartition(".")[2] in FLAGS,
    methods={(kind, name): kind for kind in _GRAPHS for name in _SAME_AFTER},
    attributes={
        **{(kind, data): f"frame of {kind}" for kind in _WHOLE for data in ("ndata", "edata")},
        **{(kind, space): f"spaces of {kind}" for kind in _WHOLE for space in ("nodes", "edges")},
        **{(f"space of {kind}", "data"): f"frame of {kind}" for kind in _WHOLE},
    },
    # The kind of x[...], by the kind of x. OGB's dataset[0] is a pair, so a "graph" may also be this pair, and its [0].
    items={
        **{f"spaces of {kind}": f"space of {kind}" for kind in _WHOLE},
        "dataset": "graph",
        "blocks": "block",
        "graphs": "graph",
        "loaded": "graphs",
        "graph": "graph",
    },
    # The kind of a list comprehension, by the kind of its entries.
    several={"block": "blocks", "graph": "graphs"},
    # The kinds of the variables that a value is unpacked to, in a loop or an assignment. The number in the key is the
    # number of variables; 0 stands for any number. The three variables of a loader's loop are input nodes, output nodes
    # and blocks; for link prediction, a loop has input nodes, pair graph, negative graph and blocks.
    loops={
        ("loader", 1): ("",),
        ("loader", 3): ("", "", "blocks"),
        ("loader", 4): ("", "block", "block", "blocks"),
        ("blocks", 1): ("block",),
        ("blocks", 0): ("block",),
        ("graphs", 0): ("graph",),
        ("loaded", 2): ("graphs", ""),
        ("graph", 2): ("graph", ""),
    },
    # The kinds of function parameters with names that are usual in DGL's examples.
    parameters={
        **dict.fromkeys(("g", "graph", "hg"), "graph or block"),
        **dict.fromkeys(("block", "mfg", "pos_graph", "neg_graph", "pair_graph", "positive_graph"), "block"),
        **dict.fromkeys(("blocks", "mfgs"), "blocks"),
    },
)
"""The kinds of values that a DGL script's variables hold."""
NAMES: Final = {
    "graph": GRAPH_NAMES,
    "built": GRAPH_NAMES,
    "block": BLOCK_NAMES,
    "graph or block": GRAPH_NAMES | BLOCK_NAMES,
}
"""The attributes that gloader's graphs and blocks have, by the kind of value."""


OURS: Final = "gloader.compat."  # prefix of a DGL module's name: dgl.nn is replaced by gloader.compat.dgl.nn
COMPAT: Final = "import gloader.compat.dgl as dgl"


def change_import(draft: Draft, group: Sequence[Import], *, has_loader: bool) -> None:
    """Change an import statement, and judge its unused names.

    Parameters
    ----------
    draft : the script's draft
    group : the statement's names
    has_loader : True if the script has a mini-batch loader. Only then the migrated script is to run without DGL,
        because gloader replaces DGL for mini-batch training only.
    """
    statement = group[0].statement
    if isinstance(statement, ast.ImportFrom):
        if group[0].dotted.startswith(("dgl.", "ogb.")):
            for one in group:
                _judge(draft, one, has_loader=has_loader)
            modules = {one.dotted: module for one in group if (module := _module_of(one)) is not None}
            change_from(draft, group, modules=modules, renamed={"NodeDataLoader": "DataLoader"})
        return
    for one in group:
        if not f"{one.dotted}.".startswith("dgl."):  # with the dot, "dglgo" does not match
            continue
        alias, name, is_alone = one.alias, canonical(one.dotted), len(group) == 1
        if alias.asname is None:  # `import dgl.nn` binds the name dgl
            if not (
                is_alone and _is_twice(draft, one) and draft.edits.delete_statement(statement, one.place.body)
            ):
                draft.edits.replace_node(alias, COMPAT.removeprefix("import "))
        elif name in SURFACE:  # a module that `gloader.compat` has
            draft.edits.replace_node(alias, f"{OURS}{name} as {alias.asname}")
        else:
            _judge(draft, one, has_loader=has_loader)
            if is_alone and not is_needed(draft, one):
                draft.edits.delete_statement(statement, one.place.body)


def _judge(draft: Draft, one: Import, *, has_loader: bool) -> None:
    """Note the verdict on an imported name of DGL, if the script never uses it.

    The verdict is "maps" if gloader has the name, "changes" if the import is removed, and "missing" otherwise.
    """
    name = canonical(one.dotted)  # DGL's main public name
    if uses_of(draft, one) or not name.startswith("dgl.") or name in SURFACE:
        return
    if is_here(name) or name in LOADERS:
        draft.find(one.statement, one.dotted, "maps", OURS + name.rpartition(".")[0])
    elif one.alias.name == "*":
        if not is_here(name.removesuffix(".*")):
            draft.find(one.statement, one.dotted, "missing", advice_of(name))
    elif has_loader:
        draft.replaced.add(id(one.alias))  # so `is_needed` returns False, and the import is removed
        draft.find(one.statement, one.dotted, "changes", "it is not used: its import goes")
    else:
        draft.find(one.statement, one.dotted, "missing", advice_of(name))


def _is_twice(draft: Draft, one: Import) -> bool:
    """Return True if an earlier ``import dgl`` or ``import dgl.nn`` in the same block binds the name dgl."""
    # The imports of this form in the same block, in order. The first one is no repetition; all later ones are.
    plain = (
        each
        for each in draft.script.imports
        if isinstance(each.statement, ast.Import) and each.alias.asname is None
        and each.place.body is one.place.body and re.match(r"dgl(\.|$)", each.dotted)
    )  # fmt: skip
    return next(plain) is not one


def _module_of(one: Import) -> str | None:
    """Return the gloader module that has an imported name, or None. The name may be "*"."""
    name = canonical(one.dotted)
    known = name.removesuffix(".*") if name.endswith(".*") else name
    if not (is_here(known) or name in LOADERS):
        return None
    return OURS + (known if name != known else name.rpartition(".")[0])


_LABELS: Final = (
    "without negatives the link table needs labels: prepare it with --edge-table (docs/links.md), or give "
    "negative_sampler=negative_sampler.Uniform(1)"
)


def change_loading(draft: Draft, use: Use) -> None:
    """Judge a loader's or sampler's arguments, and name a link table if the seeds are edge ids."""
    name, statement = canonical(use.name), use.place.statement
    if name in SAMPLERS and isinstance(statement, ast.ClassDef) and use.node in statement.bases:
        draft.find(use.node, f"class {statement.name}", "missing", ADVICE["dgl.dataloading.Sampler"])
    if name not in LOADERS | SAMPLERS | {EDGE_SAMPLER}:
        return
    # Notes "perhaps missing" if the script does not spell out all arguments, or does not call the class.
    draft.note_unknown(use)
    if use.call is None:
        return
    # Names and nodes of all arguments: from the call, and from the mappings after ** (``spread``).
    given = [(item.name, item.value) for node in (use.call, *use.spread) for item in items_of(node)]
    for keyword, value in given:
        if keyword in NEEDLESS:
            draft.find(use.node, f"{keyword}=", "ignored", NEEDLESS[keyword])
        elif keyword in REFUSED and name in LOADERS:
            draft.find(value, f"{keyword}=", "missing", REFUSED[keyword])
        elif keyword in ALLOWED:
            _check(draft, keyword, value)
    if name in LOADERS:
        _change_seeds(draft, use)
    # Only if all arguments are written in the script does the absence of this one mean that there are no negatives.
    if name == EDGE_SAMPLER and use.is_written and use.written(4, "negative_sampler") is None:
        draft.find(use.node, use.name, "missing", _LABELS)


def _check(draft: Draft, name: str, value: ast.expr) -> None:
    """Note the argument ``name`` as missing if `ALLOWED` lacks its ``value``. A computed value may be allowed."""
    allowed, advice = ALLOWED[name]
    if not isinstance(value, ast.Constant):
        if name == "mask":
            draft.find(value, f"{name}=", "perhaps missing", advice)
    elif value.value not in allowed:
        draft.find(value, f"{name}=", "missing", advice)


def _change_seeds(draft: Draft, use: Use) -> None:
    """Replace a loader's edge ids by the name of a link table, which lists the edges to predict."""
    sampler = use.argument(2, "graph_sampler")  # the argument's value, as inferred
    # The argument's node in the script.
    edges = use.written(1, "indices") or use.written(1, "eids")
    if sampler is None or sampler.kind != "edge sampler" or edges is None or isinstance(literal(edges), str):
        return
    draft.name_table(edges, "ids of edges", use, ())  # (): no further expressions hint at the table
    # With several types, the ids are a mapping {relation: ids}. Its only key is the relation to split.
    draft.steps.split_edges(edges.keys[0] if isinstance(edges, ast.Dict) and len(edges.keys) == 1 else None)


def leave_out_numbering(draft: Draft) -> tuple[set[str], set[int]]:
    """Remove each function that numbers the reverse edges of a graph, and replace its calls.

    DGL's examples define such a function around ``to_simple(add_reverse_edges(g), writeback_mapping=True)``. It returns
    the new graph and the edge numbers. A call of it is replaced by the pair of its graph argument and
    None. The edge numbers may be None, because gloader ignores them (``reverse_eids``).

    Returns
    -------
    tuple
        The names bound to the functions' results, and the identities of the nodes in the functions.
    """
    made: set[str] = set()  # names that the calls' results are bound to
    left: set[int] = set()  # identities of the nodes in the removed functions
    for use in draft.script.uses:
        function = _function_around(draft, use) if _numbers_reverse_edges(draft, use) else None
        calls = [] if function is None else _calls(draft, function)
        if function is None or not calls or not draft.edits.delete_statement(function, draft.tree.body):
            continue
        for statement, graph in calls:
            draft.edits.replace_node(statement.value, f"({draft.edits.of(graph)}, None)")
            bound = (each for target in statement.targets for each in ast.walk(target))
            made |= {each.id for each in bound if isinstance(each, ast.Name)}
        left |= {id(each) for each in ast.walk(function)}
        draft.steps.flag("--symmetrize")
        becomes = "prepare the dataset with --symmetrize, which knows the edges that lead back"
        draft.find(use.node, function.name, "changes", becomes)
    draft.replaced |= left
    return made, left


def _numbers_reverse_edges(draft: Draft, use: Use) -> bool:
    """Return True for a call ``to_simple(add_reverse_edges(...), writeback_mapping=...)``."""
    call = use.call
    if call is None or canonical(use.name) != "dgl.to_simple" or not call.args:
        return False
    inner = next((each for each in draft.script.uses if each.call is call.args[0]), None)
    has_numbers = "writeback_mapping" in {each.arg for each in call.keywords}
    return has_numbers and inner is not None and canonical(inner.name) == "dgl.add_reverse_edges"


def _function_around(draft: Draft, use: Use) -> ast.FunctionDef | None:
    """Return the module's function that contains ``use``, or None."""
    for each in draft.tree.body:
        if isinstance(each, ast.FunctionDef) and any(node is use.node for node in ast.walk(each)):
            return each
    return None


def _calls(draft: Draft, function: ast.FunctionDef) -> list[tuple[ast.Assign, ast.expr]]:
    """Return each assignment of a call of ``function``, with its graph argument; [] if the name has other uses."""
    name_nodes = [
        node for node in ast.walk(draft.tree) if isinstance(node, ast.Name) and node.id == function.name
    ]
    assignments = []
    for node in ast.walk(draft.tree):
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id=name), args=[graph], keywords=[])) if (
                name == function.name
            ):
                assignments.append((node, graph))
    return assignments if len(assignments) == len(name_nodes) else []
