"""The modules of experiments/ogb, which stand beside the script that uses them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "experiments" / "ogb"))
