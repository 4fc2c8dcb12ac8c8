"""`gloader infer`: predictions of a trained model, written to a .npy file, or to a table with the nodes' keys.

The file has a class, probabilities or values for every node, a layer's output for every node (embeddings), or a score
for every given pair of nodes. `infer` opens the dataset and joins the machines of a torchrun launch, the first rank
runs `_Inference`, and the other ranks send their feature rows.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.progress import Progress

from gloader.cli.prediction_table import write_by_key
from gloader.cli.ranks import RankLaunch, joined_ranks, screen_of
from gloader.cli.run_view import memory_text
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, PacedLines, Screen
from gloader.cli.train import open_or_prepare
from gloader.config import LoaderSettings, ObjectSettings
from gloader.core.flag_values import SWITCH, Count, Size
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.training.first_run import compile_first

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from gloader.cli.pair_table import PairTable
    from gloader.cli.query_table import QueryTable
    from gloader.dataset import Dataset
    from gloader.observe.peak_memory import PeakMemory
    from gloader.ssd_store.os_io import OsIO
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.run_inference import MachineRows
    from gloader.types import IdArray

_OBJECTS = ObjectSettings()
_TOP: Final = 10  # answers for each query
_STALL_TIMEOUT_S = 300.0  # longest wait of one machine for another, in seconds


def infer(  # noqa: PLR0913 - each a flag
    *,
    dataset: str,
    checkpoint: Path,
    out: Path = Path("predictions.npy"),
    node_type: Annotated[str | None, Parameter(name="--type")] = None,
    layer: int | None = None,
    pairs: Path | None = None,
    table: str | None = None,
    queries: Path | None = None,
    top: Count = _TOP,
    with_known: Annotated[bool, SWITCH] = False,
    probabilities: Annotated[bool, SWITCH] = False,
    memory_budget: Size = None,
    device: str = "auto",
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Predict the label of every node with a trained model and all neighbours, or write a layer's embeddings.

    Classes are written as whole numbers. Binary and multilabel models write the probability of label 1, and models of
    values write values.

    Several machines may each store a part of the features. Start the command with torchrun on all of them: the first
    rank predicts, and the others send their rows.

    A model of links (`gloader train --task link`) has no classes. The command writes the embeddings of all nodes, or
    with --pairs the scores of the given pairs.

    Parameters
    ----------
    dataset
        A prepared folder, its URL (s3://...), or any source of `gloader prepare`.
    checkpoint
        The run folder of `gloader train`, or a checkpoint file in it.
    out
        The file to write, in the order of the source's nodes: one int64 class per node, float32 probabilities or values
        (one per node, or a row of several), or with --layer a row of float32. A .csv or .parquet file is a table whose
        first column is the node's key, or its id in the source without keys. Any other file is a .npy array.
    node_type
        Type of the nodes. Default: the type with labels. Other types need --layer.
    layer
        Write the output of this layer; 1 is next to the features. Default: predicted labels, or for a model of links
        the output of the last layer.
    pairs
        A .npy file with int64 pairs (n, 2), source and destination by their ids in the source. Or a .csv or .parquet
        table with columns such as src and dst, by their keys, or without keys by their ids. Write their scores.
    table
        Predict the rows of this task table, such as churn.test, with a model that learned such rows (gloader train
        --table). A .csv or .parquet file then has the key of each row's node, and the row's time.
    queries
        Of a model of triples (gloader train --task kg): a .csv or .parquet table of keys, with the columns head and
        relation to ask for tails, or relation and tail to ask for heads. --out is a .csv or .parquet table of their
        answers: head, relation, tail, rank and score.
    top
        Answers for each query of --queries.
    with_known
        Also give answers that are known triples: rows of the dataset's link tables.
    probabilities
        Write the probability of every class, a row of float32 per node, instead of the most likely class.
    memory_budget
        Memory for the command, such as 8GB or 512MiB. Default: half of the free memory.
    device
        auto, cpu or cuda:0.
    objects
        Settings for the mirror of a dataset at a URL.
    """
    from gloader.dataset.table_file import import_writers, is_table_file
    from gloader.ssd_store.spill.claim import remove_dead_spills
    from gloader.ssd_store.write.atomic_file import require_file_target

    screen = Screen.open(is_json=output.json)
    # This check precedes hours of work with a useless result.
    require_file_target(out)
    remove_dead_spills()
    pair_table, pair_ids = _read_pairs(pairs)
    if table is not None and (pairs is not None or layer is not None or node_type is not None):
        raise ConfigError(
            "--table predicts the rows of a table; leave --pairs, --layer and --type out, which are for other outputs"
        )
    if is_table_file(out) and pair_ids is not None:
        raise ConfigError(
            f"--out {out}: a table of scores needs --pairs as a table, .csv or .parquet; for an array write a .npy file"
        )
    if pair_table is not None:
        screen.say(f"pairs: {pair_table}")
    query_table = None if queries is None else _read_queries(queries, out)
    if query_table is not None and ((table, pairs, layer, node_type) != (None,) * 4 or probabilities):
        raise ConfigError(
            "--queries asks for answers; leave --table, --pairs, --layer, --type and --probabilities out"
        )
    if query_table is None and (with_known or top != _TOP):
        flag = "--with-known" if with_known else "--top"
        raise ConfigError(f"{flag} is for the answers to --queries; give --queries FILE.csv, or leave it out")
    with open_or_prepare(dataset, screen, memory_budget=memory_budget, objects=objects) as opened:
        # Rows of a table are loaded in batches, with the kernels of the usual sampler.
        loader = None if table is None else LoaderSettings.of(memory_budget=memory_budget)
        compile_first(opened, loader, says=screen.say, memory_budget=memory_budget, table=table)

        # The imports of torch come after the compilation in other processes: together they would take too much memory.
        from gloader.observe.peak_memory import PeakMemory, bare_bytes
        from gloader.plan.available import default_budget_bytes

        # Libraries are imported before this call, so that later measurements leave out their memory. It imports torch.
        if is_table_file(out):
            import_writers()
        bare_bytes()
        if query_table is not None:
            _answer(
                query_table,
                opened,
                checkpoint,
                out,
                screen,
                k=top,
                known=with_known,
                memory_budget=default_budget_bytes() if memory_budget is None else memory_budget,
                device=device,
            )
            return
        from gloader.training.checkpoint.save import load_checkpoint
        from gloader.training.process import resolve_device
        from gloader.training.run_inference import MachineRows, launch_machine_rows

        launch = RankLaunch.from_environ()
        with (
            joined_ranks(launch, device="cpu", stall_timeout_s=_STALL_TIMEOUT_S) as group,
            ExitStack() as stores,
        ):
            screen = screen_of(group, screen)
            parts = launch_machine_rows(opened, group, timeout_s=_STALL_TIMEOUT_S, verify=True)
            rows = None
            if parts is not None:
                tables = opened.feature_rows(edges=True)
                rows = MachineRows(
                    parts, {each.name: stores.enter_context(each.open_features()) for each in tables}
                )

            def work() -> None:
                """Predict, on the first rank."""
                with nullcontext() if rows is None else rows.reading(), PeakMemory() as peak:
                    _Inference(
                        dataset=opened,
                        screen=screen,
                        rows=rows,
                        out=out,
                        pairs=pair_ids,
                        pair_table=pair_table,
                        table=table,
                        probabilities=probabilities,
                    ).run(
                        # The training state is left out, because it is not needed here and takes memory.
                        replace(load_checkpoint(checkpoint), progress={}),
                        node_type=node_type,
                        layer=layer,
                        memory_budget=default_budget_bytes() if memory_budget is None else memory_budget,
                        device=resolve_device(device),
                        peak=peak,
                    )

            group.run_on_first(work, meanwhile=None if rows is None else rows.serve)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inference:
    """A prediction and its output file."""

    dataset: "Dataset"
    screen: Screen
    rows: "MachineRows | None"  # readers of other machines' rows; None if this machine has all rows
    out: Path
    pairs: "IdArray | None"  # (n, 2) pairs to score; None for labels or embeddings, or with ``pair_table``
    pair_table: "PairTable | None"  # pairs to score, by their keys
    table: str | None  # the task table whose rows are predicted
    probabilities: bool  # whether the probability of every class is written

    def run(
        self,
        loaded: "Checkpoint",
        *,
        node_type: str | None,
        layer: int | None,
        memory_budget: int,
        device: "torch.device",
        peak: "PeakMemory",
    ) -> None:
        """Compute the prediction, write it, and report the file."""
        from gloader.dataset.table_file import is_table_file, write_rows, write_table
        from gloader.observe.peak_memory import peak_rss_bytes
        from gloader.training.model_spec import LinkSpec
        from gloader.training.open_model import require_no_triples
        from gloader.training.predict import (
            embed,
            embedded_type,
            require_no_table,
            score_pairs,
            uses_training_labels,
        )

        require_no_triples(loaded)
        opened, screen, out, pairs = self.dataset, self.screen, self.out, self._pairs(loaded)
        is_of_links = isinstance(loaded.spec, LinkSpec)
        chosen = node_type or ("" if pairs is not None else embedded_type(opened, loaded))
        rows = None if self.table is None else opened.task_table(self.table)
        if rows is None and layer is None:
            require_no_table(loaded)
        if rows is None and layer is None and not is_of_links and chosen != opened.labelled.name:
            raise ConfigError(
                f"only nodes of type {opened.labelled.name!r} have labels; give --layer to write a layer's output for "
                f"nodes of type {chosen!r}"
            )
        if self.probabilities and (layer is not None or is_of_links):
            raise ConfigError("--probabilities is for the classes of nodes; leave it out")
        if layer is None and uses_training_labels(loaded):
            screen.say(
                f"correct and smooth uses the labels of the {opened.labelled.split_sizes['train']:,} training nodes of "
                f"{opened.location}; the checkpoint holds no labels"
            )
        lines = PacedLines(screen)

        def on_progress(fraction: float) -> None:
            bars.update(bar, completed=fraction)
            lines.say(f"predicting: {100 * fraction:.0f}%")

        with (
            Progress(console=screen.console, transient=True, disable=not screen.has_bars) as bars,
            beside_code(memory_budget) as left,
        ):
            bar = bars.add_task("predicting", total=1.0)
            peak.keep_below(memory_budget)
            settings: Any = {
                "memory_budget_bytes": left,
                "device": device,
                "rows": self.rows,
                "on_progress": on_progress,
            }
            if pairs is not None:
                scores = score_pairs(opened, loaded, pairs, **settings)
                num_nodes, content = len(scores), "scores"
                if is_table_file(out) and self.pair_table is not None:
                    write_table(out, self.pair_table.scored(scores))
                else:
                    save_predictions(out, scores)
            elif layer is None and not is_of_links:
                content, num_nodes = self._write_labels(loaded, settings)
            else:
                content = "embeddings" if layer is None else f"rows of layer {layer}"
                with embed(opened, loaded, layer=layer, node_type=chosen, **settings) as embeddings:
                    num_nodes = embeddings.num_nodes
                    if is_table_file(out):
                        columns = [f"embedding_{number}" for number in range(embeddings.width)]
                        write_by_key(out, opened.node_tables[chosen], embeddings.chunks, columns)
                    else:
                        write_rows(out, embeddings.chunks, (num_nodes, embeddings.width), "<f4")
        of_type = "" if opened.kind == "homogeneous" else f" of type {chosen!r}"
        of = f"{num_nodes:,} pairs" if pairs is not None else f"{num_nodes:,} nodes{of_type}"
        if rows is not None:
            of = f"{num_nodes:,} rows of table {rows.name!r}"
        screen.say(f"{content} of {of} in {out}")
        memory = {
            "peak_anonymous_bytes": peak.peak_bytes,
            "memory_budget_bytes": memory_budget,
            "peak_rss_bytes": peak_rss_bytes(),
        }
        screen.say(f"peak memory {memory_text(memory)}")
        screen.result(
            {
                "out": str(out),
                **(
                    {"num_pairs": num_nodes}
                    if pairs is not None
                    else {"num_nodes": num_nodes, "type": chosen}
                    if rows is None
                    else {"num_rows": num_nodes, "type": chosen, "table": rows.name}
                ),
                "layer": layer,
                "dataset": opened.location,
                **memory,
            }
        )

    def _write_labels(self, loaded: "Checkpoint", settings: dict[str, Any]) -> tuple[str, int]:
        """Write the predictions of all nodes, or of the table's rows. Return what they are, and their number.

        ``settings`` are keywords for `predictions`.
        """
        from gloader.dataset.table_file import is_table_file, write_rows
        from gloader.training.predict import predictions, row_predictions

        opened, out = self.dataset, self.out
        table, nodes = None, opened.labelled
        if self.table is None:
            opening = predictions(opened, loaded, probabilities=self.probabilities, **settings)
        else:
            table = opened.task_table(self.table)
            nodes = opened.node_tables[table.node_type]
            given = {name: value for name, value in settings.items() if name != "rows"}
            opening = row_predictions(opened, loaded, table.name, probabilities=self.probabilities, **given)
        with opening as made:
            if is_table_file(out):
                write_by_key(out, nodes, made.chunks, made.names, table=table, class_names=made.class_names)
            else:
                shape = (made.num_nodes,) if made.is_flat else (made.num_nodes, len(made.names))
                write_rows(out, made.chunks, shape, "<i8" if made.content == "classes" else "<f4")
            return made.content, made.num_nodes

    def _pairs(self, loaded: "Checkpoint") -> "IdArray | None":
        """Return the pairs (n, 2) by their ids in the source, or None without pairs."""
        from gloader.training.model_spec import LinkSpec

        if self.pair_table is None:
            return self.pairs
        if not isinstance(loaded.spec, LinkSpec):
            raise ConfigError("the checkpoint predicts labels of nodes, and scores no pairs")
        sources, destinations = (self.dataset.node_tables[name] for name in loaded.spec.ends)
        return self.pair_table.ids(sources, destinations)


