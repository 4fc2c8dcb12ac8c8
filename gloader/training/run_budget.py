"""Shares of a run's memory budget: those of the loader, the model and its evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from gloader.core.units import format_bytes
from gloader.errors import BudgetError

# Beside the tensors a step holds temporary buffers of its operations and what lies between its blocks in the heap;
# a later batch may be larger than those that were looked at.
_STEP_FACTOR = 1.25
# An evaluation keeps a table of columns in memory, and reads its inputs once for each slab of them: a quarter of the
# budget is fast, a sixteenth still works.
_EVALUATION_SHARES = (4, 8, 16)

# Of the weights: themselves, the best so far and the optimiser's two moments.
_HELD_COPIES = 4

# Modules and compiled kernels (46 MB), what a heap holds between its blocks, small objects, stacks of threads: it
# grows little with the budget, and a small one has no more to give.
_SLACK_SHARE = 5
_MAX_SLACK_BYTES = 64 << 20
# Of one rank of several: DistributedDataParallel imports torch's compiler (70 MB), gloo has threads and buffers.
_RANK_SLACK = 2

# Of the weights: a checkpoint in memory, which may be moved as it grows, before it is written.
_SAVE_COPIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """Who gets how many bytes of the budget.

    A training step and an evaluation never run at the same time: they share one part.
    """

    total_bytes: int
    model_bytes: int  # what is held from the first batch to the last
    step_bytes: int  # what a training step, or saving a checkpoint, takes at its peak
    phase_bytes: int  # for whichever of a step and an evaluation is running
    slack_bytes: int  # what nobody accounts for

    @property
    def loader_bytes(self) -> int:
        """What is left for the loader."""
        return self.total_bytes - self.model_bytes - self.phase_bytes - self.slack_bytes

    def explain(self) -> str:
        """Say in one line who gets what."""
        return (
            f"memory budget {format_bytes(self.total_bytes)}: loader {format_bytes(self.loader_bytes)}, "
            f"training step or evaluation {format_bytes(self.phase_bytes)}, "
            f"model {format_bytes(self.model_bytes)}, slack {format_bytes(self.slack_bytes)}"
        )


def share_budget(
    *, total_bytes: int, parameter_bytes: int, step_bytes: int, is_alone: bool = True
) -> tuple[RunBudget, ...]:
    """Share ``total_bytes`` out before anything is allocated. Pure.

    Parameters
    ----------
    total_bytes : for everything on the host
    parameter_bytes : of the weights; 0 where they live on a GPU
    step_bytes : of the tensors that a training step holds at its peak; 0 where they live on a GPU
    is_alone : whether the run has one rank

    Returns
    -------
    The ways to share it, the best first: an evaluation is fast with a quarter of the budget, and possible with
    less where the loader needs more. So is a rank with the slack of a run that is alone.

    Raises
    ------
    BudgetError
        The model and its step alone take the budget, so that nothing is left for a loader.
    """
    model = _HELD_COPIES * parameter_bytes
    step = max(int(_STEP_FACTOR * step_bytes), _SAVE_COPIES * parameter_bytes)
    slack = min(total_bytes // _SLACK_SHARE, _MAX_SLACK_BYTES)
    phases = sorted({max(step, total_bytes // share) for share in _EVALUATION_SHARES}, reverse=True)
    shares = [(phase, slack if is_alone else _RANK_SLACK * slack) for phase in phases]
    if not is_alone:
        shares.append((phases[-1], slack))
    budgets = [
        RunBudget(
            total_bytes=total_bytes,
            model_bytes=model,
            step_bytes=step,
            phase_bytes=phase,
            slack_bytes=slack,
        )
        for phase, slack in shares
    ]
    if budgets[-1].loader_bytes <= 0:
        raise BudgetError(
            f"the model takes {format_bytes(model)} and a training step {format_bytes(step)} of the memory budget of "
            f"{format_bytes(total_bytes)}, which leaves nothing to load batches with. Use a smaller --batch-size, "
            "--fanout or --hidden, or raise --memory-budget"
        )
    return tuple(budget for budget in budgets if budget.loader_bytes > 0)
