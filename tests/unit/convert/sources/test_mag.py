import numpy as np
import pytest
import torch
from convert_helpers import read_all
from ogb_layout import write_mag240m

from gloader.convert.options import SourceOptions
from gloader.convert.source_check import check_source
from gloader.convert.sources.mag import open_papers
from gloader.errors import BudgetError, ShapeError, SourceError

NUM_PAPERS = 50


@pytest.fixture
def folder(tmp_path):
    return write_mag240m(tmp_path, num_papers=NUM_PAPERS)


@pytest.mark.parametrize("from_parent", [False, True])
def test_papers_and_citations(folder, from_parent):
    source = open_papers(str(folder.parent if from_parent else folder), SourceOptions())
    check_source(source)
    edges = np.load(folder / "processed" / "paper___cites___paper" / "edge_index.npy")
    assert read_all(source.edges.chunks(33)) == [tuple(pair) for pair in edges.T.tolist()]
    assert (source.num_nodes, source.num_classes, source.features.dim) == (NUM_PAPERS, 153, 768)
    assert source.features.dtype == np.float16
    assert source.labels[40:].tolist() == [-1] * 10
    assert source.splits.test.tolist() == list(range(40, 50))


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.reliability("H3")
@pytest.mark.parametrize("name", ["meta.pt", "split_dict.pt"])
def test_pickles_are_refused_and_not_executed(folder, tmp_path, name):
    torch.save({"paper": Payload(tmp_path / "created")}, folder / name)
    with pytest.raises(SourceError, match=f"{name} is corrupt or holds other objects"):
        open_papers(str(folder), SourceOptions())
    assert not (tmp_path / "created").exists()


def test_malformed_folder(folder):
    torch.save({"paper": NUM_PAPERS + 1}, folder / "meta.pt")
    with pytest.raises(ShapeError, match=r"has 50 rows; meta\.pt counts 51 papers"):
        open_papers(str(folder), SourceOptions())
    torch.save({"papers": 5}, folder / "meta.pt")
    with pytest.raises(SourceError, match="'paper' is None; it must be the number of papers"):
        open_papers(str(folder), SourceOptions())
    torch.save([1], folder / "meta.pt")
    with pytest.raises(SourceError, match="holds a list"):
        open_papers(str(folder), SourceOptions())
    (folder / "meta.pt").write_bytes(b"text")
    with pytest.raises(SourceError, match="corrupt"):
        open_papers(str(folder), SourceOptions())
    (folder / "meta.pt").unlink()
    with pytest.raises(SourceError, match=r"meta\.pt is missing"):
        open_papers(str(folder), SourceOptions())


def test_labels_that_do_not_fit_are_refused_before_they_are_read(folder):
    with pytest.raises(BudgetError, match=r"node_feat\.npy has 50 nodes, whose labels take 400 B"):
        open_papers(str(folder), SourceOptions(memory_budget_bytes=399))
