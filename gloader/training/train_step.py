"""One training step: a forward and a backward pass, and the update of the weights by an optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from gloader.errors import ConfigError
from gloader.training.process import seed_torch
from gloader.training.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gloader.config import OptimConfig, StepConfig, TrainSettings
    from gloader.training.group import RankGroup
    from gloader.training.model_spec import AnyNetwork
    from gloader.training.task import Task
    from gloader.types import Delivered


# The defaults of torch.optim.Adam; updates agree with it bit for bit.
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_PIECE_BYTES = 1 << 20  # of a sparse gradient's rows that are updated at a time
_STATE_NAMES = ("steps", "means", "squares")
_SCHEDULES = ("constant", "cosine", "step")
_OPTIMIZERS = ("adam", "adamw")


class Adam:
    """The updates of ``torch.optim.Adam`` or, ``decoupled``, of ``torch.optim.AdamW``, bit for bit; on a GPU, fused.

    The classes of torch import its compiler at the first call, which takes 70 MB of every run's memory and 0.8 s;
    the functions below them do not. A sparse gradient, that of learned rows, is applied as in
    ``torch.optim.SparseAdam``: rows outside of it keep their values and moments, and none decays.

    Parameters
    ----------
    parameters : the trained parameters
    lr : learning rate; may be assigned between steps
    weight_decay : added to the gradient, or with ``decoupled`` subtracted from the parameter
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float, decoupled: bool
    ) -> None:
        self.lr = lr
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        self._update = adamw if decoupled else adam
        self._steps = [torch.zeros(()) for _ in self._parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self) -> None:
        """Drop the gradients and their memory."""
        # Dropped, not zeroed: an evaluation between two epochs uses their memory.
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        # A layer that a batch did not use keeps its moments, as in torch.
        grads = [
            (i, grad) for i, parameter in enumerate(self._parameters) if (grad := parameter.grad) is not None
        ]
        dense = [(i, grad) for i, grad in grads if not grad.is_sparse]
        chosen = [i for i, _ in dense]
        is_fused = bool(chosen) and all(_is_fused(self._parameters[i]) for i in chosen)
        if is_fused:
            # Counted on the device of the fused launch, which reads the counts.
            for i in chosen:
                self._steps[i] = self._steps[i].to(self._parameters[i].device)
        self._update(
            [self._parameters[i] for i in chosen],
            [grad for _, grad in dense],
            [self._means[i] for i in chosen],
            [self._squares[i] for i in chosen],
            [],
            [self._steps[i] for i in chosen],
            fused=is_fused or None,
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=self.lr,
            weight_decay=self._weight_decay,
            eps=_EPS,
            maximize=False,
        )
        for i, grad in grads:
            if grad.is_sparse:
                # Counted on the host, which computes with it: otherwise every step would wait for the device.
                self._steps[i] = self._steps[i].cpu() + 1
                self._update_rows(i, *_distinct_rows(grad))

    def _update_rows(self, number: int, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Update the rows ``ids`` (n,), unique, of a parameter by their gradients (n, width), as torch does."""
        # Piece by piece: torch makes eight arrays as large as the gradient, and on the CPU each is untouched memory,
        # which takes several times as long as the arithmetic. Pieces are reused.
        step = int(self._steps[number])
        size = self.lr * math.sqrt(1 - _BETA2**step) / (1 - _BETA1**step)
        rows = len(ids) if values.is_cuda else max(_PIECE_BYTES // max(values[:1].nbytes, 1), 1)
        tables = (self._parameters[number], self._means[number], self._squares[number])
        for first in range(0, len(ids), rows):
            wanted, new = ids[first : first + rows], values[first : first + rows]
            parameter, mean, square = (table.index_select(0, wanted) for table in tables)
            # The terms in torch's order, so that every bit is the same.
            mean = new.sub(mean).mul_(1 - _BETA1).add_(mean)
            square = new.pow(2).sub_(square).mul_(1 - _BETA2).add_(square)
            tables[1].index_copy_(0, wanted, mean)
            tables[2].index_copy_(0, wanted, square)
            change = mean.div_(square.sqrt_().add_(_EPS)).mul_(-size)
            tables[0].index_copy_(0, wanted, parameter.add_(change))

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return the state for `load_state_dict`; shares its tensors."""
        return {"steps": self._steps, "means": self._means, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the tensors of a `state_dict`.

        Raises
        ------
        ValueError
            The state belongs to an optimiser with other parameters.
        """
        own = self.state_dict()
        if set(state) != set(_STATE_NAMES) or any(
            [tensor.shape for tensor in state[name]] != [tensor.shape for tensor in own[name]]
            for name in _STATE_NAMES
        ):
            raise ValueError("the optimiser's state has other parameters than the model")
        # Copied into the existing tensors: the parameters' device and dtype stay.
        for name in _STATE_NAMES:
            for tensor, saved in zip(own[name], state[name], strict=True):
                tensor.copy_(saved)


def _is_fused(parameter: torch.Tensor) -> bool:
    """Return whether one kernel updates ``parameter`` with all others; torch by itself would launch a dozen."""
    return parameter.is_cuda


def _distinct_rows(grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows (n,) of a sparse gradient, unique, and their gradients (n, width)."""
    ids, values = grad._indices()[0], grad._values()  # noqa: SLF001 - public of added up ones alone
    ordered = ids.sort().values
    # A batch's rows are distinct: no sum over repeats is needed, which would take five times as long.
    if bool((ordered[1:] != ordered[:-1]).all()):
        return ids, values
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


def learning_rate(config: OptimConfig, epoch: int) -> float:
    """Return the learning rate of ``epoch``. Pure.

    "cosine" falls from ``lr`` towards 0 over the epochs; "step" divides by 10 after half of them and again
    after three quarters.
    """
    progress = epoch / config.epochs
    match config.lr_schedule:
        case "constant":
            return config.lr
        case "cosine":
            return config.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "step":
            return config.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))


