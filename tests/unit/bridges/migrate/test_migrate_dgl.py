"""The verdict on each name and argument in a script of DGL."""

import pytest
from scripts_to_migrate import SCRIPTS

from gloader.bridges.migrate.migration import migrate_text

CORA = "ds = dgl.data.CoraGraphDataset()\n"
OPENED = 'ds = gloader.Dataset.open("data/cora")\n'
GRAPH = 'g = dgl.DGLGraph(gloader.Dataset.open("data/graph"))'
LOADER = "\nloader = dgl.dataloading.DataLoader(g, ids, dgl.dataloading.NeighborSampler([5]))\n"


def migrate(text):
    return migrate_text(text, "script.py")


def becomes(text, *, loader=True):
    """Return ``import dgl``, ``text`` and perhaps a loader, changed, without the imports and the loader."""
    changed = migrate(f"import dgl\n{text}{LOADER if loader else ''}").changed
    lines = [line for line in changed.split("\n") if not line.startswith(("import ", "loader = "))]
    return "\n".join(lines).strip("\n")


def verdicts(text):
    return {(each.name, each.verdict): each.text for each in migrate(text).findings}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import dgl", "import gloader.compat.dgl as dgl"),
        ("import dgl as d", "import gloader.compat.dgl as d"),
        ("import dgl.nn", "import gloader.compat.dgl as dgl"),
        ("import dgl\nimport dgl.nn", "import gloader.compat.dgl as dgl"),
        ("import torch, dgl", "import torch, gloader.compat.dgl as dgl"),
        ("import dgl.nn.pytorch as dglnn", "import gloader.compat.dgl.nn as dglnn"),
        ("import dgl.function as fn", "import gloader.compat.dgl.function as fn"),
        ("from dgl import nn", "from gloader.compat.dgl import nn"),
        ("from dgl.nn import SAGEConv as S", "from gloader.compat.dgl.nn import SAGEConv as S"),
        ("from dgl.nn.pytorch.conv.sageconv import SAGEConv", "from gloader.compat.dgl.nn import SAGEConv"),
        ("from dgl.nn import *", "from gloader.compat.dgl.nn import *"),
        ("from dgl.data.utils import load_graphs", "from gloader.compat.dgl import load_graphs"),
        (
            "from dgl.nn import EdgeConv, SAGEConv",
            "from dgl.nn import EdgeConv\nfrom gloader.compat.dgl.nn import SAGEConv",
        ),
        (
            "from dgl.dataloading import (\n    DataLoader,  # ours\n)",
            "from gloader.compat.dgl.dataloading import (\n    DataLoader,  # ours\n)",
        ),
        (
            "from dgl.dataloading import NodeDataLoader, DataLoader",
            "from gloader.compat.dgl.dataloading import DataLoader as NodeDataLoader, DataLoader",
        ),
        ("if 1: from dgl.nn import SAGEConv", "if 1: from gloader.compat.dgl.nn import SAGEConv"),
        (
            "try:\n    import dgl\nexcept ImportError:\n    dgl = None",
            "try:\n    import gloader.compat.dgl as dgl\nexcept ImportError:\n    dgl = None",
        ),
    ],
)
def test_import_lines(before, after):
    assert migrate(before + "\n").changed == after + "\n"


def test_names_that_nothing_says_any_more_are_not_imported():
    changed = migrate(SCRIPTS["DGL_PRODUCTS"]).changed
    assert "from ogb.nodeproppred import Evaluator\n" in changed
    assert "dgl.data " not in changed
    unused = migrate(
        f"import dgl\nfrom dgl.multiprocessing import call_once_and_share\ng = dgl.graph(x)\n{LOADER}"
    )
    assert "call_once" not in unused.changed
    assert unused.is_complete


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{CORA}g = ds[0]", f"{OPENED}g = dgl.DGLGraph(ds)"),
        (f"{CORA}n = ds.num_labels", f"{OPENED}n = ds.num_classes"),
        (f"{CORA}n = ds.num_classes", f"{OPENED}n = ds.num_classes"),
        (f"{CORA}a = ds.val_idx", f"{OPENED}a = torch.tensor(ds.valid)"),
        (f"{CORA}ds = dgl.data.AsNodePredDataset(ds)", OPENED.strip()),
        ("g = dgl.data.RedditDataset(x)[0]", GRAPH.replace("graph", "reddit")),
        ('g = dgl.data.CitationGraphDataset("pubmed")[0]', GRAPH.replace("graph", "pubmed")),
        ("g = dgl.data.CoraGraphDataset(transform=dgl.AddSelfLoop())[0]", GRAPH.replace("graph", "cora")),
        ("g = dgl.graph((a, b))", GRAPH),
        ("g = dgl.heterograph({})", GRAPH),
        ("g = dgl.graph(([0], [1]))\ng = dgl.add_self_loop(g)", GRAPH),
        ("g = dataset.to_dgl()", "g = dgl.DGLGraph(dataset)"),
        ("a = dgl.dataloading.NodeDataLoader(g)", "a = dgl.dataloading.DataLoader(g)"),
    ],
)  # fmt: skip
def test_lines_that_make_graphs(before, after):
    assert becomes(before) == after


