from __future__ import annotations

import pytest

from gloader.errors import ConfigError
from gloader.training.step_config import StepConfig, check_step


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"autocast": "fp8"}, {}, "autocast is 'fp8'; allowed: none, bf16"),
        ({"grad_compress": "zip"}, {}, "grad_compress is 'zip'; allowed: none, bf16, powersgd"),
        ({"grad_compress": "bf16"}, {"world_size": 1}, "one rank sends no gradients; start several"),
        ({"autocast": "bf16"}, {"model": "gat"}, "a model that weighs no edges"),
        ({"autocast": "bf16"}, {"sampler": "labor:iterations=1"}, "and the sampler 'neighbor'"),
    ],
)
def test_settings_that_are_not_allowed_are_named(config, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_step(
            StepConfig(**config),
            **({"world_size": 2, "model": "graphsage", "sampler": "neighbor"} | settings),
        )


def test_everything_else_is_allowed() -> None:
    check_step(StepConfig(), world_size=1, model="gat", sampler="labor")
    everything = StepConfig(autocast="bf16", compile=True, grad_compress="powersgd")
    check_step(everything, world_size=2, model="graphsage", sampler="neighbor")
