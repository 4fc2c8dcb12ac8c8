"""Synthetic graphs of any size, as streams from a specification and a seed."""

from gloader.convert.sources.synthetic.opener import DEMO_SPEC, open_synthetic
from gloader.convert.sources.synthetic.spec import CommunitySpec, RmatSpec, parse_spec

__all__ = ["DEMO_SPEC", "CommunitySpec", "RmatSpec", "open_synthetic", "parse_spec"]