@contextmanager
def beside_code(memory_budget: int) -> "Iterator[int]":
    """Yield the bytes of a memory budget that remain beside the run's modules and compiled kernels.

    An error from the block is about the yielded part. It is raised again with a sufficient budget for both parts.
    """
    from gloader.observe.peak_memory import first_bytes
    from gloader.plan.too_small import advice, rounded_up
    from gloader.training.run_budget import prediction_code_bytes

    code = prediction_code_bytes(first_bytes=first_bytes())
    left = max(memory_budget - code, 0)
    try:
        yield left
    except BudgetError as error:
        if str(error) == error.cause:  # the error names no budget
            raise
        enough = rounded_up(code + left + error.short_bytes)
        cause = f"the code of the run and its reserve take {format_bytes(code)} of the memory budget"
        cause = f"{cause}; {error.cause}" if left else f"{cause} of {format_bytes(memory_budget)}"
        raise BudgetError(cause, short_bytes=enough - memory_budget, advice=advice(enough)) from error


def _read_pairs(path: Path | None) -> "tuple[PairTable | None, IdArray | None]":
    """Return the pairs in a file: a table, or an array. Both are None without a file."""
    if path is None:
        return None, None
    from gloader.cli.pair_table import PairTable

    table = PairTable.open(path)
    return table, None if table is not None else read_pairs(path)


