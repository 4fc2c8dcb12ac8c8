"""Synthetic graphs of any size, as streams from a specification and a seed.

`spec` checks the user's text, `generators` makes edges, features and labels, and `opener` joins them into a source.
"""

from gloader.convert.sources.synthetic.opener import DEMO_SPEC, open_synthetic
from gloader.convert.sources.synthetic.spec import CommunitySpec, RmatSpec, parse_spec

__all__ = ["DEMO_SPEC", "CommunitySpec", "RmatSpec", "open_synthetic", "parse_spec"]
