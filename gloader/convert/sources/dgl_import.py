"""The one place where DGL is imported."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet_dgl(who: str) -> Iterator[Any]:
    """Import DGL with its torch backend, without its warnings and without the file it writes in $HOME.

    Parameters
    ----------
    who : what needs it, for the message

    Raises
    ------
    MissingDependencyError
        DGL is not installed, or cannot be imported.
    """
    before = os.environ.get("DGLBACKEND")
    os.environ["DGLBACKEND"] = "pytorch"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import dgl
            except ImportError as error:
                raise MissingDependencyError(
                    f"{who} DGL ({error}); install it with: pip install 'gloader[dgl]'"
                ) from error
            yield dgl
    finally:
        if before is None:
            del os.environ["DGLBACKEND"]
        else:
            os.environ["DGLBACKEND"] = before