def _answer(
    table: "QueryTable",
    dataset: "Dataset",
    checkpoint: Path,
    out: Path,
    screen: Screen,
    *,
    memory_budget: int,
    device: str,
    **choice: Any,
) -> None:
    """Write the answers to queries, and report the file. ``choice`` are the keywords of `write_answers`."""
    from gloader.cli.query_table import write_answers
    from gloader.observe.peak_memory import PeakMemory
    from gloader.training.checkpoint.save import load_checkpoint
    from gloader.training.knowledge_answers import open_ranker
    from gloader.training.process import resolve_device

    loaded = replace(load_checkpoint(checkpoint), progress={})
    with (
        PeakMemory() as peak,
        beside_code(memory_budget) as left,
        open_ranker(dataset, loaded, memory_budget_bytes=left, device=resolve_device(device)) as ranker,
    ):
        peak.keep_below(memory_budget)
        count = write_answers(table, dataset, ranker, out, **choice)
    screen.say(f"{count:,} answers to the queries of {table.table.path.name} in {out}")
    screen.result(
        {
            "out": str(out),
            "num_answers": count,
            "asked": "heads" if table.asks_heads else "tails",
            "dataset": dataset.location,
            "peak_anonymous_bytes": peak.peak_bytes,
            "memory_budget_bytes": memory_budget,
        }
    )


