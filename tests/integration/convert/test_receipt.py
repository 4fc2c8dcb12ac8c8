"""Each input is checked, refused with its place, or named once; the receipt lists them."""

from __future__ import annotations

import json
import logging
import warnings

import dgl_files
import numpy as np
import pytest
import torch
from convert_helpers import write_folder
from hypothesis import given
from hypothesis import strategies as st

from gloader.cli.main import main
from gloader.convert.links.link_tables import PairSample, reverses_by_pairs
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.readers.arrays import array_edges, array_features
from gloader.convert.readers.checked_rows import CheckedRows, ValueRange
from gloader.convert.receipt import marked_bytes
from gloader.convert.registry import open_source
from gloader.core.rounding import is_rounded
from gloader.dataset import Dataset
from gloader.errors import ConfigError, FeatureValueError, GloaderError, SourceError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData

N, E = 30, 100
RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.integers(0, N, (2, E))
X = RANDOM.standard_normal((N, 3)).astype(np.float32)
Y = np.arange(N) % 3


def arrays(**changes):
    return {"features": X, "labels": Y, "edge_index": PAIRS} | changes


def data(**more):
    base = {"x": torch.from_numpy(X), "edge_index": torch.from_numpy(PAIRS), "y": torch.from_numpy(Y)}
    return Data(**{key: value for key, value in (base | more).items() if value is not None})


# --- what is not used ------------------------------------------------------------------------------------------------

LEFT = {
    "edge_type": (torch.arange(E), "edge_type (E,)"),
    "node_year": (torch.arange(N), "node_year (N,)"),
    "pos": (torch.rand(N, 2), "pos (N, 2)"),
    "edge_label_index": (torch.zeros(2, 10, dtype=torch.int64), "edge_label_index (2, 10)"),
    "global_x": (torch.rand(1, 7), "global_x (1, 7)"),
    "title": ("a graph", "title (str)"),
    "features": (torch.rand(N, 4), "features (N, 4)"),
}


@pytest.mark.reliability("S6")
def test_what_a_data_holds_and_a_dataset_does_not_is_named_once(tmp_path, caplog, capsys):
    given_too = {name: value for name, (value, _) in LEFT.items()}
    dataset = Dataset.from_pyg(data(**given_too), tmp_path / "a")
    expected = ", ".join(text for _, text in LEFT.values())
    assert sorted(dataset.metadata["receipt"]["not used"].split(", ")) == sorted(expected.split(", "))
    assert [
        record.getMessage().count("edge_type") for record in caplog.records if "not used" in record.message
    ] == [1]
    torch.save(data(**given_too), tmp_path / "g.pt")
    caplog.clear()
    assert main(["prepare", f"pyg:{tmp_path / 'g.pt'}", str(tmp_path / "b")]) == 0
    screen = capsys.readouterr().out
    assert [screen.count(name) for name in LEFT if name not in ("features", "title")] == [1] * (len(LEFT) - 2)
    words = ["--batch-size", "8", "--hidden", "8", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main(["train", "--dataset", f"pyg:{tmp_path / 'g.pt'}", "--fanout", "2,2", *words]) == 0
    assert capsys.readouterr().out.count("edge_type (E,)") == 1
    assert not Dataset.from_pyg(data(num_classes=3), tmp_path / "c").metadata["receipt"].get("not used")


@pytest.mark.reliability("S6")
def test_what_types_and_relations_hold_is_named_with_them(tmp_path):
    graph = HeteroData()
    graph["a"].x, graph["a"].y, graph["a"].year = torch.rand(4, 2), torch.arange(4) % 2, torch.arange(4)
    graph["b"].num_nodes, graph["b"].name = 3, ["x", "y", "z"]
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 2]])
    graph["a", "to", "b"].kind = torch.arange(2)
    dataset = Dataset.from_pyg(graph, tmp_path / "a")
    assert dataset.metadata["receipt"]["not used"] == "year (N,) of a, name (list) of b, kind (E,) of a:to:b"