def test_lines_that_make_graphs_of_ogb():
    made = "from ogb.nodeproppred import DglNodePropPredDataset\nds = DglNodePropPredDataset({})\n"
    made += "g, labels = ds[0]\nsplit = ds.get_idx_split()"
    assert becomes(made.format('"ogbn-arxiv"')) == (
        'ds = gloader.Dataset.open("data/ogbn-arxiv")\n'
        "g, labels = dgl.DGLGraph(ds), torch.tensor(ds.labels)[:, None]\n"
        'split = {"train": torch.tensor(ds.train), "valid": torch.tensor(ds.valid), "test": torch.tensor(ds.test)}'
    )
    assert becomes(made.format("args.name")).startswith('ds = gloader.Dataset.open(f"data/{args.name}")\n')
    of_types = becomes(made.format('name="ogbn-mag"'))
    assert '{"paper": torch.tensor(ds.labels)[:, None]}' in of_types
    assert '"valid": {"paper": torch.tensor(ds.valid)}' in of_types
    refused = migrate(f"import dgl\n{made.format(repr('ogbn-proteins'))}{LOADER}")
    assert not refused.is_complete
    assert "Dataset.open" not in refused.changed
    assert any("ogbn-proteins has 112 labels per node" in each.text for each in refused.findings)


def steps(text):
    return [each.command for each in migrate(f"import dgl\n{text}{LOADER}").steps]


def test_what_is_done_once():
    assert steps("g = dgl.data.CoraGraphDataset(  # here\n    raw_dir='x')[0]") == [
        "dgl.save_graphs(\"cora.bin\", [dgl.data.CoraGraphDataset(raw_dir='x')[0]])",
        "gloader prepare dgl:cora.bin data/cora",
    ]
    changes = "g = g.remove_self_loop().add_self_loop()\ng = dgl.to_bidirected(g)\ng = dgl.to_simple(g)"
    assert steps(f"g = dgl.graph(([0], [1]))\n{changes}")[1] == (
        "gloader prepare dgl:graph.bin data/graph --self-loops --symmetrize --deduplicate"
    )
    assert becomes(f"g = dgl.graph(([0], [1]))\n{changes}").count("\n") == 0
    where = migrate(
        "import dgl.data\nfrom dgl import graph\ng = graph(x)" + LOADER.replace("dgl.", "", 1)
    ).steps
    assert not where  # there is no loader of DGL's
    found = migrate(f"from dgl import dataloading, graph\nhg = graph(x)\n{LOADER.replace('dgl.', '')}").steps
    assert found[0].where == (
        "in the script as it is, where DGL still runs, behind the lines that make hg and its feat, label, train_mask, "
        "val_mask and test_mask:"
    )
    assert found[0].command == 'import dgl; dgl.save_graphs("graph.bin", [hg])'


def test_a_file_of_graphs_is_loaded_as_it_is_unless_flags_belong_to_it():
    loaded = '(g,), _ = dgl.load_graphs("my data/a.bin")'
    assert becomes(loaded) == loaded
    assert not steps(loaded)
    assert becomes(f"{loaded}\ng = dgl.add_self_loop(g)") == '(g,), _ = dgl.load_graphs("data/a")'
    assert steps(f"{loaded}\ng = dgl.add_self_loop(g)") == [
        "gloader prepare 'dgl:my data/a.bin' data/a --self-loops"
    ]


