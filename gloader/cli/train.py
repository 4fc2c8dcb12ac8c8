"""`gloader train`."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.ranks import Launch, joined_ranks, screen_of
from gloader.cli.run_flags import MachineFlags, ModelFlags, OptimFlags, RunFlags
from gloader.cli.views.convert import convert_view
from gloader.cli.views.run import RunView, print_result
from gloader.cli.views.screen import Screen
from gloader.config import LoaderConfig, ModelConfig, OptimConfig
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset
from gloader.errors import ConfigError
from gloader.training.step_config import StepConfig

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

    `torchrun --nproc-per-node G -m gloader train ...` trains on G ranks, whose batches are the parts of a batch of G
    times the size. The run folder receives `config.yaml`, `metrics.jsonl` (a line per epoch), `result.json` and the
    checkpoint.
    """
    run.validate()
    launch = Launch.from_environ()
    if launch.max_restarts and run.out is None:
        raise ConfigError("--max-restarts needs --out: a restarted run looks for its checkpoint there")
    model_config, optim_config, step_config = model.config(), optim.config(), machine.step_config()
    with joined_ranks(launch, device=machine.device, stall_timeout_s=machine.stall_timeout_s()) as group:
        screen = screen_of(group, Screen.open(is_json=output.json))
        path = group.run_on_first(lambda: prepare(run.dataset, screen, memory_budget=machine.memory_budget))
        dataset = open_dataset(path)
        loader_config = machine.loader_config(
            model=model, optim=optim, seed=run.seed, feature_bytes=dataset.feature_bytes
        )
        out = Path(group.run_on_first(lambda: str(run.out or _default_out(dataset.name, model_config.name))))
        job = _Job(
            dataset=dataset,
            model=model_config,
            optim=optim_config,
            step=step_config,
            loader=loader_config,
            machine=machine,
            run=run,
            # Machines count the restarts for themselves.
            resume=run.resume or max(group.gather(launch.restarts)) > 0,
            screen=screen,
        )
        trace = (run.out or Path()) / "trace.json" if run.trace else None
        summary = job.fit(out, trace=trace)
        mlp = job.fit_mlp(out / "mlp") if run.compare_mlp else None
        if group.is_first:
            _print(screen, summary, mlp, out=out, trace=trace)


def _print(
    screen: Screen, summary: dict[str, Any], mlp: dict[str, Any] | None, *, out: Path, trace: Path | None
) -> None:
    if not screen.is_json:
        print_result(screen, summary, mlp=mlp)
    screen.say(f"\nresults in {out}")
    if trace is not None:
        screen.say(f"trace in {trace}: open it in https://ui.perfetto.dev")
    screen.result({**summary, "out": str(out), **({} if mlp is None else {"mlp": mlp})})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is trained, how, and who watches."""

    dataset: "Dataset"
    model: ModelConfig
    optim: OptimConfig
    step: StepConfig
    loader: LoaderConfig
    machine: MachineFlags
    run: RunFlags
    resume: bool
    screen: Screen

    def fit(self, out: Path, *, trace: Path | None = None, is_baseline: bool = False) -> dict[str, Any]:
        """Train, and return the content of `result.json`."""
        from gloader.training.train import fit

        with RunView(self.screen, explains=self.run.explain, is_baseline=is_baseline) as view:
            return fit(
                self.dataset,
                self.model,
                self.optim,
                self.loader,
                step=self.step,
                sharing=self.machine.loader,
                runs=self.run.runs,
                out=out,
                resume=self.resume,
                device=self.machine.device,
                tensorboard=self.run.tensorboard,
                trace=trace,
                reporter=view,
            ).summary

    def fit_mlp(self, out: Path) -> dict[str, Any]:
        """Train a network of the same shape that sees no edges."""
        self.screen.say("\nfor comparison, an MLP on the same features:")
        return replace(self, model=replace(self.model, name="mlp")).fit(out, is_baseline=True)


def open_or_prepare(spec: str, screen: Screen, *, memory_budget: int | None) -> "Dataset":
    """Return the dataset that ``spec`` means; a source is prepared the first time, in view of the user."""
    return open_dataset(prepare(spec, screen, memory_budget=memory_budget))


def prepare(spec: str, screen: Screen, *, memory_budget: int | None) -> str:
    """Return the path of the dataset that ``spec`` means, as `open_or_prepare`."""
    with convert_view(screen) as progress:
        path = ensure_dataset(
            spec,
            SourceOptions(memory_budget_bytes=memory_budget),
            PrepareOptions(memory_budget_bytes=memory_budget),
            progress=progress,
        )
    return str(path)


def open_dataset(path: str) -> "Dataset":
    """Return the dataset at ``path``."""
    from gloader.dataset import Dataset

    return Dataset.open(path)


def _default_out(dataset: str, model: str) -> Path:
    moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{dataset}-{model}-{moment}"
