"""`gloader infer`: predictions of a trained model for every node."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from gloader.cli.first_run import compile_first
from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.train import open_or_prepare
from gloader.cli.views.screen import Screen
from gloader.core.flag_values import Size

if TYPE_CHECKING:
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray


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
    from gloader.ssd_store.spill.folder import remove_dead_spills
    from gloader.ssd_store.write.atomic_file import require_file_target

    screen = Screen.open(is_json=output.json)
    # Before hours of work that nothing could be done with.
    require_file_target(out)
    remove_dead_spills()
    opened = open_or_prepare(dataset, screen, memory_budget=memory_budget)
    compile_first(opened, None, says=screen.say)

    # After the kernels were compiled in another process: torch beside that would be too much.
    from gloader.training.checkpoint.save import load_checkpoint
    from gloader.training.evaluate import predict
    from gloader.training.own_device import resolve_device

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
    # The dataset may hold its nodes in another order than the source.
    save_predictions(out, opened.in_original_order(predicted))
    screen.say(f"classes of {len(predicted):,} nodes in {out}")
    screen.result({"out": str(out), "num_nodes": len(predicted), "dataset": str(opened.root)})


def save_predictions(out: Path, predicted: "IdArray", *, os_io: "OsIO | None" = None) -> None:
    """Write ``predicted`` (N,) to the file ``out``, which is whole or not there.

    Raises
    ------
    StoreExistsError, StoreWriteError
        As `write_atomically`.
    """
    import numpy as np

    from gloader.ssd_store.os_io import REAL_OS
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_atomically

    content = BytesIO()
    np.save(content, predicted, allow_pickle=False)
    make_output_folder(out.parent, os_io=os_io or REAL_OS)
    write_atomically(out, content.getbuffer(), os_io=os_io or REAL_OS)
