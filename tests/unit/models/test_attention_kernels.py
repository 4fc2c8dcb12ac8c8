"""The kernels of attention under Triton's interpreter, beside their twin in torch; and compiled for GPUs."""

import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gloader.device import has_triton
from gloader.models import attention
from gloader.models.adjacency import Adjacency, by_source

SCRIPT = Path(__file__).with_name("compile_attention.py")
CUDA = torch.device("cuda:0")
# None, one, and more than a tile of 16.
DEGREES, NUM_SRC, HEADS = torch.tensor([0, 1, 18]), 5, 2

Attend = Callable[..., torch.Tensor]

pytestmark = pytest.mark.skipif(
    not has_triton(), reason="the kernels are not run: Triton is missing (pip install -e '.[gpu]')"
)


@pytest.fixture
def interpreted() -> Attend:
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled here, and tests/gpu runs them")
    attend: Attend = importlib.import_module("gloader.models.attention_kernels").attend_by_kernels
    return attend


def _run(
    attend: Attend, rows: torch.Tensor, scores: torch.Tensor, edges: Adjacency, how: tuple[object, bool]
) -> tuple[torch.Tensor, ...]:
    rows, scores = rows.clone().requires_grad_(), scores.clone().requires_grad_()
    result = attend(rows, scores, edges, *how)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    return result.detach(), *torch.autograd.grad(result, (rows, scores), upstream)


@pytest.mark.usefixtures("interpreted")
def test_gradients_lie_beyond_two_billion_numbers() -> None:
    kernels = importlib.import_module("gloader.models.attention_kernels")
    edges = Adjacency(
        torch.arange(4, dtype=torch.int32), torch.tensor([1, 0, 2], dtype=torch.int32), num_src=3
    )
    rows, scores = torch.ones(3, 1, 4), torch.zeros(3, 1, 2)
    saved = (rows, scores, *kernels.launch_forward(rows, scores, edges, None, has_loops=False)[1:])
    far = torch.empty(2**31 + 4, dtype=torch.int8).as_strided(
        (3, 1, 4), (2**30, 4, 1)
    )  # of which pages are touched
    near = torch.arange(12, dtype=torch.int8).view(3, 1, 4)
    far.copy_(near)
    found, expected = (
        kernels.launch_backward(
            saved, edges, by_source(edges.indices, 3), grad, has_loops=False, needs_rows=True
        )
        for grad in (far, near)
    )
    assert torch.equal(found[0], expected[0])
    assert found[0].tolist() == near[[1, 0, 2]].float().tolist()


