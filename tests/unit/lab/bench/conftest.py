"""The modules of experiments/bench, which stand beside the scripts that use them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4] / "experiments" / "bench"))
