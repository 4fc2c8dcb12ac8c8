"""The first call of torch's vector mathematics on the CPU, made by one thread to keep a defect of MKL out."""

from __future__ import annotations

import torch


def settle_vector_math() -> None:
    """Let one thread make the first call of torch's square roots and exponentials. Idempotent, a few microseconds.

    MKL, which torch computes them with on x86, chooses its kernels at the first call of the process. Where several
    threads make that call together, one of them now and then goes on with the choice half made, and gets its part
    with 12 bits. That call is Adam's first step, on weights of more than 2,048 elements, and the losses of a run that
    met it differ from those of the others. A tensor of one element is computed by one thread. See docs/adr/0015.
    """
    torch.ones(1).sqrt()
