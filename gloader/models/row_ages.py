"""The ages of rows as further columns of their features.

A row of a database table may have a time. Its age is the seed's time less the row's time, so the same row has another
age in the tree of another seed. A network appends what it learns of the age to a row before its first layer.
"""

from __future__ import annotations

import torch
from torch import nn

AGE_DIM = 16  # columns of a row that hold its age: 8 sines and 8 cosines, each mixed by a Linear
_DAY_S = 86_400.0  # an age is measured in days, as in RelBench
# The lowest angular frequency, 1 / (10,000 days): one sine distinguishes ages of up to 43 years. The highest is
# 1 / day. PyG's `PositionalEncoding` has the same range, and RelBench uses it.
_LOWEST_FREQUENCY = 1e-4


class RowAges(nn.Module):
    """Turns the ages of a type's rows into `AGE_DIM` columns, as `HeteroTemporalEncoder` of RelBench does.

    An age in days is encoded by sines and cosines of `AGE_DIM` / 2 frequencies, and a Linear mixes these. RelBench adds
    the result to rows of one width. Here it stands beside the features, whose widths differ by type, and the first
    layer's weights do the addition. A row without a time has the age NaN. Its encoding is zero, so the Linear's bias
    stands for it.
    """

    def __init__(self) -> None:
        super().__init__()
        # Computed by Python: torch's arithmetic on its meta device, which counts bytes, would import 75 MB.
        half = AGE_DIM // 2
        values = [_LOWEST_FREQUENCY ** (number / (half - 1)) / _DAY_S for number in range(half)]
        self.frequencies: torch.Tensor
        # Not in checkpoints: the frequencies are constants.
        self.register_buffer("frequencies", torch.tensor(values), persistent=False)
        self.lin = nn.Linear(AGE_DIM, AGE_DIM)

    def forward(self, x: torch.Tensor, ages: torch.Tensor) -> torch.Tensor:
        """Return the rows (n, F + AGE_DIM) of the features ``x`` (n, F) and the ``ages`` (n,) float32 seconds."""
        # float32 holds seconds of 40 years to 64 seconds. That is 1e-3 of the fastest sine's angle.
        angles = ages.unsqueeze(1) * self.frequencies
        encoded = torch.cat([angles.sin(), angles.cos()], dim=1).nan_to_num(nan=0.0)
        return torch.cat([x, self.lin(encoded).to(x.dtype)], dim=1)
