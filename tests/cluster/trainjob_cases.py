"""The TrainJob of `examples/cluster` in the models that Kubeflow Trainer publishes; run by `make test-cluster`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

pytestmark = pytest.mark.long

JOB = Path(__file__).parents[2] / "examples" / "cluster" / "trainjob.yaml"


def test_the_models_of_the_api_take_the_job_and_drop_nothing() -> None:
    content: dict[str, Any] = yaml.safe_load(JOB.read_text())
    job = TrainerV1alpha1TrainJob.from_dict(content)
    assert job is not None
    assert job.to_dict() == content
