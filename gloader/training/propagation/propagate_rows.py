"""Propagation of rows over a graph, within a plan: the executor.

`propagate` goes through the slabs, and through each slab's states. A state that is an output makes *pieces*: the kept
rows of a slab of a column group. With a work folder, pieces and states are committed stores in it. So a run over the
folder of a killed run skips the complete pieces, and continues a slab at its last complete state; the result is equal
bit by bit. `Pieces` reads the result row by row.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import numpy as np

from gloader.errors import ConfigError, StateError
from gloader.observe.compile_clock import compile_seconds
from gloader.observe.peak_memory import release_freed_memory
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.manifest import STORE_MANIFEST
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.write.atomic_file import remove_tree, write_atomically
from gloader.training.propagation.chains import INPUT_NAME
from gloader.training.propagation.hop_pass import (
    HopEdges,
    PassRule,
    empty_rows,
    gather,
    norm_scale,
    scatter,
)
from gloader.training.propagation.propagation_plan import (
    RING_BYTES,
    HopCost,
    in_order,
    needs_scaling,
)
from gloader.training.propagation.state_rows import (
    CutRows,
    HeldMatrix,
    StateRows,
    StoredMatrix,
    StoredWriter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.samplers import HeteroGraph
    from gloader.ssd_store.os_io import OsIO
    from gloader.training.propagation.chains import HopState, HopStep
    from gloader.training.propagation.propagation_plan import PropagationPlan
    from gloader.training.propagation.state_rows import RowInput
    from gloader.types import IdArray

    Matrix = NDArray[np.float32]
    Chunks: TypeAlias = Iterator[tuple[int, Matrix]]
    Progress: TypeAlias = Callable[[float], None]

_JOURNAL: Final = "propagation.json"
_JOIN_BYTES: Final = 16 << 20  # memory for reading all pieces together
_JOIN_THREADS: Final = 4  # pieces that are read at a time: a read of one is too short for a deep queue


def begun_widths(work: Path, fingerprint: str) -> dict[str, int] | None:
    """Return the slab widths of the propagation that began in a work folder, or None if there is none.

    Parameters
    ----------
    work : the folder
    fingerprint : the dataset and the request

    Raises
    ------
    StateError
        The folder holds another propagation.
    """
    path = work / _JOURNAL
    if not path.exists():
        return None
    begun = json.loads(path.read_text())
    if begun["fingerprint"] != fingerprint:
        raise StateError(
            f"{work} holds an unfinished propagation of another dataset or with other settings: repeat its command to "
            "finish it, or begin again with --fresh (in Python resume=False)"
        )
    return dict(begun["widths"])


class Pieces:
    """The result: the hop columns of the kept rows. Owns open stores until `close`.

    Parameters
    ----------
    num_rows, width : shape of the result
    parts : first column and rows of every piece
    cost : what the propagation read, wrote and took
    """

    def __init__(
        self, *, num_rows: int, width: int, parts: list[tuple[int, RowInput]], cost: HopCost
    ) -> None:
        self.num_rows = num_rows
        self.width = width
        self.cost = cost
        self._parts = parts
        self._pool = ThreadPoolExecutor(_JOIN_THREADS, thread_name_prefix="gloader-join")

    def read(self, start: int, stop: int, out: Matrix | None = None) -> Matrix:
        """Return the columns of the kept rows ``start`` to ``stop``, (n, width) float32, in ``out`` if given."""
        made = np.empty((stop - start, self.width), dtype=np.float32) if out is None else out

        def read_part(at: tuple[int, RowInput]) -> None:
            first, rows = at
            part = np.empty((stop - start, rows.width), dtype=np.float32)
            rows.read(start, stop, part)
            made[:, first : first + rows.width] = part

        list(self._pool.map(read_part, self._parts))
        return made

    def close(self) -> None:
        """Close the pieces. Idempotent."""
        self._pool.shutdown()
        while self._parts:
            rows = self._parts.pop()[1]
            # The input rows, which may be among the parts, are the caller's.
            if isinstance(rows, HeldMatrix | StoredMatrix):
                rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def propagate(  # noqa: PLR0913 - independent keywords
    graph: HeteroGraph,
    inputs: Mapping[str, RowInput],
    plan: PropagationPlan,
    *,
    add_self_loops: bool = True,
    work: Path | None = None,
    fingerprint: str = "",
    keep: IdArray | None = None,
    dtype: str = "float32",
    on_progress: Progress = lambda _: None,
    os_io: OsIO = REAL_OS,
) -> Pieces:
    """Compute the hop columns of ``plan``.

    Parameters
    ----------
    graph : the graph, opened with ``plan.topology_bytes``
    inputs : the input rows of each root type
    plan : the plan
    add_self_loops : whether gcn and ppr add a self loop to each node: not if the graph stores one at every node
    work : folder for states and pieces, made if it does not exist; the caller removes it. None keeps all in memory
    fingerprint : names the dataset and the request; a folder of another propagation is refused
    keep : (n,) ascending ids of the target nodes whose rows are the result; None means all
    dtype : dtype of the pieces in the work folder: float32, float16 or bfloat16. Pieces in memory are float32
    on_progress : called with the finished share of the passes, 0 to 1
    os_io : the system calls

    Raises
    ------
    StateError
        The work folder holds another propagation.
    FeatureValueError
        A value is too large for the dtype.
    StoreWriteError, StoreReadError, ChecksumError
        The device fails, or a file is damaged.
    """
    if keep is not None and (np.diff(keep) <= 0).any():
        raise ConfigError("the kept rows are not ascending ids without repeats; pass numpy.unique(keep)")
    run = _SlabRun(graph, inputs, plan, add_self_loops, work, keep, dtype, on_progress, os_io)
    return run.all_slabs(fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slab:
    """A slab in progress."""

    root: HopState
    columns: slice
    anchor: StateRows  # the input rows


class _SlabRun:
    """One propagation. See `propagate` for the parameters."""

    def __init__(  # noqa: PLR0913 - the parameters of `propagate`
        self,
        graph: HeteroGraph,
        inputs: Mapping[str, RowInput],
        plan: PropagationPlan,
        add_self_loops: bool,
        work: Path | None,
        keep: IdArray | None,
        dtype: str,
        on_progress: Progress,
        os_io: OsIO,
    ) -> None:
        self._inputs = inputs
        self._plan = plan
        self._trees = plan.trees
        self._has_disk = work is not None
        self._work = Path() if work is None else work
        self._keep = keep
        self._dtype = dtype
        self._os_io = os_io
        self._adds_loops = add_self_loops and plan.trees.spec.norm != "mean"
        self._num_nodes = graph.num_nodes
        self._num_kept = graph.num_nodes[plan.trees.target] if keep is None else len(keep)
        self._edges = {relation: HopEdges(each, plan.limits) for relation, each in graph.relations.items()}
        self._scales: dict[HopStep, Matrix] = {}
        steps = (step for root in plan.trees.roots.values() for state in root.walk() for step in state.path)
        self._step_numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
        self._made: dict[tuple[str, int], HeldMatrix] = {}  # pieces in memory, by group and first column
        # An output's rows on the SSD are also its state if they are all its rows, unrounded.
        self._shares_rows = keep is None and dtype == "float32"
        self._rows_read = self._rows_written = 0
        self._on_progress = on_progress
        self._num_done = 0
        self._num_steps = sum(
            len(slabs) * sum(1 for _ in plan.trees.roots[name].walk()) for name, slabs in plan.slabs.items()
        )

    def all_slabs(self, fingerprint: str) -> Pieces:
        """Compute everything, and return the result."""
        began = time.perf_counter() - compile_seconds()
        if self._has_disk:
            self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
            if begun_widths(self._work, fingerprint) is None:
                widths = {name: slabs[0].stop for name, slabs in self._plan.slabs.items()}
                text = json.dumps({"fingerprint": fingerprint, "widths": widths})
                write_atomically(self._work / _JOURNAL, text.encode(), os_io=self._os_io)
        for name, slabs in self._plan.slabs.items():
            root = self._trees.roots[name]
            waiting = [slab for slab in slabs if not self._is_done(root, slab)]
            self._num_done += sum(1 for _ in root.walk()) * (len(slabs) - len(waiting))
            # A run that was killed after a slab's last piece may have left a state.
            for state, slab in product(root.walk(), slabs):
                if slab not in waiting:
                    self._remove(self._path(state, slab, "state"))
            held = self._read_inputs(root, slabs, waiting)
            for slab in waiting:
                rows = self._root_rows(root, slab, held, is_cut=len(slabs) > 1)
                held = None  # the slab owns the rows now
                with closing(rows):
                    self._visit(_Slab(root=root, columns=slab, anchor=rows), root, rows)
                    self._rows_read += rows.bytes_read
            self._remove(self._path(root, slice(0, 0), "cut"))
        return self._result(time.perf_counter() - compile_seconds() - began)

    # The input rows.

    def _read_inputs(
        self, root: HopState, slabs: tuple[slice, ...], waiting: list[slice]
    ) -> HeldMatrix | None:
        """Read a type's input rows once: hold them, cut them into slabs, keep the result's rows, as far as needed."""
        rows = self._inputs[root.node_type]
        held = None
        piece = (str(root.group), slice(0, rows.width))
        with ExitStack() as stack:
            keeps = root.group is not None and self._keep is not None and not self._has_piece(*piece)
            put = stack.enter_context(self._piece_writer(*piece)) if keeps else None
            cut = None
            path = self._path(root, slice(0, 0), "cut")
            if len(slabs) > 1 and waiting and not _exists(path):
                cut = stack.enter_context(
                    StoredWriter(path, num_rows=rows.num_rows, width=rows.width, os_io=self._os_io)
                )
                self._rows_written += 4 * rows.num_rows * rows.width
            if self._plan.is_held and waiting:
                held = HeldMatrix(empty_rows(rows.num_rows, rows.width))
            if put is None and cut is None and held is None:
                return None
            source = StateRows(rows, self._plan.rows_per_cut, owned=False)
            for start, chunk in stack.enter_context(closing(source.chunks())):
                if put is not None:
                    put(start, chunk)
                if cut is not None:
                    for slab in slabs:
                        cut.append(chunk[:, slab])
                if held is not None:
                    held.array[start : start + len(chunk)] = chunk
            self._rows_read += source.bytes_read
        release_freed_memory()
        return held

    def _root_rows(self, root: HopState, slab: slice, held: HeldMatrix | None, *, is_cut: bool) -> StateRows:
        """Return the input rows of a slab."""
        if held is not None:
            return StateRows(held, self._plan.limits.rows)
        rows = self._inputs[root.node_type]
        if not is_cut:
            return StateRows(rows, self._plan.limits.rows, owned=False)
        values = StoredMatrix(
            self._path(root, slice(0, 0), "cut"),
            num_rows=rows.num_rows,
            width=rows.width,
            ring_bytes=RING_BYTES,
            os_io=self._os_io,
        )
        return StateRows(CutRows(values, slab, self._plan.rows_per_cut), self._plan.rows_per_cut)

    # The states of a slab.

    def _visit(self, slab: _Slab, state: HopState, rows: StateRows | None) -> None:
        """Compute all states after ``state``, whose rows are ``rows``; None if they are on the SSD, perhaps."""
        self._advance()
        columns = slab.columns
        to_make = [each for each in in_order(state) if not self._is_ready(each, columns)]
        for each in in_order(state):
            if each not in to_make:
                if not self._is_done(each, columns):
                    self._visit(slab, each, None)
                continue
            source = self._stored(slab, state) if rows is None else rows
            is_last = each is to_make[-1]
            with ExitStack() as stack:
                made = self._make(slab, source, each, may_change=is_last and not self._stays(source, slab))
                if made is not None:
                    stack.callback(made.close)
                if rows is None or is_last:
                    self._close(slab, source)
                if is_last:
                    rows = None
                    self._forget(slab, state)
                self._visit(slab, each, made)

    def _close(self, slab: _Slab, source: StateRows) -> None:
        """Close a state's rows. The input rows stay open if every hop adds them."""
        if self._stays(source, slab):
            return
        if source is not slab.anchor:
            self._rows_read += source.bytes_read
        source.close()

    def _stays(self, source: StateRows, slab: _Slab) -> bool:
        """Return whether rows stay in use: the input rows, which ppr adds at every hop."""
        return source is slab.anchor and self._trees.spec.norm == "ppr"

    def _make(self, slab: _Slab, source: StateRows, state: HopState, *, may_change: bool) -> StateRows | None:
        """Compute a state from the rows before it, and return its rows if they are in memory."""
        step, columns = state.path[-1], slab.columns
        scale = self._scale(step) if state.stat == "mean" else None
        factors = scale if needs_scaling(state, self._trees) else None
        rule = PassRule(stat=state.stat, scale=scale, adds_own=self._adds_loops and state.stat == "mean")
        edges, limits = self._edges[step.relation], self._plan.limits
        into, is_piece = None, False
        if self._plan.is_held:
            # In memory, an output of all rows needs no copy.
            is_piece = not self._has_disk and self._keep is None and state.group is not None
            if state.nexts or is_piece:
                into = empty_rows(self._num_nodes[state.node_type], source.width)
        with ExitStack() as stack:
            puts = []
            if state.group is not None and not is_piece and not self._has_piece(state.group, columns):
                puts.append(stack.enter_context(self._piece_writer(state.group, columns)))
            # A killed run may have completed one of the two.
            is_stored = self._is_shared(state) or _exists(self._path(state, columns, "state"))
            if not self._plan.is_held and state.nexts and not is_stored:
                puts.append(stack.enter_context(self._state_writer(slab, state)))
            if step.direction == "in":
                table = source.table(factors, may_change=may_change)
                chunks = gather(edges, rule, table, limits, into=into)
                del table
            else:
                chunks = scatter(edges, rule, source.scaled(factors), limits, into=into)
            for start, chunk in stack.enter_context(closing(chunks)):
                if self._trees.spec.norm == "ppr" and state.stat == "mean":
                    self._add_anchor(slab.anchor, start, chunk)
                for put in puts:
                    put(start, chunk)
        # glibc keeps freed blocks below 32 MB in the heaps of the threads that had them.
        release_freed_memory()
        if into is None:
            return None
        if is_piece:
            self._made[str(state.group), columns.start] = HeldMatrix(into)
        return StateRows(HeldMatrix(into), limits.rows, owned=not is_piece)

    def _add_anchor(self, anchor: StateRows, start: int, chunk: Matrix) -> None:
        """Replace ``chunk`` by the mean with the input rows that ppr takes."""
        alpha = np.float32(self._trees.spec.alpha)
        chunk *= np.float32(1) - alpha
        chunk += alpha * anchor.chunk(start, start + len(chunk))

    def _scale(self, step: HopStep) -> Matrix:
        """Return the factor of each receiving node of a step."""
        if step not in self._scales:
            degrees = self._edges[step.relation].degrees(step.direction, weighted=True)
            self._scales[step] = norm_scale(degrees, self._trees.spec.norm, add_self_loops=self._adds_loops)
        return self._scales[step]

    def _advance(self) -> None:
        """Report another state."""
        self._num_done += 1
        self._on_progress(min(self._num_done / self._num_steps, 1.0))

    # What exists.

    def _is_done(self, state: HopState, columns: slice) -> bool:
        """Return whether all pieces of a state and of the states after it exist."""
        outputs = (each for each in state.walk() if each.group is not None and each.path)
        return all(self._has_piece(str(each.group), columns) for each in outputs)

    def _is_ready(self, state: HopState, columns: slice) -> bool:
        """Return whether a state's rows are not needed any more, or exist on the SSD."""
        if state.group is not None and not self._has_piece(state.group, columns):
            return False
        if self._has_disk:
            is_stored = self._is_shared(state) or _exists(self._path(state, columns, "state"))
            if is_stored:
                return True
        return all(self._is_ready(each, columns) for each in state.nexts)

    def _is_shared(self, state: HopState) -> bool:
        """Return whether a state's piece on the SSD has all its rows as they are."""
        return self._has_disk and state.group is not None and bool(state.path) and self._shares_rows

    def _has_piece(self, group: str, columns: slice) -> bool:
        """Return whether a piece is complete."""
        if not self._has_disk:
            return (group, columns.start) in self._made
        return _exists(self._piece_path(group, columns))

    def _stored(self, slab: _Slab, state: HopState) -> StateRows:
        """Open a state's rows on the SSD."""
        if self._is_shared(state):
            path = self._piece_path(str(state.group), slab.columns)
        else:
            path = self._path(state, slab.columns, "state")
        rows = StoredMatrix(
            path,
            num_rows=self._num_nodes[state.node_type],
            width=slab.columns.stop - slab.columns.start,
            ring_bytes=RING_BYTES,
            os_io=self._os_io,
        )
        return StateRows(rows, self._plan.limits.rows)

    def _forget(self, slab: _Slab, state: HopState) -> None:
        """Remove a state's rows from the SSD: nothing is computed from them any more."""
        if state.path and not self._is_shared(state):
            self._remove(self._path(state, slab.columns, "state"))

    def _remove(self, path: Path) -> None:
        """Remove a folder, if it exists."""
        if self._has_disk:
            remove_tree(path, os_io=self._os_io)

    # Pieces and states on the SSD.

    def _path(self, state: HopState, columns: slice, kind: str) -> Path:
        """Return the folder of a state's rows in a slab."""
        start = state.path[0].source if state.path else state.node_type
        steps = [str(self._step_numbers[step]) for step in state.path]
        types = list(self._num_nodes)
        return self._work / "-".join([kind, str(types.index(start)), str(columns.start), state.stat, *steps])

    def _piece_path(self, group: str, columns: slice) -> Path:
        """Return the folder of a piece."""
        first = self._trees.group(group).start + columns.start
        return self._work / f"piece-{first}"

    @contextmanager
    def _piece_writer(self, group: str, columns: slice) -> Generator[Callable[[int, Matrix], None]]:
        """Give a function that takes chunks of a state's rows, and keeps the result's rows of a piece."""
        width, keep = columns.stop - columns.start, self._keep
        with ExitStack() as stack:
            if not self._has_disk:
                array = empty_rows(self._num_kept, width)
                append = _Filling(array).append
            else:
                path = self._piece_path(group, columns)
                writer = StoredWriter(
                    path, num_rows=self._num_kept, width=width, dtype=self._dtype, os_io=self._os_io
                )
                append = stack.enter_context(writer).append
                self._rows_written += writer.num_bytes

            def put(start: int, chunk: Matrix) -> None:
                if keep is None:
                    append(chunk)
                    return
                first, past = np.searchsorted(keep, [start, start + len(chunk)])
                if first < past:
                    append(chunk[keep[first:past] - start])

            yield put
        if not self._has_disk:
            self._made[group, columns.start] = HeldMatrix(array)

    @contextmanager
    def _state_writer(self, slab: _Slab, state: HopState) -> Generator[Callable[[int, Matrix], None]]:
        """Give a function that takes chunks of a state's rows, and writes them to the SSD."""
        writer = StoredWriter(
            self._path(state, slab.columns, "state"),
            num_rows=self._num_nodes[state.node_type],
            width=slab.columns.stop - slab.columns.start,
            os_io=self._os_io,
        )
        self._rows_written += writer.num_bytes
        with writer:
            yield lambda _, chunk: writer.append(chunk)

    def _result(self, seconds: float) -> Pieces:
        """Return all pieces."""
        places = [
            (str(state.group), slab if state.path else slice(0, self._trees.widths[name]))
            for name, slabs in self._plan.slabs.items()
            for state in self._trees.roots[name].walk()
            for slab in (slabs if state.path else slabs[:1])
            if state.group is not None
        ]
        ring = max(_JOIN_BYTES // max(len(places), 1) // PAGE_BYTES, 4) * PAGE_BYTES
        parts: list[tuple[int, RowInput]] = []
        with ExitStack() as stack:
            for group, columns in places:
                rows: RowInput
                if group == INPUT_NAME and self._keep is None:
                    rows = self._inputs[self._trees.target]
                elif not self._has_disk:
                    rows = self._made[group, columns.start]
                else:
                    width = columns.stop - columns.start
                    stored = StoredMatrix(
                        self._piece_path(group, columns),
                        num_rows=self._num_kept,
                        width=width,
                        ring_bytes=ring,
                        os_io=self._os_io,
                    )
                    stack.callback(stored.close)
                    rows = stored
                parts.append((self._trees.group(group).start + columns.start, rows))
            stack.pop_all()
        cost = HopCost(
            rows_read=self._rows_read,
            rows_written=self._rows_written,
            edges_read=sum(edges.bytes_read for edges in self._edges.values()),
            seconds=seconds,
        )
        return Pieces(num_rows=self._num_kept, width=self._trees.width, parts=parts, cost=cost)


class _Filling:
    """Appends chunks of rows to an array (n, w)."""

    def __init__(self, array: Matrix) -> None:
        self._array = array
        self._num_rows = 0

    def append(self, chunk: Matrix) -> None:
        """Copy the rows ``chunk`` behind the rows so far."""
        self._array[self._num_rows : self._num_rows + len(chunk)] = chunk
        self._num_rows += len(chunk)


def _exists(path: Path) -> bool:
    """Return whether the store at ``path`` is complete."""
    return (path / STORE_MANIFEST).exists()
