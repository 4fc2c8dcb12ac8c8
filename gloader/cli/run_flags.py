"""Flags that belong to one call of `gloader train`: what it trains on, and where the results go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from gloader.config import FIRST, TaskName
from gloader.core.flag_values import SWITCH, Count


@Parameter(name="*", group=Group("Run", sort_key=0))
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """What is run and where the results go."""

    dataset: Annotated[str, FIRST]
    """A prepared folder, the URL of one (s3://...), or any source of `gloader prepare`, which is then prepared once
    under $GLOADER_HOME."""
    config: Path | None = None
    """A YAML recipe whose keys are these flags; flags on the command line win over it."""
    out: Annotated[Path | None, FIRST] = None
    """Folder of the results. Default: runs/DATASET-MODEL-DATE-TIME."""
    task: TaskName = "node"
    """What is predicted: the classes of nodes, or edges (link), which --edges and the flags beside it are for."""
    runs: Count = 1
    """Repetitions with seeds seed, seed+1, ...; the result is their mean and standard deviation."""
    resume: Annotated[bool, SWITCH, FIRST] = False
    """Continue the interrupted run in --out."""
    overwrite: Annotated[bool, SWITCH] = False
    """Replace the run in --out; without this flag, or --resume, a folder that holds a run is refused."""
    device: str = "auto"
    """auto, cpu or cuda:0; with several ranks auto gives each its own GPU."""
    tensorboard: bool = False
    """Write TensorBoard events into --out."""
    compare_mlp: bool = False
    """Train an MLP on the same features as well, to see what the edges are worth."""
    explain: Annotated[bool, SWITCH] = False
    """Say what is held where and why before training, and what was predicted and measured after it."""
    trace: Annotated[bool, SWITCH] = False
    """Write what every stage did when to trace.json in the run's folder, for ui.perfetto.dev."""
