"""`python tests/deletions.py`: deletes each wait, record, lease and guard of the device's path, and runs the tests.

Each makes a loader wrong on a GPU, now and then. Over a `RehearsedDevice` it is wrong every time. Works as
`tests/mutation.py` does: in copies of the tree, and the status is 1 if no test noticed a deletion.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mutation

_PIPELINE = [f"tests/unit/pipeline/test_{name}.py" for name in ("send", "transfer", "step_times")]
_LOADER = ["tests/integration/loader/test_ahead_of_device.py"]
_RANKS = ["tests/integration/distributed/test_shared_devices.py"]
# The tests that meet the deletions of a file.
TESTS = {
    "gloader/pipeline/transfer.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/send.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/pace.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/step_times.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/consumer.py": _LOADER,
    "gloader/pipeline/run.py": _LOADER,
    "gloader/pipeline/buffers.py": ["tests/unit/pipeline/test_buffers.py", *_PIPELINE],
    "gloader/device/tier.py": _LOADER,
    "gloader/distributed/client_run.py": _RANKS,
    "gloader/distributed/client.py": _RANKS,
}
# (file, what is lost, the text, what is left of it)
DELETIONS: list[tuple[str, str, str, str]] = [
    (
        "gloader/pipeline/transfer.py",
        "the hold of the host's memory until it was read",
        "        self._sending.append((mark, batch))\n",
        "",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the wait for the copy before the hold ends",
        "        self._sending[0][0].wait()\n",
        "",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the question whether the copy is over",
        "while self._sending and self._sending[0][0].is_reached():",
        "while self._sending:",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the computing stream's wait for the batch",
        "        self.mark.precede(self.blocks_of_memory)\n",
        "",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the record of the rows' memory",
        "blocks_of_memory=(x, y) if",
        "blocks_of_memory=(y,) if",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the record of the small arrays' memory",
        "blocks_of_memory=(x, y) if",
        "blocks_of_memory=(x,) if",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the mark's place behind the rows",
        "            x = self._features(batch, nodes)\n            mark = self._tier.device.mark()\n",
        "            mark = self._tier.device.mark()\n            x = self._features(batch, nodes)\n",
    ),
    (
        "gloader/pipeline/transfer.py",
        "the sending stream",
        "        with self._tier.device.sending():\n",
        "        if True:\n",
    ),
    (
        "gloader/pipeline/send.py",
        "the wait for the copy before the last",
        "        self.let_go(keep=_SENDS - 1 if is_asynchronous else 0)\n",
        "",
    ),
    (
        "gloader/pipeline/send.py",
        "the second copy under way",
        "keep=_SENDS - 1 if is_asynchronous else 0",
        "keep=0",
    ),
    (
        "gloader/pipeline/send.py",
        "letting go before the loop is waited for",
        "            if not self.pace.has_room():\n                self.let_go()\n",
        "",
    ),
    (
        "gloader/pipeline/send.py",
        "letting go before a batch is waited for",
        "        if not self._source.has_next():\n            self._send.let_go()\n",
        "",
    ),
    ("gloader/pipeline/send.py", "the bound of batches ahead", "            self.pace.wait_for_room()\n", ""),
    (
        "gloader/pipeline/send.py",
        "the wait of the end for what is under way",
        "            self._transfer.wait()\n",
        "            self._transfer.forget()\n",
    ),
    (
        "gloader/pipeline/pace.py",
        "the device's part of that bound",
        "            mark.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/pace.py",
        "one batch of that bound",
        "self._num_sent < BATCHES_AHEAD",
        "self._num_sent <= BATCHES_AHEAD",
    ),
    (
        "gloader/pipeline/pace.py",
        "the end of a wait for the loop",
        "            self._is_over = True\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/step_times.py",
        "the question whether a step is over",
        " and ended.is_reached():",
        ":",
    ),
    (
        "gloader/pipeline/step_times.py",
        "the wait for the last steps of an epoch",
        "            last.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/step_times.py",
        "the new beginning after an evaluation",
        "        self._asked = None  # what",
        "        # what",
    ),
    (
        "gloader/pipeline/consumer.py",
        "the mark behind a step",
        "            self._times.end()\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/consumer.py",
        "the device's clock instead of the host's",
        'self._instruments.working("wait", batch_id, is_counted=times is None)',
        'self._instruments.working("wait", batch_id)',
    ),
    (
        "gloader/pipeline/run.py",
        "the wait for what is under way before the buffers are another run's",
        "            send.close()\n",
        "",
    ),
    (
        "gloader/pipeline/run.py",
        "the end of the sender's wait as the run ends",
        "self._own, send.pace, self._last]",
        "self._own, self._last]",
    ),
    (
        "gloader/pipeline/buffers.py",
        "the lease that every view of a buffer holds",
        "np.frombuffer(buffer.data, dtype=np.float32, count=rows * self._dim)",
        "buffer[: 4 * rows * self._dim].view(np.float32)",
    ),
    (
        "gloader/pipeline/buffers.py",
        "the hold of the reference that gives a buffer back",
        "        self._leases[id(buffer)] = weakref.ref(lease, partial(self._free.put, buffer))\n",
        "        weakref.ref(lease, partial(self._free.put, buffer))\n",
    ),
    (
        "gloader/device/tier.py",
        "the unpinning of features",
        "            self.pinned.close()\n",
        "            pass\n",
    ),
    (
        "gloader/distributed/client_run.py",
        "the wait for what is under way before the host's buffers are given back",
        "            send.close()  # the host uses the buffers again as soon as they are given back\n",
        "",
    ),
    (
        "gloader/distributed/client_run.py",
        "the end of the sender's wait as the run ends",
        "cancels=[client, send.pace, self._sent]",
        "cancels=[client, self._sent]",
    ),
    (
        "gloader/distributed/client_run.py",
        "the copy of the ids that the loop gets",
        "nodes=sampled.nodes.copy()",
        "nodes=sampled.nodes",
    ),
    (
        "gloader/distributed/client.py",
        "the lease that every view of a shared buffer holds",
        "        lease = np.frombuffer(self._segments[number].data, dtype=np.uint8)\n",
        "        lease = self._segments[number].view()\n",
    ),
]


def main() -> int:
    """Try every deletion, or those whose file or description has one of the words given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    mutants = []
    for file, lost, text, left in DELETIONS:
        if asked.words and not any(word in f"{file}: {lost}" for word in asked.words):
            continue
        source = (mutation.ROOT / file).read_text("utf-8")
        if source.count(text) != 1:
            raise SystemExit(f"{file}: {text!r} is there {source.count(text)} times")
        line = source[: source.index(text)].count("\n") + 1
        mutants.append(
            mutation.Mutant(file=file, line=line, change=f"no more {lost}", source=source.replace(text, left))
        )
    mutation.prepare()
    outcomes = mutation.run_all(mutants, jobs=asked.jobs, timeout_s=200.0, tests=TESTS.__getitem__)
    print(f"{sum(one.outcome in ('killed', 'timeout') for one in outcomes)} of {len(outcomes)} killed")
    return int(any(one.outcome not in ("killed", "timeout") for one in outcomes))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