@pytest.mark.reliability("S6")
def test_masks_of_several_splits_are_named(tmp_path):
    masks = {f"{name}_mask": torch.eye(N, 4)[:, :].bool() for name in ("train", "val", "test")}
    masks["val_mask"], masks["test_mask"] = masks["val_mask"].roll(1, 0), masks["test_mask"].roll(2, 0)
    said = Dataset.from_pyg(data(**masks), tmp_path / "a").metadata["receipt"]
    assert said["not used"].startswith("train_mask [:, 1:] (3 more splits), val_mask")
    assert "at random" not in said["split"]


@pytest.mark.reliability("S6")
@pytest.mark.parametrize("name", ["pairs", "by_source"])
def test_what_a_dgl_file_holds_is_named(tmp_path, name):
    source = open_source(f"dgl:{dgl_files.written(name, tmp_path)}", SourceOptions())
    whole = {*source.unused}
    assert not {each for each in whole if each.startswith(("feat", "label"))}
    assert any("feat: features" in line for line in source.column_notes)


@pytest.mark.reliability("S6")
def test_a_dgl_graph_names_what_it_has_besides(tmp_path):
    from gloader.convert.sources.dgl import quiet_dgl

    with quiet_dgl("this test needs") as dgl:
        graph = dgl.graph((torch.tensor([0, 1]), torch.tensor([1, 2])), num_nodes=3)
        graph.ndata["feat"], graph.ndata["label"] = torch.rand(3, 2), torch.arange(3) % 2
        graph.ndata["year"], graph.edata["kind"] = torch.arange(3), torch.arange(2)
        dataset = Dataset.from_dgl(graph, tmp_path / "a")
    assert dataset.metadata["receipt"]["not used"] == "year (N,), kind (E,), edge data"


@pytest.mark.reliability("S6")
def test_a_folder_of_arrays_names_the_others(tmp_path):
    write_folder(tmp_path / "in", num_nodes=20, num_edges=50)
    np.save(tmp_path / "in" / "edge_type.npy", np.zeros(50))
    np.save(tmp_path / "in" / "year.npy", np.zeros((20, 2)))
    np.savez(tmp_path / "in" / "more.npz", a=np.zeros(3))
    assert open_source(f"npy:{tmp_path / 'in'}", SourceOptions()).unused == (
        "edge_type (E,)", "year (N, 2)", "more.npz"
    )  # fmt: skip
    (tmp_path / "in" / "train.npy").unlink()
    with pytest.raises(
        SourceError, match=r"holds no train\.npy"
    ):  # and no random split in place of the valid nodes
        open_source(f"npy:{tmp_path / 'in'}", SourceOptions())


@pytest.mark.reliability("S6")
def test_a_folder_of_tables_names_the_others(tmp_path):
    (tmp_path / "graph.yaml").write_text(
        "nodes: {a: {num_nodes: 3, labels: y.npy}}\nedges: {a:to:a: e.npy}\n"
    )
    np.save(tmp_path / "y.npy", np.arange(3) % 2)
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    np.save(tmp_path / "x.npy", np.zeros((3, 1)))
    (tmp_path / "f.csv").write_text("src,dst\n0,1\n")
    assert open_source(f"tables:{tmp_path}", SourceOptions()).unused == ("f.csv", "x.npy")


# --- PyG's other forms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_adj_t_is_the_edges_by_destination(tmp_path, layout, is_weighted):
    pairs = np.unique(PAIRS, axis=1)
    weight = torch.rand(pairs.shape[1]) + 2 if is_weighted else torch.ones(pairs.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adj = torch.sparse_coo_tensor(torch.from_numpy(pairs).flip(0), weight, (N, N))
        adj = adj if layout == "coo" else adj.to_sparse_csr()
    made = Dataset.from_pyg(data(edge_index=None, adj_t=adj), tmp_path / "a").to_numpy()
    more = {"edge_weight": weight} if is_weighted else {}
    plain = Dataset.from_pyg(data(edge_index=torch.from_numpy(pairs), **more), tmp_path / "b").to_numpy()
    assert made.keys() == plain.keys()
    for name in made:
        assert np.array_equal(made[name], plain[name])


def test_sparse_features_are_dense_where_they_are_stored(tmp_path):
    x = torch.rand(N, 5) * (torch.rand(N, 5) < 0.3)
    plain = Dataset.from_pyg(data(x=x), tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forms = [x.to_sparse_csr(), x.to_sparse_coo(), SparseTensor(x)]
    for number, form in enumerate(forms):
        assert Dataset.from_pyg(data(x=form), tmp_path / f"b{number}").fingerprint == plain.fingerprint
    torch.save(data(x=forms[0]), tmp_path / "g.pt")
    assert main(["prepare", f"pyg:{tmp_path / 'g.pt'}", str(tmp_path / "c")]) == 0
    assert Dataset.open(tmp_path / "c").fingerprint == plain.fingerprint


class SparseTensor:
    """A matrix as torch_sparse has it."""

    def __init__(self, dense):
        self._csr = dense.to_sparse_csr()

    def csr(self):
        return self._csr.crow_indices(), self._csr.col_indices(), self._csr.values()

    def sizes(self):
        return list(self._csr.shape)


# --- numbers that are not exact --------------------------------------------------------------------------------------


@pytest.mark.reliability("S4")
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**26), 2**26), min_size=1), st.booleans())
def test_an_integer_is_rounded_where_python_says_so(values, is_unsigned):
    array = np.array([abs(each) for each in values], np.uint64) if is_unsigned else np.array(values, np.int64)
    expected = [int(np.float32(int(each))) != int(each) for each in array]
    assert is_rounded(array).tolist() == expected


