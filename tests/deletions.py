"""`python tests/deletions.py`: deletes each wait, record, lease and guard of the device's path, and runs the tests.

Each makes a loader wrong on a GPU, now and then. Over a `RehearsedDevice`, or over a fake of torch.cuda, it is wrong
every time. Works as `tests/mutation.py` does: in copies of the tree, and the status is 1 if no test noticed a deletion.
"""

# ruff: noqa: E501 - lines of code, as they stand

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mutation

_PIPELINE = [f"tests/unit/pipeline/test_{name}.py" for name in ("send", "transfer", "step_times")]
_LOADER = [f"tests/integration/loader/test_{name}.py" for name in ("ahead_of_device", "device_sampling")]
_RANKS = ["tests/integration/distributed/test_shared_devices.py"]
_CUDA = ["tests/unit/device/test_cuda_device.py"]
# The tests that meet the deletions of a file.
TESTS = {
    "gloader/pipeline/send.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/consumer.py": [*_PIPELINE, *_LOADER],
    "gloader/pipeline/run.py": _LOADER,
    "gloader/pipeline/buffers.py": ["tests/unit/pipeline/test_buffers.py", *_PIPELINE],
    "gloader/device/tier.py": [*_CUDA, *_LOADER],
    "gloader/device/row_table.py": _CUDA,
    "gloader/device/cuda.py": [
        *_CUDA,
        "tests/unit/device/test_host_memory.py",
        "tests/unit/device/test_bare_machine.py",
    ],
    "gloader/distributed/shared_memory.py": [*_CUDA, *_RANKS],
    "gloader/pipeline/open/device_tier.py": ["tests/unit/pipeline/test_open_device_tier.py"],
    "gloader/training/inference/row_stream.py": ["tests/unit/training/inference/test_overlap.py"],
    "gloader/distributed/client_run.py": _RANKS,
    "gloader/distributed/client.py": _RANKS,
}
# (file, what is lost, the text, what is left of it)
DELETIONS: list[tuple[str, str, str, str]] = [
    (
        "gloader/pipeline/send.py",
        "the hold of the host's memory until it was read",
        "                self._sending.append((mark, batch))\n",
        "",
    ),
    (
        "gloader/pipeline/send.py",
        "the wait for the copy before the hold ends",
        "        self._sending[0][0].wait()\n",
        "",
    ),
    (
        "gloader/pipeline/send.py",
        "the question whether the copy is over",
        "while self._sending and self._sending[0][0].is_reached():",
        "while self._sending:",
    ),
    (
        "gloader/pipeline/send.py",
        "the computing stream's wait for the batch",
        "        self.mark.precede(self.blocks_of_memory)\n",
        "",
    ),
    (
        "gloader/pipeline/send.py",
        "the record of the rows' memory",
        "memory = (*x, y) if on_device is None",
        "memory = (y,) if on_device is None",
    ),
    (
        "gloader/pipeline/send.py",
        "the record of the small arrays' memory",
        "memory = (*x, y) if on_device is None",
        "memory = (*x,) if on_device is None",
    ),
    (
        "gloader/pipeline/send.py",
        "the record of the memory of what the device sampled",
        "(*x, y, *on_device.tensors())",
        "(*x, y)",
    ),
    (
        "gloader/pipeline/send.py",
        "the mark's place behind the rows",
        "                x = [\n                    self._features(tier, gathered, device_ids, num_rows=num_rows)\n                    for tier, num_rows, gathered, device_ids in zip(\n                        self._tiers, rows, batch.x, nodes, strict=True\n                    )\n                ]\n                if on_device is None:\n                    edge_x = _edge_features(sampled, dict(zip(self._types, x, strict=True)))\n                    blocks = [\n                        _block_from(block, src_degree, small, device.place, edge_x=block_x)\n                        for block, block_x in zip(sampled.all_blocks, edge_x, strict=True)\n                    ]\n                else:\n                    blocks = list(on_device.blocks)\n            finally:\n                # A batch that fails half-way is held too: the device may be reading its memory.\n                mark = device.mark()\n",
        "                mark = device.mark()\n                x = [\n                    self._features(tier, gathered, device_ids, num_rows=num_rows)\n                    for tier, num_rows, gathered, device_ids in zip(\n                        self._tiers, rows, batch.x, nodes, strict=True\n                    )\n                ]\n                if on_device is None:\n                    edge_x = _edge_features(sampled, dict(zip(self._types, x, strict=True)))\n                    blocks = [\n                        _block_from(block, src_degree, small, device.place, edge_x=block_x)\n                        for block, block_x in zip(sampled.all_blocks, edge_x, strict=True)\n                    ]\n                else:\n                    blocks = list(on_device.blocks)\n            finally:\n",
    ),
    (
        "gloader/pipeline/send.py",
        "the sending stream",
        "        with device.sending():\n",
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
        "gloader/pipeline/send.py",
        "the device's part of that bound",
        "            mark.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/send.py",
        "one batch of that bound",
        "self._num_sent < BATCHES_AHEAD",
        "self._num_sent <= BATCHES_AHEAD",
    ),
    (
        "gloader/pipeline/send.py",
        "the end of a wait for the loop",
        "            self._is_over = True\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/consumer.py",
        "the question whether a step is over",
        " and all(mark.is_reached() for mark in marks):",
        ":",
    ),
    (
        "gloader/pipeline/consumer.py",
        "the wait for the last steps of an epoch",
        "            mark.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/pipeline/consumer.py",
        "the new beginning after an evaluation",
        "        self._requested = None  # what",
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
        "lease = np.frombuffer(buffer.data, dtype=np.uint8)",
        "lease = buffer[:]",
    ),
    (
        "gloader/pipeline/buffers.py",
        "the hold of the reference that gives a buffer back",
        "        self._leases[id(buffer)] = weakref.ref(lease, partial(self._free.put, buffer))\n",
        "        weakref.ref(lease, partial(self._free.put, buffer))\n",
    ),
    (
        "gloader/training/inference/row_stream.py",
        "the wait for what was computed from a buffer before it is filled again",
        "            slot.computed.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/training/inference/row_stream.py",
        "the computing stream's wait for what was sent ahead",
        "            found.mark.precede(found.tensors)\n",
        "",
    ),
    (
        "gloader/training/inference/row_stream.py",
        "the record of the memory that was sent ahead",
        "found.mark.precede(found.tensors)",
        "found.mark.precede(())",
    ),
    (
        "gloader/training/inference/row_stream.py",
        "the wait for the last copy before its buffer goes",
        "            self._last.wait()\n",
        "            pass\n",
    ),
    (
        "gloader/training/inference/row_stream.py",
        "the sending stream of an evaluation",
        "    with device.sending():\n",
        "    if True:\n",
    ),
    (
        "gloader/device/tier.py",
        "the wait of a table whose rows cannot be read",
        "                for mark, *_ in under_way:\n                    mark.wait()\n",
        "                pass\n",
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
        "            send.close()\n",
        "",
    ),
    (
        "gloader/distributed/client_run.py",
        "the end of the sender's wait as the run ends",
        "cancels=[client, send.pace, self._sent]",
        "cancels=[client, self._sent]",
    ),
    (
        "gloader/distributed/shared_memory.py",
        "the copy of the ids that the loop gets",
        "own = np.copy if copies_ids else np.asarray",
        "own = np.asarray",
    ),
    (
        "gloader/distributed/client.py",
        "the lease that every view of a shared buffer holds",
        "        lease = np.frombuffer(self._segments[number].data, dtype=np.uint8)\n",
        "        lease = self._segments[number].view()\n",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU that pins",
        "        with torch.cuda.device(self._place):\n            return self._noted(torch.cuda.cudart().cudaHostRegister",
        "        if True:\n            return self._noted(torch.cuda.cudart().cudaHostRegister",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU that unpins",
        "        with torch.cuda.device(self._place):\n            return self._noted(torch.cuda.cudart().cudaHostUnregister",
        "        if True:\n            return self._noted(torch.cuda.cudart().cudaHostUnregister",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU that is asked for an address",
        "        with torch.cuda.device(self._place):\n            shifts",
        "        if True:\n            shifts",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU of an event",
        "        with torch.cuda.device(self._place):\n            # Blocking",
        "        if True:\n            # Blocking",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU whose free memory is asked for",
        "        with torch.cuda.device(self._place):\n            torch.cuda.synchronize()\n            torch.cuda.empty_cache()\n            return",
        "        if True:\n            torch.cuda.synchronize()\n            torch.cuda.empty_cache()\n            return",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU whose step is measured",
        "        with torch.cuda.device(self._place):\n            torch.cuda.synchronize()\n            torch.cuda.empty_cache()\n            # Reserved",
        "        if True:\n            torch.cuda.synchronize()\n            torch.cuda.empty_cache()\n            # Reserved",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU that tries the kernel",
        "        with torch.cuda.device(place):\n            rows",
        "        if True:\n            rows",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU and the stream that send",
        "with torch.cuda.device(self._place), torch.cuda.stream(self._stream):",
        "if True:",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU and the stream that sample",
        "with torch.cuda.device(self._place), torch.cuda.stream(self._sampling_stream):",
        "if True:",
    ),
    (
        "gloader/device/cuda.py",
        "the sleep of a thread that waits",
        "enable_timing=is_timed, blocking=True",
        "enable_timing=is_timed",
    ),
    (
        "gloader/device/cuda.py",
        "the GPU that an event is waited for on",
        "        with torch.cuda.device(self._place):\n            self._event.synchronize()",
        "        if True:\n            self._event.synchronize()",
    ),
    (
        "gloader/device/cuda.py",
        "the border of pieces in a copy",
        "in pieces(first, rows.nbytes):",
        "in [(first, rows.nbytes)]:",
    ),
    (
        "gloader/device/cuda.py",
        "the wait of the computing stream",
        "        stream.wait_event(self._event)\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "the record of the computing stream",
        "            tensor.record_stream(stream)\n",
        "            pass\n",
    ),
    (
        "gloader/device/cuda.py",
        "the lease of an upload's block",
        "                if not mark.is_reached():\n",
        "                if False:\n",
    ),
    (
        "gloader/device/cuda.py",
        "the hold of an upload's block",
        "            self._sent.append((device.mark_computing(), block))\n",
        "            pass\n",
    ),
    (
        "gloader/device/cuda.py",
        "the runtime's last error taken away",
        "                torch.ones(1, device=self._place)\n",
        "                pass\n",
    ),
    (
        "gloader/device/cuda.py",
        "the comparison of the first rows",
        "if not torch.equal(out, rows.flip(0)):",
        "if False:",
    ),
    (
        "gloader/device/cuda.py",
        "the question whether the kernel runs",
        "        if not self.can_launch:\n            return None\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "the question whether pieces are one array",
        "if pinned is not None and not self._host_memory.is_one_array(pinned.starts):",
        "if False:",
    ),
    (
        "gloader/device/row_table.py",
        "the question whether the kernel reaches the host's rows",
        "(parts.host is None or _is_reachable(parts.host.rows))",
        "True",
    ),
    (
        "gloader/device/cuda.py",
        "the hold of pinned memory until it is unpinned",
        "        _PINNED.add(self)\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "the unpinning with the last view",
        "    weakref.finalize(lease, close_in_finalizer, pinned.close).atexit = False\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "the lease that every view of pinned memory holds",
        "np.frombuffer(memory.data, dtype=np.uint8, count=num_bytes)",
        "memory[:num_bytes]",
    ),
    (
        "gloader/device/cuda.py",
        "the unpinning at the end of the process",
        "weakref.finalize(PinnedArray, _unpin_all)\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "its place behind the end of loaders",
        "pinned.close).atexit = False",
        "pinned.close)",
    ),
    (
        "gloader/device/cuda.py",
        "the child that leaves memory to its parent",
        "        if os.getpid() == self._process:\n",
        "        if True:\n",
    ),
    ("gloader/device/cuda.py", "the child that has no copy of pinned memory", ", inherited=False", ""),
    (
        "gloader/device/cuda.py",
        "the unpinning of pieces after a refusal or an interrupt",
        "        undo.callback(pinned.close)\n",
        "",
    ),
    (
        "gloader/device/cuda.py",
        "the one piece of a buffer",
        "runtime, chunk_bytes=ONE_PIECE)",
        "runtime)",
    ),
    (
        "gloader/distributed/shared_memory.py",
        "the one piece of a segment",
        ", chunk_bytes=ONE_PIECE",
        "",
    ),
    (
        "gloader/pipeline/open/device_tier.py",
        "the unpinning of features whose factors have no room",
        "        undo.callback(pinned.close)\n",
        "",
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
