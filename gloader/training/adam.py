"""Adam and AdamW on torch's functional form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_STATE_NAMES = ("steps", "means", "squares")


class Adam:
    """The updates of ``torch.optim.Adam`` or, ``decoupled``, of ``torch.optim.AdamW``, bit for bit.

    The classes of torch import its compiler at the first call, which takes 70 MB of every run's memory and 0.8 s;
    the functions below them do not.

    Parameters
    ----------
    parameters : what is trained
    lr : learning rate; may be assigned between steps
    weight_decay : added to the gradient, or where ``decoupled`` subtracted from the parameter
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
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        chosen = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        self._update(
            [self._parameters[i] for i in chosen],
            [grad for i in chosen if (grad := self._parameters[i].grad) is not None],
            [self._means[i] for i in chosen],
            [self._squares[i] for i in chosen],
            [],
            [self._steps[i] for i in chosen],
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=self.lr,
            weight_decay=self._weight_decay,
            eps=_EPS,
            maximize=False,
        )

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return what `load_state_dict` takes; shares its tensors."""
        return {"steps": self._steps, "means": self._means, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the tensors of a `state_dict`.

        Raises
        ------
        ValueError
            The state is not that of an optimiser of these parameters.
        """
        own = self.state_dict()
        if set(state) != set(_STATE_NAMES) or any(
            [tensor.shape for tensor in state[name]] != [tensor.shape for tensor in own[name]]
            for name in _STATE_NAMES
        ):
            raise ValueError("the optimiser's state has other parameters than the model")
        for name in _STATE_NAMES:
            for tensor, saved in zip(own[name], state[name], strict=True):
                tensor.copy_(saved)
