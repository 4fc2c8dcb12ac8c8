import json

import numpy as np
import pytest
import torch
from convert_helpers import read_all
from link_tables import check_positions, read_table, rows_of
from ogb_layout import LINK_SPLITS, write_csv, write_ogbl

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.sources.ogb import open_ogb
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, GraphError, ShapeError, SourceError

MB = 10**6


def made_of(tmp_path, name, *, edge_time=None, edge_features=None, **options):
    source = open_ogb(
        name,
        SourceOptions(
            root=tmp_path, memory_budget_bytes=60 * MB, edge_time=edge_time, edge_features=edge_features
        ),
    )
    prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=60 * MB, **options))
    return Dataset.open(tmp_path / "out")


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("name", LINK_SPLITS)
def test_a_data_set_becomes_a_dataset_with_its_split(tmp_path, name, as_tensors):
    folder = write_ogbl(tmp_path, name, as_tensors=as_tensors)
    split = folder / "split" / LINK_SPLITS[name]
    made = made_of(tmp_path, name)
    is_citation = name == "ogbl-citation2"
    tables = (
        ["train", "valid", "test"] if is_citation else ["train", "valid", "valid_neg", "test", "test_neg"]
    )
    assert list(made.link_tables) == tables
    for part in ("train", "valid", "test"):
        with torch.serialization.safe_globals(
            [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.Int64DType]
        ):
            held = {key: np.asarray(each) for key, each in torch.load(split / f"{part}.pt").items()}
        pairs = np.stack([held["source_node"], held["target_node"]], 1) if is_citation else held["edge"]
        assert rows_of(made, part) == [tuple(pair) for pair in pairs.tolist()]
        check_positions(made, part)
        if part != "train" and is_citation:
            assert made.link_table(part).negatives_per_row == 10
            assert np.array_equal(read_table(made, part).negatives, held["target_node_neg"])
        elif part != "train":
            assert rows_of(made, f"{part}_neg") == [tuple(pair) for pair in held["edge_neg"].tolist()]
    assert (made.num_nodes, made.num_edges) == (40, 200 if is_citation else 400)
    assert made.link_table("train").in_graph == 200
    assert made.feature_dim == {"ogbl-ppa": 58, "ogbl-ddi": 1}.get(name, 128)
    assert (made.labels == -1).all()
    assert made.labelled.split_sizes == {"train": 0, "valid": 0, "test": 0}
    # OGB adds the reverse edges but to citations; a training row knows its own.
    if not is_citation:
        assert (read_table(made, "train").reverses >= 0).all()


def test_weights_of_collab_stand_beside_its_edges(tmp_path):
    folder = write_ogbl(tmp_path, "ogbl-collab")
    source = open_ogb("ogbl-collab", SourceOptions(root=tmp_path))
    whole = np.concatenate([chunk.weight for chunk in source.edges.chunks(10**6)])
    for size in (1, 3, 1000):
        assert np.array_equal(np.concatenate([chunk.weight for chunk in source.edges.chunks(size)]), whole)
        assert len(read_all(source.edges.chunks(size))) == source.edges.num_edges == 400
    assert np.array_equal(whole[::2], whole[1::2])
    for count, said in ((199, "ends after 199 weights; there are more"), (201, "holds more weights than")):
        write_csv(folder / "raw" / "edge_weight.csv.gz", np.ones(count, int))
        source = open_ogb("ogbl-collab", SourceOptions(root=tmp_path))
        with pytest.raises(ShapeError, match=rf"edge_weight\.csv\.gz {said}.* edges"):
            read_all(source.edges.chunks(7))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_years_of_collab_are_times_of_its_edges_and_of_its_split(tmp_path, as_tensors):
    folder = write_ogbl(tmp_path, "ogbl-collab", as_tensors=as_tensors)
    years = np.loadtxt(folder / "raw" / "edge_year.csv.gz", dtype=int)
    ends = np.loadtxt(folder / "raw" / "edge.csv.gz", dtype=int, delimiter=",")
    weights = np.loadtxt(folder / "raw" / "edge_weight.csv.gz", dtype=int)
    made = made_of(tmp_path, "ogbl-collab", edge_time="edge_year", edge_features="edge_weight")
    arrays = made.to_numpy()
    of = np.repeat(np.arange(made.num_nodes), np.diff(arrays["indptr"]))
    found = [arrays["indices"], of, arrays["edge_time"], arrays["edge_weight"], arrays["edge_features"][:, 0]]
    both = np.concatenate([ends, ends[:, ::-1]])
    expected = [*both.T, np.tile(years, 2), *np.tile(weights, (2, 2))]
    assert sorted(np.stack(found, 1).tolist()) == sorted(np.stack(expected, 1).tolist())
    assert read_table(made, "train").times.tolist() == years.tolist()
    for part in ("valid", "test"):
        assert set(read_table(made, part).times.tolist()) == {2018}
        assert not made.link_table(f"{part}_neg").has_times
    # They are taken where they are asked for, and only such as there are.
    for edge_time in (None, "none"):
        plain = made_of(tmp_path, "ogbl-collab", edge_time=edge_time, overwrite=True)
        assert not any(
            table.has_times for table in [*plain.link_tables.values(), *plain.edge_tables.values()]
        )
    with pytest.raises(
        ConfigError, match=r"--edge-time when: .* no such column; they have edge_weight, edge_year$"
    ):
        made_of(tmp_path, "ogbl-collab", edge_time="when", overwrite=True)


