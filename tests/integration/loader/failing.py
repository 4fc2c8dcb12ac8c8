"""Parts of a loader that raise when a test says so."""

import dataclasses
from collections.abc import Callable
from typing import Any


def replace_parts(loader: Any, *, table: int = 0, **parts: Any) -> None:
    """Put other parts into the loader's tier, or into what reads a table of it from the SSD."""
    tier = loader._held.tier
    names = {field.name for field in dataclasses.fields(tier)}
    if of_table := {name: part for name, part in parts.items() if name not in names}:
        tables = list(tier.require_ssd())
        tables[table] = dataclasses.replace(tables[table], **of_table)
        parts["ssd"] = tuple(tables)
    loader._held.tier = dataclasses.replace(
        tier, **{name: part for name, part in parts.items() if name in names}
    )


class Failing:
    """Stands for another object; the call of one method that ``is_due`` raises."""

    def __init__(self, inner: Any, method: str, error: BaseException, is_due: Callable[..., bool]) -> None:
        self._inner, self._method, self._error, self._is_due = inner, method, error, is_due

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_due(*args):
                raise self._error
            return found(*args, **kwargs)

        return call
