"""The verdict on each name and argument in a script of PyG."""

import re

import pytest
from scripts_to_migrate import SCRIPTS

from gloader.bridges.migrate.migration import migrate_text

HEAD = (
    "import torch_geometric as pyg\nimport torch_geometric.transforms as T\n"
    "from torch_geometric.datasets import Planetoid, Reddit\nfrom torch_geometric.data import Data\n"
    "from torch_geometric.loader import LinkNeighborLoader, NeighborLoader\n"
    "from ogb.nodeproppred import PygNodePropPredDataset\n"
)
OURS = "from gloader.adapters.pyg import NeighborLoader\n"
OPENED = 'ds = gloader.Dataset.open("data/reddit")\n'
GRAPH = 'data = GraphData(gloader.Dataset.open("data/graph"))'
LOADER = "\nloader = NeighborLoader(data, [5, 5])\n"


def migrate(text, loader=LOADER):
    return migrate_text(f"{HEAD}{text}{loader}", "script.py")


def becomes(text, loader=LOADER):
    """Return ``text``, changed, without the imports before it and the loader behind it."""
    lines = migrate(text, loader).changed.split("\n")
    return "\n".join(
        line for line in lines if not line.startswith(("import ", "from ", LOADER.strip()))
    ).strip("\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from torch_geometric.loader import NeighborLoader",
            "from gloader.adapters.pyg import NeighborLoader",
        ),
        (
            "from torch_geometric.loader import NeighborLoader as N",
            "from gloader.adapters.pyg import NeighborLoader as N",
        ),
        (
            "from torch_geometric.loader import HGTLoader, NeighborLoader",
            "from torch_geometric.loader import HGTLoader\nfrom gloader.adapters.pyg import NeighborLoader",
        ),
        ("from torch_geometric.nn import SAGEConv", "from torch_geometric.nn import SAGEConv"),
        (
            "def f():\n    from torch_geometric.loader import NeighborLoader",
            "def f():\n    from gloader.adapters.pyg import NeighborLoader",
        ),
        (
            "import torch_geometric as pyg\nloader = pyg.loader.NeighborLoader(data, [5])",
            f"{OURS}import torch_geometric as pyg\nloader = NeighborLoader(data, [5])",
        ),
        (
            "import torch_geometric.loader as L\nloader = L.NeighborLoader(data, [5])",
            "from gloader.adapters.pyg import NeighborLoader\nloader = NeighborLoader(data, [5])",
        ),
    ],
)
def test_import_lines(before, after):
    assert migrate_text(before + "\n", "script.py").changed == after + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ds = Reddit(p)\ndata = ds[0]", f"{OPENED}data = GraphData(ds)"),
        ('data = Planetoid("d", "Cora")[0]', GRAPH.replace("graph", "cora")),
        ('data = Planetoid("d", a.name).data', 'data = GraphData(gloader.Dataset.open(f"data/{a.name}"))'),
        ("ds = Reddit(p)\ndata = ds[0].to(device, 'x')", f"{OPENED}data = GraphData(ds)"),
        ("ds = Reddit(p)\ndata = ds[0]\ndata = data.to(device)", f"{OPENED}data = GraphData(ds)"),
        ("ds = Reddit(p)\nn = ds.num_features, ds.num_classes", f"{OPENED}n = ds.feature_dim, ds.num_classes"),
        ("ds = Reddit(p)\ndata = ds[0]\ndata = T.ToUndirected()(data)", f"{OPENED}data = GraphData(ds)"),
        ("data = Data(x=x)\ndata.y = y\ndata.train_mask = mask", GRAPH),
        ("data = Data(x=x)\ndata.y = n = 1", f"{GRAPH}\ndata.y = n = 1"),
        ("other = Data(x=x)\nother.y = y", "other = Data(x=x)\nother.y = y"),
        ("data = dataset.to_pyg()", "data = GraphData(dataset)"),
        ("a = NeighborLoader(dataset.to_pyg(), [5])", "a = NeighborLoader(dataset, [5])"),
    ],
)  # fmt: skip
def test_lines_that_make_graphs(before, after):
    assert becomes(before) == after


