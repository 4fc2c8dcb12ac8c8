"""A training run on the screen: bars, a row per epoch, and the closing table.

`gloader train` opens a `RunView`, which shows a run while it trains. The training calls its ``on_...`` methods, as it
is a `gloader.training.reporter.Reporter`. `print_result` then writes the closing table of one or several runs.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gloader.cli.screen import PacedLines, Screen, facts
from gloader.config import loader_defaults
from gloader.core.flag_values import as_flags
from gloader.core.object_traffic import ObjectPrice, ObjectTraffic, format_cost
from gloader.core.units import format_bytes, format_count, format_seconds
from gloader.observe.bottleneck import is_exposed
from gloader.observe.epoch_stats import STAGES, memory_by_table
from gloader.observe.explain import edges_moved

if TYPE_CHECKING:
    from gloader.observe.epoch_stats import EpochStats
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.metrics import EpochRecord
    from gloader.training.reporter import BatchReport, RunStart
    from gloader.training.result import RunResult


# With fewer batches per epoch and also fewer epochs, the optimiser takes few steps, and the run gets a warning.
_FEW_BATCHES, _FEW_EPOCHS = 20, 50
# Characters for the stage times in the closing table, on a screen with 80 columns.
_STAGES_WIDTH = 58
_NO_SHARES = ("mae", "rmse", "r2")  # metrics that are not shares of 1, so they are not shown in percent
# Columns of the table of epochs, up to the validation figure and after it.
_HEADER = f"{'epoch':>5}  {'loss':>7}  {'train':>6}", f"{'rows/s':>7}  {'hits':>6}  {'time':>8}  bottleneck"


class RunView:
    """Shows a command's training runs. A context manager; implements `gloader.training.reporter.Reporter`.

    Parameters
    ----------
    screen : the command's screen
    explains : whether to show the full memory plan with reasons instead of two lines
    is_baseline : whether this is a second training on the same data, whose facts are already shown
    price : the prices of the object store with the dataset, or None to show no cost
    """

    def __init__(
        self,
        screen: Screen,
        *,
        explains: bool = False,
        is_baseline: bool = False,
        price: ObjectPrice | None = None,
    ) -> None:
        self._screen = screen
        self._price = price
        self._explains = explains and not is_baseline
        self._is_baseline = is_baseline
        self._num_epochs = 0
        self._run = ""  # " of run 2" for one of several runs
        self._position = (0, 0)  # epoch and batch up to which the run is saved
        # True if training waited noticeably for the loader in the last epoch. A run's first epoch does not count: it
        # always waits, because no batch was prepared before it.
        self.is_exposed = False
        self._first_epoch = 0  # number of the first epoch; above 0 if an interrupted run continues
        self._valid = "valid"  # heading of the validation figures
        self._task: TaskID | None = None  # the bar on the screen
        self._bars: Progress | None = None  # None if the screen shows lines instead of bars
        self._lines = PacedLines(screen)

    def __enter__(self) -> Self:
        if self._screen.has_bars:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}", style="cyan", markup=False),
                TimeRemainingColumn(compact=True),
                console=self._screen.console,
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def on_start(self, start: "RunStart", /) -> None:
        """Show the run's size, its memory plan, and the heading of the table of epochs."""
        of = f" {start.run + 1} of {start.num_runs}" if start.num_runs > 1 else ""
        self._run = f" of run {start.run + 1}" if start.num_runs > 1 else ""
        self._position, self._first_epoch = (start.first_epoch, 0), start.first_epoch
        again = f", continuing after epoch {start.first_epoch}" if start.first_epoch else ""
        self._screen.say(
            f"run{of}: {start.num_parameters:,} parameters on {_device_text(start)}, "
            f"{start.num_epochs} epochs of {start.num_batches} batches{again}"
        )
        self._num_epochs = start.num_epochs
        is_first = start.run == 0 and not self._is_baseline
        if is_first:
            lines = start.summary.splitlines()
            if self._explains:  # a line of both is shown once
                lines += [line for line in start.explanation.splitlines() if line.strip() not in lines]
            self._screen.say("\n".join(lines))
        if is_first and start.num_batches < _FEW_BATCHES and start.num_epochs < _FEW_EPOCHS:
            self._screen.say(
                f"{start.num_batches} batches an epoch are few steps to learn from: a smaller --batch-size, or more "
                "--epochs, makes more"
            )
        # The column "train" shows the accuracy, so only other metrics are named.
        self._valid = "valid" if start.metric == "acc" else f"valid {start.metric}"
        self._screen.say(f"{_HEADER[0]}  {self._valid:>6}  {_HEADER[1]}")
        self._lines = PacedLines(self._screen)

    def on_batch(self, report: "BatchReport", /) -> None:
        """Move the epoch's bar to the batch that has just been trained."""
        rate = format_count(report.rows_per_second)
        accuracy = "" if report.accuracy is None else f"acc {100 * report.accuracy:.1f}%  "
        figures = f"loss {report.loss:.3f}  {accuracy}{rate} rows/s"
        epoch = f"epoch {report.epoch + 1}/{self._num_epochs}"
        self._move(epoch, report.index + 1, report.num_batches, figures)

    def on_evaluate(self, fraction: float, /) -> None:
        """Move the evaluation's bar to ``fraction``, from 0 to 1."""
        self._move("evaluating", fraction, 1, "")

    def on_epoch(self, record: "EpochRecord", /) -> None:
        """Write the epoch's row, with a remark on its bottleneck and its traffic."""
        self.is_exposed = record.epoch > self._first_epoch and is_exposed(record.stats)
        valid = "-" if record.valid_acc is None else _figure(record.valid_acc, record.metric)
        train = "-" if record.train_acc is None else f"{100 * record.train_acc:.2f}"
        remarks = [
            as_flags(record.bottleneck, loader_defaults()),
            edges_moved(record.stats),
            memory_by_table([record.stats]),
            _objects_moved(record.stats, self._price),
        ]
        remark = "; ".join(filter(None, remarks))
        self._screen.say(
            f"{record.epoch + 1:>5}  {record.loss:>7.4f}  {train:>6}  {valid:>{max(len(self._valid), 6)}}  "
            f"{format_count(record.rows_per_second):>7}  {100 * record.stats.hit_rate:>5.1f}%  "
            f"{format_seconds(record.seconds):>8}  {remark}"
        )
        self._lines = PacedLines(self._screen)

    def on_checkpoint(self, checkpoint: "Checkpoint", /) -> None:
        """Keep the position up to which the run is saved, for `describe_end`. Called after each saved checkpoint."""
        self._position = checkpoint.position

    def describe_end(self, out: Path) -> str:
        """Return a text on a run that a signal ended: the epoch in which it stopped, and the work saved in ``out``."""
        epoch, index = self._position
        where = f"in epoch {epoch + 1}" if epoch < self._num_epochs else "behind the last epoch"
        parts = {1: ["epoch 1"], 2: ["epochs 1 and 2"]}.get(epoch, [f"epochs 1 to {epoch}"] if epoch else [])
        if index:
            parts.append(f"{index} batches of epoch {epoch + 1}")
        return f"stopped {where}{self._run}; {out} holds {' and '.join(parts) or 'no epoch yet'}"

    def on_finish(self, result: "RunResult", /) -> None:
        """Remove the bar, and show the measurements."""
        if self._explains and result.explanation:
            self._screen.say(result.explanation)
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def _move(self, description: str, done: float, total: float, figures: str) -> None:
        """Move the bar ``description`` to ``done`` of ``total``. Without bars, write a line every few seconds.

        ``figures`` is text next to the bar.
        """
        if self._bars is None:
            self._lines.say(f"{description}: {100 * done / total:.0f}%" + (f", {figures}" if figures else ""))
            return
        # There is one bar at a time: the epoch's bar goes when the evaluation begins.
        if self._task is None or self._bars.tasks[0].description != description:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(description, total=total, figures=figures)
        self._bars.update(self._task, completed=done, total=total, figures=figures)


