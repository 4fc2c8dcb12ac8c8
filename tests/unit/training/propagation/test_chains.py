"""The trees of states, and the names and places of the hop columns."""

from __future__ import annotations

import pytest

from gloader.errors import ConfigError
from gloader.training.propagation.chains import PropagateSpec, default_norm, grow_chains, parse_norm
from gloader.types import EDGE, NODE

WRITES, CITES, REVIEWS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "writes", "author"),
)


def names(spec, widths, relations, target):
    return [
        (group.name, group.start, group.stop)
        for group in grow_chains(spec, widths=widths, relations=relations, target=target).groups
    ]


def test_a_chain_of_one_type_keeps_its_direction_and_statistic():
    spec = PropagateSpec(hops=2, directions=("in", "out"), stats=("mean", "max"))
    assert names(spec, {NODE: 3}, (EDGE,), NODE) == [
        ("x", 0, 3),
        ("in1.mean", 3, 6), ("in1.max", 6, 9), ("in2.mean", 9, 12), ("in2.max", 12, 15),
        ("out1.mean", 15, 18), ("out1.max", 18, 21), ("out2.mean", 21, 24), ("out2.max", 24, 27),
    ]  # fmt: skip


def test_deviations_need_the_means_of_the_hop_before_but_do_not_output_them():
    trees = grow_chains(
        PropagateSpec(hops=2, stats=("std",)), widths={NODE: 1}, relations=(EDGE,), target=NODE
    )
    assert [group.name for group in trees.groups] == ["x", "in1.std", "in2.std"]
    states = [(state.stat, len(state.path), state.group) for state in trees.roots[NODE].walk() if state.path]
    assert states == [("mean", 1, None), ("std", 2, "in2.std"), ("std", 1, "in1.std")]


def test_metapaths_are_named_from_the_target_and_share_their_first_steps():
    spec = PropagateSpec(hops=2, norm="mean")
    assert names(spec, {"author": 2, "paper": 4}, (WRITES, CITES), "paper") == [
        ("x", 0, 4), ("writes.mean", 4, 6), ("cites.mean", 6, 10),
        ("cites-writes.mean", 10, 12), ("cites-cites.mean", 12, 16),
    ]  # fmt: skip
    root = grow_chains(spec, widths={"author": 2}, relations=(WRITES, CITES), target="paper").roots["author"]
    assert [state.group for state in root.walk()] == [None, "writes.mean", "cites-writes.mean"]


def test_reversed_steps_and_relations_of_one_name_have_names_of_their_own():
    spec = PropagateSpec(hops=1, norm="mean", directions=("in", "out"))
    assert [name for name, _, _ in names(spec, {"author": 2}, (WRITES, REVIEWS), "paper")] == [
        "author:writes:paper.mean",
        "~paper:writes:author.mean",
    ]


def test_types_that_reach_the_target_too_late_have_no_tree():
    spec = PropagateSpec(hops=1, norm="mean")
    relations = (("venue", "hosts", "author"), WRITES)
    assert list(
        grow_chains(spec, widths={"venue": 2, "author": 2}, relations=relations, target="paper").roots
    ) == ["author"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hops": 0}, "hops is 0; it must be a whole number, 1 or more"),
        ({"norm": "gnc"}, "norm: 'gnc' is unknown"),
        ({"directions": ("in", "in")}, "directions is 'in,in'; give one or more of in, out, each once"),
        ({"stats": ()}, "stats is ''; give one or more of mean, min, max, std, each once"),
        ({"norm": "ppr", "alpha": 1.5}, "the norm ppr:1.5 needs a share between 0 and 1, such as ppr:0.15"),
        ({"alpha": 0.5}, "alpha is 0.5, but only the norm ppr uses it; write ppr:0.5"),
    ],
)
def test_settings_that_have_no_meaning_are_refused(settings, message):
    with pytest.raises(ConfigError) as raised:
        PropagateSpec(**settings)
    assert message in str(raised.value)


def test_norms_are_read_as_users_write_them():
    assert [parse_norm(text) for text in ("gcn", "mean", "ppr:0.15")] == [
        ("gcn", 0.0),
        ("mean", 0.0),
        ("ppr", 0.15),
    ]
    for text, message in [
        ("ppr", "norm 'ppr' needs the share of the input rows; write ppr:0.15"),
        ("gcn:1", "norm 'gcn:1' has a share, which only ppr uses; write gcn"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse_norm(text)
    assert default_norm((EDGE,)) == default_norm((CITES,)) == "gcn"
    assert default_norm((CITES, WRITES)) == "mean"


@pytest.mark.parametrize(
    ("spec", "widths", "relations", "message"),
    [
        (PropagateSpec(), {"paper": 4}, (), "the dataset has no edges"),
        (
            PropagateSpec(),
            {"paper": 4},
            (CITES, WRITES),
            "author:writes:paper joins two types: use --norm mean",
        ),
        (PropagateSpec(norm="mean"), {}, (CITES,), "no features reach the type 'paper' within 3 hops"),
        (
            PropagateSpec(norm="mean", hops=8),
            {"paper": 100},
            (CITES, ("paper", "likes", "paper")),
            "510 metapaths of at most 8 hops end at 'paper', which makes 51,100 columns; at most 32,768 are allowed",
        ),
    ],
)
def test_requests_without_a_sensible_result_are_refused(spec, widths, relations, message):
    with pytest.raises(ConfigError) as raised:
        grow_chains(spec, widths=widths, relations=relations, target="paper")
    assert message in str(raised.value)
