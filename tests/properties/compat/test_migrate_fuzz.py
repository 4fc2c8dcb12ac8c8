"""Any text of Python: `gloader migrate` shows a diff that leads to Python, or says in an error of gloader's why not."""

import ast
import random
import re
import sysconfig
from pathlib import Path

import pytest
from diffs import apply_diff
from scripts_to_migrate import SCRIPTS

from gloader.bridges.migrate.migration import migrate_text
from gloader.errors import ConfigError

# Names of both libraries in the place of those of the standard library: calls with arguments of every kind.
NAMES = (
    "dgl.dataloading.DataLoader", "dgl.dataloading.NodeDataLoader", "dgl.dataloading.NeighborSampler",
    "dgl.dataloading.as_edge_prediction_sampler", "dgl.graph", "dgl.data.CoraGraphDataset", "dgl.nn.SAGEConv",
    "dgl.data.AsNodePredDataset", "dgl.load_graphs", "dgl.add_self_loop", "dgl.to_bidirected", "dgl.sparse.x",
    "torch_geometric.loader.NeighborLoader", "torch_geometric.loader.LinkNeighborLoader",
    "torch_geometric.datasets.Planetoid", "torch_geometric.data.Data", "torch_geometric.transforms.ToUndirected",
    "torch_geometric.transforms.RandomLinkSplit", "torch_geometric.nn.SAGEConv",
    "ogb.nodeproppred.DglNodePropPredDataset", "ogb.nodeproppred.PygNodePropPredDataset",
)  # fmt: skip
ATTRIBUTES = (
    "ndata", "add_self_loop", "remove_self_loop", "to", "num_nodes", "train_idx", "get_idx_split", "num_labels",
    "labels", "x", "y", "train_mask", "data", "to_dgl", "to_pyg", "squeeze", "num_features", "edge_index",
)  # fmt: skip
KEYWORDS = (
    "num_workers",
    "replace",
    "edge_label_index",
    "weight_attr",
    "disjoint",
    "mask",
    "transform",
    "name",
)
HEADS = (
    "import dgl, torch_geometric, ogb\nimport dgl.dataloading\n",
    "from dgl.dataloading import NodeDataLoader as N; import torch_geometric as pyg\nimport dgl, ogb\n",
    "import torch_geometric\nfrom torch_geometric.loader import (NeighborLoader,\n  HGTLoader)\nimport ogb\n",
    "try:\n    import dgl, ogb\nexcept ImportError:\n    import torch_geometric\n",
)


def compiles(text):
    try:
        compile(text, "script.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def check(text):
    """Migrate a text of Python; return whether something changed."""
    try:
        found = migrate_text(text, "script.py")
    except ConfigError as error:
        assert ", changed, " not in str(error)  # noqa: PT017 - other errors are answers
        return False
    assert apply_diff(text, found.diff) == found.changed
    assert compiles(found.changed) or not compiles(text)
    found.to_json()
    return bool(found.diff)


def library_files():
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.glob("*.py")) if 2000 < path.stat().st_size < 15_000]
    return files[:: max(1, len(files) // 60)][:60]


def in_disguise(text, rng):
    """Return a text with functions, attributes and keywords renamed to those of the libraries."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    found = {
        NAMES: {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        },
        ATTRIBUTES: {node.attr for node in nodes if isinstance(node, ast.Attribute)},
        KEYWORDS: {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg},
    }
    # A name that is bound somewhere cannot have dots.
    bound = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler)
    }
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg | ast.keyword)}
    bound |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    bound |= {each.asname or each.name for node in nodes if isinstance(node, ast.alias) for each in [node]}
    found[NAMES] -= bound
    new = {
        name: rng.choice(choices)
        for choices, names in found.items()
        for name in sorted(names)
        if rng.random() < 0.5
    }
    if new:
        text = re.sub(rf"\b({'|'.join(map(re.escape, new))})\b", lambda match: new[match[1]], text)
    lines = text.split("\n")
    at = rng.choice(
        [0, 0, next((n for n, line in enumerate(lines) if line.startswith(("def ", "class "))), 0)]
    )
    text = "\n".join([*lines[:at], rng.choice(HEADS) + "\n".join(lines[at:])])
    return rng.choice(["", "", "", "\ufeff"]) + rng.choice(
        [text, text, text.replace("\n", "\r\n"), text.rstrip()]
    )


def test_files_of_the_standard_library():
    rng = random.Random(4)  # noqa: S311
    num_parsed = num_changed = 0
    files = library_files()
    assert len(files) > 50
    for path in files:
        text = path.read_text(encoding="utf-8")
        check(text)
        disguised = in_disguise(text, rng)
        num_parsed += compiles(disguised.removeprefix("\ufeff"))
        num_changed += check(disguised)
    assert num_parsed > 45
    assert num_changed > 45


def spans(text):
    """Return where the expressions of a text are."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [
        (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]


def mutated(text, rng):
    """Return a text with brackets, ends of lines, blocks, or lines in another place."""
    what = rng.randrange(5)
    lines = text.split("\n")
    number = rng.randrange(len(lines))
    line = lines[number]
    margin = line[: len(line) - len(line.lstrip())]
    if what == 0:
        first, last = rng.choice(spans(text))
        parts = text.encode()
        return (parts[:first] + b"(" + parts[first:last] + b")" + parts[last:]).decode()
    if what == 1:
        at = rng.choice([match.end() for match in re.finditer(r"[(,\[{]", text)])
        return text[:at] + rng.choice(["\n", "  # c, d\n", " \\\n", "\t"]) + text[at:]
    if what == 2 and number:
        return "\n".join(
            [*lines[: number - 1], f"{lines[number - 1]}; {line.lstrip()}", *lines[number + 1 :]]
        )
    if what == 3:
        other = rng.randrange(len(lines))
        lines[number], lines[other] = lines[other], lines[number]
        return "\n".join(lines)
    block = rng.choice(["if 1:", "with a as b:", "class C:", "def f(g, *a, data=1):", "async def f(hg):"])
    return "\n".join([*lines[:number], f"{margin}{block}\n{margin} {line.lstrip()}", *lines[number + 1 :]])


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_are_written_in_other_ways(name):
    rng = random.Random(len(SCRIPTS[name]))  # noqa: S311
    num_changed = 0
    for _ in range(20):
        text = SCRIPTS[name]
        for _ in range(rng.randrange(1, 12)):
            other = mutated(text, rng)
            text = other if compiles(other) else text
        num_changed += check(text)
        cut = text[: rng.randrange(len(text))]
        check(cut + rng.choice(["", "\0", "\x1a", "(", "'''", "\\"]))
    assert num_changed > 10 or name in {"DGL_GRAPHBOLT", "DGL_WHOLE", "PYG_WHOLE"}