def test_years_of_a_split_are_one_for_each_edge(tmp_path):
    file = write_ogbl(tmp_path, "ogbl-collab") / "split" / "time" / "valid.pt"
    pairs = np.zeros((3, 2), int)
    torch.save({"edge": pairs, "year": np.zeros(2, int)}, file)
    assert open_ogb("ogbl-collab", SourceOptions(root=tmp_path)).links[1].rows.num_rows == 3
    with pytest.raises(ShapeError, match=r"valid\.pt\[edge\]: times have shape \(2,\) for 3 rows"):
        made_of(tmp_path, "ogbl-collab", edge_time="edge_year")
    torch.save({"edge": pairs}, file)
    made = made_of(tmp_path, "ogbl-collab", edge_time="edge_year")
    assert {name: table.has_times for name, table in made.link_tables.items() if "neg" not in name} == {
        "train": True,
        "valid": False,
        "test": True,
    }


def test_what_has_no_features_gets_a_column_of_ones(tmp_path):
    write_ogbl(tmp_path, "ogbl-ddi")
    source = open_ogb("ogbl-ddi", SourceOptions(root=tmp_path))
    for size in (1, 3, 1000):
        assert np.array_equal(np.concatenate(list(source.features.chunks(size))), np.ones((40, 1)))


def test_any_folder_with_a_description_of_links_works(tmp_path):
    folder = write_ogbl(tmp_path, "ogbl-ddi").rename(tmp_path / "mine")
    meta = {"task type": "link prediction", "add_inverse_edge": "False", "split": "target"}
    (folder / "meta_dict.json").write_text(json.dumps(meta))
    assert open_ogb("mine", SourceOptions(root=tmp_path)).edges.num_edges == 200
    (folder / "meta_dict.json").write_text(json.dumps({"task type": "link prediction"}))
    with pytest.raises(SourceError, match="is no description of an OGB data set"):
        open_ogb("mine", SourceOptions(root=tmp_path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ogbl-wikikg2", "is a knowledge graph, .* fit"),
        ("ogbl-biokg", "knowledge graph"),
        ("ogbl-vessel", "in another layout"),
        ("ogbl-colab", "did you mean ogbl-collab"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, name, text):
    with pytest.raises(SourceError, match=text):
        open_ogb(name, SourceOptions(root=tmp_path))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("raw/edge.csv.gz", r"edge\.csv\.gz is missing"),
        ("raw/num-node-list.csv.gz", r"num-node-list\.csv\.gz is missing"),
        ("split/time/valid.pt", r"valid\.pt is missing"),
    ],
)
def test_incomplete_folder_is_named(tmp_path, file, text):
    (write_ogbl(tmp_path, "ogbl-collab") / file).unlink()
    with pytest.raises(SourceError, match=text):
        open_ogb("ogbl-collab", SourceOptions(root=tmp_path))


class Code:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("held", "error", "text"),
    [
        ([1], SourceError, "holds a list; a dictionary was expected"),
        ({"edge": Code()}, SourceError, "holds other objects than numbers and arrays"),
        (
            {"edges": np.zeros((3, 2), int)},
            SourceError,
            "holds neither edge nor source_node and target_node; it holds edges",
        ),
        (
            {"edge": np.zeros((2, 3), int)},
            ShapeError,
            r"valid\.pt\[edge\] has shape \(2, 3\); edges are \(n, 2\)",
        ),
        ({"edge": np.zeros((3, 2))}, GraphError, "must be native integers"),
        ({"edge": [[1, 2], [3]]}, SourceError, "is a list that is no array"),
        ({"edge": torch.zeros(1, dtype=torch.int64).expand(10**6, 2)}, SourceError, "which it repeats"),
        (
            {
                "source_node": np.zeros(3, int),
                "target_node": np.zeros(3, int),
                "target_node_neg": np.zeros((2, 5), int),
            },
            ShapeError,
            r"negatives have shape \(2, 5\) for 3 rows",
        ),
    ],
)
def test_malformed_split_is_named_and_never_executed(tmp_path, capsys, held, error, text):
    torch.save(held, write_ogbl(tmp_path, "ogbl-collab") / "split" / "time" / "valid.pt")
    with pytest.raises(error, match=text):
        open_ogb("ogbl-collab", SourceOptions(root=tmp_path))
    assert "executed" not in capsys.readouterr().out


def test_files_of_old_torch_are_read(tmp_path):
    folder = write_ogbl(tmp_path, "ogbl-ddi")
    expected = rows_of(made_of(tmp_path, "ogbl-ddi"), "train")
    held = {"edge": np.array(expected)}
    torch.save(held, folder / "split" / "target" / "train.pt", _use_new_zipfile_serialization=False)
    assert rows_of(made_of(tmp_path, "ogbl-ddi", overwrite=True), "train") == expected


def test_a_split_that_does_not_fit_into_memory_is_refused_unless_it_is_mapped(tmp_path):
    folder = write_ogbl(tmp_path, "ogbl-citation2")
    held = {"source_node": np.zeros(10**5, int), "target_node": np.zeros(10**5, int)}
    torch.save(held, folder / "split" / "time" / "train.pt")
    options = SourceOptions(root=tmp_path, memory_budget_bytes=6 * MB)
    with pytest.raises(
        BudgetError,
        match=r"train\.pt holds numpy arrays, which are read whole, and takes 6\.4 MB; the memory",
    ):
        open_ogb("ogbl-citation2", options)
    torch.save(
        {key: torch.from_numpy(each) for key, each in held.items()}, folder / "split" / "time" / "train.pt"
    )
    assert open_ogb("ogbl-citation2", options).links[0].rows.num_rows == 10**5


def test_a_data_set_with_a_split_gets_no_other(tmp_path):
    write_ogbl(tmp_path, "ogbl-ddi")
    with pytest.raises(
        ConfigError, match=r"the link table 'train' of .* is there already, made by --edge-split"
    ):
        made_of(tmp_path, "ogbl-ddi", edge_split=(0.8, 0.1, 0.1))
