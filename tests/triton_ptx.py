"""The code that Triton compiles for a GPU that need not be there. Without Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

if TYPE_CHECKING:
    from collections.abc import Mapping


def ptx_of(kernel: Any, kinds: Mapping[str, str], constants: Mapping[str, Any], capability: int) -> str:
    """Return the PTX of ``kernel``, for pointers to multiples of 16 bytes; the assembler took it.

    Parameters
    ----------
    kernel : of Triton
    kinds : the type of each argument by its name, such as "*fp32" or "i32"; others may be among them
    constants : what is known when it is compiled
    capability : of the GPU, such as 90
    """
    names = kernel.arg_names
    signature = {arg: "constexpr" if arg in constants else kinds[arg] for arg in names}
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(arg),): value for arg, value in constants.items()},
        attrs={
            (names.index(arg),): [["tt.divisibility", 16]] for arg in names if signature[arg].startswith("*")
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"]
    ptx: str = compiled.asm["ptx"]
    return ptx
