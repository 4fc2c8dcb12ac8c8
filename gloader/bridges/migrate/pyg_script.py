"""The migration of a script that uses PyG: a `_PygScript` reads the uses of PyG and writes the draft.

The uses come from `gloader.bridges.migrate.read_uses`. A use is a name of PyG, or an attribute of a value that came
from PyG. A use's ``held`` is that value, whose kind is "data", "batch", "loader" or the like; None for a name of PyG.
A use's ``place`` is its statement and the block that contains the statement.

Each use gets a verdict: "maps" (gloader has the name), "stays" (it remains PyG's), "changes" (the draft replaces or
removes it), "ignored" (it has no effect), "missing" or "perhaps missing" (the user must act). If possible, the use's
text is changed:

- A call that loads or makes the loaders' graph is replaced by the opening of a prepared dataset.
- A loader gets gloader's name and arguments.
- Lines that change the graph are removed, because the dataset is prepared from the changed graph.

The draft also lists the steps that prepare the dataset once.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import FROM_PYG
from gloader.bridges.migrate.draft import Draft, change_from, grouped, is_needed, uses_of
from gloader.bridges.migrate.prepare_steps import (
    OGB_CLASSES,
    OGB_TYPED,
    saved_graph,
)
from gloader.bridges.migrate.pyg_calls import (
    BATCH_ADVICE,
    BATCH_NAMES,
    DATA_ADVICE,
    DATA_NAMES,
    DATASET_NAMES,
    HETERO_DATA_NAMES,
    LOADERS,
    MANY_GRAPHS,
    SAVED_NAMES,
    SEVERAL_TYPES,
    STORE_NAMES,
    TO_DEVICE,
    TRANSFORMS,
    Transforms,
    advice_of_name,
    change_loader,
    data_argument,
    without_split,
)
from gloader.bridges.migrate.read_uses import read_uses, statements_of
from gloader.bridges.migrate.uses import (
    MOVES,
    Library,
    hands_on,
    innermost,
    is_bound,
    is_changed,
    is_stored,
    literal,
    parameters_of,
    parts_of,
    root_of,
    sets_by_name,
    sources_of,
)

if TYPE_CHECKING:
    from gloader.bridges.migrate.uses import Held, Import, Kind, Use


_ADAPTER: Final = "gloader.adapters.pyg"  # the module that has gloader's forms of PyG's names
_OPEN: Final = "import gloader"  # the import that code for opening a dataset needs
_GRAPH: Final = "GraphData"  # gloader's graph with one type
_HETERO: Final = "HeteroGraphData"  # gloader's graph with several types
# The calls that make a graph in memory, the call that loads one, and both.
_BUILT: Final = ("torch_geometric.data.Data", "torch_geometric.data.HeteroData")
_SAVED: Final = "torch.load"
_MADE: Final = (*_BUILT, _SAVED)
_WHOLE_GRAPH: Final = (
    "the script has no NeighborLoader and no LinkNeighborLoader: keep PyG to train on a whole graph in memory"
)
_MASKS: Final = frozenset({"train_mask", "val_mask", "test_mask"})  # attributes that a user may also set
_NO_EDGE_SPLIT: Final = "edges to predict are link tables (docs/links.md)"
_FROM_ELSEWHERE: Final = (
    "the source of this graph is unknown: it must be a gloader.Dataset, GraphData or HeteroGraphData, made with "
    "`gloader prepare pyg:FILE OUT`"
)
# Attributes that only graphs of several types, and their batches, have.
_OF_TYPES: Final = frozenset(
    {"metadata", "node_types", "edge_types", "x_dict", "edge_index_dict", "edge_attr_dict"}
)


def _kind_of_call(name: str) -> Kind:
    """Return the kind of the value that a call of ``name`` makes; "" for all other values."""
    last = name.rpartition(".")[2]
    if name in OGB_CLASSES or (name.startswith("torch_geometric.datasets.") and last not in MANY_GRAPHS):
        return "dataset"
    if name in _MADE:
        return "data"
    if name in LOADERS:
        return "loader"
    if name.startswith(TRANSFORMS):
        return "transform"
    return ""


# Rules that find the kinds of PyG's values; `Library` explains the tables' keys.
_LIBRARY: Final = Library(
    kind_of_call=_kind_of_call,
    # No function of PyG takes a graph and returns it: transforms are objects, which are made first and then called.
    # (The imported `hands_on` finds such calls of objects.)
    hands_on=lambda name: False,  # noqa: ARG005
    # (kind of the value, method): the result's kind. "()" calls the value; kind "" is any other value.
    methods={
        **{(kind, name): kind for kind in ("data", "batch") for name in MOVES},
        ("transform", "()"): "data",
        ("", "to_pyg"): "data",
    },
    # (kind of the value, attribute): the attribute's kind.
    attributes={("loader", "data"): "data", ("dataset", "data"): "data", ("dataset", "_data"): "data"},
    # Kind of x: the kind of x[...]. A "store" is one node type or relation of a graph.
    items={"dataset": "data", "data": "store", "batch": "batch"},
    several={},
    # (kind of the value, number of variables in a loop or an unpacking): the variables' kinds.
    loops={("loader", 1): ("batch",), ("data", 3): ("data", "data", "data"), ("data", 2): ("data", "data")},
    parameters={},
)


def draft_pyg(text: str, tree: ast.Module) -> Draft:
    """Return the draft for a script that uses PyG. Pure."""
    script = read_uses(tree, _LIBRARY)
    return _PygScript(Draft(text, tree, script, FROM_PYG)).write()


class _PygScript:
    """A PyG script under migration.

    The draft's methods: `Draft.find` adds a finding; `Draft.note` adds the finding "changes", or, if the edit failed,
    `Draft.by_hand` adds "missing"; `Draft.look_at` refuses the edits of a node inside an f-string.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        uses = draft.script.uses
        loaders = [use for use in uses if use.held is None and use.name in LOADERS and use.call is not None]
        self._has_loader = bool(loaders)
        graphs = [data_argument(use) for use in loaders]  # the loaders' arguments ``data``
        self._in_loaders = {id(each) for each in graphs}  # identities of the loaders' graph arguments
        # Names of the graphs that loaders receive. The loop adds the names from which these graphs were moved or
        # transformed (by the calls in ``handed_on``), until it finds no more.
        self._loader_graphs = {each.id for each in graphs if isinstance(each, ast.Name)}
        handed_on = {id(use.call) for use in uses if use.call is not None and hands_on(use)}
        while more := sources_of(draft.tree, self._loader_graphs, handed_on) - self._loader_graphs:
            self._loader_graphs |= more
        # Add the names of these graphs' parts, such as ``paper`` in ``paper = data["paper"]``.
        self._loader_graphs |= parts_of(draft.tree, self._loader_graphs)
        self._unknown: set[str] = set()  # names of graphs with an unknown source
        self._opens_dataset = False  # True if the changed script opens a dataset
        self._is_typed = any(_is_typed(use) for use in uses if not self._is_other(use))
        self._kind = _HETERO if self._is_typed else _GRAPH
        self._names: dict[str, list[str]] = {}  # further names to import, by module
        self._is_ogb = any(use.name in OGB_CLASSES for use in uses)
        datasets = [use.call for use in uses if _kind_of_call(use.name) == "dataset" and use.call is not None]
        self._transforms = Transforms(draft, datasets, is_typed=self._is_typed)
        self._ntype: str | None = None  # the labelled node type, in an OGB data set of several types
        # For each graph to save: its expression, its folder, and the line after which to save it.
        self._to_save: list[tuple[str, str, str]] = []

    def write(self) -> Draft:
        """Judge every use, change the text, and return the draft."""
        draft = self._draft
        # Uses that set an attribute come first: their lines may be removed, and then the other names in them need no
        # verdict.
        for use in sorted(draft.script.uses, key=lambda use: not use.is_stored):
            draft.look_at(use.node)
            if use.held is not None:
                if self._has_loader:
                    self._judge_value(use, use.held)
            elif use.name in LOADERS:
                self._loader(use)
            elif _kind_of_call(use.name) == "dataset":
                self._dataset(use)
            elif use.name in _MADE:
                self._made(use)
            elif use.name.startswith("torch_geometric.datasets."):
                draft.find(use.node, use.name, "stays", "PyG")
            elif use.name.startswith(TRANSFORMS) and self._has_loader:
                self._transforms.judge(use)
            elif use.name.startswith(("torch_geometric.", "torch_sparse")):
                advice = advice_of_name(use.name)
                draft.find(use.node, use.name, "missing" if advice else "stays", advice or "PyG")
        self._from_gloader()
        self._set_by_name()
        for graph, folder, behind in self._to_save:
            self._save(graph, folder, behind=behind)
        if self._is_ogb:
            self._flat_labels()
        self._report_unknown_graphs()
        draft.edits.is_frozen = False  # the last `look_at` may have set it; imports are never in f-strings
        for group in grouped(draft.script.imports):
            self._imports(group)
        for module, names in self._names.items():
            draft.add_import(f"from {module} import {', '.join(sorted(names))}")
        draft.write_imports(("torch_geometric", "ogb"))
        return draft

    def _need(self, name: str) -> str:
        """Note that the script must import ``name`` from the adapter; return ``name``."""
        names = self._names.setdefault(_ADAPTER, [])
        if name not in names:
            names.append(name)
        return name

    def _graph(self) -> str:
        """Return the name of gloader's graph class, and note its import."""
        return self._need(self._kind)

    # --- names of PyG ----------------------------------------------------------------------------

    def _loader(self, use: Use) -> None:
        """Give a loader gloader's name and arguments."""
        draft, name = self._draft, LOADERS[use.name]
        # A plain name needs no edit, because its import changes. ``can_go`` is False if the edit failed.
        can_go = isinstance(use.node, ast.Name) or draft.edits.replace_node(use.node, self._need(name))
        draft.note(use.node, use.name, f"{_ADAPTER}.{name}", can_go=can_go)
        if can_go and isinstance(use.node, ast.Attribute):
            draft.replaced.add(id(use.node))  # so that an import only for this use is removed
        change_loader(draft, use, has_labels=self._is_ogb)

    def _dataset(self, use: Use) -> None:
        """Open a prepared dataset where the script loads one of PyG's or OGB's data sets."""
        draft, call = self._draft, use.call
        if not self._has_loader:
            draft.find(use.node, use.name, "missing", _WHOLE_GRAPH)
            return
        if call is None:
            draft.find(use.node, use.name, "stays", "PyG")
            return
        if (folder := draft.open_folder(use, call, call, use.name)) is None:
            return
        self._opens_dataset = True
        if use.name in OGB_CLASSES:
            self._ntype = OGB_TYPED.get(folder.name)
        else:
            # RandomLinkSplit is left out: it would split the graph into three, and a dataset needs the whole graph.
            behind = f"line {call.end_lineno}{self._transforms.left_out()}"
            self._to_save.append((f"{without_split(call)}[0]", folder.path, behind))

    def _save(self, graph: str, folder: str, *, behind: str) -> None:
        """Note the step that makes a dataset from a PyG graph.

        For example: ``in the script as it is, behind line 9: import gloader; gloader.Dataset.from_pyg(data, "data/a")``
        """
        where = f"in the script as it is, behind {behind}:"
        self._draft.steps.add(where, f'import gloader; gloader.Dataset.from_pyg({graph}, "{folder}")')

    def _made(self, use: Use) -> None:
        """Replace a call that makes or loads the loaders' graph by the opening of a prepared dataset."""
        draft, node, call = self._draft, use.place.statement, use.call
        # The call must make the assigned value itself, perhaps with method calls behind it: ``data = Data(x).to(gpu)``.
        target = node.targets[0] if isinstance(node, ast.Assign) and innermost(node.value) is call else None
        name = target.id if isinstance(target, ast.Name) and target.id in self._loader_graphs else None
        if call is None or (name is None and id(call) not in self._in_loaders):
            # The graph may be an attribute, or one of several objects in a file: its source counts as unknown.
            parts = target.elts if isinstance(target, ast.Tuple) else [target] if target is not None else []
            self._unknown |= {name for name in map(root_of, parts) if name is not None}
            if use.name in _BUILT:
                draft.find(use.node, use.name, "stays", "PyG")
            return
        folder, source = saved_graph(call) if use.name == _SAVED else ("data/graph", None)
        opened = f'{self._graph()}({draft.module("gloader", _OPEN)}.Dataset.open("{folder}"))'
        if not draft.open_instead(use, call, opened):
            return
        self._opens_dataset = True
        last = node.end_lineno if name is None else self._last_change(name, use)
        # A file that no later line changes is prepared as it is. Otherwise the script must save its changed graph.
        if source is not None and last == node.end_lineno:
            draft.steps.add("in a shell:", f"gloader prepare {source} {folder}")
        else:
            without = self._transforms.left_out()
            self._save(name or ast.unparse(call), folder, behind=f"line {last}{without}")

    def _last_change(self, name: str, use: Use) -> int | None:
        """Return the last line that changes the graph ``name``, made by ``use``, before a loader receives it.

        A change sets or deletes a part of a graph. If the script has a transform that may change a graph's rows, a line
        that binds ``name`` again is also a change.
        """
        last, is_behind = use.place.statement.end_lineno, False
        for node in use.place.body:
            within = list(ast.walk(node))
            if is_behind and any(id(each) in self._in_loaders for each in within):
                break
            if is_behind and (
                any(is_stored(each, self._loader_graphs) for each in within)
                or (self._transforms.changes_rows and any(is_bound(each, name) for each in within))
            ):
                last = node.end_lineno
            is_behind = is_behind or node is use.place.statement
        return last

    def _report_unknown_graphs(self) -> None:
        """Report loader arguments with an unknown source as perhaps missing."""
        draft = self._draft
        # If the script opens no dataset, its graph is perhaps no GraphData: the findings that its attributes map are
        # dropped.
        if not self._opens_dataset:
            draft.findings = {
                each: None
                for each in draft.findings
                if not (each.verdict == "maps" and each.text in {_GRAPH, _HETERO})
            }
        parameters = parameters_of(draft.tree)
        for use in draft.script.uses:
            if use.held is not None or use.name not in LOADERS or use.call is None:
                continue
            given, held = data_argument(use), use.argument(0, "data")
            if given is None or id(given) in draft.replaced:  # no graph is given, or an edit has replaced it
                continue
            # The source is known: a data set, or a graph that the script makes or loads.
            if held is not None and held.kind in {"data", "dataset"} and root_of(given) not in self._unknown:
                continue
            # A function's parameter is assumed to be the graph of the dataset that the script opens.
            if not (self._opens_dataset and isinstance(given, ast.Name) and given.id in parameters):
                draft.find(given, draft.edits.of(given), "perhaps missing", _FROM_ELSEWHERE)

    def _from_gloader(self) -> None:
        """Pass the dataset itself to the loader, if the script already uses gloader and calls ``to_pyg()``."""
        draft = self._draft
        for node in ast.walk(draft.tree) if self._has_loader else ():
            match node:
                case ast.Call(func=ast.Attribute(attr="to_pyg", value=owner), args=[], keywords=[]):
                    draft.look_at(node)
                    self._opens_dataset = True
                    if id(node) in self._in_loaders:
                        can_go, becomes = draft.replace_tail(node, owner, ""), "the dataset itself"
                    else:
                        can_go, becomes = draft.wrap(node, owner, self._graph()), f"{self._graph()}(...)"
                    draft.note(node, "to_pyg()", becomes, can_go=can_go)

    def _flat_labels(self) -> None:
        """Remove calls that flatten OGB's labels (N, 1): a dataset's labels are already (N,)."""
        draft = self._draft
        for node in ast.walk(draft.tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="squeeze", value=owner), args=[ast.Constant(value=1)]
                ) if any(isinstance(each, ast.Attribute) and each.attr == "y" for each in ast.walk(owner)):
                    draft.look_at(node)
                    can_go = draft.replace_tail(node, owner, "")
                    draft.note(
                        node, "y.squeeze(1)", "labels of a dataset are (N,), and OGB's (N, 1)", can_go=can_go
                    )

    # --- values ----------------------------------------------------------------------------------

    def _judge_value(self, use: Use, held: Held) -> None:
        """Judge the use of a value: a data set, a graph, a part of a graph, a batch or a transform."""
        if held.kind == "dataset":
            self._of_dataset(use)
        elif held.kind in {"data", "store"}:
            self._of_data(use, held)
        elif held.kind == "batch" and use.name in BATCH_ADVICE and not use.is_stored:
            self._draft.find(use.node, f"batch.{use.name}", "missing", BATCH_ADVICE[use.name])
        elif held.kind == "transform" and use.name == "()" and use.call is not None:
            self._apply(use, use.call)

    def _one_for_all(self, use: Use, value: ast.AST) -> None:
        """Rewrite ``a, b = value`` as ``a = b = value``.

        A RandomLinkSplit makes one graph per split, but one dataset holds the link tables of all splits.
        """
        node, draft = use.place.statement, self._draft
        if (
            not isinstance(node, ast.Assign)
            or node.value is not value
            or not isinstance(node.targets[0], ast.Tuple)
        ):
            return
        names = [draft.edits.of(each) for each in node.targets[0].elts if isinstance(each, ast.Name)]
        if len(names) == len(node.targets[0].elts):
            draft.edits.replace(draft.edits.start(node), draft.edits.end(node.targets[0]), " = ".join(names))

    def _apply(self, use: Use, call: ast.Call) -> None:
        """Remove a call that transforms the graph: the dataset is made from the transformed graph."""
        held = use.given.get(0)
        if held is None or held.kind != "data":
            self._draft.find(
                use.node, "transform(...)", "missing", "apply it to the graph before it is saved"
            )
        elif self._draft.strip_call(call, call.args[0], use.place):
            self._one_for_all(use, call)
        else:
            self._draft.by_hand(use.node, "transform(...)")

    def _of_dataset(self, use: Use) -> None:
        """Judge the use of a data set. Its graph and its splits become those of the prepared dataset."""
        draft, node = self._draft, use.node
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return
        if use.name in {"[]", "data", "_data"}:
            can_go = draft.wrap(node, node.value, self._graph())
            self._one_for_all(use, node)
            self._save_changed(use)
            shown_name = "dataset[0]" if use.name == "[]" else f"dataset.{use.name}"
            labels = ", whose labels are (N,), and OGB's (N, 1)" if self._is_ogb else ""
            draft.note(node, shown_name, f"{self._graph()}(...){labels}", can_go=can_go)
        elif use.name == "get_idx_split" and use.call is not None:
            draft.split_of_ogb(use, use.call, node.value, ntype=self._ntype)
        elif DATASET_NAMES.get(use.name) == use.name:
            draft.find(node, f"dataset.{use.name}", "maps", "gloader.Dataset")
        elif use.name in DATASET_NAMES:
            ours = DATASET_NAMES[use.name]
            draft.note(
                node, f"dataset.{use.name}", ours, can_go=draft.replace_tail(node, node.value, f".{ours}")
            )
        else:
            advice = (
                _NO_EDGE_SPLIT if use.name == "get_edge_split" else f"a gloader.Dataset has no {use.name}"
            )
            draft.find(node, f"dataset.{use.name}", "missing", advice)

    def _save_changed(self, use: Use) -> None:
        """If later lines change the graph of a data set, save the graph only after the last of them."""
        statement = use.place.statement
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not self._to_save or not isinstance(target, ast.Name):
            return
        last = self._last_change(target.id, use)
        if last != statement.end_lineno:
            # The last entry is that of the data set opened last; the graph is assumed to be from it.
            _, folder, _ = self._to_save.pop()
            self._to_save.append((target.id, folder, f"line {last}{self._transforms.left_out()}"))

    def _of_data(self, use: Use, held: Held) -> None:
        """Judge the use of a graph, or of one of its types or relations."""
        draft, node, name = self._draft, use.node, use.name
        if self._is_other(use):
            return
        if name == "[]" and (held.kind == "store" or not self._is_typed) and isinstance(node, ast.Subscript):
            name = str(literal(node.slice) or name)  # data["x"] is data.x
        if use.is_stored or (name != "[]" and is_changed(use)):
            self._stored(use, held, name)
        elif name in {"()", "[]"}:
            return
        elif (
            use.name in MOVES
            and held.kind == "data"
            and use.call is not None
            and isinstance(node, ast.Attribute)
        ):
            can_go = draft.strip_call(use.call, node.value, use.place)
            draft.note(node, f"data.{use.name}", TO_DEVICE, can_go=can_go)
        elif name in (
            STORE_NAMES if held.kind == "store" else HETERO_DATA_NAMES if self._is_typed else DATA_NAMES
        ):
            draft.find(node, f"data.{name}", "maps", self._kind)
        # Text that an edit has replaced needs no verdict.
        elif not draft.edits.is_replaced(draft.edits.start(node), draft.edits.end(node)):
            advice = DATA_ADVICE.get(
                name, f"a {self._kind} has no such thing; its dataset or its batches may have it"
            )
            draft.find(node, f"data.{name}", "missing", advice)

    def _set_by_name(self) -> None:
        """Remove ``setattr`` calls on a graph that the script makes: the dataset has the attribute."""
        for place in statements_of(self._draft.tree.body if self._opens_dataset and not self._is_ogb else ()):
            statement = place.statement
            if sets_by_name(statement, self._loader_graphs) and self._draft.edits.delete_statement(
                statement, place.body
            ):
                self._draft.find(statement, "setattr", "changes", "the dataset has it")

    def _stored(self, use: Use, held: Held, name: str) -> None:
        """Remove a statement that sets or deletes a graph's attribute, if the dataset or the batches have it."""
        draft, node, statement = self._draft, use.node, use.place.statement
        targets = statement.targets if isinstance(statement, ast.Assign | ast.Delete) else []
        if isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        roots = {root_of(each) for each in targets}
        is_alone = len(roots) == 1 and None not in roots  # nothing else is set
        made_by = held.made_by
        # True if the dataset is made from this graph after the script's changes. OGB's graphs are prepared unchanged.
        is_own = made_by in _MADE or (_kind_of_call(made_by) == "dataset" and made_by not in OGB_CLASSES)
        becomes = ""
        # Batches have what a script sets on ``loader.data``, and the ids that it sets on its own graph.
        if made_by in LOADERS or (is_own and name in {"n_id", "e_id"}):
            becomes = "batches have it"
        elif is_own and (name in SAVED_NAMES or name == "[]" or isinstance(statement, ast.Delete)):
            becomes = "the dataset has it"
        if becomes and is_alone and draft.edits.delete_statement(statement, use.place.body):
            draft.find(node, draft.edits.of(node), "changes", becomes)
        elif name in _MASKS:  # a user's own mask is kept in memory
            draft.find(node, f"data.{name}", "maps", self._kind)
        else:
            advice = DATA_ADVICE.get(name, "the graph holds what the dataset has: prepare it after this line")
            draft.find(node, draft.edits.of(node), "missing", advice)

    def _is_other(self, use: Use) -> bool:
        """Return True if ``use`` is on another object than the loaders' graph; such a use needs no change.

        The script makes the object as a graph or loads it from a file, but passes it to no loader.
        """
        return use.held is not None and use.held.made_by in _MADE and not self._is_loaded(use.node)

    def _is_loaded(self, node: ast.AST) -> bool:
        """Return whether ``node`` begins with the name of a graph that a loader receives."""
        return root_of(node) in self._loader_graphs

    # --- imports ---------------------------------------------------------------------------------

    def _imports(self, group: list[Import]) -> None:
        """Change an import statement, whose names are ``group``."""
        draft, statement = self._draft, group[0].statement
        for one in group:
            self._unused(one)
        if isinstance(statement, ast.ImportFrom):
            if re.match(r"(torch_geometric|ogb)\.", group[0].dotted):
                ours = {one.dotted: _ADAPTER for one in group if one.dotted in LOADERS}
                change_from(draft, group, modules=ours, also=self._names)
        elif (
            len(group) == 1
            and group[0].alias.asname
            and group[0].dotted.startswith("torch_geometric.")
            and not is_needed(draft, group[0])
        ):
            draft.edits.delete_statement(statement, group[0].place.body)

    def _unused(self, one: Import) -> None:
        """Judge an imported name that the script does not use."""
        draft = self._draft
        if one.dotted.startswith(("torch_geometric", "torch_sparse")) and not uses_of(draft, one):
            if one.dotted in LOADERS:
                draft.find(one.statement, one.dotted, "changes", f"{_ADAPTER}.{LOADERS[one.dotted]}")
            elif isinstance(one.statement, ast.ImportFrom) and (advice := advice_of_name(one.dotted)):
                draft.find(one.statement, one.dotted, "missing", advice)


def _is_typed(use: Use) -> bool:
    """Return True if a use shows that the graph has several types."""
    last = use.name.rpartition(".")[2]
    if use.name in OGB_CLASSES and use.call is not None:
        given = [*use.call.args, *(each.value for each in use.call.keywords)]
        return any(literal(each) == "ogbn-mag" for each in given)
    if use.held is not None:
        if use.held.kind not in {"data", "batch"} or use.is_stored:
            return False
        key = use.node.slice if isinstance(use.node, ast.Subscript) else None
        is_type = isinstance(literal(key), str) and literal(key) not in BATCH_NAMES
        return use.name in _OF_TYPES or is_type or isinstance(key, ast.Tuple)
    return last in SEVERAL_TYPES or last in {"HeteroData", "to_hetero", "HeteroConv"}
