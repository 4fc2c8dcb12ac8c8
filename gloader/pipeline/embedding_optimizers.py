"""Optimizers of trainable rows: each changes only the rows of a batch, in place, on the CPU.

A row is the weights (D float32), then the optimizer's state (K float32). A slot holds one row in memory. `SparseAdam`
and `Adagrad` do the operations of `torch.optim.SparseAdam` and of the sparse branch of `torch.optim.Adagrad` in the
same order, so that their bits are those of `torch.nn.Embedding(sparse=True)`. Each operation works on single elements,
so the bits of a row depend neither on its slot nor on the other rows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np
import torch

from gloader.core.near_names import near_advice, near_keywords
from gloader.errors import ConfigError, StateError
from gloader.pipeline.rowwise_kernels import rowwise_adagrad

if TYPE_CHECKING:
    from collections.abc import Mapping


def _facts(optimizer: RowOptimizer) -> dict[str, Any]:
    """Return the name and the settings as JSON values, for records. Pure."""
    settings = {
        key: list(value) if isinstance(value, tuple) else value for key, value in asdict(optimizer).items()
    }
    return {"name": optimizer.name, **settings}


@near_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class RowwiseAdagrad:
    """Adagrad with one state value for each row: the sum over steps of the mean of squares of its gradient.

    This is FBGEMM's ``EXACT_ROWWISE_ADAGRAD`` without weight decay: ``rowwise_adagrad`` in pytorch/FBGEMM,
    ``fbgemm_gpu/codegen/genscript/optimizers.py``. The state grows by the sum of the D squares divided by D. The
    gradient is then multiplied by ``lr / (sqrt(state) + eps)`` and subtracted from the weights.

    Raises
    ------
    ConfigError
        A setting is out of range.
    """

    name: ClassVar[str] = "rowwise-adagrad"
    facts = _facts
    lr: float = 0.01  # learning rate
    eps: float = 1e-8  # added to the root, which may be 0

    def __post_init__(self) -> None:
        _check(self, positive=("lr", "eps"))

    def state_width(self, dim: int) -> int:  # noqa: ARG002 - one value, whatever the width
        """Return K, which is 1."""
        return 1

    def initial_state(self, dim: int) -> tuple[float, ...]:  # noqa: ARG002
        """Return the state of a row that was never trained, (1,)."""
        return (0.0,)

    def apply(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        slots: torch.Tensor,
        grad: torch.Tensor,
        num_steps: int,  # noqa: ARG002 - every step is alike
    ) -> None:
        """Change the rows ``slots`` by one step, in place.

        Parameters
        ----------
        weights, state : (C, D) and (C, K) float32 on the CPU; each row's values lie side by side
        slots : (U,) int64, distinct and in range
        grad : (U, D) float32, not changed
        num_steps : number of this step, from 1
        """
        lr, eps = np.float32(self.lr), np.float32(self.eps)
        rowwise_adagrad(weights.numpy(), state.numpy(), slots.numpy(), grad.contiguous().numpy(), lr, eps)


@near_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad:
    """Adagrad with a state value for each weight, with the bits of `torch.optim.Adagrad` on sparse gradients.

    Raises
    ------
    ConfigError
        A setting is out of range.
    """

    name: ClassVar[str] = "adagrad"
    facts = _facts
    lr: float = 0.01  # learning rate
    lr_decay: float = 0.0  # the rate of step t is lr / (1 + (t - 1) * lr_decay)
    eps: float = 1e-10  # added to the root, which may be 0
    initial_accumulator_value: float = 0.0  # first value of the state

    def __post_init__(self) -> None:
        _check(self, positive=("lr", "eps"), from_zero=("lr_decay", "initial_accumulator_value"))

    def state_width(self, dim: int) -> int:
        """Return K = D."""
        return dim

    def initial_state(self, dim: int) -> tuple[float, ...]:
        """Return the state of a row that was never trained, (D,)."""
        return (self.initial_accumulator_value,) * dim

    def apply(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        slots: torch.Tensor,
        grad: torch.Tensor,
        num_steps: int,
    ) -> None:
        """Change the rows ``slots`` by one step, in place; see `RowwiseAdagrad.apply`."""
        # Two temporary matrices are used again and again: the system provides the pages of new ones slowly.
        direction = grad.pow(2)
        rows = state.index_select(0, slots).add_(direction)
        state.index_copy_(0, slots, rows)
        torch.div(grad, rows.sqrt_().add_(self.eps), out=direction)
        rate = self.lr / (1 + (num_steps - 1) * self.lr_decay)
        torch.index_select(weights, 0, slots, out=rows)
        weights.index_copy_(0, slots, rows.add_(direction, alpha=-rate))


@near_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAdam:
    """Adam on the rows of a batch alone, with the bits of `torch.optim.SparseAdam`.

    The bias correction counts the steps of the table, not those of a row, as torch does.

    Raises
    ------
    ConfigError
        A setting is out of range.
    """

    name: ClassVar[str] = "sparse-adam"
    facts = _facts
    lr: float = 0.001  # learning rate
    betas: tuple[float, float] = (0.9, 0.999)  # decay of the means of gradients and of their squares
    eps: float = 1e-8  # added to the root, which may be 0

    def __post_init__(self) -> None:
        _check(self, positive=("lr", "eps"))
        if [0 <= beta < 1 for beta in self.betas] != [True, True]:
            raise ConfigError(f"betas={self.betas} of {self.name} must be two numbers in 0 <= beta < 1")

    def state_width(self, dim: int) -> int:
        """Return K = 2 D: the means of gradients, then the means of their squares."""
        return 2 * dim

    def initial_state(self, dim: int) -> tuple[float, ...]:
        """Return the state of a row that was never trained, (2 D,)."""
        return (0.0,) * (2 * dim)

    def apply(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        slots: torch.Tensor,
        grad: torch.Tensor,
        num_steps: int,
    ) -> None:
        """Change the rows ``slots`` by one step, in place; see `RowwiseAdagrad.apply`."""
        beta1, beta2 = self.betas
        dim = grad.shape[1]
        means, squares = state[:, :dim], state[:, dim:]
        rows = means.index_select(0, slots)
        mean = grad.sub(rows).mul_(1 - beta1).add_(rows)
        means.index_copy_(0, slots, mean)
        torch.index_select(squares, 0, slots, out=rows)
        square = grad.pow(2).sub_(rows).mul_(1 - beta2).add_(rows)
        squares.index_copy_(0, slots, square)
        rate = self.lr * math.sqrt(1 - beta2**num_steps) / (1 - beta1**num_steps)
        change = mean.div_(square.sqrt_().add_(self.eps)).mul_(-rate)
        torch.index_select(weights, 0, slots, out=rows)
        weights.index_copy_(0, slots, rows.add_(change))


# The rules that change trainable rows by their gradients.
RowOptimizer: TypeAlias = RowwiseAdagrad | Adagrad | SparseAdam
# The optimizers by name.
OPTIMIZERS: Final[Mapping[str, type[RowOptimizer]]] = {
    kind.name: kind for kind in (RowwiseAdagrad, Adagrad, SparseAdam)
}


def optimizer_from(facts: Mapping[str, Any]) -> RowOptimizer:
    """Return the optimizer that `RowwiseAdagrad.facts` described. Pure.

    Raises
    ------
    ConfigError
        The name or a setting is unknown, or a setting is out of range.
    """
    settings = dict(facts)
    name = settings.pop("name", None)
    if name not in OPTIMIZERS:
        raise ConfigError(f"optimizer {name!r} is unknown; {near_advice(str(name), OPTIMIZERS)}")
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])  # JSON has lists
    try:
        return OPTIMIZERS[name](**settings)
    except TypeError as error:
        raise ConfigError(f"optimizer {name!r} with {settings}: {error}") from error


def check_same_optimizer(optimizer: RowOptimizer, facts: Mapping[str, Any]) -> None:
    """Require that ``optimizer`` is the one that ``facts`` describe. Its learning rate may differ. Pure.

    Raises
    ------
    StateError
        A name or a setting differs; the message has each difference.
    """
    now = optimizer.facts()
    differences = [
        f"{key}={now.get(key)} instead of {facts.get(key)}"
        for key in dict.fromkeys((*facts, *now))
        if key != "lr" and now.get(key) != facts.get(key)  # schedules change the rate during a run, too
    ]
    if differences:
        raise StateError(
            f"the embedding was trained by {facts.get('name')}, and now its optimizer has {', '.join(differences)}; "
            "pass the same optimizer, or begin with a new folder"
        )


def _check(
    optimizer: RowOptimizer,
    *,
    positive: tuple[str, ...],
    from_zero: tuple[str, ...] = (),
) -> None:
    """Raise ConfigError if a setting is no finite number in its range. Pure."""
    for key in (*positive, *from_zero):
        value = getattr(optimizer, key)
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or value < 0 or (key in positive and value == 0):
            allowed = "a finite number above 0" if key in positive else "a finite number from 0"
            raise ConfigError(f"{key}={value!r} of {optimizer.name} must be {allowed}")
