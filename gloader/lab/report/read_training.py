"""The folder of a `gloader train` run, read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, shown
from gloader.errors import FormatError
from gloader.lab.report.run_facts import circumstances_of, facts_of, table_of
from gloader.lab.report.run_settings import read_settings
from gloader.lab.report.training import Epoch, Training
from gloader.lab.report.waits import split_seconds

if TYPE_CHECKING:
    from pathlib import Path

METRICS: Final = "metrics.jsonl"
CONFIG: Final = "config.yaml"
_RESULT: Final = "result.json"
MLP: Final = "mlp"  # of `--compare-mlp`
PART: Final = "run-"  # and a number: the folder of one of several runs
_ACCURACY = "acc"


def read_training(folder: Path) -> Training:
    """Read the figures of a run.

    Raises
    ------
    FormatError
        ``metrics.jsonl``, ``result.json`` or ``config.yaml`` is not what `gloader train` writes.
    """
    path = _config_of(folder)
    try:
        settings = read_settings(path)
        seed = settings.seed
        if path.parent != folder and seed:
            seed = str(int(seed) + int(folder.name.removeprefix(PART)))
        path = folder / METRICS
        lines = _lines(path)
        metric = _metric_of(lines)
        epochs = tuple(_epoch(line, metric) for line in lines)
        path = folder / _RESULT
        result = json.loads(path.read_text()) if path.is_file() else {}
        found = Training(
            name=_name_of(folder.resolve()),
            source=str(folder),
            epochs=epochs,
            metric=metric,
            settings=settings.named,
            seed=seed,
            budget_bytes=result.get("memory_budget_bytes") or settings.budget_bytes,
            result=dict(result),
        )
        # Whatever is not a figure in the last of them is found now, with its name.
        facts_of(found), circumstances_of(found), table_of(found)
    except MALFORMED as error:
        raise FormatError(f"{path} is not what `gloader train` writes: {shown(error)}") from error
    return found


def _name_of(folder: Path) -> str:
    """Return the name of a run; of a part of one, that of the whole before it."""
    is_part = folder.name == MLP or folder.name.startswith(PART)
    return f"{_name_of(folder.parent)}/{folder.name}" if is_part else folder.name


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines; the last may be torn where a run was killed while it wrote it."""
    whole, _, torn = path.read_text().rpartition("\n") if path.is_file() else ("", "", "")
    lines = [json.loads(line) for line in whole.splitlines()]
    try:
        return lines + ([json.loads(torn)] if torn else [])
    except MALFORMED:
        return lines


def _config_of(folder: Path) -> Path:
    """Return where the settings of a run are: one of several has those of all."""
    is_part = folder.name.startswith(PART) and not (folder / CONFIG).is_file()
    return (folder.parent if is_part else folder) / CONFIG


def _metric_of(lines: list[dict[str, Any]]) -> str:
    """Return what validation measured, by the name that the lines have for it."""
    names = (name.removeprefix("valid_") for line in lines for name in line if name.startswith("valid_"))
    return next(names, _ACCURACY)


def _epoch(line: dict[str, Any], metric: str) -> Epoch:
    seconds, evaluate_seconds = float(line["seconds"]), float(line["evaluate_seconds"])
    stages = line.get("stage_seconds")
    valid = line[f"valid_{metric}"]
    return Epoch(
        number=int(line["epoch"]) + 1,
        seconds=seconds,
        evaluate_seconds=evaluate_seconds,
        loss=float(line["loss"]),
        train_acc=float(line["train_acc"]),
        valid=None if valid is None else float(valid),
        rows=int(line["rows_gathered"]),
        hit_rate=float(line["hit_rate"]),
        bytes_read=int(line["bytes_read"]) + int(line.get("edge_bytes_read", 0)),
        bytes_written=int(line["bytes_written"]) + int(line.get("edge_bytes_written", 0)),
        bottleneck=str(line["bottleneck"]),
        wait_s=None if stages is None else float(stages["wait"]),
        parts=()
        if stages is None
        else split_seconds(seconds, evaluate_seconds, stages, str(line["bottleneck"])),
        memory_bytes=tuple(int(most) for most in line.get("memory_bytes", ())),
    )
