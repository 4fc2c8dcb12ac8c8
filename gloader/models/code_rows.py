"""Learned numbers in place of the feature columns that hold codes, the numbers of categories.

A network replaces each code by a row of a table before its first layer, so that a category with thousands of values
needs one feature column. The rows are weights, with dense gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.models.schema import CodeColumn


class CodeRows(nn.Module):
    """Replaces the codes in a type's feature rows by learned numbers, at the place of their columns.

    The table of column c is the parameter ``str(c)``, (num_values + 1, dim). Its row 0 is that of values that no
    training row has, with the code -1. It begins with zeros, as a column of 0 and 1 for each value would. The other
    rows begin with a length of about 1, also as such columns would.

    Parameters
    ----------
    columns : the columns with codes, from left to right
    """

    def __init__(self, columns: Sequence[CodeColumn]) -> None:
        super().__init__()
        self.columns = tuple(columns)
        for each in self.columns:
            table = nn.init.normal_(torch.empty(each.num_values + 1, each.dim), std=each.dim**-0.5)
            table[0] = 0
            self.register_parameter(str(each.column), nn.Parameter(table))

    def forward(self, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the rows (n, F + added) of the features ``x`` (n, F).

        Parameters
        ----------
        x : float32 features
        first : number of the first row, for messages

        Raises
        ------
        ConfigError
            A code is no whole number, or out of range. On a GPU, training leaves this check to torch's lookup.
        """
        parts, done = [], 0
        for each in self.columns:
            codes = x[:, each.column]
            # On a GPU, the check waits for the device. A training step reads the rows that the encoder made.
            if not torch.compiler.is_compiling() and not (self.training and x.is_cuda):
                _require_codes(codes, each, first)
            table = self.get_parameter(str(each.column))
            parts += [x[:, done : each.column], functional.embedding(codes.long() + 1, table)]
            done = each.column + 1
        return torch.cat([*parts, x[:, done:]], dim=1)


def _require_codes(codes: torch.Tensor, column: CodeColumn, first: int) -> None:
    """Raise ConfigError for the first of ``codes`` (n,) that is not among -1 to num_values - 1, if any."""
    is_bad = ~((codes >= -1) & (codes < column.num_values) & (codes == codes.floor()))
    if bool(is_bad.any()):
        row = int(is_bad.nonzero()[0])
        raise ConfigError(
            f"row {first + row} has {float(codes[row]):.9g} in feature column {column.column}, and the network has "
            f"learned numbers for the {column.num_values:,} values of {column.name!r}: whole numbers from -1 to "
            f"{column.num_values - 1}. The features belong to another dataset"
        )
