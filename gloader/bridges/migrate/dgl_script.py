"""The migration of a DGL script: a `_DglScript` reads the uses of DGL and writes the draft.

The uses come from `gloader.bridges.migrate.read_uses`. A use is a name of DGL, or an attribute of a value that came
from DGL. Each use gets a verdict, such as "maps" or "missing", and if possible its text is changed:

- Names of DGL that `gloader.compat.dgl` has are kept, and imported from there.
- A call that makes or loads a graph is replaced by the opening of a prepared dataset.
- A call that changes the whole graph becomes a flag for `gloader prepare`.

The draft also lists the steps that prepare the dataset once. A script without a mini-batch loader trains on whole
graphs in memory, or uses other parts of DGL: it is only judged, and not changed.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import (
    ADVICE,
    FROM_DGL,
    GRAPH_ADVICE,
    SURFACE,
    advice_of,
    canonical,
    is_here,
)
from gloader.bridges.migrate.dgl_calls import (
    COMPAT,
    FLAGS,
    LIBRARY,
    LOADERS,
    MANY_GRAPHS,
    NAMES,
    OURS,
    STORED,
    change_import,
    change_loading,
    kind_of_call,
    leave_out_numbering,
)
from gloader.bridges.migrate.draft import MISSING, Draft, grouped
from gloader.bridges.migrate.prepare_steps import (
    OGB_CLASSES,
    OGB_TYPED,
    of_type,
    prepared_with,
    stem_of,
)
from gloader.bridges.migrate.read_uses import read_uses
from gloader.bridges.migrate.source_text import Edits
from gloader.bridges.migrate.uses import argument, literal, parameters_of

if TYPE_CHECKING:
    from gloader.bridges.migrate.uses import Held, Use


_OPEN: Final = "import gloader"  # the import that code for opening a dataset needs
# Texts of findings, the verdicts on a script's names.
_DATA: Final = "feat, label, train_mask, val_mask and test_mask"
_IN_MEMORY: Final = (
    "these rows stay in memory: save the graph with them (dgl.save_graphs), prepare that file and leave this line out, "
    "and they are read from the SSD"
)
_OTHER_DATA: Final = (
    f"in memory, and in blocks; the SSD has node data called {_DATA}, and edge data called feat and weight"
)
_SPLIT_IDS: Final = {"train_idx": "train", "val_idx": "valid", "test_idx": "test"}
_FROM_ELSEWHERE: Final = (
    "the source of this graph is unknown: it must be dgl.DGLGraph(gloader.Dataset.open(OUT)), made with "
    "`gloader prepare dgl:FILE OUT`"
)
_LAYERS: Final = (
    "layers take blocks, not a whole graph: infer layer by layer, with a DataLoader over "
    "MultiLayerFullNeighborSampler(1)"
)
_MAILBOX: Final = (
    "a reduce function over a mailbox (nodes.mailbox) is not supported: write dgl.function.sum, mean, max or min in "
    "the call"
)
# Arguments of graph changes that do not affect the edges.
_ABOUT_DATA: Final = frozenset({"copy_ndata", "copy_edata", "readonly"})
# The flags in a text of `ADVICE`: for a graph with one type, and for one with several.
_PREPARED_WITH: Final = re.compile(
    r"prepare the dataset with (--[\w-]+(?: [\d/]+)?)(?:, or with (--[\w-]+) where it has several)?"
)
_WHOLE_GRAPH: Final = "the script has no mini-batch loader: train whole graphs in memory, with DGL or PyG"
# Beginnings of names that show another purpose of the script: whole graphs, many small graphs, or other parts of DGL.
_ELSEWHERE: Final = (
    "dgl.batch",
    "dgl.data.",
    "dgl.dataloading.GraphDataLoader",
    "dgl.distributed",
    "dgl.graphbolt",
)


def draft_dgl(text: str, tree: ast.Module) -> Draft:
    """Return the draft for a script that uses DGL. Pure."""
    script = read_uses(tree, LIBRARY)
    return _DglScript(Draft(text, tree, script, FROM_DGL)).write()


class _DglScript:
    """A DGL script under migration."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        names = [use.name for use in draft.script.uses if use.held is None]
        self._has_loader = any(canonical(name) in LOADERS for name in names)
        # True if the script cannot run with gloader: it has no mini-batch loader, and trains on graphs in memory or
        # uses other parts of DGL.
        self._is_out_of_scope = not self._has_loader and any(
            canonical(name).startswith(_ELSEWHERE) or kind_of_call(name) in {"built", "dataset"}
            for name in names
        )
        self._loop_removals: list[Use] = []  # calls that remove self loops from the full graph
        # Identities of nodes whose text must not change: their line is kept as it is, or was removed completely.
        self._frozen: set[int] = set()
        self._opens_dataset = False  # True if the changed script opens a dataset, or loads a file
        # Names of the results of a removed helper, see `leave_out_numbering`.
        self._helper_results: set[str] = set()
        # True if the script's graph has several types.
        self._is_typed = any(
            canonical(use.name) == "dgl.nn.HeteroGraphConv" or use.name in {"canonical_etypes", "etypes"}
            for use in draft.script.uses
        )
        self._load_calls: list[ast.Call] = []  # calls that load files from dgl.save_graphs
        self._ntype: str | None = None  # the labelled nodes' type, if there are several types

    def write(self) -> Draft:
        """Judge every use, change the text, and return the draft."""
        draft = self._draft
        if self._has_loader:
            self._helper_results, self._frozen = leave_out_numbering(draft)
        for use in draft.script.uses:
            draft.look_at(use.node)
            if id(use.node) in self._frozen:
                self._judge_frozen(use)
            elif use.held is not None:
                self._judge_value(use, use.held)
            elif use.name.startswith("dgl.") or use.name == "dgl":
                self._dgl_name(use)
            elif use.name in OGB_CLASSES:
                self._dataset(use)
        if self._has_loader:
            self._from_gloader()
            self._report_unknown_graphs()
            self._whole_graphs()
            self._flags_of_advice()
            self._prepare_files()
        draft.edits.is_frozen = False
        for use in self._loop_removals:
            if "--self-loops" in draft.steps.flags:
                draft.find(use.node, use.name, "changes", "--self-loops leaves each node exactly one")
            else:
                draft.find(use.node, use.name, "missing", ADVICE["dgl.remove_self_loop"])
        for group in grouped(draft.script.imports):
            change_import(draft, group, has_loader=self._has_loader)
        draft.write_imports(("dgl", "ogb"))
        if self._is_out_of_scope:  # a half-migrated script would run with neither library
            draft.edits = Edits(draft.text)
        return draft

    # --- names of DGL ----------------------------------------------------------------------------

    def _dgl_name(self, use: Use) -> None:
        """Judge a name of DGL, and change its text if it has another form in gloader."""
        draft, name = self._draft, canonical(use.name)
        if name in SURFACE or id(use.node) in draft.replaced:
            return
        edits = draft.edits
        is_change = name.rpartition(".")[2] in FLAGS and self._is_of_graph(use)
        if edits.is_replaced(edits.start(use.node), edits.end(use.node)) and not is_change:
            draft.replaced.add(id(use.node))  # an argument of a call that now opens a dataset
            return
        # ``known`` is the part of the name that gloader has. The name may be a method of it, such as
        # SAGEConv.reset_parameters.
        known = next((each for each in _prefixes(name) if is_here(each) and each not in SURFACE), None)
        kind, last = kind_of_call(use.name), name.rpartition(".")[2]
        if known is not None:
            where = OURS + known.rpartition(".")[0]
            if kind == "loaded" and use.call is not None:
                self._load_calls.append(use.call)
                self._opens_dataset = True
                where = "load_graphs prepares the file the first time"
            odd = _unsupported(name, use.call)
            draft.find(use.node, use.name, "missing" if odd else "maps", odd or where)
        elif name in LOADERS:
            self._rename(use)
        elif name.startswith("dgl.data.") and last in MANY_GRAPHS:
            draft.find(use.node, use.name, "missing", ADVICE["dgl.batch"])
        elif kind == "dataset" and use.call is not None:
            self._dataset(use)
        elif kind == "built" and use.call is not None and self._has_loader:
            self._built(use, use.call)
        elif is_change and use.call is not None and self._has_loader:
            self._flag(use, last, use.call, use.call.args[0])
        else:
            draft.find(
                use.node, use.name, "missing", _WHOLE_GRAPH if kind == "built" else advice_of(use.name)
            )
        change_loading(draft, use)

    def _rename(self, use: Use) -> None:
        """Rename DGL's NodeDataLoader to DataLoader. A name from an import stays, because the import is changed."""
        draft, node = self._draft, use.node
        can_go = not isinstance(node, ast.Attribute) or draft.replace_tail(node, node.value, ".DataLoader")
        draft.note(node, use.name, f"{OURS}dgl.dataloading.DataLoader", can_go=can_go)

    # --- sources of graphs ------------------------------------------------------------------

    def _dataset(self, use: Use) -> None:
        """Replace a data set that the script loads into memory by the opening of a prepared dataset."""
        draft, call = self._draft, use.call
        if call is None or id(use.node) in draft.replaced:
            return
        if not self._has_loader:
            draft.find(use.node, use.name, "missing", _WHOLE_GRAPH)
            return
        # DGL's wrappers, such as AsNodePredDataset(dataset), take another data set.
        inner = call.args[0] if call.args and canonical(use.name).startswith("dgl.data.As") else None
        if isinstance(inner, ast.Name):  # a dataset that is opened elsewhere in the script
            can_go = draft.strip_call(call, inner, use.place)
            draft.replaced |= {id(use.node)} if can_go else set()
            draft.note(use.node, use.name, "a gloader.Dataset has the splits", can_go=can_go)
            return
        made = inner if isinstance(inner, ast.Call) else call
        source = next((each for each in draft.script.uses if each.call is made), use)
        if (folder := draft.open_folder(use, call, made, source.name)) is None:
            return
        self._opens_dataset = True
        draft.replaced.add(id(source.node))
        if source.name in OGB_CLASSES:
            self._ntype = OGB_TYPED.get(folder.name)
        else:
            self._save(f"{ast.unparse(call)}[0]", folder.path, behind=f"line {call.end_lineno}")

    def _built(self, use: Use, call: ast.Call) -> None:
        """Replace a call that builds a graph in memory by the opening of a prepared dataset."""
        draft, node = self._draft, use.place.statement
        dgl, gloader = draft.module("dgl", COMPAT), draft.module("gloader", _OPEN)
        opened = f'{dgl}.DGLGraph({gloader}.Dataset.open("data/graph"))'
        if not draft.open_instead(use, call, opened):
            return
        self._opens_dataset = True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        name = target.id if isinstance(target, ast.Name) else "g"
        self._save(name, "data/graph", behind=f"the lines that make {name} and its {_DATA}")

    def _save(self, graph: str, folder: str, *, behind: str) -> None:
        """Note the steps that make a dataset from a DGL graph."""
        file = f"{folder.rpartition('/')[2]}.bin"
        where = f"in the script as it is, where DGL still runs, behind {behind}:"
        has_dgl = any(one.dotted == "dgl" and one.local == "dgl" for one in self._draft.script.imports)
        saved = f'dgl.save_graphs("{file}", [{graph}])'
        self._draft.steps.add(where, saved if has_dgl else f"import dgl; {saved}")
        self._draft.steps.add("then, in a shell:", f"gloader prepare dgl:{file} {folder}")

    def _prepare_files(self) -> None:
        """Add commands that prepare graph files, if flags are needed."""
        draft = self._draft
        for call in self._load_calls if draft.steps.flags else ():
            file = argument(call, 0, "filename")
            name = literal(file)
            if file is None or not isinstance(name, str):
                where = "in a shell, and then load OUT in the place of the file:"
                draft.steps.add(where, "gloader prepare dgl:FILE OUT")
                continue
            stem = stem_of(name)
            draft.look_at(call)
            can_go = draft.edits.replace_node(file, f'"data/{stem}"')
            draft.note(call, "dgl.load_graphs", f'load_graphs("data/{stem}")', can_go=can_go)
            draft.steps.add("in a shell:", f"gloader prepare {shlex.quote(f'dgl:{name}')} data/{stem}")

    def _is_of_graph(self, use: Use) -> bool:
        """Return True if the call's first argument is certainly a whole graph."""
        held = use.given.get(0)
        return held is not None and held.kind in {"graph", "built"} and held.is_sure

    def _flag(self, use: Use, name: str, call: ast.Call, graph: ast.expr) -> None:
        """Replace the graph change ``call`` by its argument ``graph``, and note the flag that makes the change."""
        draft, flag, statement = self._draft, FLAGS[name], use.place.statement
        odd = [each.arg for each in call.keywords if each.arg not in _ABOUT_DATA]  # arguments without a flag
        is_several = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
        if odd or (is_several and isinstance(statement, ast.Assign) and statement.value is call):
            self._frozen |= {id(each) for each in ast.walk(call)}
            because = f"; {odd[0]}= has nothing in its place" if odd and odd[0] else ""
            draft.find(use.node, use.name, "missing", advice_of(f"dgl.{name}") + because)
            return
        # In f(g(x)), ``root`` is x, the graph before all changes.
        root = graph
        while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr in FLAGS:
            root = root.args[0] if root.args else root.func.value
        if not draft.strip_call(call, graph, use.place, root):
            draft.find(use.node, use.name, "missing", advice_of(f"dgl.{name}"))
            return
        draft.replaced.add(id(use.node))
        if flag:
            draft.steps.flag(flag)
            draft.find(use.node, use.name, "changes", prepared_with(flag))
        else:
            self._loop_removals.append(use)

    def _judge_frozen(self, use: Use) -> None:
        """Note a DGL name in a frozen line as missing, unless the line was removed."""
        if use.held is None and use.name.startswith("dgl.") and id(use.node) not in self._draft.replaced:
            self._draft.find(use.node, use.name, "missing", advice_of(use.name))

    def _report_unknown_graphs(self) -> None:
        """Note loader arguments that are graphs from unknown sources, because these must become datasets as well."""
        draft = self._draft
        parameters = parameters_of(draft.tree)
        for use in draft.script.uses:
            if use.held is not None or use.call is None or canonical(use.name) not in LOADERS:
                continue
            given, held = argument(use.call, 0, "graph"), use.argument(0, "graph")
            is_known = held is not None and held.kind in {"graph", "built", "dataset"} and held.is_sure
            name = given.id if isinstance(given, ast.Name) else ""
            if (
                given is None
                or is_known
                or (self._opens_dataset and name in parameters | self._helper_results)
            ):
                continue
            draft.find(given, draft.edits.of(given), "perhaps missing", _FROM_ELSEWHERE)

    def _whole_graphs(self) -> None:
        """Note models that are called with the full graph: their layers need blocks."""
        draft = self._draft
        bound = {"g", "graph", "hg"}
        for node in ast.walk(draft.tree):
            match node:
                case ast.Call(func=ast.Name(id="model" | "net"), args=[ast.Name(id=name), *_]) if (
                    name in bound
                ):
                    draft.find(node, f"{draft.edits.of(node.func)}({name}, ...)", "perhaps missing", _LAYERS)

    def _flags_of_advice(self) -> None:
        """Add each flag from the advice on a name to the command."""
        draft = self._draft
        for each in draft.findings:
            found = _PREPARED_WITH.match(each.text) if each.verdict in MISSING else None
            if found is not None:
                draft.steps.flag(found[2] if found[2] and self._is_typed else found[1])

    def _from_gloader(self) -> None:
        """Wrap the dataset in a DGLGraph where a script that already uses gloader calls ``to_dgl()``."""
        draft = self._draft
        for node in ast.walk(draft.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="to_dgl", value=owner), args=[], keywords=[]):
                    self._opens_dataset = True
                    draft.look_at(node)
                    can_go = draft.wrap(node, owner, f"{draft.module('dgl', COMPAT)}.DGLGraph")
                    draft.note(node, "to_dgl()", "dgl.DGLGraph(...)", can_go=can_go)

    # --- values ----------------------------------------------------------------------------------

    def _judge_value(self, use: Use, held: Held) -> None:
        """Judge the use of a value: a data set, a graph, a block, a graph's data or a sampler."""
        draft = self._draft
        if held.kind == "dataset" and self._has_loader:
            self._of_dataset(use, held)
        elif held.kind.startswith("frame of "):
            self._frame(use, is_built=held.kind.endswith("built"))
        elif held.kind == "sampler" and use.name != "()":
            draft.find(
                use.node,
                f"sampler.{use.name}",
                "missing",
                "a DataLoader samples the blocks of its seeds itself",
            )
        elif held.kind in NAMES and use.name not in {"[]", "()"}:
            self._of_graph(use, held)

    def _of_graph(self, use: Use, held: Held) -> None:
        """Judge the use of a graph or a block."""
        draft, shown_name = self._draft, f"{held.kind.replace('built', 'graph')}.{use.name}"
        is_whole = held.is_sure and held.kind in {"graph", "built"} and self._has_loader
        if use.name in FLAGS and is_whole and use.call is not None and isinstance(use.node, ast.Attribute):
            self._flag(use, use.name, use.call, use.node.value)
        elif use.name == "update_all" and not _has_reduction(use.call):
            draft.find(use.node, shown_name, "perhaps missing", _MAILBOX)
        elif use.name in NAMES[held.kind]:
            draft.find(use.node, shown_name, "maps", "graphs and blocks of gloader.compat.dgl")
        else:
            advice = GRAPH_ADVICE.get(use.name, "graphs and blocks of gloader.compat.dgl do not have it")
            draft.find(use.node, shown_name, "missing" if held.is_sure else "perhaps missing", advice)

    def _of_dataset(self, use: Use, held: Held) -> None:
        """Judge the use of a data set. Its graph, splits and labels become those of the prepared dataset."""
        draft, node = self._draft, use.node
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return
        owner, shown_name = draft.edits.of(node.value), f"dataset.{use.name}"
        if use.name == "[]":
            self._graph_of(use, node, is_ogb=held.made_by in OGB_CLASSES)
        elif use.name == "get_idx_split" and use.call is not None:
            draft.split_of_ogb(use, use.call, node.value, ntype=self._ntype)
        elif use.name in _SPLIT_IDS or use.name == "labels":
            new = f"{draft.module('torch', 'import torch')}.tensor({owner}.{_SPLIT_IDS.get(use.name, 'labels')})"
            draft.note(node, shown_name, new, can_go=draft.edits.replace_node(node, new))
        elif use.name == "num_labels":
            draft.note(
                node, shown_name, "num_classes", can_go=draft.replace_tail(node, node.value, ".num_classes")
            )
        elif use.name in {"num_classes", "name"}:
            draft.find(node, shown_name, "maps", "gloader.Dataset")
        else:
            advice = {"get_edge_split": "edges to predict are link tables (docs/links.md)"}.get(use.name)
            draft.find(
                node, shown_name, "missing", advice or f"a gloader.Dataset has no {use.name} of this kind"
            )

    def _graph_of(self, use: Use, node: ast.Attribute | ast.Subscript, *, is_ogb: bool) -> None:
        """Replace ``dataset[0]`` by the graph; for OGB by the graph and its labels (N, 1)."""
        draft, owner = self._draft, self._draft.edits.of(node.value)
        graph = f"{draft.module('dgl', COMPAT)}.DGLGraph"
        if is_ogb:
            labels = f"{draft.module('torch', 'import torch')}.tensor({owner}.labels)[:, None]"
            pair = f"{graph}({owner}), {of_type(labels, self._ntype)}"
            is_alone = isinstance(use.place.statement, ast.Assign) and use.place.statement.value is node
            can_go = draft.edits.replace_node(node, pair if is_alone else f"({pair})")
        else:
            can_go = draft.wrap(node, node.value, graph)
        draft.note(node, "dataset[0]", f"{graph}(...)", can_go=can_go)

    def _frame(self, use: Use, *, is_built: bool) -> None:
        """Judge data that a script assigns to a whole graph. The line goes if a dataset has this data."""
        if not isinstance(use.node, ast.Subscript) or not use.is_stored or not self._has_loader:
            return
        draft, key, node = self._draft, literal(use.node.slice), use.place.statement
        shown = f'graph data "{key if isinstance(key, str) else "..."}"'
        is_saved = is_built and (key in STORED or _is_mask(use.node.slice))
        can_go = isinstance(node, ast.Assign) and node.targets == [use.node]
        if is_saved and can_go and draft.edits.delete_statement(node, use.place.body):
            draft.find(use.node, shown, "changes", "the dataset has it")
        elif key == "feat":
            draft.find(use.node, shown, "perhaps missing", _IN_MEMORY)
        elif is_built and key not in STORED:
            draft.find(use.node, shown, "stays", _OTHER_DATA)


