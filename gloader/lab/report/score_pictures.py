"""Pictures and tables of a run's scores: curves, calibration, confusion of classes, predicted against true values.

`pictures_of` reads a run's ``scores.json``, which `gloader.training.score_summary` made. A picture's caption has the
metric that belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gloader.lab.report.cell_chart import draw_grid, draw_matrix
from gloader.lab.report.page import TextTable
from gloader.lab.report.svg import NUM_STYLES, Level, Series, draw_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gloader.lab.report.svg import Chart
    from gloader.lab.report.training import Training

    # Charts, and tables with headings.
    Parts: TypeAlias = tuple[list[Chart | None], list[tuple[str, TextTable]]]

_DIAGONAL: Final = NUM_STYLES - 1  # the style of lines for comparison
_UNIT: Final = ((0.0, 0.0), (1.0, 1.0))  # the diagonal of a square
# Entries of a list: more than a summary has. A longer list is of a wrong file, and would make the page too long.
_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class ScorePictures:
    """A run's scores as charts, and as tables with headings."""

    charts: tuple[Chart, ...] = ()
    tables: tuple[tuple[str, TextTable], ...] = ()


def pictures_of(run: Training) -> ScorePictures:
    """Return the pictures of a run's scores; without scores there are none.

    Raises an error in `gloader.core.malformed.MALFORMED` for values that no summary has.
    """
    values = run.scores
    if values is None or int(values["num"]) == 0:
        return ScorePictures()
    kind, num = str(values["kind"]), int(values["num"])
    if kind == "triples":
        return ScorePictures(tables=((f"Ranks of {num:,} triples among all entities", _of_triples(values)),))
    split = f" of {num:,} nodes" + (f" of the split {values['split']!s}" if "split" in values else "")
    metrics = TextTable(
        header=("metric", "value"),
        rows=tuple((str(metric), _figure(value)) for metric, value in _some(values["metrics"].items())),
    )
    if kind == "classes":
        charts, tables = _of_classes(values, run.name, split)
    elif kind == "values":
        charts, tables = _of_values(values, run.name)
    else:
        charts, tables = _of_labels(values, run.name)
    drawn = tuple(chart for chart in charts if chart is not None)
    return ScorePictures(drawn, ((f"Scores{split}", metrics), *tables))


def _of_triples(values: Mapping[str, Any]) -> TextTable:
    """Return a table of the figures of both sides together, and of each side."""
    sides = {str(side): figures for side, figures in _some(values["sides"].items())}
    rows = tuple(
        (str(metric), _figure(value), *(_figure(figures[metric]) for figures in sides.values()))
        for metric, value in _some(values["metrics"].items())
    )
    return TextTable(header=("metric", "both", *sides), rows=rows)


def _of_classes(values: Mapping[str, Any], name: str, split: str) -> Parts:
    """Return the confusion matrix or the most confused classes, and a table of the classes."""
    rows = []
    for label, *counts in _some(values["classes"]):
        real, guessed, right = map(int, counts)
        shares = (_share(right, guessed), _share(right, real), _share(2 * right, real + guessed))
        rows.append((str(label), f"{real:,}", f"{guessed:,}", *shares))
    table = TextTable(header=("class", "nodes", "predicted", "precision", "recall", "F1"), rows=tuple(rows))
    num_classes = int(values["num_classes"])
    some = "" if len(rows) == num_classes else f", the {len(rows)} most frequent of {num_classes:,}"
    tables = [(f"Classes{some}", table)]
    charts: list[Chart | None] = []
    if "matrix" in values:
        names = [str(each) for each in _some(values["names"])]
        matrix = [[int(count) for count in _some(line)] for line in _some(values["matrix"])]
        if any(len(line) != len(names) for line in matrix):
            raise ValueError("a confusion matrix is square")
        caption = (
            f"Confusion of the classes{split}: the share of each true class. {_metric_words(values, 'acc')}"
        )
        charts.append(draw_matrix(f"{name}-confusion", caption, names, matrix))
    else:
        pairs = tuple(
            (f"{real!s} as {guessed!s}", f"{int(count):,}")
            for real, guessed, count in _some(values["confused"])
        )
        counted = int(values["num_counted"])
        among = "" if counted == num_classes else f", among the {counted:,} most frequent"
        tables.append((f"Most confused classes{among}", TextTable(header=("class", "nodes"), rows=pairs)))
    return charts, tables


