"""The parts of experiments/bench/gpu_check.py, which stand beside it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "bench"))
