"""`gloader infer`: predictions of a trained model for every node."""

from io import BytesIO
from pathlib import Path

from rich.progress import Progress

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.train import open_or_prepare
from gloader.cli.views.screen import Screen
from gloader.core.flag_values import Size


def infer(
    *,
    dataset: str,
    checkpoint: Path,
    out: Path = Path("predictions.npy"),
    memory_budget: Size = None,
    device: str = "auto",
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Predict the class of every node with a trained model, from all neighbours.

    Parameters
    ----------
    dataset
        A prepared folder, or any source of `gloader prepare`.
    checkpoint
        The run folder of `gloader train`, or a checkpoint file in it.
    out
        The file of predictions to write: int64, one number per node, in the order of the source's nodes.
    memory_budget
        Memory that may be used, such as 8GB or 512MiB; half of what is free when not given.
    device
        auto, cpu or cuda:0.
    """
    import numpy as np

    from gloader.ssd_store.write.atomic_file import write_atomically
    from gloader.training.checkpoint.save import load_checkpoint
    from gloader.training.evaluate import predict
    from gloader.training.train import resolve_device

    screen = Screen.open(is_json=output.json)
    opened = open_or_prepare(dataset, screen, memory_budget=memory_budget)
    loaded = load_checkpoint(checkpoint)
    with Progress(console=screen.console, transient=True, disable=not screen.has_bars) as bars:
        bar = bars.add_task("predicting", total=1.0)
        predicted = predict(
            opened,
            loaded,
            memory_budget_bytes=memory_budget,
            device=resolve_device(device),
            on_progress=lambda fraction: bars.update(bar, completed=fraction),
        )
    # Written under another name and renamed: a file of predictions is whole or not there.
    content = BytesIO()
    # The dataset may hold its nodes in another order than the source.
    np.save(content, opened.in_original_order(predicted), allow_pickle=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content.getbuffer())
    screen.say(f"classes of {len(predicted):,} nodes in {out}")
    screen.result({"out": str(out), "num_nodes": len(predicted), "dataset": str(opened.root)})
