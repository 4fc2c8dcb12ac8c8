"""The machine of a GPU: what is installed, what the link is, and whether kernels can be compiled."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from gpu_findings import GpuFinding, not_checked, reported, required

from gloader.core.units import format_bytes
from gloader.device import has_triton
from gloader.device.cuda import gather_kernel
from gloader.models.attention import attention_kernels
from gloader.plan.available import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

_QUERY: Final = (
    "name,driver_version,pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.current,memory.used"
)


def check_env(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Say what there is."""
    yield reported("versions", None, note=f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    note = f"Triton: {has_triton()}, {', '.join(compilers) or 'no C compiler'}, Python.h: {header.exists()}"
    can_compile = has_triton() and header.exists() and (bool(compilers) or "CC" in os.environ)
    if can_compile:
        yield required("what Triton compiles its launcher with", True, "there", note=note, predicted="there")
    else:
        yield not_checked("what Triton compiles its launcher with", f"{note}: rows are gathered by torch")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    room = f"{available_memory_bytes():,} bytes free, {len(os.sched_getaffinity(0))} cores"
    yield reported("memory of the host", None, note=f"{room}, locked at most {locked:,}")
    disk = shutil.disk_usage(sizes.workdir).free
    yield reported("disk of the graphs", None, note=f"{format_bytes(disk)} free")
    if not sizes.is_gpu:
        yield not_checked("link of the GPU")
        return
    is_run = gather_kernel(sizes.place) is not None
    yield required(
        "the kernel of the gather", is_run == can_compile, "run where it can be compiled", note=str(is_run)
    )
    is_run = attention_kernels(sizes.place) is not None
    yield required(
        "the kernels of attention", is_run == can_compile, "run where they can be compiled", note=str(is_run)
    )
    program = shutil.which("nvidia-smi")
    if program is None:
        yield not_checked("link of the GPU", "nvidia-smi is not there")
        return
    done = subprocess.run(
        [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=max(clock.left_s, 1),
    )
    yield reported(
        "link of the GPU", None, note=done.stdout.strip() or done.stderr.strip(), predicted="Gen5 x16"
    )
