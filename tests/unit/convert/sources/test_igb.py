import numpy as np
import pytest
from convert_helpers import read_all

from gloader.convert.options import SourceOptions
from gloader.convert.source_check import check_source
from gloader.convert.sources.igb import open_igb
from gloader.errors import BudgetError, ConfigError, SourceError

NUM_PAPERS = 20
EDGES = np.random.default_rng(0).integers(0, NUM_PAPERS, (70, 2))
FEATURES = np.random.default_rng(1).standard_normal((NUM_PAPERS, 1024)).astype(np.float32)


@pytest.fixture(params=["with header", "raw"])
def folder(request, tmp_path):
    paper, cites = (tmp_path / "tiny" / "processed" / name for name in ("paper", "paper__cites__paper"))
    paper.mkdir(parents=True)
    cites.mkdir()
    labels = {
        "node_label_19.npy": np.arange(NUM_PAPERS) % 19,
        "node_label_2K.npy": np.arange(NUM_PAPERS) * 100,
    }
    arrays = {"node_feat.npy": FEATURES} | labels
    for name, array in arrays.items():
        if request.param == "raw":
            array.astype("<f4").tofile(paper / name)
        else:
            np.save(paper / name, array.astype(np.float32))
    np.save(cites / "edge_index.npy", EDGES)
    return tmp_path / "tiny"


@pytest.mark.parametrize(("suffix", "classes"), [("", 19), ("@19", 19), ("@2983", 2983)])
def test_papers_and_citations(folder, suffix, classes):
    source = open_igb(f"{folder}{suffix}", SourceOptions())
    check_source(source)
    assert read_all(source.edges.chunks(9)) == [tuple(pair) for pair in EDGES.tolist()]
    assert np.array_equal(np.concatenate(list(source.features.chunks(3))), FEATURES)
    assert (source.num_nodes, source.num_classes) == (NUM_PAPERS, classes)
    assert source.splits.train.tolist() == list(range(12))
    assert source.splits.valid.tolist() == list(range(12, 16))
    assert source.splits.test.tolist() == list(range(16, 20))


def test_labels_of_the_first_nodes_only(folder):
    np.save(folder / "processed" / "paper" / "node_label_19.npy", np.zeros(10, np.float32))
    source = open_igb(str(folder), SourceOptions())
    assert source.labels[10:].tolist() == [-1] * 10
    assert source.splits.test.tolist() == [8, 9]


def test_malformed_folder(folder):
    with pytest.raises(ConfigError, match="19 or 2983 classes, not 7"):
        open_igb(f"{folder}@7", SourceOptions())
    paper = folder / "processed" / "paper"
    (paper / "node_label_19.npy").unlink()
    assert open_igb(str(folder), SourceOptions()).num_classes == 2983
    with pytest.raises(SourceError, match=r"holds no node_label_19\.npy"):
        open_igb(f"{folder}@19", SourceOptions())
    (paper / "node_feat.npy").write_bytes(b"abc")
    with pytest.raises(SourceError, match=r"node_feat\.npy is truncated: it holds 3 bytes"):
        open_igb(str(folder), SourceOptions())
    (paper / "node_feat.npy").unlink()
    with pytest.raises(SourceError, match=r"node_feat\.npy is missing"):
        open_igb(str(folder), SourceOptions())


def test_labels_that_do_not_fit_are_refused_before_they_are_made(folder):
    with pytest.raises(BudgetError, match=r"node_feat\.npy has 20 nodes, whose labels take 160 B"):
        open_igb(str(folder), SourceOptions(memory_budget_bytes=159))
