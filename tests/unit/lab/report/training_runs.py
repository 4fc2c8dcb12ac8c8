"""Runs as values, and charts as what is read off them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

from gloader.lab.report.svg import Chart
from gloader.lab.report.training import Epoch, Training, split_seconds

_SETTINGS = {"dataset": "d", "model": "graphsage", "epochs": "2", "fanouts": "5,5", "cache": "10 MB"}
_VERSIONS = {"gloader": "1.0", "torch": "2.0"}
_RESULT = {"features": "ssd", "policy": "belady", "io_strategy": "auto"}


def epoch(number: int = 1, **values: Any) -> Epoch:
    stages = {"compute": 1.0, "wait": 0.5}
    known = Epoch(
        number=number, seconds=2.0, evaluate_seconds=1.0, loss=1.0 / number, train_acc=0.4, valid=0.5 + number / 10,
        rows=100, hit_rate=0.25, bytes_read=4_000_000, bytes_written=0, bottleneck="the loop waits for the SSD",
        wait_s=0.5, parts=split_seconds(2.0, 1.0, stages, "the loop waits for the SSD"), memory_bytes=(5, 9) * 8,
    )  # fmt: skip
    return replace(known, **values)


def run(name: str = "a", *epochs: Epoch, settings: dict[str, str] | None = None, **values: Any) -> Training:
    """A finished run of two epochs, but for what is said otherwise."""
    result = {**_RESULT, "test_acc": values.pop("test", 0.5), "versions": values.pop("versions", _VERSIONS)}
    known = Training(
        name=name, source=f"runs/{name}", epochs=epochs or (epoch(1), epoch(2)), metric="acc",
        settings={**_SETTINGS, **(settings or {})}, seed="0", budget_bytes=20, result=result,
    )  # fmt: skip
    return replace(known, **values)


def texts(chart: Chart) -> list[str]:
    """What stands on a chart, as a reader without a pointer sees it."""
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    return [element.text or "" for element in root.iter("text")]


def told(chart: Chart) -> list[str]:
    """What its marks and bars say where the pointer rests on them."""
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    return [element.text or "" for element in root.iter("title")]


def lines(chart: Chart, style: int, *, is_dotted: bool = False) -> list[list[tuple[float, float]]]:
    """The lines of a style, as pixels from the left and from the top."""
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    wanted = f"line s{style}" + (" dots" if is_dotted else "")
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in element.attrib["points"].split())]
        for element in root.iter("polyline")
        if element.attrib["class"] == wanted
    ]


def drawn(chart: Chart, style: str) -> list[dict[str, str]]:
    """The elements of a style."""
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    return [
        dict(element.attrib) for element in root.iter() if style in element.attrib.get("class", "").split()
    ]