def _is_mask(key: ast.expr) -> bool:
    """Return True if a data name is computed and ends with "_mask", as ``f"{part}_mask"`` does. Pure."""
    match key:
        case (
            ast.JoinedStr(values=[*_, ast.Constant(value=str(end))])
            | ast.BinOp(right=ast.Constant(value=str(end)))
        ):
            return end == "_mask"
    return False


def _unsupported(name: str, call: ast.Call | None) -> str:
    """Return why a call to a supported name is not supported; "" if it is supported. Pure."""
    given = {each.arg for each in call.keywords} if call is not None else set()
    if name.endswith("edge_softmax") and given & {"eids", "norm_by"}:
        return "it is over all in-edges of each destination: eids= and norm_by= are not taken"
    if name == "dgl.load_graphs" and call is not None and argument(call, 1, "idx_list") is not None:
        return "a file has one graph: save each in its own"
    return ""


def _has_reduction(call: ast.Call | None) -> bool:
    """Return True if update_all gets one of DGL's reductions, such as ``fn.sum("m", "h")``. Pure.

    A reduction is a call; a function over a mailbox is given by its name.
    """
    return call is None or isinstance(argument(call, 1, "reduce_func"), ast.Call)


def _prefixes(name: str) -> list[str]:
    """Return the prefixes of a dotted name with two or more parts, the longest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 1, -1)]
