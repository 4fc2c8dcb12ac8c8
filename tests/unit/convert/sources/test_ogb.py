import json

import numpy as np
import pytest
from convert_helpers import read_all
from ogb_layout import write_csv, write_ogb

from gloader.convert import downloads
from gloader.convert.options import SourceOptions
from gloader.convert.source_check import check_source
from gloader.convert.sources.ogb import open_ogb
from gloader.errors import GraphError, ShapeError, SourceError


@pytest.mark.parametrize(
    "way", ["at", "root", "environment", "working directory", "the folder itself", "pyg"]
)
def test_folder_is_found(tmp_path, monkeypatch, way):
    root = tmp_path / "dataset"
    folder = write_ogb(root, "ogbn-arxiv")
    name, options = "ogbn-arxiv", SourceOptions()
    if way == "at":
        name = f"ogbn-arxiv@{root}"
    elif way == "root":
        options = SourceOptions(root=root)
    elif way == "environment":
        monkeypatch.setenv("GLOADER_OGB_ROOT", str(root))
    elif way == "working directory":
        monkeypatch.chdir(tmp_path)
    elif way == "the folder itself":
        name = f"ogbn-arxiv@{folder}"
    else:
        folder.rename(root / "ogbn_arxiv_pyg")
        options = SourceOptions(root=root)
    source = open_ogb(name, options)
    check_source(source)
    assert (source.name, source.num_nodes, source.num_classes) == ("ogbn-arxiv", 60, 40)


def test_any_folder_with_a_description_works(tmp_path):
    folder = write_ogb(tmp_path, "ogbn-arxiv").rename(tmp_path / "mine")
    meta = {"num classes": "50", "add_inverse_edge": "True", "split": "time", "is hetero": "False"}
    (folder / "meta_dict.json").write_text(json.dumps(meta))
    source = open_ogb("mine", SourceOptions(root=tmp_path))
    edges = read_all(source.edges.chunks(50))
    assert source.num_classes == 50
    assert source.edges.num_edges == len(edges) == 600
    assert edges[1::2] == [(dst, src) for src, dst in edges[::2]]
    (folder / "meta_dict.json").write_text("{}")
    with pytest.raises(SourceError, match=r"meta_dict\.json is no description of an OGB data set"):
        open_ogb("mine", SourceOptions(root=tmp_path))


def test_missing_data_set_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "fetch_ogb", lambda name, root: write_ogb(root, name))
    assert open_ogb("ogbn-arxiv", SourceOptions(root=tmp_path)).num_nodes == 60


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ogbn-arxvi", "did you mean ogbn-arxiv"),
        ("ogbl-biokg", "is a knowledge graph"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, name, text):
    with pytest.raises(SourceError, match=text):
        open_ogb(name, SourceOptions(root=tmp_path))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("raw/edge.csv.gz", r"edge\.csv\.gz is missing"),
        ("raw/node-feat.csv.gz", r"node-feat\.csv\.gz is missing"),
        ("raw/node-label.csv.gz", r"node-label\.csv\.gz is missing"),
        ("split/time/valid.csv.gz", r"valid\.csv\.gz is missing"),
    ],
)
def test_incomplete_folder_is_named(tmp_path, file, text):
    (write_ogb(tmp_path, "ogbn-arxiv") / file).unlink()
    with pytest.raises(SourceError, match=text):
        open_ogb("ogbn-arxiv", SourceOptions(root=tmp_path))


def test_folder_without_raw_is_not_overwritten(tmp_path):
    (tmp_path / "ogbn_arxiv").mkdir()
    with pytest.raises(SourceError, match="holds no folder raw"):
        open_ogb("ogbn-arxiv", SourceOptions(root=tmp_path))


def test_malformed_content_is_named(tmp_path):
    folder = write_ogb(tmp_path, "ogbn-arxiv")
    write_csv(folder / "raw" / "edge.csv.gz", np.array([[0.5, 1.0]]))
    with pytest.raises(GraphError, match=r"edge\.csv\.gz: row 0 \(line 1\), column 'c0' is '0.5'"):
        read_all(open_ogb("ogbn-arxiv", SourceOptions(root=tmp_path)).edges.chunks(10))
    write_csv(folder / "raw" / "node-label.csv.gz", np.zeros((60, 2), int))
    with pytest.raises(ShapeError, match="has 2 columns; it must have one"):
        open_ogb("ogbn-arxiv", SourceOptions(root=tmp_path))


def test_data_without_an_array_is_named(tmp_path):
    folder = write_ogb(tmp_path, "ogbn-papers100M")
    np.savez(folder / "raw" / "data.npz", num_nodes_list=[60])
    with pytest.raises(SourceError, match=r"data\.npz holds no array 'edge_index'"):
        open_ogb("ogbn-papers100M", SourceOptions(root=tmp_path))
