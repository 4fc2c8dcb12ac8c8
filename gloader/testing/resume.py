"""A check of resuming, for tests of loaders: every saved state must continue with exactly the same batches.

`check_resume` saves a loader's state before every step, and restores every saved state in a new loader. A step yields
one batch. Batches are compared by a digest, for example `batch_digest`.
"""

# ruff: noqa: S101 - a check that is shipped, for tests elsewhere to call

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gloader.types import HeteroReadyBatch, LinkBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from gloader.types import Delivered

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

_RETURN_BATCHES = 5  # batches read after a return to a step: enough to leave a superbatch or an epoch


class Resumable(Protocol[T_co]):
    """A resumable loader: a `gloader.Loader`, an adapter's loader, or a test's own. Each iteration is an epoch."""

    def __iter__(self) -> Iterator[T_co]:
        """Start the next epoch, or continue the epoch at the position from `load_state_dict`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the first undelivered batch, as a JSON object."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue at a saved position."""
        ...


def batch_digest(batch: Delivered) -> str:
    """Return a digest of every bit of a batch on the CPU, with one or several node types, or with links. Pure."""
    if isinstance(batch, LinkBatch):
        of_links = (batch.pairs.tolist(), batch.labels.tolist(), batch.edge_ids.tolist(), batch.num_positives)
        return hashlib.sha256(f"{batch_digest(batch.batch)} {of_links}".encode()).hexdigest()
    if isinstance(batch, HeteroReadyBatch):
        return _typed_digest(batch)
    found = hashlib.sha256(repr((batch.id, batch.num_seeds)).encode())
    for array in (
        batch.x,
        batch.y,
        *itertools.chain(*((b.indptr, b.indices, b.edge_ids, b.src_degree) for b in batch.blocks)),
        *(block.edge_x for block in batch.blocks if block.edge_x is not None),
    ):
        found.update(array.numpy().tobytes())
    found.update(batch.nodes.tobytes())
    found.update(_row_bits(batch.typed))
    return found.hexdigest()


def _row_bits(batch: HeteroReadyBatch) -> bytes:
    """Return the bits of what a batch has for the rows of a task table; none for other seeds. Pure."""
    tensors = (batch.weights, batch.row_seeds, *(batch.row_age or {}).values())
    rows = b"" if batch.row_ids is None else batch.row_ids.tobytes()
    return rows + b"".join(tensor.numpy().tobytes() for tensor in tensors if tensor is not None)


def _typed_digest(batch: HeteroReadyBatch) -> str:
    """Return a digest of every bit of a batch with several node types on the CPU. Pure."""
    found = hashlib.sha256(repr((batch.id, dict(batch.num_seeds), batch.y.tolist())).encode())
    for name, nodes in batch.nodes.items():
        x = batch.x[name]
        found.update(repr((name, tuple(x.shape))).encode())
        found.update(nodes.tobytes())
        found.update(x.numpy().tobytes())
    for relation, block in itertools.chain.from_iterable(hop.items() for hop in batch.blocks):
        found.update(repr((relation, block.num_src, block.num_dst, len(block.indices))).encode())
        arrays = (
            block.indptr,
            block.indices,
            block.edge_ids,
            block.src_degree,
            block.edge_weight,
            block.edge_x,
        )
        for array in arrays:
            found.update(b"" if array is None else array.numpy().tobytes())
    found.update(_row_bits(batch))
    return found.hexdigest()


def check_resume(
    open_loader: Callable[[], AbstractContextManager[Resumable[T]]],
    *,
    epochs: int,
    digest: Callable[[T], str],
    returns_to: Sequence[int] = (),
) -> list[str]:
    """Save the state before every step, restore each in a new loader, and compare the rest bit for bit.

    The states go through JSON, as in a checkpoint.

    Parameters
    ----------
    open_loader : opens an equal loader each time, at its beginning, with ``2 * epochs`` epochs
    epochs : number of epochs in which states are saved; as many epochs are read after each state. Two epochs include
        the border between epochs.
    digest : returns different values for different batches; `batch_digest` for the batches of gloader's loaders
    returns_to : steps to which the first loader returns one after another, with caches that other steps filled

    Returns
    -------
    One digest per batch of all ``2 * epochs`` epochs, for the caller's own comparisons.

    Raises
    ------
    AssertionError
        A resumed loader yields different or too few batches.
    TypeError
        A state is no JSON.
    """
    with open_loader() as loader:
        states, stream = [_copy(loader.state_dict())], []
        for _ in range(epochs):
            for batch in loader:
                stream.append(digest(batch))
                states.append(_copy(loader.state_dict()))
        num_steps = len(stream)
        # A resumed loader begins in the middle of an epoch and reads full epochs, so it reads past the last state.
        stream += [digest(batch) for _ in range(epochs) for batch in loader]
        # The stream was read to its end first, so that every cache is as full as possible.
        for step in returns_to:
            loader.load_state_dict(states[step])
            batches = iter(loader)
            found = [digest(batch) for batch in itertools.islice(batches, _RETURN_BATCHES)]
            del batches  # this ends an epoch in the middle
            num_left = num_steps // epochs - step % (num_steps // epochs)  # remaining steps of the epoch
            _require_same(
                found, stream, step, f"sent back to step {step}", at_least=min(_RETURN_BATCHES, num_left)
            )
    for step, state in enumerate(states):
        with open_loader() as resumed:
            resumed.load_state_dict(state)
            # The loader reads full epochs beyond the last state, because the border after it must be crossed too.
            found = [digest(batch) for _ in range(epochs) for batch in resumed]
        _require_same(found, stream, step, f"resumed before step {step}", at_least=num_steps - step)
    return stream


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` after a round trip through JSON, independent of the loader's later changes."""
    copied: dict[str, Any] = json.loads(json.dumps(state))
    return copied


def _require_same(found: list[str], stream: list[str], step: int, when: str, *, at_least: int) -> None:
    """Check that ``found`` has at least ``at_least`` digests, equal to the digests in ``stream`` from ``step`` on."""
    assert len(found) >= at_least, f"{when}, the loader gives {len(found)} of {at_least} batches"
    expected = stream[step : step + len(found)]
    wrong = [at for at, pair in enumerate(itertools.zip_longest(found, expected)) if pair[0] != pair[1]]
    assert not wrong, f"{when}, the loader gives other batches, the first at step {step + wrong[0]}"
