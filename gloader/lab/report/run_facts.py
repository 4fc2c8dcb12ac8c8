"""Tables for training runs. Pure.

One run has its facts and a table of its epochs (`facts_of`, `table_of`). Several runs are grouped: a group has the runs
that differ only in the random seed. `overview` has a row for each group, and `differences` lists the settings in which
the groups differ. `gloader.lab.report.run_sections` puts these tables on the report page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

from gloader.config import loader_defaults
from gloader.core.flag_values import as_flags
from gloader.core.units import format_bytes, format_seconds
from gloader.lab.report.page import TextTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gloader.lab.report.training import Epoch, Training


_HEADER: Final = (  # the columns of the table with a row for each epoch, see `_cells`
    "epoch",
    "seconds",
    "waited",
    "loss",
    "train acc",
    "valid acc",
    "rows",
    "from memory",
    "read",
    "written",
    "memory",
)


def metric_words(metric: str) -> str:
    """Return a metric's usual name."""
    return "accuracy" if metric == "acc" else metric


def epochs_of(run: Training) -> str:
    """Return the number of epochs, and the planned number if it is larger."""
    planned = run.settings.get("epochs", "")
    return str(len(run.epochs)) + (f" of {planned}" if planned not in ("", str(len(run.epochs))) else "")


def facts_of(run: Training) -> tuple[tuple[str, str], ...]:
    """Return the run's figures. Every run has the same ones."""
    words = metric_words(run.metric)
    state = [] if run.result else [("state", "not finished")]
    return (
        (f"test {words}", _figure(run.test)),
        (f"best validation {words}", _best(run)),
        ("last loss", f"{run.epochs[-1].loss:.4f}" if run.epochs else "-"),
        ("epochs", epochs_of(run)),
        ("median epoch", "-" if run.epoch_s is None else format_seconds(run.epoch_s)),
        ("waiting for data", "-" if run.waiting is None else f"{run.waiting:.0%}"),
        ("whole run", format_seconds(run.total_seconds) if run.epochs or run.result else "-"),
        ("peak memory", _memory(run)),
        ("read from the SSD", format_bytes(run.bytes_read)),
        ("written to the SSD", format_bytes(run.bytes_written)),
        ("rows from memory", "-" if run.hit_rate is None else f"{run.hit_rate:.1%}"),
        *_tables(run.result),
        *state,
    )


