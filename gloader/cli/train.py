"""`gloader train`."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.cli.convert_view import convert_view
from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.run_flags import MachineFlags, ModelFlags, OptimFlags, RunFlags
from gloader.cli.run_view import RunView, print_result
from gloader.cli.screen import Screen
from gloader.config import LoaderConfig, ModelConfig, OptimConfig
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.home import ensure_dataset

if TYPE_CHECKING:
    from gloader.dataset import Dataset

_MODEL, _OPTIM, _MACHINE = ModelFlags(), OptimFlags(), MachineFlags()


def train(
    *,
    run: RunFlags,
    model: ModelFlags = _MODEL,
    optim: OptimFlags = _OPTIM,
    machine: MachineFlags = _MACHINE,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Train a model on a dataset, test it, and write the results.

    The run folder receives `config.yaml`, `metrics.jsonl` (a line per epoch), `result.json` and the checkpoint.
    """
    run.validate()
    model_config, optim_config = model.config(), optim.config()
    screen = Screen.open(is_json=output.json)
    dataset = open_or_prepare(run.dataset, screen, memory_budget=machine.memory_budget)
    loader_config = machine.loader_config(
        fanout=model.fanout, batch_size=optim.batch_size, seed=run.seed, feature_bytes=dataset.feature_bytes
    )
    out = run.out or _default_out(dataset.name, model_config.name)
    job = _Job(dataset, model_config, optim_config, loader_config, machine.device, run, screen)
    summary = job.fit(out)
    mlp = job.fit_mlp(out / "mlp") if run.compare_mlp else None
    if not output.json:
        print_result(screen, summary, mlp=mlp)
    screen.say(f"\nresults in {out}")
    screen.result({**summary, "out": str(out), **({} if mlp is None else {"mlp": mlp})})


@dataclass(frozen=True, slots=True)
class _Job:
    """What is trained, how, and who watches."""

    dataset: "Dataset"
    model: ModelConfig
    optim: OptimConfig
    loader: LoaderConfig
    device: str
    run: RunFlags
    screen: Screen

    def fit(self, out: Path, *, explains: bool = True) -> dict[str, Any]:
        """Train, and return the content of `result.json`."""
        from gloader.training.train import fit

        with RunView(self.screen, explains=explains) as view:
            return fit(
                self.dataset,
                self.model,
                self.optim,
                self.loader,
                runs=self.run.runs,
                out=out,
                resume=self.run.resume,
                device=self.device,
                tensorboard=self.run.tensorboard,
                reporter=view,
            ).summary

    def fit_mlp(self, out: Path) -> dict[str, Any]:
        """Train a network of the same shape that sees no edges."""
        self.screen.say("\nfor comparison, an MLP on the same features:")
        return replace(self, model=replace(self.model, name="mlp")).fit(out, explains=False)


def open_or_prepare(spec: str, screen: Screen, *, memory_budget: int | None) -> "Dataset":
    """Return the dataset that ``spec`` means; a source is prepared the first time, in view of the user."""
    from gloader.dataset import Dataset

    with convert_view(screen) as progress:
        path = ensure_dataset(
            spec,
            SourceOptions(memory_budget_bytes=memory_budget),
            PrepareOptions(memory_budget_bytes=memory_budget),
            progress=progress,
        )
    return Dataset.open(path)


def _default_out(dataset: str, model: str) -> Path:
    moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{dataset}-{model}-{moment}"
