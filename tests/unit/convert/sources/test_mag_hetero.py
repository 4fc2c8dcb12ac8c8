import numpy as np
import pytest
from ogb_layout import write_mag240m
from typed_sources import flat

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source, source_files
from gloader.convert.source import MeanOf
from gloader.convert.source_check import check_source
from gloader.errors import ShapeError, SourceError

AFFILIATED = ("author", "affiliated_with", "institution")
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def folder(tmp_path):
    return write_mag240m(tmp_path, num_papers=50)


def opened(folder):
    return open_source(f"mag240m:{folder}", SourceOptions())


def features_of(source, node_type):
    return next(nodes.features for nodes in source.nodes if nodes.name == node_type)


@pytest.mark.parametrize("from_parent", [False, True])
def test_papers_authors_and_institutions(folder, from_parent):
    source = opened(folder.parent if from_parent else folder)
    check_source(source)
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == {
        "paper": 50,
        "author": 9,
        "institution": 2,
    }
    assert [each.relation for each in source.relations] == [AFFILIATED, WRITES, CITES]
    for each in source.relations:
        edges = np.load(folder / "processed" / "___".join(each.relation) / "edge_index.npy")
        assert flat(each.edges.chunks(8)) == [tuple(pair) for pair in edges.T.tolist()]
    assert features_of(source, "paper").dtype == np.float16
    assert features_of(source, "author") == MeanOf(relation=WRITES)
    assert features_of(source, "institution") == MeanOf(relation=AFFILIATED)
    assert (source.labelled, source.num_classes) == ("paper", 153)
    assert source.splits.test.tolist() == list(range(40, 50))


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize(
    ("author", "institution"),
    [("author.npy", "inst.npy"), ("processed/author/node_feat.npy", "processed/institution/node_feat.npy")],
)
def test_features_that_are_given_are_read(folder, author, institution, has_header):
    rows = {"author": np.ones((9, 768), np.float16), "institution": np.full((2, 768), 2, np.float16)}
    for name, node_type in ((author, "author"), (institution, "institution")):
        (folder / name).parent.mkdir(exist_ok=True)
        if has_header:
            np.save(folder / name, rows[node_type])
        else:
            rows[node_type].tofile(folder / name)  # as DGL's script writes them
    source = opened(folder)
    for node_type, expected in rows.items():
        assert np.array_equal(np.concatenate(list(features_of(source, node_type).chunks(4))), expected)
    assert {folder / author, folder / institution} <= set(source_files(f"mag240m:{folder}", SourceOptions()))


def test_features_of_the_wrong_length_are_refused(folder):
    np.save(folder / "author.npy", np.ones((8, 768), np.float16))
    with pytest.raises(ShapeError) as raised:
        opened(folder)
    assert str(raised.value) == (
        f"{folder}/author.npy has shape (8, 768); features of 9 authors must be (9, 768), by meta.pt and the "
        "papers' features"
    )


def test_a_missing_relation_is_named(folder):
    (folder / "processed" / "author___writes___paper" / "edge_index.npy").unlink()
    with pytest.raises(SourceError, match=r"author___writes___paper/edge_index\.npy is missing"):
        opened(folder)


def test_meta_must_count_the_authors(folder):
    import torch

    torch.save({"paper": 50, "institution": 2}, folder / "meta.pt")
    with pytest.raises(SourceError, match="'author' is None; it must be the number of authors"):
        opened(folder)
