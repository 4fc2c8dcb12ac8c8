"""`gloader infer`: predictions of a trained model for every node, or what one of its layers makes of them."""

from dataclasses import replace
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.progress import Progress

from gloader.cli.first_run import compile_first
from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.train import open_or_prepare
from gloader.cli.views.screen import Screen
from gloader.core.flag_values import Size
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.ssd_store.os_io import OsIO
    from gloader.training.predict import Embeddings
    from gloader.types import IdArray


def infer(
    *,
    dataset: str,
    checkpoint: Path,
    out: Path = Path("predictions.npy"),
    node_type: Annotated[str | None, Parameter(name="--type")] = None,
    layer: int | None = None,
    memory_budget: Size = None,
    device: str = "auto",
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Predict the class of every node with a trained model, from all neighbours; or write what a layer makes of it.

    Parameters
    ----------
    dataset
        A prepared folder, or any source of `gloader prepare`.
    checkpoint
        The run folder of `gloader train`, or a checkpoint file in it.
    out
        The file to write, in the order of the source's nodes: one int64 per node, or with --layer a row of float32.
    node_type
        Nodes of this type; those that have labels when not given. Of others --layer says what is written.
    layer
        Write what this layer makes of the nodes: 1 is next to the features. Classes when not given.
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
    labelled = opened.labelled.name
    chosen = labelled if node_type is None else node_type
    if layer is None and chosen != labelled:
        raise ConfigError(
            f"classes are those of nodes of type {labelled!r}; give --layer for what a layer makes of nodes of type "
            f"{chosen!r}"
        )
    compile_first(opened, None, says=screen.say)

    # After the kernels were compiled in another process: torch beside that would be too much.
    from gloader.training.checkpoint.save import load_checkpoint
    from gloader.training.own_device import resolve_device
    from gloader.training.predict import embed, predict

    loaded = replace(load_checkpoint(checkpoint), progress={})  # where training goes on is of no use here
    with Progress(console=screen.console, transient=True, disable=not screen.has_bars) as bars:
        bar = bars.add_task("predicting", total=1.0)
        settings: Any = {
            "memory_budget_bytes": memory_budget,
            "device": resolve_device(device),
            "on_progress": lambda fraction: bars.update(bar, completed=fraction),
        }
        if layer is None:
            predicted = predict(opened, loaded, **settings)
            num_nodes = len(predicted)
            # The dataset may hold its nodes in another order than the source.
            save_predictions(out, opened.in_original_order(predicted))
        else:
            with embed(opened, loaded, layer=layer, node_type=chosen, **settings) as made:
                num_nodes = made.num_nodes
                save_embeddings(out, made)
    of_type = "" if opened.kind == "homogeneous" else f" of type {chosen!r}"
    what = "classes" if layer is None else f"rows of layer {layer}"
    screen.say(f"{what} of {num_nodes:,} nodes{of_type} in {out}")
    screen.result(
        {
            "out": str(out),
            "num_nodes": num_nodes,
            "type": chosen,
            "layer": layer,
            "dataset": str(opened.root),
        }
    )


def save_embeddings(out: Path, made: "Embeddings", *, os_io: "OsIO | None" = None) -> None:
    """Write the rows of ``made`` as a float32 matrix to the file ``out``, which is whole or not there.

    Raises
    ------
    StoreExistsError, StoreWriteError
        As `write_atomically`.
    """
    import numpy as np

    from gloader.ssd_store.os_io import REAL_OS
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_chunks_atomically
    from gloader.ssd_store.write.disk_errors import write_errors

    header = BytesIO()
    shape = made.num_nodes, made.width
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    num_bytes = header.tell() + 4 * made.num_nodes * made.width

    # What cannot be computed fails with the first rows: before there is a folder or a draft.
    first = list(islice(made.chunks, 1))

    def content() -> "Iterator[memoryview]":
        yield header.getbuffer()
        for rows in chain(first, made.chunks):
            yield rows.data.cast("B")

    make_output_folder(out.parent, os_io=os_io or REAL_OS)
    with write_errors(out, "writing", needed_bytes=num_bytes, os_io=os_io or REAL_OS):
        write_chunks_atomically(out, content(), os_io=os_io or REAL_OS)


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