def circumstances_of(run: Training) -> tuple[tuple[str, str], ...]:
    """Return the recorded circumstances: dataset, model, features, versions and machine."""
    versions, machine = run.result.get("versions", {}), run.result.get("machine", {})
    known = [
        ("dataset", run.settings.get("dataset", "")),
        ("model", run.settings.get("model", "")),
        ("features", _features(run.result)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("machine", _machine(machine) if machine else ""),
    ]
    return tuple((name, text) for name, text in known if text)


def table_of(run: Training) -> TextTable:
    """Return a table with a row for each epoch."""
    return TextTable(header=_HEADER, rows=tuple(_cells(epoch) for epoch in run.epochs))


def waits_of(run: Training) -> tuple[str, ...]:
    """Return the distinct sentences about the epochs' bottlenecks, each after its epoch numbers."""
    epochs_of: dict[str, list[int]] = {}
    for epoch in run.epochs:
        epochs_of.setdefault(epoch.bottleneck, []).append(epoch.number)
    return tuple(
        f"{_epochs(numbers)}: {as_flags(sentence, loader_defaults())}"
        for sentence, numbers in epochs_of.items()
    )


def _tables(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each table's share from memory, if there are several tables."""
    return [
        (
            f"rows of {name} from memory",
            f"{counts['hit_rate']:.1%} of {counts['rows_gathered']:,}, {format_bytes(counts['bytes_read'])} read",
        )
        for name, counts in result.get("tables", {}).items()
    ]


def _figure(value: float | None) -> str:
    """Return a metric in words; "-" if it is unknown."""
    return "-" if value is None else f"{value:.4f}"


def _best(run: Training) -> str:
    """Return the best validation metric with its epoch; "-" without a validation."""
    if run.best is None:
        return "-"
    number = next(epoch.number for epoch in run.epochs if epoch.valid == run.best)
    return f"{run.best:.4f} (epoch {number})"


def _memory(run: Training) -> str:
    """Return the run's peak memory in words, with its budget."""
    resident = (
        f"{format_bytes(run.result['peak_rss_bytes'])} resident" if "peak_rss_bytes" in run.result else ""
    )
    if run.peak_bytes is None:  # an earlier version wrote the run
        return resident or "-"
    peak, budget = format_bytes(run.peak_bytes), ""
    if run.budget_bytes is not None:
        relation = "above its" if run.peak_bytes > run.budget_bytes else "of a"
        budget = f" {relation} budget of {format_bytes(run.budget_bytes)}"
    return ", ".join(filter(None, [f"{peak}{budget}", resident]))


def _features(result: Mapping[str, Any]) -> str:
    """Return the features' place, the cache policy and the way to read, in words; "" for an unfinished run."""
    if not result:
        return ""
    if result["features"] == "ram":
        return "in memory"
    return f"{result['features']}, policy {result['policy']}, I/O {result['io_strategy']}"


def _machine(machine: Mapping[str, Any]) -> str:
    """Return a recorded machine in words: its device if it has one, processor, cores and memory."""
    device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
    memory = format_bytes(machine["memory_bytes"])
    return f"{device}{machine['processor']}, {machine['cores']} cores, {memory} of memory"


def _epochs(numbers: list[int]) -> str:
    """Return "epoch 3" or "epochs 1, 4 to 30" for ascending numbers. Pure."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"epoch{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


def _cells(epoch: Epoch) -> tuple[str, ...]:
    """Return an epoch's row of the table, with the columns of `_HEADER`."""
    return (
        str(epoch.number),
        f"{epoch.seconds:.2f}",
        "" if epoch.wait_s is None else f"{epoch.wait_s:.2f}",
        f"{epoch.loss:.4f}",
        "" if epoch.train_acc is None else f"{epoch.train_acc:.4f}",
        "" if epoch.valid is None else f"{epoch.valid:.4f}",
        f"{epoch.rows:,}",
        f"{epoch.hit_rate:.1%}",
        format_bytes(epoch.bytes_read),
        format_bytes(epoch.bytes_written),
        format_bytes(max(epoch.memory_bytes)) if epoch.memory_bytes else "",
    )


_MOST_CHARACTERS: Final = 80  # longest text in a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with the same settings and different seeds, or a single run."""

    name: str
    style: int  # style of the group's lines
    runs: tuple[Training, ...]


def with_own_names(runs: Sequence[Training]) -> list[Training]:
    """Return ``runs`` with distinct names, made from the ends of their paths."""
    named = list(runs)
    # Runs with equal names get the last two parts of their paths, then three, then four.
    for parts in range(2, 5):
        count = Counter(run.name for run in named)
        named = [
            run.named("/".join(run.source.rstrip("/").split("/")[-parts:])) if count[run.name] > 1 else run
            for run in named
        ]
    count = Counter(run.name for run in named)
    # The same run may be listed twice.
    return [run.named(f"{run.name} ({i + 1})") if count[run.name] > 1 else run for i, run in enumerate(named)]


def grouped(runs: Sequence[Training]) -> list[RunGroup]:
    """Return the groups in ``runs``, ordered by their first run. A run without settings has a group of its own."""
    members: dict[object, list[Training]] = {}
    for place, run in enumerate(runs):
        known = {"metric": run.metric, **run.settings, **_surroundings(run)}
        key = frozenset(known.items())
        # A second run with the same seed repeats the first, so it gets a group of its own. All runs without settings
        # have the same unknown seed.
        seeds = {other.seed for other in members.get(key, [])}
        members.setdefault((key, place) if run.seed in seeds else key, []).append(run)
    return [
        RunGroup(name=_group_name(group), style=style, runs=tuple(group))
        for style, group in enumerate(members.values())
    ]


def differing_settings(groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """Return each group's settings in which ``groups`` differ, with its metric if the metrics differ.

    A run without ``config.yaml`` has no recorded settings and differs in none.
    """
    columns = [
        {**group.runs[0].settings, "metric": group.runs[0].metric} if group.runs[0].settings else {}
        for group in groups
    ]
    known = [column for column in columns if column]
    names = [name for name in _all_names(known) if len({column.get(name) for column in known}) > 1]
    return [{name: column[name] for name in names if name in column} for column in columns]


def differences(groups: Sequence[RunGroup]) -> TextTable | None:
    """Return a table of the settings, versions and machines in which ``groups`` differ. None without differences.

    An unfinished run has no recorded machine and differs in none.
    """
    settings = differing_settings(groups)
    surroundings = [_surroundings(group.runs[0]) for group in groups]
    seeds = [{"seed": ", ".join(run.seed for run in group.runs)} for group in groups]
    # A missing setting is a difference too.
    names = [(name, settings) for name in _all_names(settings)]
    names += [
        (name, columns)
        for columns in (surroundings, seeds)
        for name in _all_names(columns)
        if len({column[name] for column in columns if column.get(name)}) > 1
    ]
    rows = tuple((name, *(shortened(column.get(name, "")) for column in columns)) for name, columns in names)
    return TextTable(header=("", *(group.name for group in groups)), rows=rows) if rows else None


def _all_names(columns: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for column in columns for name in column))


def shortened(text: str) -> str:
    """Return ``text``, shortened to fit a cell."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _group_name(runs: Sequence[Training]) -> str:
    """Return the run's name, or the common beginning of the runs' names with the number of seeds."""
    if len(runs) == 1:
        return runs[0].name
    letters = takewhile(lambda column: len(set(column)) == 1, zip(*(run.name for run in runs), strict=False))
    common = "".join(column[0] for column in letters).rstrip("-_./ 0123456789")
    return f"{common or runs[0].name + ', ...'} ({len(runs)} seeds)"


def _surroundings(run: Training) -> dict[str, str]:
    """Return a run's recorded versions and machine."""
    versions = {f"version of {name}": str(text) for name, text in run.result.get("versions", {}).items()}
    return {**versions, **{name: text for name, text in circumstances_of(run) if name == "machine"}}


# The columns of the overview after the run and its metrics, see `_figures`.
_COLUMNS: Final = (
    "epochs", "median epoch", "waiting", "peak memory", "budget", "read", "written", "rows from memory"
)  # fmt: skip
_ELSEWHERE: Final = ("model", "epochs", "memory budget")  # settings that the overview shows in another column
_UNBROKEN: Final = "\u00a0"  # a space at which a cell does not break


def overview(groups: Sequence[RunGroup]) -> TextTable:
    """Return a table with a row for each group: a single run's figures, or the seeds' means and deviations."""
    settings = differing_settings(groups)
    rows = [
        (group.name, _description(group, differing), *_figures(group.runs))
        for group, differing in zip(groups, settings, strict=True)
    ]
    return TextTable(header=_header(groups), rows=tuple(rows))


def each_seed(groups: Sequence[RunGroup]) -> TextTable | None:
    """Return a table with a row for each run in the groups with several seeds. None without such groups."""
    several = [group for group in groups if len(group.runs) > 1]
    rows = [
        (run.name, f"seed{_UNBROKEN}{run.seed}", *_figures([run])) for group in several for run in group.runs
    ]
    return TextTable(header=_header(several), rows=tuple(rows)) if rows else None


def _header(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Return the header of `overview` and `each_seed`."""
    metrics = {group.runs[0].metric for group in groups}
    # With several metrics, each run's description names its metric.
    words = f" {metric_words(*metrics)}" if len(metrics) == 1 else ""
    return ("run", "what it is", f"test{words}", f"best validation{words}", *_COLUMNS)


def _description(group: RunGroup, differing: Mapping[str, str]) -> str:
    """Return the model, and the settings that have no column."""
    model = group.runs[0].settings.get("model", "")
    settings = [f"{name} {text}" for name, text in differing.items() if name not in _ELSEWHERE]
    # A cell is as narrow as its longest setting, and breaks between settings.
    return shortened(", ".join(text.replace(" ", _UNBROKEN) for text in [model, *settings] if text))


def _figures(runs: Sequence[Training]) -> tuple[str, ...]:
    """Return a group's figures, with the columns of `_COLUMNS` after its metrics."""
    return (
        _mean((run.test for run in runs), "{:.4f}".format),
        _mean((run.best for run in runs), "{:.4f}".format),
        ", ".join(dict.fromkeys(map(epochs_of, runs))),
        _mean((run.epoch_s for run in runs), format_seconds),
        _mean((run.waiting for run in runs), "{:.0%}".format),
        _mean((run.peak_bytes for run in runs), format_bytes),
        _mean((run.budget_bytes for run in runs), format_bytes),
        _mean((run.bytes_read for run in runs), format_bytes),
        _mean((run.bytes_written for run in runs), format_bytes),
        _mean((run.hit_rate for run in runs), "{:.1%}".format),
    )


def _mean(values: Iterable[float | None], written: Callable[[float], str]) -> str:
    """Return "mean ± standard deviation" for the recorded values. Equal values have no deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    is_same = len(set(map(written, known))) == 1
    spread = "" if is_same else f" ± {written(stdev(known))}"
    return f"{written(fmean(known))}{spread}"
