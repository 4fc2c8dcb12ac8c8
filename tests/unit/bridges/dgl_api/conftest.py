"""Tests that compare with DGL are not collected if DGL has no wheel."""

import sys
from importlib.util import find_spec

if sys.version_info >= (3, 12) and find_spec("dgl") is None:
    collect_ignore_glob = ["test_layers.py", "test_messages.py", "test_saved_graphs.py"]
