"""What a run does with every batch: a forward and a backward pass, and the update of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.training.optimizer import build_optimizer
from gloader.training.process import seed_torch
from gloader.training.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gloader.config import OptimConfig, StepConfig, TrainSettings
    from gloader.training.group import RankGroup
    from gloader.training.model_spec import AnyNetwork
    from gloader.training.task import Task
    from gloader.types import Delivered

_INIT = -1  # the place of an epoch in the address of the initial weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """The settings that decide what a network becomes, beside its batches."""

    task: Task
    optim: OptimConfig  # checked, as is ``step``
    step: StepConfig
    seed: int  # of the initial weights and of dropout
    run_id: str  # of the run whose checkpoints are written and gone on with
    settings: Mapping[str, Any]  # `decisive_settings`


def new_step(
    task: Task, settings: TrainSettings, device: torch.device, group: RankGroup, *, num_steps: int
) -> TrainStep:
    """Return the steps of a new network, as `gloader.training.train.fit` would take them, that is saved nowhere.

    Parameters
    ----------
    task : of the run
    settings : of the same
    device : where the network is
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
    """Return the network with its initial weights, which depend on the seed alone. Seeds torch's generators."""
    seed_torch(recipe.seed, _INIT, device=device)
    return recipe.task.spec.build().to(device)


class TrainStep:
    """Takes the steps of a run. Shares the parameters of ``model``; collective where there are several ranks.

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
        # A rank's dropout is its own; without ranks the address is the one that single runs always had.
        rank = () if self._group.is_alone else (self._group.rank,)
        seed_torch(self._seed, batch.id.epoch, batch.id.index, *rank, device=self._device)
        outputs, loss = self._replica.forward(batch)
        # Or the gradients would be added to those of the step before.
        self.optimizer.zero_grad()
        self._replica.backward(loss, num_seeds=self._objective.count(batch), is_last=is_last)
        self.optimizer.step()
        return outputs, loss