def test_flags_of_a_dataset_that_is_made_elsewhere_are_named():
    assert steps(
        "s = dgl.dataloading.as_edge_prediction_sampler(s)\ndgl.dataloading.DataLoader(x, i, s)"
    ) == ["gloader prepare SOURCE OUT --edge-split 80/10/10"]
    assert steps("(g,), _ = dgl.load_graphs(args.file)\ng = dgl.add_self_loop(g)") == [
        "gloader prepare dgl:FILE OUT --self-loops"
    ]
    assert "dgl.load_graphs(args.file)" in becomes(
        "(g,), _ = dgl.load_graphs(args.file)\ng = dgl.add_self_loop(g)"
    )


def test_reverse_edges_that_a_helper_numbers_come_with_the_dataset():
    text = SCRIPTS["DGL_LINK_FILE"]
    found = migrate(text)
    assert "to_bidirected_with_reverse_mapping" not in found.changed
    assert "g, reverse_eids = (g, None)\n" in found.changed
    assert (
        found.steps[0].command
        == "gloader prepare dgl:graph.bin data/graph --symmetrize --edge-split 80/10/10"
    )
    # What is called in another way stays, is marked, and has its flags.
    kept = migrate(text.replace("g, reverse_eids = to_bi", "g, reverse_eids = f if a else to_bi"))
    assert "dgl.to_simple(\n        dgl.add_reverse_edges(g), return_counts" in kept.changed
    assert not kept.is_complete
    assert "--symmetrize" in kept.steps[0].command


def test_lines_that_nothing_takes_the_place_of_stay_and_have_their_flags():
    line = (
        "g, mapping = dgl.to_simple(dgl.add_reverse_edges(g), return_counts='count', writeback_mapping=True)"
    )
    text = f"import dgl\n(g,), _ = dgl.load_graphs('graph.bin')\n{line}{LOADER}"
    found = migrate(text)
    assert line in found.changed
    assert {each.name for each in found.findings if each.verdict == "missing"} == {
        "dgl.to_simple",
        "dgl.add_reverse_edges",
    }
    assert found.steps[0].command == "gloader prepare dgl:graph.bin data/graph --deduplicate --symmetrize"
    unsure = migrate(
        f"import dgl\n(g,), _ = dgl.load_graphs('graph.bin')\ndef f(g):\n    return dgl.to_bidirected(g)\n{LOADER}"
    )
    assert not unsure.is_complete
    assert unsure.steps[0].command.endswith(" data/graph --symmetrize")


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("t = dgl.AddReverse()", "--symmetrize"),
        ("t = dgl.AddReverse()\nprint(g.canonical_etypes)", "--add-reverse"),
        ("t = dgl.Compose([dgl.AddSelfLoop(), dgl.ToSimple()])", "--self-loops --deduplicate"),
        ("ds = dgl.data.AsLinkPredDataset", "--edge-split 80/10/10"),
    ],
)
def test_the_command_has_the_flags_of_the_advice(text, flags):
    found = migrate(f"import dgl\n(g,), _ = dgl.load_graphs('graph.bin')\n{text}{LOADER}")
    assert not found.is_complete
    assert found.steps[0].command == f"gloader prepare dgl:graph.bin data/graph {flags}"


def test_loops_that_are_removed_are_said_to_be():
    found = verdicts(
        f"import dgl\ng = dgl.graph(x)\ng = dgl.add_self_loop(dgl.remove_self_loop(g))\n{LOADER}"
    )
    assert found["dgl.remove_self_loop", "changes"] == "--self-loops leaves each node exactly one"


@pytest.mark.parametrize(
    "text", ["g = load()", "from data import g", "def f(g):\n    pass", "g = dgl.load_graphs"]
)
def test_of_a_graph_that_comes_from_elsewhere_nothing_is_promised(text):
    found = migrate(f"import dgl\n{text}{LOADER}")
    assert [each.name for each in found.findings if each.verdict == "perhaps missing"] == ["g"]


def test_a_model_of_a_whole_graph_is_to_be_looked_at():
    text = "(g,), _ = dgl.load_graphs('graph.bin')\nmodel(g, g.ndata['feat'])"
    found = verdicts(f"import dgl\n{text}{LOADER}")
    assert "layers take blocks" in found["model(g, ...)", "perhaps missing"]