def test_every_array_of_an_attention_begins_at_sixteen_bytes(
    interpreted: Attend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not, in a batch of an odd number of destinations, is compiled for by itself."""
    kernels = importlib.import_module("gloader.models.attention_kernels")
    found = []

    class _Kernel:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: object) -> Callable[..., object]:
            def launch(*arguments: object, **constants: object) -> object:
                found.extend(value.data_ptr() % 16 for value in arguments if isinstance(value, torch.Tensor))
                return self.kernel[grid](*arguments, **constants)

            return launch

    for name in ("_forward_kernel", "_edges_kernel", "_sources_kernel"):
        monkeypatch.setattr(kernels, name, _Kernel(getattr(kernels, name)))
    edges = Adjacency(torch.tensor([0, 2, 3, 5]), torch.tensor([0, 1, 2, 3, 0]), num_src=4)
    _run(interpreted, torch.ones(4, 1, 3), torch.zeros(4, 1, 2), edges, (None, True))
    assert len(found) > 20
    assert set(found) == {0}


def test_kernels_are_tried_where_nobody_wants_gradients() -> None:
    with torch.inference_mode():
        result, *gradients = attention._trial(attention.attend_in_torch, torch.device("cpu"))
    assert [len(found) for found in (result, *gradients)] == [2, 3, 3]


@pytest.mark.parametrize(
    ("is_own", "has_loops", "is_weighted", "width", "dtype", "ids"),
    [
        (True, True, False, 5, torch.float32, torch.int32),
        (False, False, True, 5, torch.float32, torch.int64),
        (True, False, True, 130, torch.bfloat16, torch.int32),  # more than a tile of 128 columns
        (False, True, False, 1, torch.float32, torch.int32),
    ],
)
def test_kernels_get_what_torch_gets(
    interpreted: Attend,
    is_own: bool,
    has_loops: bool,
    is_weighted: bool,
    width: int,
    dtype: torch.dtype,
    ids: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    num_edges = int(DEGREES.sum())
    edges = Adjacency(
        torch.cat((torch.zeros(1, dtype=torch.int64), DEGREES.cumsum(0))).to(ids),
        torch.randint(0, NUM_SRC, (num_edges,), generator=generator).to(ids),
        num_src=NUM_SRC,
    )
    rows = torch.randn(NUM_SRC, HEADS, width, generator=generator)[:, slice(None) if is_own else 0]
    rows = rows.contiguous().to(dtype)
    scores = 4 * torch.randn(NUM_SRC, HEADS, 2, generator=generator)
    importance = torch.rand(num_edges, generator=generator) + 0.5 if is_weighted else None
    found = _run(interpreted, rows, scores, edges, (importance, has_loops))
    # In float32: the twin rounds more often in bfloat16 than the kernels do.
    expected = _run(attention.attend_in_torch, rows.float(), scores, edges, (importance, has_loops))
    # The interpreter cuts off where a GPU rounds.
    step = 1e-5 if dtype == torch.float32 else 2.0**-7
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=step, atol=step)
    assert (found[0].dtype, found[1].dtype) == (torch.float32, dtype)
    if not has_loops:
        assert (found[0][:, 0] == 0).all()  # the destination without edges


@pytest.mark.parametrize("at", [0, 17])
def test_a_score_that_no_exponential_holds_is_the_maximum_of_all_tiles(interpreted: Attend, at: int) -> None:
    """In the first tile of 16 edges or the last: what comes behind, or was added up before, is nothing beside it."""
    sources = torch.zeros(18, dtype=torch.int32)
    sources[at] = 1
    edges = Adjacency(torch.tensor([0, 18], dtype=torch.int32), sources, num_src=2)
    rows = torch.tensor([[[3.0, 4.0]], [[5.0, 6.0]]])
    scores = torch.tensor([[[-200.0, 0.0]], [[900.0, 0.0]]])
    result, *gradients = _run(interpreted, rows, scores, edges, (None, False))
    assert result.flatten().tolist() == [5.0, 6.0]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_block_without_edges_or_destinations_has_no_gradients(interpreted: Attend) -> None:
    edges = Adjacency(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), num_src=2)
    result, *grads = _run(interpreted, torch.ones(2, 1, 3), torch.ones(2, 1, 2), edges, (None, True))
    assert result.shape == (1, 0, 3)
    assert all((grad == 0).all() for grad in grads)


def test_where_the_kernels_do_not_run_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interpreted: Attend
) -> None:
    caplog.set_level(logging.WARNING, logger="gloader")
    find = attention.attention_kernels.__wrapped__
    assert find(torch.device("cpu")) is None
    assert caplog.messages == []
    assert find(CUDA) is None  # no such device
    # A device that gets other sums.
    true = attention._trial
    monkeypatch.setattr(
        attention,
        "_trial",
        lambda attend, _: tuple(
            found + (attend is interpreted) for found in true(attend, torch.device("cpu"))
        ),
    )
    assert find(CUDA) is None
    missing, wrong = caplog.messages
    assert missing.startswith("gloader's attention kernels do not run on cuda:0 (")
    assert "do not run on cuda:0 (RuntimeError: their sums differ from torch's)" in wrong
    assert "torch's operations are used instead" in wrong
    monkeypatch.setattr(attention, "_trial", lambda attend, _: true(attend, torch.device("cpu")))
    assert find(CUDA) is interpreted


@pytest.mark.parametrize(
    ("capability", "ids", "count"),
    [
        ("90", "i32", 1),
        pytest.param("80", "i64", 99, marks=pytest.mark.long),
        pytest.param("90", "i32", 99, marks=pytest.mark.long),
    ],
)
def test_the_kernels_are_legal_and_add_without_atomics(
    tmp_path: Path, capability: str, ids: str, count: int
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), capability, ids, str(count)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found
    assert not any(found.values())


@pytest.mark.parametrize("num_src", [2, NUM_SRC], ids=["more destinations", "more sources"])
def test_kernels_get_what_torch_gets_between_two_types(
    interpreted: Attend, monkeypatch: pytest.MonkeyPatch, num_src: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), DEGREES.cumsum(0))).int()
    indices = torch.randint(0, num_src, (int(DEGREES.sum()),), generator=generator).int()
    edges = Adjacency(indptr, indices, num_src=num_src)
    given = (
        torch.randn(num_src, HEADS, 5, generator=generator),
        torch.randn(num_src, HEADS, generator=generator),
        torch.randn(len(DEGREES), HEADS, generator=generator),
    )
    upstream = torch.randn(HEADS, len(DEGREES), 5, generator=generator)

    def checked(rows: torch.Tensor, scores: torch.Tensor, edges: Adjacency, *how: object) -> torch.Tensor:
        # What lies behind the offsets of the sources would be read otherwise.
        assert edges.num_src == len(rows) == len(scores)
        return interpreted(rows, scores, edges, *how)

    found = []
    for kernels in (checked, None):
        monkeypatch.setattr(attention, "attention_kernels", lambda _, kernels=kernels: kernels)
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        result = attention.attend_between(*leaves, edges)
        found.append((result.detach(), *torch.autograd.grad(result, leaves, upstream)))
    for ours, twin in zip(*found, strict=True):
        torch.testing.assert_close(ours, twin, atol=1e-5, rtol=1e-5)
