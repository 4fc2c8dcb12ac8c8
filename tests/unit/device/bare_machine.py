"""A process on a machine with a GPU, here a fake one, and Triton, but without a C compiler; then its end.

Prints the lines of the log, the rows of a gather, and what is pinned while the process ends: when a finalizer like that
of a loader runs, whose threads may still send until then, and last of all.
"""

import atexit
import json
import logging
import sys
import weakref


def say(name: str, value: object) -> None:
    print(json.dumps([name, value]))


atexit.register(
    lambda: say("pinned at the end", len(fake.registered))
)  # the first, so that it is called last

import ctypes  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from fake_cuda import FakeCuda, install  # noqa: E402

from gloader.device import RowParts, RowTable, open_device  # noqa: E402


class Loader:
    """Something that is closed when the process ends."""


fake = FakeCuda(1)
install(pytest.MonkeyPatch(), fake)
logging.basicConfig(stream=sys.stdout, format='["log", "%(message)s"]')
device = open_device(torch.device("cuda"))
loader = Loader()
weakref.finalize(loader, lambda: say("pinned while the loader closes", len(fake.registered)))
buffer = device.host_buffer(10)

features = np.arange(40, dtype=np.float32).reshape(10, 4)
say("pins features", device.pin(features) is not None)
ids, out = torch.tensor([7, 0, 3]), torch.empty(3, 4)
parts = RowParts(table=None, slot_of=None, host=RowTable(rows=torch.from_numpy(features)), is_host_by_id=True)
for _ in range(2):
    device.gather(ids, parts, out)
    say("has the right rows", torch.equal(out, torch.from_numpy(features[[7, 0, 3]])))
assert ctypes.sizeof(ctypes.c_void_p) == 8