def test_lines_that_make_graphs_of_ogb():
    changed = migrate_text(SCRIPTS["PYG_PRODUCTS"], "script.py").changed
    assert 'dataset = gloader.Dataset.open("data/ogbn-products")\n' in changed
    assert (
        'split_idx = {"train": torch.tensor(dataset.train), "valid": torch.tensor(dataset.valid)' in changed
    )
    assert "batch.y[: batch.batch_size].long()" in changed
    assert "\nimport torch\n" in changed
    assert '{"paper": torch.tensor(' in becomes(
        'ds = PygNodePropPredDataset("ogbn-mag")\ns = ds.get_idx_split()'
    )


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("num_workers=4", ""),
        ("num_workers=4, batch_size=8", "batch_size=8"),
        ("batch_size=8, num_workers=(4), pin_memory=True,", "batch_size=8,"),
        ("batch_size=8,\n    num_workers=4,  # many\n    shuffle=True", "batch_size=8,\n    shuffle=True"),
        ("disjoint=False, replace=False, subgraph_type='directional'", ""),
        ("replace=True", 'sampler="neighbor:replace=true"'),
        ("weight_attr='w', batch_size=8", 'sampler="weighted", batch_size=8'),
        ("**{'num_workers': 4, 'batch_size': 8}", "**{'batch_size': 8}"),
        ("**{'weight_attr': 'w'}", '**{"sampler": "weighted"}'),
        ("**dict(num_workers=4)", "**dict()"),
        ("generator=g, neighbor_sampler=s, is_sorted=True", ""),
    ],
)
def test_arguments_of_loaders(given, left):
    found = becomes("", f"a = NeighborLoader(\n    data, [5], {given}\n)\n")
    assert found == f"a = NeighborLoader(\n    data, [5]{', ' * bool(left)}{left}\n)"


def test_arguments_that_several_loaders_share():
    how = "how = {\n    'num_workers': 4,\n    'batch_size': 8,\n}\n"
    found = becomes(f"{how}a = NeighborLoader(data, [5], **how)\nb = NeighborLoader(data, [6], **how)", "")
    assert found.startswith("how = {\n    'batch_size': 8,\n}\n")


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("edge_label_index=train_data.edge_label_index", 'edge_label_index="train"'),
        ("edge_label_index=val_edges, edge_label=y", 'edge_label_index="valid"'),
        ("edge_label_index=test_edges", 'edge_label_index="test"'),
        ("pairs, batch_size=8", '"train", batch_size=8'),
    ],
)
def test_edges_to_predict_are_link_tables(given, after):
    drawn = 'neg_sampling="binary"'
    text = f"ds = Reddit(path)\ndata = ds[0]\na = LinkNeighborLoader(data, [5], {given}, {drawn})\n"
    found = migrate(text, "")
    assert f"a = LinkNeighborLoader(data, [5], {after}, {drawn})\n" in found.changed
    assert found.steps[0].command == (
        'import gloader; gloader.Dataset.from_pyg(Reddit(path)[0], "data/reddit", edge_split=(0.8, 0.1, 0.1))'
    )


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("edge_label_index=e", 'edge_label_index="train", neg_sampling="binary"'),
        ("edge_label_index=e,\n", 'edge_label_index="train", neg_sampling="binary",\n'),
        ("edge_label=y, edge_label_index=e", 'neg_sampling="binary", edge_label_index="train"'),
        ("edge_label_index=e, neg_sampling_ratio=0.0", 'edge_label_index="train", neg_sampling="binary"'),
        (
            "edge_label_index=e, neg_sampling_ratio=ratio",
            'edge_label_index="train", neg_sampling_ratio=ratio',
        ),
        ("edge_label_index=e, **how", 'edge_label_index="train", **how'),
        (
            "edge_label_index=e, neg_sampling_ratio=0.0, edge_label=y, batch_size=8",
            'edge_label_index="train", neg_sampling="binary", batch_size=8',
        ),
        ("e, batch_size=8, num_workers=4", '"train", batch_size=8, neg_sampling="binary"'),
        ("\n    e,\n    num_workers=4,\n", '\n    "train", neg_sampling="binary",\n'),
        ("batch_size=8", 'batch_size=8, neg_sampling="binary"'),
    ],
)
def test_a_loader_without_negatives_is_given_some(given, after):
    """A table of `--edge-split` has no labels: without negatives a loader of it refuses to open."""
    found = migrate(f"data = Reddit(path)[0]\na = LinkNeighborLoader(data, [5], {given})\n", "")
    assert f"a = LinkNeighborLoader(data, [5], {after})\n" in found.changed