def test_loops_that_are_removed_and_not_added_are_named():
    found = verdicts(f"import dgl\ng = dgl.graph(([0], [1]))\ng = dgl.remove_self_loop(g)\n{LOADER}")
    assert "remove them before the export" in found["dgl.remove_self_loop", "missing"]


def test_edges_to_predict_are_link_tables():
    found = migrate(SCRIPTS["DGL_LINKS"])
    assert 'loader = DataLoader(g, "train", sampler, batch_size=512, shuffle=True)' in found.changed
    assert found.steps[-1].command == "gloader prepare dgl:cora.bin data/cora --edge-split 80/10/10"
    by_type = "s = dgl.dataloading.as_edge_prediction_sampler(s)\n"
    by_type += "val = dgl.dataloading.DataLoader(g, {('user', 'rates', 'item'): ids}, graph_sampler=s)\n"
    found = migrate(f"import dgl\n{by_type}g = dgl.heterograph({{}})\n")
    assert 'dgl.dataloading.DataLoader(g, "valid", graph_sampler=s)' in found.changed
    assert "--edge-split 80/10/10 --edge-split-relation user:rates:item" in found.steps[-1].command
    unknown = (
        "s = dgl.dataloading.as_edge_prediction_sampler(s)\ndgl.dataloading.DataLoader(*a, g, s, indices=i)\n"
    )
    assert "DataLoader(*a, g, s, indices=i)" in migrate(f"import dgl\n{unknown}").changed
    of_nodes = migrate(f"import dgl\n{LOADER}")
    assert "DataLoader(g, ids," in of_nodes.changed


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('dgl.dataloading.NeighborSampler([5], edge_dir="out")', "reverse the edges before the export"),
        ("dgl.dataloading.NeighborSampler([5], replace=True)", "drawn without replacement"),
        ('dgl.dataloading.NeighborSampler([5], prob="w")', 'calls the weights of its edges "weight"'),
        ('dgl.dataloading.MultiLayerFullNeighborSampler(2, mask="m")', "leave the edges out before the export"),
        ('dgl.dataloading.as_edge_prediction_sampler(s, exclude="other")', "exclude is None, 'self'"),
        ("dgl.dataloading.DataLoader(g, i, s, **{'mask': m})", "leave the edges out before the export"),
        ("class S(dgl.dataloading.NeighborSampler): pass", "a sampler of your own runs under DGL's loader"),
        ("s = dgl.dataloading.NeighborSampler([5])\ns.sample_blocks(g, i)", "a DataLoader samples the blocks"),
        ("dgl.dataloading.ClusterGCNSampler(g, 10)", "--order community"),
        ("dgl.dataloading.EdgeDataLoader(g, i, s)", "DataLoader over as_edge_prediction_sampler"),
        ("dgl.batch([g])", "batches of many small graphs fit in memory"),
        ("dgl.data.TUDataset('x')", "batches of many small graphs fit in memory"),
        ("dgl.AddSelfLoop()", "prepare the dataset with --self-loops"),
        ("dgl.sparse.spmatrix(x)", "sparse matrices are not here"),
        ("def f(g):\n    g.local_var()", "use `with block.local_scope():`"),
        ("for a, b, blocks in dgl.dataloading.DataLoader(g, i, s):\n    blocks[0].prop_nodes()", "whole graph"),
        ("d = dgl.data.CoraGraphDataset()\nd.reverse_edge", "a gloader.Dataset has no reverse_edge"),
        ("(dgl.dataloading).NodeDataLoader(g)", "change it by hand"),
        ("dgl.dataloading.as_edge_prediction_sampler(s)", "without negatives the link table needs labels"),
        ("dgl.dataloading.DataLoader(g, i, s, sampler=w)", "as indices, with shuffle="),
        ("dgl.nn.functional.edge_softmax(b, e, norm_by='src')", "over all in-edges"),
        ("dgl.load_graphs(f, [1])", "save each in its own"),
        ("def f(block):\n    block.update_all(m, lambda nodes: 0)", "nodes.mailbox"),
    ],
)  # fmt: skip
def test_what_does_not_map_and_why(call, said):
    found = migrate(f"import dgl\n(g,), _ = dgl.load_graphs(f)\n{call}\n{LOADER}")
    assert not found.is_complete
    missing = [each for each in found.findings if each.verdict in {"missing", "perhaps missing"}]
    assert any(said in each.text for each in missing)
    assert {each.page for each in missing} == {"docs/from-dgl.md"}


