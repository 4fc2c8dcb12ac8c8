"""`gloader train`: train a model on a dataset or a source.

A dataset is a folder that `gloader prepare` wrote. A source is data in another format, such as ``ogb:ogbn-arxiv``; it
is prepared first. A dataset may also be at a URL; its files are then copied to a local folder, the mirror. This module
checks the flags, prepares the data, and calls `gloader.training.train.fit`. Other commands open their data with
`open_or_prepare`. Under torchrun, every process (rank) runs `train`. A typed dataset has several node types.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from gloader.cli.conversion_view import convert_view
from gloader.cli.failure import interruption_behind
from gloader.cli.ranks import RankLaunch, joined_ranks, screen_of
from gloader.cli.run_view import RunView, print_result
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen
from gloader.config import (
    FIRST,
    LINK_TASKS,
    EmbedConfig,
    KnowledgeConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    ObjectSettings,
    OptimConfig,
    SamplingSettings,
    StepConfig,
    TaskName,
    TrainSettings,
)
from gloader.convert.options import NOT_USED, PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset
from gloader.convert.registry import is_source
from gloader.core.flag_values import SWITCH, Count
from gloader.core.paths import file_slug, is_url, require_parent
from gloader.errors import ConfigError
from gloader.training.dataset_checks import require_dataset
from gloader.training.first_run import compile_first, lacks_kernels
from gloader.training.run_settings import holds_run, is_begun, require_no_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset import Dataset


@Parameter(name="*", group=Group("Run", sort_key=0))
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Flags for a run's dataset and output folder."""

    dataset: Annotated[str, FIRST]
    """A prepared folder, its URL (s3://...), or any source of `gloader prepare`. A source is prepared once, under
    $GLOADER_HOME."""
    config: Path | None = None
    """A YAML recipe with these flags as keys. Flags on the command line take precedence."""
    out: Annotated[Path | None, FIRST] = None
    """Folder of the results. Default: runs/DATASET-MODEL-DATE-TIME."""
    task: TaskName = "node"
    """Predict node classes (node), edges (link) or triples of a knowledge graph (kg). The groups Links and Knowledge
    graphs have the flags for these."""
    table: str | None = None
    """Learn the rows of the task table NAME.train. A row is a node, perhaps with a time. NAME.valid and NAME.test are
    evaluated."""
    runs: Count = 1
    """Number of repetitions, with the seeds seed, seed+1, ...; the result has their mean and standard deviation."""
    resume: Annotated[bool, SWITCH, FIRST] = False
    """Continue the interrupted run in --out."""
    overwrite: Annotated[bool, SWITCH] = False
    """Replace the run in --out. Without this flag or --resume, a folder with a run is refused."""
    device: str = "auto"
    """auto, cpu or cuda:0. With several ranks, auto gives each rank its own GPU."""
    tensorboard: bool = False
    """Write TensorBoard events into --out."""
    compare_mlp: bool = False
    """Also train an MLP on the same features, to measure the value of the edges."""
    explain: Annotated[bool, SWITCH] = False
    """Before training, show where all data is kept, and why. Afterwards, compare predictions with measurements."""
    trace: Annotated[bool, SWITCH] = False
    """Record every stage's work in trace.json in the run's folder, for ui.perfetto.dev."""


_MODEL, _OPTIM, _STEP, _LOADER = ModelConfig(), OptimConfig(), StepConfig(), LoaderSettings()
_LINKS, _KNOWLEDGE, _EMBED, _OBJECTS = LinkConfig(), KnowledgeConfig(), EmbedConfig(), ObjectSettings()
# The module with the compiled functions (kernels) that every preparation needs.
_CONVERSION_KERNELS = "gloader.convert.csc.csc_kernels"
# Folder of the run with --compare-mlp that trains the MLP. It is inside the folder of the run with the edges.
_MLP = "mlp"