def test_the_edges_of_a_relation_are_split():
    pairs = '(("user", "rates", "movie"), pairs)'
    text = f"ds = Reddit(path)\na = LinkNeighborLoader(ds[0], [5], edge_label_index={pairs})\n"
    found = migrate(text, "")
    assert 'edge_label_index="train", neg_sampling="binary")' in found.changed
    assert 'edge_split_relation="user:rates:movie")' in found.steps[0].command
    ogb = "from ogb.linkproppred import PygLinkPropPredDataset\nds = PygLinkPropPredDataset('ogbl-collab')\n"
    found = migrate(f"{ogb}a = LinkNeighborLoader(ds[0], [5], edge_label_index=pairs)\n", "")
    assert [each.command for each in found.steps] == ["gloader prepare ogb:ogbl-collab data/ogbl-collab"]


def test_one_graph_takes_the_place_of_three():
    found = migrate_text(SCRIPTS["PYG_LINKS"], "script.py")
    assert "train_data = val_data = test_data = GraphData(dataset)\n" in found.changed
    assert found.steps[0].where == "in the script as it is, behind line 6, and without RandomLinkSplit:"
    assert "edge_split=(0.8, 0.1, 0.1)" in found.steps[0].command
    split = "T.RandomLinkSplit(num_val=0.1)"
    found = migrate(
        f"ds = Reddit(path, transform={split})\na, b, c = ds[0]", "\nl = NeighborLoader(a, [5])\n"
    )
    assert 'from_pyg(Reddit(path)[0], "data/reddit", edge_split' in found.steps[0].command


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ("num_val=0.05, num_test=0.1", "85/5/10"),
        ("", "70/10/20"),
        ("0.1, 0.1, is_undirected=True", "80/10/10"),
        ("num_val=500, num_test=0.1", "80/10/10"),
        ("num_val=share", "80/10/10"),
    ],
)
def test_the_shares_of_a_split_are_the_scripts(given, shares):
    text = (
        f"data = torch.load('a/My graph.pt')\na, b, c = T.RandomLinkSplit({given})(T.ToUndirected()(data))\n"
    )
    found = migrate(
        f"import torch\n{text}l = LinkNeighborLoader(a, [5], edge_label_index=a.edge_label_index)\n", ""
    )
    (step,) = found.steps
    assert (
        step.command
        == f"gloader prepare 'pyg:a/My graph.pt' data/my-graph --edge-split {shares} --symmetrize"
    )
    assert "a = b = c = data\n" in found.changed
    assert found.is_complete


@pytest.mark.parametrize(
    "text",
    [
        "data = load()\n",
        "import torch\ndata, split = torch.load(p)\n",
        "from data import data\n",
        "class A:\n    def f(self):\n        NeighborLoader(self.data, [5])\n",
        "class A:\n    def f(self):\n        self.data = Data(x=x)\n        NeighborLoader(self.data, [5])\n",
        "def f(data):\n    NeighborLoader(data, [5])\n",
    ],
)
def test_of_a_graph_that_comes_from_elsewhere_nothing_is_promised(text):
    found = migrate(f"{text}print(data.train_mask)", LOADER if not text.startswith(("class", "def")) else "")
    (elsewhere,) = [each for each in found.findings if each.verdict == "perhaps missing"]
    assert "gloader prepare pyg:FILE OUT" in elsewhere.text
    assert not any(each.text == "GraphData" and each.verdict == "maps" for each in found.findings)


def test_a_parameter_is_what_the_script_has_made():
    made = "def f(data):\n    return NeighborLoader(data, [5])\ndata = Reddit(p)[0]\nf(data)"
    assert migrate(made, "").is_complete


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("data = torch.load(p)\ndata.train_mask = m\nx = 1", 2),
        ("data = torch.load(p)\nfor k in ks:\n    data[k] = m\ndata.y = y", 4),
        ("data = torch.load(p)\ndel data.pos\nx = 1", 2),
        ("data = torch.load(p)\ndata = T.NormalizeFeatures()(data)\nx = 1", 2),
        ("data = torch.load(p)\ndata = T.ToUndirected()(data)\nx = 1", 0),
        ("data = torch.load(p).to(device)\nx = 1", 0),
    ],
)
def test_a_graph_is_saved_behind_its_last_change(text, line):
    found = migrate(f"import torch\n{text}")
    (step,) = found.steps
    assert found.is_complete
    if line:
        assert step.where == f"in the script as it is, behind line {HEAD.count(chr(10)) + 1 + line}:"
        assert step.command.startswith('import gloader; gloader.Dataset.from_pyg(data, "data/graph"')
    else:
        assert step.command.startswith("gloader prepare pyg:FILE data/graph")


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("data['paper'].x_", "HeteroGraphData"),
        ("data.metadata()", "HeteroGraphData"),
        ("for batch in NeighborLoader(data, [5]):\n    batch.x_dict", "HeteroGraphData"),
        ("for batch in NeighborLoader(data, [5]):\n    batch['paper'].y", "HeteroGraphData"),
        ("data['train_mask']", "GraphData"),
        ("saved = torch.load('model.pt')\nmodel.load_state_dict(saved['model'])", "GraphData"),
        ("for batch in NeighborLoader(data, [5]):\n    batch.x", "GraphData"),
    ],
)
def test_a_file_has_several_types_where_the_script_asks_for_them(use, name):
    assert f"data = {name}(gloader" in migrate(f"import torch\ndata = torch.load('graph.pt')\n{use}").changed