def test_strings_that_are_formatted_are_changed_by_hand():
    found = migrate(
        f"import dgl\n{CORA}{LOADER}print(f'''{{ds.num_labels}}\n{{dgl.graph(x)}} {{ds[0]}} {{ds.num_classes}}''')\n"
    )
    assert found.changed.endswith("{ds.num_labels}\n{dgl.graph(x)} {ds[0]} {ds.num_classes}''')\n")
    by_hand = {each.name for each in found.findings if each.text.startswith("change it by hand")}
    assert by_hand == {"dataset.num_labels", "dgl.graph", "dataset[0]"}


def test_what_maps_is_named_where_it_is():
    found = verdicts(SCRIPTS["DGL_PRODUCTS"])
    assert found["dgl.dataloading.DataLoader", "maps"] == "gloader.compat.dgl.dataloading"
    assert found["block.srcdata", "maps"] == "graphs and blocks of gloader.compat.dgl"
    assert found["graph or block.num_nodes", "maps"] == "graphs and blocks of gloader.compat.dgl"
    assert found["use_uva=", "ignored"].startswith("the graph is not pinned")
    assert "dgl.load_graphs" in {name for name, _ in verdicts("import dgl\ndgl.load_graphs('a')\n")}


def test_variables_are_followed():
    text = """
class Net:
    def __init__(self, g):
        self.loader = dgl.dataloading.DataLoader(g, i, s)
        self.first = next(iter(self.loader))

    def train(self):
        for step, (a, b, blocks) in enumerate(tqdm(self.loader)):
            blocks = [block.to("cpu") for block in blocks]
            for (layer, block) in zip(layers, blocks):
                block.push(a)
        a, b, mfgs = next(iter(self.loader))
        mfgs[0].pull(a)
        g = 1
        g.anything()
        f = lambda block: block.whatever()
"""
    found = {name for name, verdict in verdicts(f"import dgl\n{text}") if verdict == "missing"}
    assert found == {"block.push", "block.pull"}


def test_data_that_a_script_sets_is_the_datasets_or_said_to_stay_in_memory():
    made = """\
import dgl
def build():
    g = dgl.graph(edges)
    g = dgl.to_bidirected(g)
    g.ndata["feat"] = x
    g.ndata["year"] = y
    for part in parts:
        g.ndata[part + "_mask"] = part
    return g, 3
g, num_classes = build()
hg = dgl.heterograph(edges)
hg.nodes["paper"].data["feat"] = x
hg.edges["cites"].data["weight"] = w
(loaded,), _ = dgl.load_graphs("graph.bin")
loaded.ndata["feat"] = x
loaded.ndata["year"] = y
"""
    found, said = migrate(made + LOADER), verdicts(made + LOADER)
    for name in ("feat", "...", "weight"):
        assert said[f'graph data "{name}"', "changes"] == "the dataset has it"
    assert said['graph data "feat"', "perhaps missing"].startswith(
        "these rows stay in memory: save the graph"
    )
    assert said['graph data "year"', "stays"].startswith(
        "in memory, and in blocks; the SSD has node data called feat,"
    )
    assert ("g", "perhaps missing") not in said  # a function of the script returns it
    left = [line.strip() for line in found.changed.splitlines() if ".ndata[" in line or ".data[" in line]
    assert left == ['g.ndata["year"] = y', 'loaded.ndata["feat"] = x', 'loaded.ndata["year"] = y']


@pytest.mark.parametrize(
    ("call", "flag", "does"),
    [
        (
            "dgl.add_reverse_edges",
            "--symmetrize",
            "both directions of each edge, each once: parallel edges become one",
        ),
        (
            "dgl.to_bidirected",
            "--symmetrize",
            "both directions of each edge, each once: parallel edges become one",
        ),
        (
            "dgl.add_self_loop",
            "--self-loops",
            "exactly one self loop for each node, also if it had none or several",
        ),
        ("dgl.to_simple", "--deduplicate", "parallel edges become one, and their weights add up"),
    ],
)
def test_a_flag_says_what_it_changes(call, flag, does):
    said = verdicts(f"import dgl\ng = dgl.graph(x)\ng = {call}(g){LOADER}")
    assert said[call, "changes"] == f"prepare the dataset with {flag} ({does})"