def build_optimizer(config: OptimConfig, parameters: Iterable[torch.nn.Parameter]) -> Adam:
    """Return the optimiser that ``config`` names."""
    return Adam(
        parameters, lr=config.lr, weight_decay=config.weight_decay, decoupled=config.optimizer == "adamw"
    )


def check_optim(config: OptimConfig) -> None:
    """Raise ConfigError naming the first invalid setting of ``config``."""
    if config.optimizer not in _OPTIMIZERS:
        raise ConfigError(f"optimizer {config.optimizer!r} is not known; allowed: {', '.join(_OPTIMIZERS)}")
    if config.lr_schedule not in _SCHEDULES:
        raise ConfigError(
            f"lr_schedule {config.lr_schedule!r} is not known; allowed: {', '.join(_SCHEDULES)}"
        )
    for name, least in (("epochs", 1), ("eval_every", 1), ("patience", 0), ("checkpoint_every", 0)):
        if (value := getattr(config, name)) < least:
            raise ConfigError(f"{name} is {value}; allowed: {least} or more")
    if not (config.lr > 0 and math.isfinite(config.lr)):
        raise ConfigError(f"lr is {config.lr}; allowed: a positive number")
    if not (config.weight_decay >= 0 and math.isfinite(config.weight_decay)):
        raise ConfigError(f"weight_decay is {config.weight_decay}; allowed: 0 or a positive number")


_INIT = -1  # the epoch number in the address of the initial weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """The settings that determine a network's training, besides its batches."""

    task: Task
    optim: OptimConfig  # checked, as is ``step``
    step: StepConfig
    seed: int  # of the initial weights and of dropout
    run_id: str  # of the run that owns the checkpoints
    settings: Mapping[str, Any]  # `decisive_settings`


def new_step(
    task: Task, settings: TrainSettings, device: torch.device, group: RankGroup, *, num_steps: int
) -> TrainStep:
    """Return the steps of a new network, as in `gloader.training.train.fit`, without checkpoints.

    Parameters
    ----------
    task : of the run
    settings : of the same
    device : of the network
    group : the ranks that train together
    num_steps : of the whole run
    """
    recipe = TrainRecipe(
        task=task,
        optim=settings.optim,
        step=settings.step,
        seed=settings.loader.sampling.seed,
        run_id="",
        settings={},
    )
    model = first_network(recipe, device)
    model.train()
    return TrainStep(model, recipe, group, num_steps=num_steps)


def first_network(recipe: TrainRecipe, device: torch.device) -> AnyNetwork:
    """Return the network with its initial weights, which depend only on the seed. Seeds torch's generators."""
    seed_torch(recipe.seed, _INIT, device=device)
    return recipe.task.spec.build().to(device)


class TrainStep:
    """Takes the steps of a run. Shares the parameters of ``model``; collective with several ranks.

    Seeds torch's generators: use it in `private_randomness`.

    Parameters
    ----------
    model : on its device
    recipe : precision, optimisation and seed
    group : the ranks that train together
    num_steps : of the whole run
    """

    def __init__(self, model: AnyNetwork, recipe: TrainRecipe, group: RankGroup, *, num_steps: int) -> None:
        self._group = group
        self._seed = recipe.seed
        self._device = next(model.parameters()).device
        self._objective = recipe.task.objective
        with group.lost_rank_errors():
            self._replica = Replica(model, recipe.step, group, num_steps=num_steps, objective=self._objective)
        self.optimizer = build_optimizer(recipe.optim, model.parameters())

    def take(self, batch: Delivered, *, is_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Learn from ``batch``; return the outputs of the network, and their mean loss.

        Parameters
        ----------
        batch : on the device
        is_last : whether the epoch ends with it; the same on every rank
        """
        # A rank's dropout is its own; a run without ranks keeps the address that it always had.
        rank = () if self._group.is_alone else (self._group.rank,)
        seed_torch(self._seed, batch.id.epoch, batch.id.index, *rank, device=self._device)
        outputs, loss = self._replica.forward(batch)
        # Otherwise the gradients would be added to those of the step before.
        self.optimizer.zero_grad()
        self._replica.backward(loss, num_seeds=self._objective.count(batch), is_last=is_last)
        self.optimizer.step()
        return outputs, loss
