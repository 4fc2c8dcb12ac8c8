"""Folders of CSV files in the layout of DGL's CSVDataset."""

import numpy as np
import pytest
import yaml

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source, source_files
from gloader.convert.source_check import check_source
from gloader.errors import ShapeError, SourceError

OPTIONS = SourceOptions(memory_budget_bytes=10**8)
NODES = """node_id,label,train_mask,val_mask,test_mask,feat,age
0,1,False,True,False,"0.5, 0.25",30
2,2,True,False,False,"[4, 5.5]",31
1,0,True,False,False,"-1e-3,7",32
3,,False,False,True,"8, 9",33
"""
EDGES = """src_id,dst_id,feat,weight
3,0,"1, 2, 3",0.5
0,1,"4, 5, 6",1.5
2,2,"7, 8, 9",2.5
"""
META = {"dataset_name": "mini", "edge_data": [{"file_name": "e.csv"}], "node_data": [{"file_name": "n.csv"}]}


def opened(folder, meta=META, *, nodes=NODES, edges=EDGES, options=OPTIONS):
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))
    (folder / "n.csv").write_text(nodes)
    (folder / "e.csv").write_text(edges)
    source = open_source(f"dglcsv:{folder}", options)
    check_source(source)
    return source


def rows(stream):
    return np.concatenate(list(stream.chunks(2))).tolist()


def test_a_graph_of_one_type(tmp_path):
    source = opened(tmp_path)
    assert (source.name, source.num_nodes, source.num_classes) == ("mini", 4, 3)
    (chunk,) = source.edges.chunks(10)
    assert (chunk.src.tolist(), chunk.dst.tolist(), chunk.weight.tolist()) == (
        [3, 0, 2],
        [0, 1, 2],
        [0.5, 1.5, 2.5],
    )
    assert rows(source.features) == [[0.5, 0.25], [4, 5.5], [-1e-3, 7], [8, 9]]
    assert source.row_ids.tolist() == [0, 2, 1, 3]
    assert rows(source.edge_features) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert source.labels.tolist() == [1, 0, 2, -1]
    splits = source.splits
    assert (splits.train.tolist(), splits.valid.tolist(), splits.test.tolist()) == ([1, 2], [0], [3])
    assert source.unused == ("age (integer) of n.csv",)
    assert source.column_notes == (
        "edges: src_id and dst_id of e.csv, weight is the weight",
        "edge features: feat of e.csv",
        "nodes: n.csv, feat is the features, label is the label, train_mask, val_mask, test_mask",
    )
    files = {path.name for path in source_files(f"dglcsv:{tmp_path}", OPTIONS)}
    assert files == {"meta.yaml", "n.csv", "e.csv"}


def test_the_ends_are_those_of_the_description(tmp_path):
    meta = {**META, "edge_data": [{"file_name": "e.csv", "src_id_field": "to", "dst_id_field": "from"}]}
    (chunk,) = opened(tmp_path, meta, edges="from,to\n0,1\n2,3\n").edges.chunks(9)
    assert (chunk.src.tolist(), chunk.dst.tolist()) == ([1, 3], [0, 2])


def test_a_graph_of_several_types(tmp_path):
    (tmp_path / "items.csv").write_text("node_id\n0\n1\n")
    (tmp_path / "likes.csv").write_text("src_id,dst_id\n3,1\n0,0\n")
    meta = {
        "dataset_name": "typed",
        "node_data": [{"file_name": "n.csv", "ntype": "user"}, {"file_name": "items.csv", "ntype": "item"}],
        "edge_data": [
            {"file_name": "e.csv", "etype": ["user", "follows", "user"]},
            {"file_name": "likes.csv", "etype": ["user", "likes", "item"]},
        ],
    }
    source = opened(tmp_path, meta)
    assert (source.labelled, source.num_nodes) == ("user", {"user": 4, "item": 2})
    assert [each.relation for each in source.relations] == [
        ("user", "follows", "user"),
        ("user", "likes", "item"),
    ]
    assert [each.features is None for each in source.nodes] == [False, True]
    (chunk,) = source.relations[1].edges.chunks(9)
    assert (chunk.src.tolist(), chunk.dst.tolist()) == ([3, 0], [1, 0])


def test_one_number_in_a_cell_is_one_feature(tmp_path):
    source = opened(tmp_path, nodes="node_id,feat,label\n0,5,0\n1,6.5,1\n2,7,0\n3,8,1\n")
    assert rows(source.features) == [[5], [6.5], [7], [8]]


def test_other_ids_need_a_graph_yaml(tmp_path):
    text = r"n\.csv: .*'ann'.*For other ids, prepare tables:.*graph\.yaml such as \{nodes: \{node: \{file: n\.csv, "
    with pytest.raises(SourceError, match=text):
        opened(tmp_path, nodes='node_id,label,feat\nann,0,"1, 2"\nbob,1,"3, 4"\n')
    with pytest.raises(
        SourceError, match=r"row 1 has 2 in column 'node_id'.*E: \{file: e\.csv, src: node\.node_id, dst: n"
    ):
        opened(tmp_path, nodes='node_id,label,feat\n0,0,"1, 2"\n2,1,"3, 4"\n')


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"graph_data": {"file_name": "g.csv"}}, "has graph_data, a table of several graphs"),
        ({"node_data": []}, r"node_data is \[\]; it must be a list of entries with a file_name"),
        ({"edge_data": [{"file_name": "no.csv"}]}, r"no\.csv is missing"),
        (
            {"edge_data": [{"file_name": "e.csv", "etype": ["a", "r", "_V"]}]},
            "the etype is .* with types among _V",
        ),
        (
            {"node_data": [{"file_name": "n.csv", "node_id_field": "key"}]},
            r"n\.csv has no column key; it has node_id",
        ),
        ({"separator": ";"}, r"separated by ',', and meta\.yaml has the separator ';'"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path, change, text):
    with pytest.raises(SourceError, match=text):
        opened(tmp_path, {**META, **change})


@pytest.mark.parametrize(
    ("nodes", "error", "text"),
    [
        (
            NODES.replace('"8, 9"', '"8"'),
            ShapeError,
            "row 3 has 1 numbers in column 'feat'; every row must have 2",
        ),
        (
            NODES.replace('"8, 9"', '"8, x"'),
            SourceError,
            "row 3, column 'feat' is '8, x'; features are numbers",
        ),
        (NODES.replace("3,,", "3,-5,"), SourceError, "row 3 has label -5"),
        (NODES.replace("feat", "emb"), SourceError, r"has no features \(a column feat or features or x\)"),
        (
            "node_id,graph_id,feat,label\n0,0,1,0\n1,1,1,0\n",
            SourceError,
            r"has several graphs \(column graph_id\)",
        ),
    ],
)
def test_wrong_rows_are_refused(tmp_path, nodes, error, text):
    with pytest.raises(error, match=text):
        rows(opened(tmp_path, nodes=nodes).features)
