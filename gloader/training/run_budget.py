"""The division of a run's memory budget between the loader, the model and its evaluation.

The budget bounds anonymous memory (not backed by a file) on one host, above an interpreter with torch in each process.
Its parts are the model, the running training step or evaluation (never both), the code, a reserve, and the rest for the
loader. `share_budget` divides it before anything is allocated. A rank is one of the processes that train together.

The constants below are measurements. "With 90, two ranks took 668 of 633 MB" means that the peak exceeded the budget
when this constant was 90 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.demand import FIXED_BYTES

# In addition to its tensors, a step holds temporary buffers of operations, the previous step's gradients, and gaps
# between heap blocks: 70 of 314 MB in a network over several node types. A later batch may also exceed the measured
# batches.
_STEP_FACTOR = 1.5  # multiple of the tensors' bytes
# With several node types, each relation has temporaries of its own sizes, and the gaps are larger. With 1.5, attention
# over 10 relations took 283 to 289 of 282 MB.
_TYPED_STEP_FACTOR = 1.75
# Divisors of the budget for an evaluation's part. With less memory an evaluation reads its inputs more often: a quarter
# of the budget is fast, and a sixteenth still works.
_EVALUATION_SHARES = (4, 8, 16)

# Copies of the weights: the weights, the best so far, and the optimiser's two moments.
_HELD_COPIES = 4

# Measured in a training process, for any graph: modules beyond torch's own (50 MB), compiled kernels and their
# runtime (38 MB), and first calls of the arithmetic, less the part in a loader's own plan. With 68, four of 41 kinds
# of runs took up to 1.5 MB more than the least accepted budget. Peaks differ by 4 MB from run to run.
_PROCESS_BYTES = 74_000_000
# The part of these bytes that a process may already have before its first run: modules (52 MB), and part of numba's own
# tables (20 MB) if the process prepared a dataset with compiled kernels. A run would load all but 8 MB of these tables.
_IMPORTED_BYTES = 64_000_000
# One of several ranks takes more: DistributedDataParallel imports torch's compiler (78 MB), and gloo has buffers.
# Several types take more still. By their summed peaks, two ranks took 668 of 633 MB with 90, and 702 of 689 with 114.
_RANK_BYTES, _TYPED_RANK_BYTES = 90_000_000, 146_000_000
# Links over several types: without it, two accepted budgets of 134 and 205 MB became 151 and 214.
_TYPED_LINK_BYTES = 20_000_000
# Predictions: readers of edges, features and activations. Without it, 140 MB became 141, 125 became 126, and 107
# became 114 with a layer made in 256 parts.
_PREDICTION_BYTES = 12_000_000
# The reserve for freed blocks that the heap has not returned to the system yet, see `PeakMemory.keep_below`: one part
# in 16 of the budget, within bounds.
_SLACK_SHARE = 16
_MIN_SLACK_BYTES, _MAX_SLACK_BYTES = 20 << 20, 64 << 20

# Copies of the weights while a checkpoint is saved: its buffer grows in memory before it is written, and a growth may
# copy the buffer.
_SAVE_COPIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """Parts of a memory budget, in bytes.

    A training step and an evaluation share one part, because they never run at the same time.
    """

    total_bytes: int  # the budget
    model_bytes: int  # copies of the weights, which are held from the first batch to the last
    step_bytes: int  # peak of a training step or of saving a checkpoint
    phase_bytes: int  # memory for the running step or evaluation, at least ``step_bytes``
    process_bytes: int  # modules and compiled kernels of all ranks
    slack_bytes: int  # reserve for freed blocks

    @property
    def loader_bytes(self) -> int:
        """The rest of the budget, for the loader."""
        return self.total_bytes - self._beside_bytes

    @property
    def _beside_bytes(self) -> int:
        """All parts but the loader's."""
        return self.model_bytes + self.phase_bytes + self.process_bytes + self.slack_bytes

    def rank_bytes(self, num_ranks: int, *, of_loader: int) -> int:
        """Return one rank's bytes: its part of everything but the loader, and its loader's bytes ``of_loader``."""
        return self._beside_bytes // num_ranks + of_loader

    def explain(self) -> str:
        """Return a line on the parts of the budget and the memory outside it."""
        return (
            f"memory budget {format_bytes(self.total_bytes)} (Python and torch come on top: about 330 MB a process): "
            f"loader {format_bytes(self.loader_bytes)}, "
            f"training step or evaluation {format_bytes(self.phase_bytes)}, "
            f"model {format_bytes(self.model_bytes)}, code {format_bytes(self.process_bytes)}, "
            f"reserve {format_bytes(self.slack_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKind:
    """Facts of a run that determine its processes' memory apart from tensors."""

    num_ranks: int = 1  # ranks on this host
    is_joined: bool = False  # whether ranks on other machines take part
    has_types: bool = False  # whether the model takes several types
    has_links: bool = False  # whether the model learns edges

    @property
    def code_bytes(self) -> int:
        """Bytes of modules and compiled kernels, for all ranks on this host."""
        more = 0
        if self.num_ranks > 1 or self.is_joined:
            more = _TYPED_RANK_BYTES if self.has_types else _RANK_BYTES
        if self.has_types and self.has_links:
            more += _TYPED_LINK_BYTES
        return self.num_ranks * (_PROCESS_BYTES + more)

    @property
    def step_factor(self) -> float:
        """A step's memory, as a multiple of its tensors' bytes."""
        return _TYPED_STEP_FACTOR if self.has_types else _STEP_FACTOR


ONE_PROCESS = ProcessKind()


def share_budget(
    *,
    total_bytes: int,
    parameter_bytes: int,
    step_bytes: int,
    first_bytes: int = 0,
    learned_bytes: int = 0,
    process: ProcessKind = ONE_PROCESS,
) -> tuple[RunBudget, ...]:
    """Divide ``total_bytes`` before anything is allocated. Pure.

    Parameters
    ----------
    total_bytes : budget for all memory on the host
    parameter_bytes : each rank's weights; 0 if they are on a GPU
    step_bytes : each rank's peak of a training step's tensors; 0 if they are on a GPU
    first_bytes : a rank's memory when its process's first run begins: modules, and earlier work of the program
    learned_bytes : the part of ``parameter_bytes`` in learned rows, one for each node of a type without features
    process : number of ranks and kind of model

    Returns
    -------
    The possible divisions, the best first. An evaluation is fast with a quarter of the budget, and works with less
    if the loader needs more.

    Raises
    ------
    BudgetError
        The model, its step and the run's code take the whole budget and leave nothing for a loader.
    """
    num_ranks = process.num_ranks
    model = num_ranks * _HELD_COPIES * parameter_bytes
    step = num_ranks * max(int(process.step_factor * step_bytes), _SAVE_COPIES * parameter_bytes)
    code = process.code_bytes + num_ranks * max(first_bytes - _IMPORTED_BYTES, 0)
    budgets = [
        RunBudget(
            total_bytes=total_bytes,
            model_bytes=model,
            step_bytes=step,
            phase_bytes=max(step, total_bytes // share),
            process_bytes=code,
            slack_bytes=min(max(total_bytes // _SLACK_SHARE, _MIN_SLACK_BYTES), _MAX_SLACK_BYTES),
        )
        for share in _EVALUATION_SHARES
    ]
    least = budgets[-1]
    if least.loader_bytes <= 0:
        instead = ""
        if 2 * learned_bytes > parameter_bytes:
            instead = (
                f". {learned_bytes / parameter_bytes:.0%} of the model are learned rows of nodes without features: "
                "--embed DIM keeps such rows on the SSD"
            )
        raise BudgetError(
            f"the model takes {format_bytes(model)}, a training step {format_bytes(step)} and the code of the run "
            f"{format_bytes(least.process_bytes)} of the memory budget of {format_bytes(total_bytes)}, which leaves "
            f"nothing to load batches with{instead}. Use a smaller batch size, fan-out or hidden width, or raise the "
            "budget",
            short_bytes=1 - least.loader_bytes,
        )
    # Divisions that leave too little for any loader are left out.
    fitting = [budget for budget in budgets if budget.loader_bytes > FIXED_BYTES]
    return tuple(dict.fromkeys(fitting or [least]))


def prediction_code_bytes(*, first_bytes: int = 0) -> int:
    """Return the bytes of code and reserve in a predicting process, in addition to its computation's bytes. Pure.

    Parameters
    ----------
    first_bytes : see `share_budget`
    """
    return _PROCESS_BYTES + _PREDICTION_BYTES + max(first_bytes - _IMPORTED_BYTES, 0) + _MIN_SLACK_BYTES