def test_another_file_stays():
    text = "import torch\nmodel.load_state_dict(torch.load('model.pt'))\nx = torch.load('x.pt')"
    assert text in migrate(f"{text}\ndata = Reddit(p)[0]").changed


def commands(text):
    return [each.command.partition("; ")[2] or each.command for each in migrate(text).steps]


def test_transforms_are_those_of_the_saved_graph_or_flags():
    save = 'gloader.Dataset.from_pyg(Reddit({})[0], "data/reddit"{})'
    later = "data = Reddit('p')[0]\ndata = T.AddSelfLoops()(data)\ndata = T.ToUndirected()(data)"
    assert commands(later) == [save.format("'p'", ", self_loops=True, symmetrize=True")]
    handed = "t = T.ToUndirected()\ndata = Reddit('p', transform=t)[0]"
    assert commands(handed) == [save.format("'p', transform=t", "")]
    of_ogb = 'data = PygNodePropPredDataset("ogbn-arxiv", transform=T.ToUndirected())[0]'
    assert commands(of_ogb) == ["gloader prepare ogb:ogbn-arxiv data/ogbn-arxiv --symmetrize"]
    assert migrate(of_ogb.replace("ToUndirected", "NormalizeFeatures")).is_complete is False
    typed = "from torch_geometric.datasets import DBLP\ndata = DBLP('p')[0]\ndata = T.ToUndirected()(data)"
    assert commands(typed)[0].endswith('[0], "data/dblp", add_reverse=True, symmetrize=True)')
    assert "data = HeteroGraphData(gloader.Dataset.open(" in migrate(typed).changed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data = Reddit(p)[0]\ndata.x", "features stay on the disk: batch.x"),
        ("data = Reddit(p)[0]\ndata.edge_index", "edges stay in the dataset: .*--symmetrize"),
        ("ds = PygNodePropPredDataset('ogbn-arxiv')\ndata = ds[0]\ndata.x = y", "features stay on the disk"),
        ("data = Reddit(p)[0]\ndata.year", "a GraphData has no such thing"),
        ("data = Reddit(p)[0]\ndata.year = y", "holds what the dataset has: prepare it after this line"),
        ("for b in NeighborLoader(data, [5]):\n    b.adj_t", "batches have edge_index, and no adj_t"),
        ("for b in NeighborLoader(data, [5]):\n    b.train_mask", "the first batch_size nodes are the seeds"),
        ("NeighborLoader(data, [5], transform=f)", "apply it to the batch in the loop"),
        ("NeighborLoader(data, [5], replace=args.replace)", "give replace=False: others are not known"),
        ("NeighborLoader(data, [5], directed=False)", "give directed=True"),
        ("NeighborLoader(data, [5], time_attr='t')", "times= of NodeLoader"),
        ("pyg.loader.ClusterLoader(data)", "--order community"),
        ("pyg.loader.DataLoader(many)", "many small graphs fit in memory"),
        ("pyg.loader.HGTLoader(data, [5])", "gloader.collective"),
        ("t = T.ToSparseTensor()", "hand it to the layers"),
        ("from torch_sparse import SparseTensor", "batches have edge_index and need no SparseTensor"),
        ("ds = PygNodePropPredDataset('ogbn-proteins')", "ogbn-proteins has 112 labels per node"),
        ("ds = PygNodePropPredDataset('ogbn-arxiv')\nds.get_edge_split()", "edges to predict are link tables"),
        ("ds = Reddit(p)\nds.processed_dir", "a gloader.Dataset has no processed_dir"),
        ("T.ToUndirected()(f(x))", "apply it to the graph before it is saved"),
        ("(dataset.to_pyg)()", "change it by hand"),
        ("NeighborLoader(data, [5], num_workers=4,  # four\n    # or more\n    batch_size=1)", "change it by hand"),
    ],
)  # fmt: skip
def test_what_does_not_map_and_why(text, said):
    found = migrate(text)
    missing = [each for each in found.findings if each.verdict == "missing"]
    assert not found.is_complete
    assert re.search(said, "\n".join(each.text for each in missing))
    assert {each.page for each in missing} == {"docs/from-pyg.md"}