def _of_labels(values: Mapping[str, Any], name: str) -> Parts:
    """Return the curves of a label, or of the best, the median and the worst one, and a table of the labels."""
    rows = [
        (
            str(row["name"]),
            f"{int(row['num']):,}",
            _share(int(row["num_ones"]), int(row["num"])),
            _figure(row["auroc"]),
            _figure(row["ap"]),
        )
        for row in _some(values["labels"])
    ]
    curves = list(_some(values["curves"]))
    is_single = int(values["num_labels"]) == 1
    labels = ["" if is_single else str(curve["name"]) for curve in curves]
    which = "" if is_single else " Labels: the best, the median and the worst."
    charts = [
        _square(
            f"{name}-roc",
            f"ROC curve. {_metric_words(values, 'auroc')}{which}",
            labels,
            [curve["roc"] for curve in curves],
            "share of label 0 above the threshold",
            diagonal="by chance",
        ),
        _square(
            f"{name}-precision-recall",
            f"Precision over recall. {_metric_words(values, 'ap')}{which or ' Dashed: a ranking by chance.'}",
            labels,
            [curve["precision_recall"] for curve in curves],
            "recall",
            shares=[float(curve["share"]) for curve in curves] if is_single else (),
        ),
        _square(
            f"{name}-calibration",
            f"Calibration: share of label 1 over the predicted probability.{which}",
            labels,
            [[point[:2] for point in _some(curve["calibration"])] for curve in curves],
            "predicted probability",
            diagonal="calibrated",
            has_marks=True,
        ),
    ]
    if is_single:
        return charts, []
    table = TextTable(header=("label", "nodes", "with label 1", "AUROC", "AP"), rows=tuple(rows))
    return charts, [(_headed("Labels", rows, int(values["num_labels"])), table)]


def _square(
    name: str,
    caption: str,
    labels: Sequence[str],
    curves: Sequence[Any],
    x_label: str,
    *,
    diagonal: str = "",
    shares: Sequence[float] = (),
    has_marks: bool = False,
) -> Chart | None:
    """Return a chart of lines in the unit square."""
    series = [
        Series(
            label=label,
            style=style,
            points=[(float(across), float(up)) for across, up in _some(curve)],
            has_marks=has_marks,
        )
        for style, (label, curve) in enumerate(zip(labels, curves, strict=True))
    ]
    if diagonal and any(each.points for each in series):
        series.append(Series(label=diagonal, style=_DIAGONAL, points=_UNIT, is_dotted=True))
    return draw_lines(
        name,
        caption,
        series,
        x=(x_label, "zero"),
        y="zero",
        levels=[
            Level(label=f"{value:.1%} with label 1", style=style, value=value)
            for style, value in enumerate(shares)
        ],
        written="{:.3g}".format,
    )


def _of_values(values: Mapping[str, Any], name: str) -> Parts:
    """Return predicted against true values of some columns, and a table of the columns."""
    listed = {str(row["name"]): row for row in _some(values["columns"])}
    rows = [
        (label, f"{int(row['num']):,}", _figure(row["mae"]), _figure(row["rmse"]), _figure(row["r2"]))
        for label, row in listed.items()
    ]
    charts: list[Chart | None] = []
    is_single = int(values["num_columns"]) == 1
    for grid in _some(values["grids"]):
        label = str(grid["name"])
        r2 = _figure(listed[label]["r2"]) if label in listed else "-"
        beyond = int(grid["num_beyond"])
        caption = (
            f"Predicted over true values{'' if is_single else f' of {label}'}: R2 {r2}. "
            "Dashed: equal values. Darker: more nodes."
        )
        if beyond:
            caption += f" {beyond:,} predictions are beyond the range and drawn at its ends."
        counts = [[int(count) for count in _some(line)] for line in _some(grid["counts"])]
        low, high = float(grid["low"]), float(grid["high"])
        charts.append(
            draw_grid(f"{name}-values", caption, counts, low=low, high=high, labels=("true", "predicted"))
        )
    if is_single:
        return charts, []
    table = TextTable(header=("column", "nodes", "MAE", "RMSE", "R2"), rows=tuple(rows))
    return charts, [(_headed("Columns", rows, int(values["num_columns"])), table)]


def _some(values: Iterable[Any]) -> list[Any]:
    """Return the entries of a list or an object's items. Raises ValueError if there are more than a summary has."""
    entries = list(values)
    if len(entries) > _MOST:
        raise ValueError(f"a list of {len(entries):,} entries, where a summary has at most {_MOST}")
    return entries


def _headed(what: str, rows: Sequence[Any], num: int) -> str:
    """Return a table's heading, which says if rows are left out."""
    return what if len(rows) == num else f"{what}, the best and the worst {len(rows) // 2} of {num:,}"


def _metric_words(values: Mapping[str, Any], metric: str) -> str:
    """Return "AUROC 0.9213, mean of the labels."; "" if the metric is not defined."""
    if metric not in values["metrics"]:
        return ""
    is_mean = int(values.get("num_labels", 1)) > 1
    words = {"acc": "Accuracy", "auroc": "AUROC", "ap": "Average precision"}[metric]
    return f"{words} {_figure(values['metrics'][metric])}{', mean of the labels' if is_mean else ''}."


def _figure(value: Any) -> str:
    """Return a metric in words; "-" if it is not defined."""
    return "-" if value is None else f"{float(value):.4f}"


def _share(part: int, whole: int) -> str:
    """Return a share in words; "-" of nothing."""
    return f"{part / whole:.4f}" if whole else "-"
