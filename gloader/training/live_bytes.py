"""How much memory the tensors of a computation take at once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are made inside the block and still alive.

    Works on the meta device as well, where a tensor has a size and no memory: what a computation would take is
    known without taking it.

    Parameters
    ----------
    known : tensors that exist already and do not count
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, int] = {}  # storages and their bytes
        self._live_bytes = 0
        self._peak_bytes = 0
        for tensor in known:
            self._add(tensor, counts=False)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, 70 MB and a second, to keep it away from this class."""
        return False

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were alive at once."""
        return self._peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and count what it returns."""
        del types
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self._add(item, counts=True)
        return result

    def _add(self, tensor: torch.Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - its identity; on the meta device the address is always 0
        if key in self._seen:
            return
        self._seen[key] = storage.nbytes() if counts else 0
        self._live_bytes += self._seen[key]
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._live_bytes -= self._seen.pop(key)