def _objects_moved(stats: "EpochStats", price: ObjectPrice | None) -> str:
    """Return a text on an epoch's traffic from the object store with the dataset, or "" without traffic."""
    moved = ObjectTraffic(
        requests=stats.object_requests,
        num_bytes=stats.object_bytes,
        retries=stats.object_retries,
        waited_s=stats.object_wait_s,
    )
    return f"from the store {moved.describe(price)}" if moved.requests else ""


def _device_text(start: "RunStart") -> str:
    """Return the device of one rank, or the number of ranks and the kind of device."""
    # With several ranks, ``start.device`` is this rank's device: the index of the others is unknown.
    if start.num_ranks == 1:
        return start.device
    return f"{start.num_ranks} ranks ({start.device.partition(':')[0]})"


def print_result(screen: Screen, result: Mapping[str, Any], *, mlp: Mapping[str, Any] | None = None) -> None:
    """Write the closing table of one or several runs.

    Parameters
    ----------
    screen : the command's screen
    result : the content of ``result.json``
    mlp : the ``result.json`` of a comparison run, an MLP that ignores the edges, or None without such a run
    """
    metric = result.get("metric", "acc")
    metric_name = "accuracy" if metric == "acc" else metric
    rows = {f"test {metric_name}": _measured(result, f"test_{metric}"), **_of_the_network(result, "test")}
    if mlp is not None:
        rows["  of an MLP"] = _measured(mlp, f"test_{metric}")
    seconds = result["epoch_seconds"]
    rows |= {
        f"validation {metric_name}": _measured(result, f"valid_{metric}"),
        **_of_the_network(result, "valid"),
        "epoch": f"{format_seconds(sum(seconds) / max(len(seconds), 1))} on average, "
        f"{format_count(result['seeds_per_second'])} seeds/s",
        "rows from memory": f"{100 * result['hit_rate']:.1f}% (features: {result['features']}, "
        f"policy: {result['policy']})",
        **_tables(result),
        "rows from the SSD": f"{format_count(result['rows_read'])}, {format_bytes(result['bytes_read'])} read, "
        f"{format_bytes(result['bytes_written'])} written, strategy {result['io_strategy']}",
        **_edges(result),
        **_objects(result),
        "stage times": _stages(result["stage_seconds"]),
        "peak memory": memory_text(result),
    }
    screen.console.print()
    screen.console.print(facts(rows))


