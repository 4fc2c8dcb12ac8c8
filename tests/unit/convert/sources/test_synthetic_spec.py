from __future__ import annotations

import pytest

from gloader.convert.sources.synthetic import DEMO_SPEC, CommunitySpec, RmatSpec, parse_spec
from gloader.errors import ConfigError


def test_every_key_is_read():
    spec = parse_spec("rmat, nodes=500000,edges=6000000,dim=128,classes=8,seed=5,a=0.5")
    assert spec == RmatSpec(nodes=500_000, edges=6_000_000, dim=128, classes=8, seed=5, a=0.5)


def test_the_given_seed_holds_where_the_text_names_none():
    assert parse_spec("rmat,nodes=1,edges=0,classes=1", seed=7).seed == 7
    assert parse_spec("rmat,nodes=1,edges=0,classes=1,seed=3", seed=7).seed == 3


def test_demo_has_the_promised_size():
    spec = parse_spec(DEMO_SPEC)
    assert isinstance(spec, CommunitySpec)
    assert (spec.nodes, spec.edges, spec.dim, spec.classes) == (200_000, 4_000_000, 128, 16)


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comunity,nodes=9", "did you mean 'community'"),
        ("rmat,nodez=9", "did you mean 'nodes'"),
        ("community,homofily=0.5", "did you mean 'homophily'"),
        ("rmat,nodes=9,nodes=9", "given twice"),
        ("rmat,nodes", "has no value"),
        ("rmat,nodes=", "has no value"),
        ("rmat,nodes=9.5", "not a whole number"),
        ("rmat,nodes=9,edges=9,signal=high", "not a number"),
        ("rmat,edges=9", "needs nodes=NUMBER"),
        ("", "Allowed: community, rmat"),
        ("community,nodes=100,edges=7", "edges=7 is odd"),
        ("community,nodes=100,edges=8,homophily=1.5", "homophily=1.5"),
        ("community,nodes=100,edges=8,exponent=2", "exponent=2.0"),
        ("community,nodes=100,edges=8,communities=3", "communities=3"),
        ("rmat,nodes=0,edges=8", "nodes=0"),
        ("rmat,nodes=4,edges=-1", "edges=-1"),
        ("rmat,nodes=4,edges=4,classes=5", "from 1 to 4"),
        ("rmat,nodes=4,edges=4,classes=2,dim=0", "dim=0"),
        ("rmat,nodes=4,edges=4,classes=2,signal=nan", "signal=nan"),
        ("rmat,nodes=4,edges=4,classes=2,train=0.8,valid=0.4", "train\\+valid"),
        ("rmat,nodes=4,edges=4,classes=2,a=0.9,b=0.2", "a\\+b\\+c"),
    ],
)
def test_a_wrong_specification_says_what_is_allowed(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_spec(text)