def _read_queries(path: Path, out: Path) -> "QueryTable":
    """Return the queries in a table. Raises ConfigError if ``out`` is no table, and errors as `QueryTable.open`."""
    from gloader.cli.query_table import QueryTable
    from gloader.dataset.table_file import is_table_file

    if not is_table_file(out):
        raise ConfigError(f"--out {out}: answers to --queries are a table; name a .csv or a .parquet file")
    return QueryTable.open(path)


def read_pairs(path: Path) -> "IdArray":
    """Return the pairs in a .npy file; ConfigError if they cannot be read."""
    import numpy as np

    try:
        pairs: IdArray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"--pairs {path} cannot be read as a .npy file: {error}") from error
    return pairs


def save_predictions(out: Path, predicted: "NDArray[Any]", *, os_io: "OsIO | None" = None) -> None:
    """Write ``predicted``, with a row for each node or pair, to the file ``out``, which is complete or absent.

    Raises
    ------
    StoreExistsError, StoreWriteError
        See `write_atomically`.
    """
    import numpy as np

    from gloader.ssd_store.os_io import REAL_OS
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_atomically

    content = BytesIO()
    np.save(content, predicted, allow_pickle=False)
    make_output_folder(out.parent, os_io=os_io or REAL_OS)
    write_atomically(out, content.getbuffer(), os_io=os_io or REAL_OS)