def _of_the_network(result: Mapping[str, Any], split: str) -> dict[str, str]:
    """Return the line on the network alone, if a step such as correct and smooth follows it."""
    name = f"base_{split}_{result.get('metric', 'acc')}"
    # A table has one row for each name, so the two lines differ by the split.
    return {f"  {split}, network alone": _measured(result, name)} if name in result else {}


def _tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each feature table, such as the features of one node type, if there are several tables."""
    return {
        f"  of {name}": f"{100 * counts['hit_rate']:.1f}% of {format_count(counts['rows_gathered'])}, "
        f"{format_bytes(counts['bytes_read'])} read"
        for name, counts in result.get("tables", {}).items()
    }


def _edges(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the line on passes over the edges, if there were any."""
    if not result["edge_passes"]:
        return {}
    read, written = (format_bytes(result[name]) for name in ("edge_bytes_read", "edge_bytes_written"))
    return {"edges from the SSD": f"{read} read in {result['edge_passes']:,} passes, {written} written"}


def _objects(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the line on traffic from the dataset's URL, if it has one."""
    if not (objects := result.get("objects")):
        return {}
    cost = "" if objects["cost"] is None else f", cost {format_cost(objects['cost'])}"
    moved = ObjectTraffic(
        **{name: objects[name] for name in ("requests", "num_bytes", "retries", "waited_s")}
    )
    return {"from the store": moved.describe(None) + cost}


def _measured(result: Mapping[str, Any], name: str) -> str:
    """Return the figure ``name``, such as ``test_acc``, as text. With several runs, its deviation follows."""
    value, deviation, metric = result[name], result.get(f"{name}_std"), result.get("metric", "acc")
    if value is None:
        return "not evaluated"
    spread = ""
    if deviation is not None:
        spread = f" +- {_figure(deviation, metric)} over {len(result['runs'])} runs"
    return f"{_figure(value, metric)}{'' if metric in _NO_SHARES else '%'}{spread}"


def _figure(value: float, metric: str) -> str:
    """Return a metric's value as text: in percent, without the sign, if the metric is a share."""
    return f"{value:.4f}" if metric in _NO_SHARES else f"{100 * value:.2f}"


def memory_text(result: Mapping[str, Any]) -> str:
    """Return a text on the run's peak memory and its budget. If the peak was higher, it names a larger budget. Pure.

    ``result`` is the content of ``result.json``.
    """
    # The budget limits anonymous memory. Resident memory, in parentheses, includes libraries and file pages.
    taken, budget = (format_bytes(result[name]) for name in ("peak_anonymous_bytes", "memory_budget_bytes"))
    ranks = result.get("rank_peak_rss_bytes", ())
    resident = format_bytes(result["peak_rss_bytes"])
    if len(ranks) > 1:
        resident = f"{format_bytes(sum(ranks))}, of the ranks {', '.join(map(format_bytes, ranks))}"
    text = f"{taken} of a budget of {budget} ({resident} with libraries)"
    if result["peak_anonymous_bytes"] <= result["memory_budget_bytes"]:
        return text
    # This import is late: it loads numba, which --help does not need.
    from gloader.plan.too_small import rounded_up

    enough = format_bytes(rounded_up(result["peak_anonymous_bytes"])).replace(" ", "")
    return f"warning: {text}; the budget was exceeded: give --memory-budget {enough} or more"


def _stages(seconds: Mapping[str, float]) -> str:
    """Return as many of the longest stage times as fit into 80 columns, and the sum of the others. Pure."""
    spent = sorted(((seconds.get(name, 0.0), name) for name in STAGES), reverse=True)  # the longest first
    text = ""
    for count in range(len(spent), 0, -1):
        parts = [*spent[:count], (sum(time for time, _ in spent[count:]), "others")]
        text = ", ".join(f"{name} {format_seconds(time)}" for time, name in parts if time > 0)
        if len(text) <= _STAGES_WIDTH:
            break
    return text