@pytest.mark.reliability("S4")
@pytest.mark.parametrize("order", ["none", "degree"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64])
def test_integers_are_exact_or_refused(tmp_path, order, dtype):
    ids = (np.arange(N) * 2 + 2**24)[:, None].astype(dtype)
    held = Dataset.from_numpy(tmp_path / "a", **arrays(features=ids), order=order)
    assert sorted(held.to_numpy()["features"][:, 0].astype(np.int64)) == ids[:, 0].tolist()
    ids[3] += 1
    with pytest.raises(
        FeatureValueError, match=r"features: row 3, column 0 is 16777223, which float32 would round"
    ):
        Dataset.from_numpy(tmp_path / "b", **arrays(features=ids), order=order)
    assert not (tmp_path / "b").exists()
    asked = Dataset.from_numpy(tmp_path / "b", **arrays(features=ids), dtype="float32", order=order)
    assert "int64 -> float32" in asked.metadata["receipt"]["feature values"] or dtype != np.int64


@pytest.mark.reliability("S4")
def test_the_command_line_accepts_the_rounding_that_it_names(tmp_path, capsys):
    write_folder(tmp_path / "in", num_nodes=20, num_edges=50)
    np.save(tmp_path / "in" / "features.npy", np.full((20, 2), 2**24 + 1))
    words = ["prepare", f"npy:{tmp_path / 'in'}", str(tmp_path / "out")]
    assert main(words) == 1
    assert "--dtype float32" in capsys.readouterr().err
    assert main([*words, "--dtype", "float32"]) == 0


@pytest.mark.reliability("S4")
def test_integers_of_edges_are_exact_or_refused(tmp_path):
    wide = np.full(E, 2**24 + 1)
    with pytest.raises(FeatureValueError, match=r"edge features: row 0, column 0 .*--edge-dtype float32"):
        Dataset.from_numpy(tmp_path / "a", **arrays(edge_features=wide[:, None]))
    with pytest.raises(SourceError, match="edge 0 has weight 16777217, which float32 would round"):
        Dataset.from_numpy(tmp_path / "a", **arrays(edge_weight=wide))
    Dataset.from_numpy(tmp_path / "a", **arrays(edge_features=wide[:, None]), edge_dtype="float32")
    with pytest.raises(GloaderError, match=r"ids must be below|expected ids"):
        Dataset.from_numpy(tmp_path / "b", **arrays(edge_index=PAIRS.astype(np.uint64) + np.uint64(2**63)))
    with pytest.raises(GloaderError, match="expected ids"):
        Dataset.from_numpy(tmp_path / "b", **arrays(edge_index=PAIRS.astype(np.float64)))


# --- NaN and infinity ------------------------------------------------------------------------------------------------