def train(  # noqa: PLR0913 - groups of flags
    *,
    run: RunFlags,
    model: ModelConfig = _MODEL,
    optim: OptimConfig = _OPTIM,
    step: StepConfig = _STEP,
    loader: LoaderSettings = _LOADER,
    links: LinkConfig = _LINKS,
    knowledge: KnowledgeConfig = _KNOWLEDGE,
    embed: EmbedConfig = _EMBED,
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Train a model on a dataset, test it, and write the results.

    `torchrun --nproc-per-node G -m gloader train ...` trains on G ranks. Each step takes one batch per rank: together
    they are a batch of G times the size. The run folder receives `config.yaml`, `metrics.jsonl` (a line per epoch),
    `result.json` and the checkpoint.

    Parameters
    ----------
    run
        The dataset, the output folder and the kind of run.
    model, optim, step, loader, links, knowledge, embed
        Settings of the training; ``config.yaml`` records them.
    objects
        Settings for a dataset at a URL, whose files are copied to a local mirror.
    output
        Output flags.
    """
    launch = RankLaunch.from_environ()
    _require_folders(run, loader, has_restarted=launch.restarts > 0)
    if launch.max_restarts and run.out is None:
        raise ConfigError("--max-restarts needs --out: a restarted run looks for its checkpoint there")
    _require_sampler(loader.sampling)
    if run.task != "link" and run.table is None and loader.sampling.is_temporal:
        raise ConfigError(
            "--time-strategy needs --table, whose rows may have a time, or --task link, whose tables have a time for "
            "each edge; in a training loop of your own, gloader.Loader(times=...) takes the time of each training node"
        )
    settings = TrainSettings(
        model=model,
        optim=optim,
        step=step,
        loader=loader,
        task=run.task,
        links=links,
        knowledge=knowledge,
        embed=embed,
        table=run.table,
        runs=run.runs,
    )
    with (
        joined_ranks(launch, device=run.device, stall_timeout_s=loader.stages.stall_timeout_s) as group,
        ExitStack() as held,
    ):
        screen = screen_of(group, Screen.open(is_json=output.json))
        if run.resume and run.out is not None and not holds_run(run.out):
            screen.say(f"nothing to resume in {run.out}: a new run begins")
        budget = loader.memory.memory_budget
        # Only one rank of a machine prepares: several ranks would write the same files at the same time. Every machine
        # prepares, because its copy or its part of the dataset may have another path.
        path = group.run_on_machines(lambda: prepare(run.dataset, screen, memory_budget=budget))
        dataset = held.enter_context(closing(open_dataset(path, objects)))
        _report_missing(dataset, run.dataset, screen)
        require_dataset(settings, dataset)
        if dataset.kind == "hetero":
            _require_typed_run(run, loader, dataset)
        of_links = links if run.task in LINK_TASKS else None
        has_machines = len(group.machine_hosts) > 1
        # On a machine's first run, other processes compile the kernels before the run, because the compiler's memory
        # would stay in this process.
        group.run_on_machines(
            lambda: compile_first(
                dataset,
                loader,
                says=screen.say,
                links=of_links,
                table=None if run.table is None else f"{run.table}.train",
                has_machines=has_machines,
                num_ranks=group.most_local,  # the largest number of ranks on one machine
                hops={} if model.name == "correct-and-smooth" else None,
            )
        )
        # One rank names the folder, because the name contains the time.
        out = Path(group.run_on_first(lambda: str(run.out or _default_out(dataset.name, model.name))))
        # Each machine counts its own restarts. After a restart, the run continues from the previous attempt's files
        # and replaces nothing.
        if max(group.gather(launch.restarts)) > 0:
            run = replace(run, resume=True, overwrite=False)
        trace = out / "trace.json" if run.trace else None
        with RunView(screen, explains=run.explain, price=objects.price) as view:
            summary = _fit(dataset, settings, run, view, out=out, trace=trace)
        # Whether training waited noticeably for the loader in the last epoch.
        is_exposed, mlp = view.is_exposed, None
        if run.compare_mlp:
            screen.say("\nfor comparison, an MLP on the same features:")
            without_edges = replace(settings, model=replace(model, name="mlp"), embed=EmbedConfig())
            with RunView(screen, explains=run.explain, is_baseline=True) as view:
                mlp = _fit(dataset, without_edges, run, view, out=out / _MLP)
        if group.is_first:
            _print(screen, summary, mlp, out=out, trace=trace, is_exposed=is_exposed)


def _require_folders(run: RunFlags, loader: LoaderSettings, *, has_restarted: bool) -> None:
    """Check a run's folders before anything is prepared. A run that torchrun restarted may already have its folder.

    Raises
    ------
    ConfigError
        Flags contradict each other, or the spill disk is missing.
    StoreExistsError
        The folder holds a run, and neither resume nor overwrite is set.
    """
    if run.resume and run.out is None:
        raise ConfigError("--resume continues the run in a folder; name the folder with --out")
    if run.resume and run.overwrite:
        raise ConfigError(
            "--resume continues the run in --out, and --overwrite replaces it; give one of them"
        )
    if loader.memory.spill_dir is not None:
        require_parent(loader.memory.spill_dir, flag="--spill-dir", keyword="spill_dir=")
    if run.out is not None and not (run.resume or run.overwrite or has_restarted):
        require_no_run(run.out)


def _require_sampler(sampling: SamplingSettings) -> None:
    """Raise ConfigError for an unknown sampler or layout. Called before a source is prepared, which may take hours."""
    # This import is late: training needs numba, --help does not.
    from gloader.samplers.make import require_layout

    require_layout(sampling.sampler, sampling.layout)


def _require_typed_run(run: RunFlags, loader: LoaderSettings, dataset: "Dataset") -> None:
    """Raise ConfigError for settings that typed datasets do not support. Called before anything is compiled."""
    from gloader.samplers.arguments import resolve_fanouts

    if run.compare_mlp:
        raise ConfigError(
            f"--compare-mlp is for datasets of one node type, and {dataset.name} has several; leave it out"
        )
    resolve_fanouts(loader.sampling.fanouts, dataset.relations)


def require_one_type(dataset: "Dataset", command: str, *, instead: str) -> None:
    """Raise ConfigError if ``dataset`` has several node types, which ``command`` does not support.

    Parameters
    ----------
    dataset : the command's dataset
    command : the command as typed, such as ``gloader inspect``
    instead : the alternative for graphs with several types
    """
    if dataset.kind == "hetero":
        raise ConfigError(
            f"{command} is for datasets of one node type, and {dataset.name} has {len(dataset.node_types)} "
            f"({', '.join(dataset.node_types[:10])}); {instead}"
        )


def _fit(
    dataset: "Dataset",
    settings: TrainSettings,
    run: RunFlags,
    view: RunView,
    *,
    out: Path,
    trace: Path | None = None,
) -> dict[str, Any]:
    """Train one network for each of the run's repetitions, and return the content of `result.json`.

    Parameters
    ----------
    dataset, settings, run : the data, the settings of the training, and the flags
    view : shows the training on the screen
    out : the run's folder
    trace : file for the stages' timeline, or None
    """
    from gloader.observe.peak_memory import bare_bytes

    # The call imports torch and measures the process, so that later measurements leave out torch.
    bare_bytes()
    from gloader.training.train import RunFiles, fit

    files = RunFiles(
        out=out,
        resume=run.resume,
        overwrite=run.overwrite,
        on_checkpoint=view.on_checkpoint,
        tensorboard=run.tensorboard,
        trace=trace,
    )
    try:
        return fit(dataset, settings, device=run.device, files=files, reporter=view).summary
    except BaseException as error:
        # After Ctrl-C or SIGTERM, the message tells the user what is saved and how to continue.
        if interruption_behind(error) is not None and is_begun(out):
            error.add_note(f"{view.describe_end(out)}; go on: the same command with {_resuming(out)}")
        raise


def _resuming(out: Path) -> str:
    """Return the flags that resume the run in ``out``. A comparison MLP is resumed with the run that contains it."""
    root = out.parent if out.name == _MLP and is_begun(out.parent) else out
    return f"--out {shlex.quote(str(root))} --resume"


def _print(
    screen: Screen,
    summary: dict[str, Any],
    mlp: dict[str, Any] | None,
    *,
    out: Path,
    trace: Path | None,
    is_exposed: bool,
) -> None:
    """Write the closing table, the next commands, and the JSON result.

    Parameters
    ----------
    screen : the command's screen
    summary : the content of ``result.json``
    mlp : the same for the comparison MLP, or None
    out : the run's folder
    trace : the file with the timeline, or None
    is_exposed : whether training waited noticeably for the loader
    """
    quoted = shlex.quote(str(out))
    if not screen.is_json:
        print_result(screen, summary, mlp=mlp)
    valid = f"valid_{summary.get('metric', 'acc')}"
    base = summary.get(f"base_{valid}")
    if base is not None and summary[valid] < base:  # a metric of classes: larger is better
        screen.say(
            "correct and smooth made the validation figure worse: edges here seldom join nodes of one class. "
            "--model mlp is the network alone"
        )
    screen.say(f"\nresults in {out}; for a page that compares runs: gloader report {quoted}")
    if trace is not None:
        screen.say(
            f"trace in {trace}: open it in https://ui.perfetto.dev; to see what would make the run faster: "
            f"gloader analyze {quoted}"
        )
    elif is_exposed:
        screen.say(
            "the loop waited for loading: train with --trace, then gloader analyze shows what would be faster, and "
            "gloader autotune finds faster settings"
        )
    screen.result({**summary, "out": str(out), **({} if mlp is None else {"mlp": mlp})})


@contextmanager
def open_or_prepare(
    spec: str, screen: Screen, *, memory_budget: int | None, objects: ObjectSettings = _OBJECTS
) -> "Iterator[Dataset]":
    """Open the dataset of ``spec`` until the block ends. A source is prepared first, with progress on the screen.

    Parameters
    ----------
    spec : a prepared folder, its URL, or a source of `gloader prepare`
    screen : shows the progress
    memory_budget : bytes for the preparation; None means half the free memory
    objects : settings for the mirror of a dataset at a URL
    """
    with closing(open_dataset(prepare(spec, screen, memory_budget=memory_budget), objects)) as dataset:
        _report_missing(dataset, spec, screen)
        yield dataset


def _report_missing(dataset: "Dataset", spec: str, screen: Screen) -> None:
    """Print the data of a source that its dataset does not use, and the bytes that a mirror still has to fetch.

    A dataset's receipt is the record of the data that its conversion found and used.
    """
    receipt = dataset.metadata.get("receipt")
    if is_source(spec) and isinstance(receipt, Mapping) and (unused := receipt.get(NOT_USED)):
        screen.say(f"{spec}: {NOT_USED}: {unused}")
    # The download prints nothing, so it is announced here.
    if dataset.mirrored is not None and (coming := dataset.mirrored.describe_missing()):
        screen.say(coming)


def prepare(spec: str, screen: Screen, *, memory_budget: int | None) -> str:
    """Return the path or the URL of the dataset of ``spec``. A source is prepared, unless this was done before.

    Parameters
    ----------
    spec, screen, memory_budget : see `open_or_prepare`
    """
    if is_url(spec):
        return spec
    if is_source(spec) and lacks_kernels(_CONVERSION_KERNELS):
        _prepare_apart(spec, screen, memory_budget)
    # After a preparation in another process, this finds the finished dataset, or meets and reports the same error.
    return _prepare_here(spec, screen, memory_budget)


def _prepare_apart(spec: str, screen: Screen, memory_budget: int | None) -> None:
    """Prepare a source in another process, because a process keeps the 25 MB or more that compilation takes."""
    words = [sys.executable, "-m", "gloader.cli.train", spec, json.dumps(memory_budget)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as child:
        try:
            for line in child.stdout or ():
                screen.say(line.rstrip("\n"))
        except BaseException:
            child.kill()
            raise


def _prepare_here(spec: str, screen: Screen, memory_budget: int | None) -> str:
    """Prepare a source in this process, unless this was done before; return the dataset's path."""
    with convert_view(screen) as progress:
        path = ensure_dataset(
            spec,
            SourceOptions(memory_budget_bytes=memory_budget),
            PrepareOptions(memory_budget_bytes=memory_budget),
            progress=progress,
        )
    return str(path)


def open_dataset(path: str, objects: ObjectSettings = _OBJECTS) -> "Dataset":
    """Return the dataset at ``path``, or at a URL, mirrored with the settings ``objects``."""
    from gloader.dataset import Dataset

    return Dataset.open(path, **objects.keywords())


def _default_out(dataset: str, model: str) -> Path:
    """Return the folder runs/DATASET-MODEL-DATE-TIME."""
    moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / "-".join(filter(None, (file_slug(dataset), model, moment)))


# The process that `_prepare_apart` starts: a source and a memory budget in bytes are its arguments.
if __name__ == "__main__":
    try:
        _prepare_here(sys.argv[1], Screen.open(is_json=False), json.loads(sys.argv[2]))
    except BaseException:  # noqa: BLE001 - the parent process meets the same error and reports it
        sys.exit(1)