def test_strings_that_are_formatted_are_changed_by_hand():
    """Before Python 3.12 nobody says where in a file the expressions within them are."""
    text = 'ds = Reddit(p)\nprint("a" f"{ds.num_classes}"\n  f"b {ds.num_features}")\n'
    found = migrate(text)
    assert 'print("a" f"{ds.num_classes}"\n  f"b {ds.num_features}")\n' in found.changed
    named = {each.name: each.verdict for each in found.findings}
    assert named["dataset.num_classes"] == "maps"
    assert named["dataset.num_features"] == "missing"


def verdicts(text):
    return {(each.verdict, each.name): each.text for each in migrate(text).findings}


def test_masks_that_a_script_sets_are_saved_and_map():
    text = """\
from torch_geometric.data import HeteroData
def build():
    typed = HeteroData()
    paper = typed["paper"]
    paper.x = x
    for part in parts:
        setattr(paper, part, mask)
    paper.val_mask = y < 1
    paper.val_mask[:3] = False
    typed["paper"]["test_mask"] = y > 1
    return typed
data = build()
loader = NeighborLoader(data, [5], ("paper", data["paper"]["train_mask"]))
for batch in loader:
    batch["paper"].x
"""
    found = migrate(text, loader="")
    (step,) = found.steps
    last = f"{HEAD}{text}".splitlines()[int(re.search(r"line (\d+)", step.where)[1]) - 1]
    assert last == '    typed["paper"]["test_mask"] = y > 1'
    assert step.command == 'import gloader; gloader.Dataset.from_pyg(typed, "data/graph")'
    assert found.is_complete
    assert ("maps", "data.train_mask") in verdicts(text)
    assert not re.search("val_mask|test_mask|setattr", found.changed)


def test_a_data_set_that_the_script_changes_is_saved_behind_the_change():
    found = migrate(
        "dataset = Reddit(p)\ndata = dataset[0]\ndata.x, n = data.x / 2, 1\ndata.train_mask = f(data.y)"
    )
    (step,) = found.steps
    assert step.command == 'import gloader; gloader.Dataset.from_pyg(data, "data/reddit")'
    assert step.where.endswith("behind line 10:")
    assert "train_mask" not in found.changed


def test_masks_of_typed_batches_are_missing_as_others_are():
    text = 'data["paper"]\nfor batch in NeighborLoader(data, [5]):\n    batch["paper"].train_mask'
    assert ("missing", "batch.train_mask") in verdicts(text)


def test_what_a_function_is_given_is_what_the_script_gives_it():
    text = "data = Data(x=x)\ndef test(graph):\n    graph.x\ntest(data)"
    assert ("missing", "data.x") in verdicts(text)


@pytest.mark.parametrize(
    ("made", "flags", "is_promised"),
    [
        ("ToUndirected()", "--add-reverse --symmetrize", True),
        ("ToUndirected(merge=True)", "--add-reverse --symmetrize", True),
        ("ToUndirected('add', False)", "--add-reverse", True),
        ("ToUndirected(merge=args.merge)", "--add-reverse --symmetrize", False),
        ("AddSelfLoops()", "--self-loops", False),
    ],
)
def test_transforms_of_several_types_are_promised_where_prepare_does_the_same(made, flags, is_promised):
    text = f"import torch\ndata = torch.load('hetero.pt')\ndata = T.{made}(data)\nprint(data.metadata())"
    found = migrate(text)
    assert [each.command for each in found.steps] == [f"gloader prepare pyg:hetero.pt data/hetero {flags}"]
    assert found.is_complete == is_promised


@pytest.mark.parametrize("transform", ["ToUndirected", "RemoveDuplicatedEdges"])
@pytest.mark.parametrize(
    "use",
    [
        "for b in loader:\n    b.edge_attr",
        "NeighborLoader(data, [5], weight_attr='w')",
        "data['edge_weight']",
    ],
)
def test_values_of_edges_that_become_one_are_to_be_looked_at(transform, use):
    text = f"data = Reddit(p)[0]\ndata = T.{transform}()(data)"
    assert migrate(text).is_complete
    found = [each for each in migrate(text, f"{LOADER}{use}").findings if transform in each.name]
    assert [each.verdict for each in found] == ["perhaps missing"]
    assert "adds up the values of edges that become one" in found[0].text
