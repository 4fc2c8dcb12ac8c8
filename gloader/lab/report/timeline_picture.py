"""A timeline's picture: the work in all stages, with a lane for each stage and thread. Pure.

`gloader.lab.report.build_page` draws it for a report. The timeline is the recording of `gloader train --trace`. Each
event is a piece of work with its stage (a step on a batch's way, such as "sample"), thread, batch and times.
A superbatch is a group of consecutive batches that are planned together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.lab.report.svg import NUM_STYLES, Lanes, LaneSpan, draw_lanes
from gloader.observe.epoch_stats import WORK_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.lab.report.svg import Chart


def draw_timeline(name: str, caption: str, timeline: Mapping[str, Any], *, epoch: int) -> Chart | None:
    """Return the work on an epoch's batches over time, from left to right. None if there is no time to draw.

    A stage's two shades alternate between superbatches, or between batches if the timeline names no superbatch.

    Parameters
    ----------
    name, caption : the chart's name and caption
    timeline : the content of a file that `TimelineRecorder.write` has written
    epoch : the drawn epoch

    Raises
    ------
    ConfigError
        The timeline has no work in that epoch.
    """
    events = [
        event
        for event in timeline["traceEvents"]
        # "X" is the format's letter for an event with a start and a duration, in microseconds.
        if event["ph"] == "X" and event["cat"] == "stage" and event["args"]["epoch"] == epoch
    ]
    if not events:
        raise ConfigError(f"the timeline holds no work of epoch {epoch}; choose another")
    # Sampling and sending record no superbatch. Their spans take the shade of their batch's superbatch.
    superbatch = {e["args"]["batch"]: e["args"]["superbatch"] for e in events if "superbatch" in e["args"]}
    origin = min(event["ts"] for event in events)
    lanes: dict[tuple[int, int], list[LaneSpan]] = {}  # by stage number and thread id
    for event in events:
        stage, args = WORK_NAMES.index(event["name"]), event["args"]
        shade = args.get("superbatch", superbatch.get(args["batch"], args["batch"])) % 2
        began = (event["ts"] - origin) / 1e6
        lanes.setdefault((stage, event["tid"]), []).append(
            LaneSpan(
                started_s=began,
                ended_s=began + event["dur"] / 1e6,
                style=f"f{min(stage, NUM_STYLES)}{' pale' if shade else ''}",
                told=f"{event['name']}, batch {args['batch']}",
            )
        )
    # The rows are in the order in which a batch passes the stages.
    rows = sorted(lanes)
    labels = _labels([WORK_NAMES[stage] for stage, _ in rows])
    named = [(label, lanes[row]) for label, row in zip(labels, rows, strict=True)]
    return draw_lanes(name, caption, [Lanes(title="", lanes=named)], x_label="seconds")


def _labels(stages: Sequence[str]) -> list[str]:
    """Return each row's label: its stage, with a number if several rows have this stage. Pure."""
    return [
        f"{stage} {stages[:i].count(stage) + 1}" if stages.count(stage) > 1 else stage
        for i, stage in enumerate(stages)
    ]