@pytest.mark.reliability("S5")
@pytest.mark.parametrize("order", ["none", "degree"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused_with_their_place(tmp_path, order, dtype, value):
    x = X.astype(dtype)
    x[7, 2] = value
    with pytest.raises(FeatureValueError, match=rf"features: row 7, column 2 is {value}; .*--allow-nan"):
        Dataset.from_numpy(tmp_path / "a", **arrays(features=x), order=order)
    made = Dataset.from_numpy(tmp_path / "a", **arrays(features=x), order=order, allow_nan=True)
    assert np.isfinite(made.to_numpy()["features"]).sum() == x.size - 1
    said = made.metadata["receipt"]["feature values"]
    assert ("1 NaN" if np.isnan(value) else "1 infinite") in said


@pytest.mark.reliability("S5")
def test_edges_have_no_such_values_unannounced(tmp_path, capsys):
    rows = np.ones((E, 2), np.float32)
    rows[5, 1] = np.nan
    with pytest.raises(FeatureValueError, match="edge features: row 5, column 1 is nan"):
        Dataset.from_numpy(tmp_path / "a", **arrays(edge_features=rows))
    Dataset.from_numpy(tmp_path / "a", **arrays(edge_features=rows), allow_nan=True)
    write_folder(tmp_path / "in", num_nodes=20, num_edges=50)
    np.save(tmp_path / "in" / "features.npy", np.full((20, 2), np.nan))
    words = ["prepare", f"npy:{tmp_path / 'in'}", str(tmp_path / "out")]
    assert main(words) == 1
    assert "row 0, column 0 is nan" in capsys.readouterr().err
    assert main([*words, "--allow-nan"]) == 0
    assert "none finite, float64 -> float32, 40 NaN" in " ".join(capsys.readouterr().out.split())


@pytest.mark.reliability("S5")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("shift", [-3, 0, 3])
def test_the_range_is_that_of_the_values(dtype, shift):
    values = (RANDOM.standard_normal((40, 3)) + shift).astype(dtype)
    found = ValueRange.of(values)
    assert (found.low, found.high) == (values.min(), values.max())


def test_rows_are_looked_at_block_by_block():
    rows = np.zeros((200_000, 2), np.int64)
    rows[0], rows[150_001, 1] = 2**25, 2**24 + 1  # within the range that was seen
    checked = CheckedRows(array_features(rows), where="here", stored_as=None, flag="--dtype", allow_nan=False)
    with pytest.raises(FeatureValueError, match="here: row 150001, column 1"):
        list(checked.chunks(100_000))


# --- the receipt -----------------------------------------------------------------------------------------------------


def test_the_receipt_says_what_came_in(tmp_path, capsys, caplog):
    pairs = np.array([[0, 1, 1, 3, 3], [1, 2, 2, 3, 4]])
    x, y = np.arange(12, dtype=np.float64).reshape(6, 2) / 2, [0, 1, 1, 0, -1, 1]
    with caplog.at_level(logging.INFO, "gloader"):
        made = Dataset.from_numpy(
            tmp_path / "a",
            features=x,
            labels=y,
            edge_index=pairs,
            edge_time=[5, 4, 9, 7, 6],
            deduplicate=True,
        )
    expected = {
        "edges read": "5, ids 0 to 4, 1 self loop, times 4 to 9, 1 parallel ones merged",
        "isolated nodes": "1 of 6 have no edge",
        "feature values": "0 to 5.5, float64 -> float32, no NaN",
        "labels by class": "0: 2, 1: 3; 1 nodes have none",
        "split": "train 3, valid 1, test 1; none was given, so 60/20/20 at random by seed 0",
    }
    assert made.metadata["receipt"] == expected
    assert json.loads((tmp_path / "a" / "dataset.json").read_text())["metadata"]["receipt"] == expected
    levels = {
        record.getMessage().split(": ")[1]: record.levelname
        for record in caplog.records
        if ": " in record.message
    }
    assert (levels["split"], levels["isolated nodes"]) == ("WARNING", "INFO")
    assert main(["info", str(tmp_path / "a")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {text}" in shown for name, text in expected.items())


def test_a_typed_receipt_names_types(tmp_path):
    made = Dataset.from_numpy_hetero(
        tmp_path / "a",
        edges={("a", "to", "b"): np.array([[0, 1], [0, 0]]), ("a", "in", "a"): np.array([[0, 2], [0, 1]])},
        num_nodes={"a": 5, "b": 2},
        features={"a": np.ones((5, 1), np.float32)},
        labels={"a": np.arange(5) % 2},
    )
    said = made.metadata["receipt"]
    assert said["isolated nodes"] == "2 of 5 a; 1 of 2 b"
    assert said["edges read"] == "a:to:b 2; a:in:a 2, 1 self loop"
    assert said["feature values"] == "a 1 to 1, no NaN"


def test_what_is_not_counted_says_so(tmp_path, monkeypatch):
    assert (marked_bytes(100, 6_400), marked_bytes(101, 6_400)) == (100, 0)
    monkeypatch.setattr("gloader.convert.receipt._MARKED_SHARE", 10**9)
    said = Dataset.from_numpy(tmp_path / "a", **arrays(), memory_budget="60MB").metadata["receipt"]
    assert said["isolated nodes"] == "not counted: the memory budget leaves no room"
    assert "parallel ones not counted" in said["edges read"]


# --- held-out links and the way back ---------------------------------------------------------------------------------

BUYS = np.unique(RANDOM.integers(0, 20, (2, 150)), axis=1)
NAMES = {"edge_split": (0.6, 0.2, 0.2), "edge_split_relation": "u:buys:i"}


def shop(path, back, name="bought_by", more=None, **options):
    return Dataset.from_numpy_hetero(
        path,
        edges={("u", "buys", "i"): BUYS, ("i", name, "u"): back} | (more or {}),
        num_nodes={"u": 20, "i": 20},
        features={"u": np.ones((20, 2), np.float32), "i": np.ones((20, 2), np.float32)},
        **(NAMES | options),
    )


def pairs_of(dataset, relation):
    graph = dataset.to_numpy()["edges"][relation]
    return set(map(tuple, graph.T.tolist()))


def held_out(dataset):
    rows = [dataset.link_table(name).open(max_bytes=0) for name in ("valid", "test")]
    found = set()
    for table, name in zip(rows, ("valid", "test"), strict=True):
        with table as opened:
            read = opened.read(np.arange(dataset.link_table(name).num_rows))
            found |= set(zip(read.sources.tolist(), read.destinations.tolist(), strict=True))
    return found


@pytest.mark.reliability("S7")
def test_a_reverse_under_another_name_is_found_by_its_pairs(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "gloader"):
        made = shop(tmp_path / "a", BUYS[::-1])
    left = {(u, i) for i, u in pairs_of(made, ("i", "bought_by", "u"))}
    assert left == pairs_of(made, ("u", "buys", "i"))
    assert not left & held_out(made)
    assert made.link_table("train").reverse_relation == (
        "i",
        "bought_by",
        "u",
    )  # which loaders exclude edges of, too
    assert "i:bought_by:u holds 100% of the pairs of u:buys:i the other way round" in caplog.text
    assert shop(tmp_path / "b", BUYS[::-1], name="rev_buys").num_edges == made.num_edges


@pytest.mark.reliability("S7")
def test_a_part_of_the_pairs_is_told_with_the_flag_that_leaves_them_out(tmp_path, caplog):
    never = next([i, u] for i in range(20) for u in range(20) if [u, i] not in BUYS.T.tolist())
    some = np.column_stack([BUYS[::-1, : 9 * BUYS.shape[1] // 10], never])
    made = shop(tmp_path / "a", some)
    assert made.edge_tables["i", "bought_by", "u"].num_edges == some.shape[1]
    (said,) = [record.getMessage() for record in caplog.records if "--reverse" in record.getMessage()]
    assert "--reverse u:buys:i=i:bought_by:u" in said
    caplog.clear()
    made = shop(tmp_path / "b", some, reverse={("u", "buys", "i"): "bought_by"})  # as it says
    assert not {(u, i) for i, u in pairs_of(made, ("i", "bought_by", "u"))} & held_out(made)
    assert "--reverse" not in caplog.text


@pytest.mark.reliability("S7")
def test_what_has_other_pairs_is_left_as_it_is(tmp_path, caplog):
    others = RANDOM.integers(0, 20, (2, 8))
    made = shop(tmp_path / "a", others)
    assert made.edge_tables["i", "bought_by", "u"].num_edges == 8
    assert made.link_table("train").reverse_relation is None
    full = np.indices((20, 20)).reshape(2, -1)  # of which any relation is a part
    assert shop(tmp_path / "b", full).edge_tables["i", "bought_by", "u"].num_edges == 400


@pytest.mark.reliability("S7")
def test_a_named_reverse_is_none_that_is_added(tmp_path, capsys):
    with pytest.raises(
        ConfigError, match=r"--reverse buys=likes: u:likes:i does not lead back along u:buys:i"
    ):
        shop(tmp_path / "a", BUYS[::-1], more={("u", "likes", "i"): BUYS}, reverse={"buys": "likes"})
    made = shop(tmp_path / "a", BUYS[::-1], reverse={"buys": "bought_by"}, add_reverse=True)
    assert made.relations == (("u", "buys", "i"), ("i", "bought_by", "u"))
    with pytest.raises(ConfigError, match="--reverse is for graphs of several relations"):
        Dataset.from_numpy(tmp_path / "b", **arrays(), reverse={"to": "to"})
    assert main(["prepare", "builtin:digits", str(tmp_path / "c"), "--reverse", "buys"]) == 2
    assert "such as buys=bought_by" in capsys.readouterr().err


@pytest.mark.reliability("S7")
def test_a_reverse_without_times_does_not_stay_where_times_decide(tmp_path):
    times = {("u", "buys", "i"): np.arange(BUYS.shape[1])}
    with pytest.raises(SourceError, match="is a reverse relation of u:buys:i without times"):
        shop(tmp_path / "a", BUYS[::-1], edge_time=times, edge_split_by="time")


def test_a_sample_of_pairs_is_the_same_of_both_relations():
    pairs = np.unique(RANDOM.integers(0, 1000, (2, 20_000)), axis=1)
    ours, theirs = PairSample(most_pairs=1000), PairSample(most_pairs=1000)
    ours.fill(array_edges(pairs, where="a"), 3000, is_reversed=False)
    half = pairs[::-1, : pairs.shape[1] // 2]
    theirs.fill(array_edges(half[:, RANDOM.permutation(half.shape[1])], where="b"), 700, is_reversed=True)
    num_ours, num_theirs, num_both = ours.compared(theirs)
    assert ours.is_part
    assert num_both == num_theirs
    assert num_both / num_ours == pytest.approx(0.5, abs=0.1)
    assert ours.estimated() == pytest.approx(pairs.shape[1], rel=0.2)


@pytest.mark.reliability("S7")
def test_pairs_are_compared_within_a_budget(monkeypatch):
    """A relation of more pairs than the memory holds is known as the reverse by a sample, of 128 bytes a pair."""
    pairs = np.unique(RANDOM.integers(0, 1000, (2, 20_000)), axis=1)
    there, back = ("u", "buys", "i"), ("i", "bought_by", "u")
    streams = {there: array_edges(pairs, where="a"), back: array_edges(pairs[::-1], where="b")}
    samples = []
    fill = PairSample.fill
    monkeypatch.setattr(
        PairSample, "fill", lambda self, *edges, **how: (samples.append(self), fill(self, *edges, **how))
    )
    for budget, most_pairs in ((0, 4096), (128 * 8192, 8192), (1 << 30, pairs.shape[1])):
        found = reverses_by_pairs(
            there, streams, counts=(1000, 1000), known=[], budget_bytes=budget, max_edges=3000
        )
        assert found == [back]
        for sample in samples[-2:]:
            assert most_pairs / 8 < len(sample.hashes) <= most_pairs
            assert sample.is_part == (most_pairs < pairs.shape[1])


@pytest.mark.reliability("S11")
def test_the_advice_about_repeated_pairs_is_true_when_followed(tmp_path, caplog):
    pairs = np.concatenate([PAIRS, PAIRS[:, :40]], axis=1)
    times, how = np.arange(pairs.shape[1]), {"edge_split": (0.6, 0.2, 0.2), "edge_split_by": "time"}
    Dataset.from_numpy(tmp_path / "a", **arrays(edge_index=pairs, edge_time=times), **how)
    assert "keep one edge of each" in caplog.text
    caplog.clear()
    first = np.sort(np.unique(np.sort(pairs, axis=0), axis=1, return_index=True)[1])
    Dataset.from_numpy(tmp_path / "b", **arrays(edge_index=pairs[:, first], edge_time=times[first]), **how)
    assert "in the graph" not in caplog.text


def test_options_name_what_is_stored():
    assert (PrepareOptions().stored_dtype, PrepareOptions(dtype="int8").stored_dtype) == ("float32", "int8")
