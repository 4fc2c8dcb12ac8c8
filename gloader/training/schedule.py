"""The optimiser and its learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gloader.errors import ConfigError
from gloader.training.adam import Adam

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from gloader.config import OptimConfig

_SCHEDULES = ("constant", "cosine", "step")
_OPTIMIZERS = ("adam", "adamw")


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
    """Raise ConfigError naming the first setting of ``config`` that is not allowed."""
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
