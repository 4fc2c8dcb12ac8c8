from collections import Counter

import numpy as np
import pytest
from typed_sources import flat

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source, source_files
from gloader.convert.source_check import check_source
from gloader.convert.sources import igb
from gloader.errors import ConfigError, SourceError

COUNTS = {"paper": 20, "author": 12, "institute": 4, "fos": 6, "journal": 3, "conference": 5}
SMALL = ["paper", "author", "institute", "fos"]
RELATIONS = {
    ("paper", "cites", "paper"): 40,
    ("paper", "written_by", "author"): 30,
    ("author", "affiliated_to", "institute"): 15,
    ("paper", "topic", "fos"): 25,
    ("paper", "published", "journal"): 20,
    ("paper", "venue", "conference"): 20,
}


def write_igbh(root, *, is_large=False, seed=0):
    """Write a folder of IGBH; the large sizes have more types, and no headers on papers and authors."""
    random = np.random.default_rng(seed)
    processed = root / "processed"
    names = list(COUNTS) if is_large else SMALL
    for name in names:
        (processed / name).mkdir(parents=True)
        rows = random.standard_normal((COUNTS[name], 1024)).astype(np.float32)
        save(processed / name / "node_feat.npy", rows, is_raw=is_large and name in ("paper", "author"))
    for classes, file in ((19, "node_label_19.npy"), (2983, "node_label_2K.npy")):
        labels = random.integers(0, classes, COUNTS["paper"]).astype(np.float32)
        save(processed / "paper" / file, labels, is_raw=is_large)
    edges = {}
    for relation, count in RELATIONS.items():
        source, _, destination = relation
        if destination in names:
            edges[relation] = random.integers(0, [COUNTS[source], COUNTS[destination]], (count, 2))
            (processed / "__".join(relation)).mkdir()
            np.save(processed / "__".join(relation) / "edge_index.npy", edges[relation])
    return edges


def save(path, array, *, is_raw):
    if is_raw:
        array.tofile(path)
    else:
        np.save(path, array)


def opened(folder, suffix=""):
    return open_source(f"igbh:{folder}{suffix}", SourceOptions())


@pytest.mark.parametrize("is_large", [False, True], ids=["tiny to medium", "large and full"])
def test_types_relations_and_their_reverses(tmp_path, is_large):
    edges = write_igbh(tmp_path / "tiny", is_large=is_large)
    source = opened(tmp_path / "tiny")
    check_source(source)
    names = list(COUNTS) if is_large else SMALL
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == {name: COUNTS[name] for name in names}
    assert all(nodes.features.dim == 1024 for nodes in source.nodes)
    given = list(edges)[1:]
    reverses = [(last, f"rev_{name}", first) for first, name, last in given]
    assert [each.relation for each in source.relations] == [("paper", "cites", "paper"), *given, *reverses]
    for each, relation in zip(source.relations[1 : 1 + len(given)], given, strict=True):
        assert flat(each.edges.chunks(7)) == [tuple(pair) for pair in edges[relation].tolist()]
    for each, relation in zip(source.relations[1 + len(given) :], given, strict=True):
        assert flat(each.edges.chunks(7)) == [tuple(pair) for pair in edges[relation][:, ::-1].tolist()]
    assert source.relations[0].is_symmetric


def test_citations_are_those_of_the_reference(tmp_path):
    edges = write_igbh(tmp_path)["paper", "cites", "paper"]
    # As GraphLearn's script has it: remove_self_loops, add_self_loops, and the reverse of everything behind it.
    plain = [tuple(pair) for pair in edges.tolist() if pair[0] != pair[1]] + [(v, v) for v in range(20)]
    expected = Counter(plain + [(dst, src) for src, dst in plain])
    for size in (1, 2, 9, 1000):
        chunks = list(opened(tmp_path).relations[0].edges.chunks(size))
        assert all(len(chunk.src) <= max(2, size) for chunk in chunks)
        assert Counter(flat(chunks)) == expected


@pytest.mark.parametrize(("suffix", "classes"), [("", 19), ("@19", 19), ("@2983", 2983)])
def test_labels_and_a_random_split_of_the_labelled_papers(tmp_path, suffix, classes):
    write_igbh(tmp_path)
    source = opened(tmp_path, suffix)
    assert source.num_classes == classes
    assert [len(ids) for ids in (source.splits.train, source.splits.valid, source.splits.test)] == [12, 4, 4]
    again = open_source(f"igbh:{tmp_path}", SourceOptions(seed=1))
    assert not np.array_equal(source.splits.train, again.splits.train)


def test_of_the_full_size_the_first_papers_alone_are_labelled(tmp_path, monkeypatch):
    write_igbh(tmp_path, is_large=True)
    monkeypatch.setattr(igb, "_FULL_PAPERS", 20)
    monkeypatch.setattr(igb, "_FULL_LABELLED", {19: 15, 2983: 10})
    source = opened(tmp_path)
    assert (source.labels[15:] == -1).all()
    assert (source.labels[:15] >= 0).all()
    assert (opened(tmp_path, "@2983").labels[10:] == -1).all()


def test_a_missing_file_is_named(tmp_path):
    write_igbh(tmp_path)
    (tmp_path / "processed" / "fos" / "node_feat.npy").unlink()
    with pytest.raises(SourceError, match=r"fos/node_feat\.npy is missing"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="IGB has labels of 19 or 2983 classes, not 5"):
        opened(tmp_path, "@5")


def test_every_file_counts_for_what_was_prepared(tmp_path):
    write_igbh(tmp_path, is_large=True)
    found = source_files(f"igbh:{tmp_path}", SourceOptions())
    assert len(found) == 6 + 2 + 6
