"""Training of SIGN and SGC on datasets with hop columns, from rows that are read in windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError, FormatError
from gloader.loader import Loader
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.dataset_checks import column_groups, require_dataset
from gloader.training.inference.layer_rows import InputRows
from gloader.training.predict import predict
from gloader.training.reporter import SilentReporter
from gloader.training.train import FitResult, RunFiles, resolved_settings

N, DIM, CLASSES = 240, 4, 3
GROUPS = [["x", 0, DIM], ["in1.mean", DIM, 2 * DIM], ["in2.mean", 2 * DIM, 3 * DIM]]
SIGN = ModelConfig(name="sign", hidden=16, dropout=0.3)
OPTIM = OptimConfig(epochs=4, lr=0.02)
# 144 training nodes: 5 steps an epoch, in windows of 2 steps with 8 blocks of 8 nodes.
LOADER = LoaderSettings.of(
    fanouts=(4, 4),
    batch_size=32,
    threads=1,
    memory_budget=400_000_000,
    features="ssd",
    seed_blocks=8,
    seed_window=2,
)
BATCHES = 5


def _write(path, groups: Any = GROUPS) -> Dataset:
    """Write nodes without edges, whose last hop tells the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, N)
    features = rng.normal(size=(N, 3 * DIM)).astype(np.float32)
    features[:, 2 * DIM :] += 3 * np.eye(CLASSES, DIM)[labels]
    parts = [np.sort(part) for part in np.split(rng.permutation(N), [144, 192])]
    metadata = {} if groups is None else {"hops": {"columns": groups}}
    with Dataset.create(path, name="hops", num_nodes=N, num_classes=CLASSES, metadata=metadata) as writer:
        with writer.indptr() as out:
            out.append(np.zeros(N + 1, np.int64))
        with writer.indices(0, "int32") as out:
            out.append(np.zeros(0, np.int32))
        with writer.features(3 * DIM, "float32") as out:
            out.append(features)
        writer.labels(labels)
        writer.splits(train=parts[0], valid=parts[1], test=parts[2])
    return Dataset.open(path)


@pytest.fixture(scope="module")
def hops(tmp_path_factory) -> Dataset:
    return _write(tmp_path_factory.mktemp("hops") / "dataset")


def _fit(dataset, model=SIGN, optim=OPTIM, loader=LOADER, **rest) -> FitResult:
    keywords = {name: rest.pop(name) for name in ("reporter", "loader_factory") if name in rest}
    settings = TrainSettings(model=model, optim=optim, loader=loader)
    return train.fit(dataset, settings, files=RunFiles(**rest), **keywords)


class _Listener(SilentReporter):
    summary = ""

    def on_start(self, start) -> None:
        self.summary = start.summary


@pytest.mark.parametrize("name", ["sign", "sgc"])
def test_a_model_learns_from_hop_columns_and_says_how_rows_are_read(hops, name) -> None:
    listener = _Listener()
    result = _fit(hops, replace(SIGN, name=name), replace(OPTIM, epochs=20), reporter=listener)
    assert result.summary["test_acc"] > 0.8
    assert (
        f"{name} reads hop columns and samples no neighbours: --fanout has no effect; rows are read in blocks of 8, "
        "shuffled over 2 steps" in listener.summary
    )
    assert "0 rows (0.0%) cached, policy none" in listener.summary


def test_losses_depend_neither_on_the_place_of_the_rows_nor_on_the_superbatch(hops) -> None:
    given = [{"features": "ram"}, {}, {"superbatch": 1}, {"superbatch": 3}, {"policy": "lru", "cache": 4096}]
    runs = [_fit(hops, loader=LOADER.changed(**each)).runs[0] for each in given]
    losses = [[record.loss for record in run.epochs] for run in runs]
    assert all(each == losses[0] for each in losses[1:])
    assert len({run.test_acc for run in runs}) == 1


class _InterruptingLoader(Loader):
    """Fails instead of handing out batch ``fail_at``, counted over all epochs."""

    fail_at = 0

    def __iter__(self):
        for batch in super().__iter__():
            if batch.id.epoch * BATCHES + batch.id.index == self.fail_at:
                raise RuntimeError("the power went out")
            yield batch


@pytest.mark.parametrize("fail_at", [BATCHES + 1, BATCHES + 4])
def test_a_run_that_ends_within_a_window_is_resumed_bit_for_bit(hops, tmp_path, monkeypatch, fail_at) -> None:
    optim = replace(OPTIM, checkpoint_every=1)
    whole = _fit(hops, optim=optim, out=tmp_path / "whole").runs[0]
    monkeypatch.setattr(_InterruptingLoader, "fail_at", fail_at)
    make = _InterruptingLoader.from_settings
    with pytest.raises(RuntimeError, match="the power went out"):
        _fit(hops, optim=optim, out=tmp_path / "cut", loader_factory=make)
    resumed = _fit(hops, optim=optim, out=tmp_path / "cut", resume=True).runs[0]
    assert [record.loss for record in resumed.epochs] == [record.loss for record in whole.epochs]
    ours, theirs = (load_checkpoint(tmp_path / name).progress["weights"] for name in ("cut", "whole"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_two_ranks_take_each_row_once_an_epoch(hops) -> None:
    taken = []
    for rank in (0, 1):
        settings = resolved_settings(TrainSettings(model=SIGN, loader=LOADER), hops).loader
        with Loader.from_settings(hops, settings.changed(rank=rank, world_size=2, epochs=1)) as loader:
            taken.append([batch.nodes for batch in loader])
    assert [len(each) for each in taken] == [3, 3]
    assert sorted(np.concatenate([*taken[0], *taken[1]])) == sorted(hops.train)


def test_windows_follow_from_the_bytes_of_a_batch(hops) -> None:
    loader = LoaderSettings.of(fanouts=(15, 10, 5), batch_size=32)
    found = resolved_settings(TrainSettings(model=SIGN, loader=loader), hops).loader
    # 32 rows of 48 bytes: 65,536 steps have 96 MiB, and a block is the 1024th part of their rows.
    assert (found.sampling.seed_window, found.sampling.seed_blocks) == (65_536, 2048)
    assert (found.sampling.fanouts, found.memory.policy) == ((0,), "none")
    balanced = TrainSettings(model=SIGN, loader=loader, optim=replace(OPTIM, balance="classes"))
    found = resolved_settings(balanced, hops).loader
    assert (found.sampling.seed_window, found.sampling.seed_blocks) == (1, 1)


@pytest.mark.parametrize("is_on_device", [False, True])
@pytest.mark.parametrize("device_cache", [0, "1MB"])
def test_an_evaluation_reads_the_rows_of_its_nodes_alone(
    hops, monkeypatch, is_on_device, device_cache
) -> None:
    expected = _fit(hops, loader=LOADER.changed(features="ram")).summary
    reads: list[np.ndarray] = []
    true = InputRows.take
    monkeypatch.setattr(
        InputRows, "take", lambda self, rows, out: (reads.append(rows), true(self, rows, out))[1]
    )
    loader = LOADER
    if is_on_device:
        device = RehearsedDevice()
        for place in ("pipeline.open.device_tier", "training.inference.placement"):
            monkeypatch.setattr(f"gloader.{place}.open_device", lambda place: device)
        loader = loader.changed(device_cache=device_cache)
    monkeypatch.setattr(InputRows, "read", None)  # it reads ranges of all rows
    found = _fit(hops, loader=loader).summary
    assert (found["valid_acc"], found["test_acc"]) == (expected["valid_acc"], expected["test_acc"])
    if not (is_on_device and device_cache):
        assert set(np.concatenate(reads)) == {*hops.valid, *hops.test}


def test_a_checkpoint_is_for_the_same_hop_columns(hops, tmp_path) -> None:
    _fit(hops, out=tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert saved.spec.encoder.groups == column_groups(hops)
    found = predict(hops, saved, memory_budget_bytes=10**8)
    assert (found[hops.test] == hops.labels_of(hops.test)).mean() > 0.8
    others = [*GROUPS[:1], ["out1.mean", 4, 8], GROUPS[2]]
    other = _write(tmp_path / "other", others)
    with pytest.raises(
        CheckpointError, match=r"reads the hop columns x 0:4, in1.mean 4:8, .* has x 0:4, out1.mean 4:8"
    ):
        predict(other, saved, memory_budget_bytes=10**8)


def test_a_dataset_without_hop_columns_is_refused_with_the_command_to_type(tmp_path) -> None:
    plain = _write(tmp_path / "plain", None)
    with pytest.raises(
        ConfigError, match=rf"has no hop columns.*`gloader propagate {plain.location} {plain.location}-hops`"
    ):
        _fit(plain)
    # Before kernels are compiled, too.
    with pytest.raises(ConfigError, match="has no hop columns"):
        require_dataset(TrainSettings(model=SIGN), plain)


@pytest.mark.parametrize(
    "groups", [[], [["x", 0, 4]], [["x", 0, 4], ["in1", 5, 12]], [["x", 0, 0], ["in1", 0, 12]], "x", [["x"]]]
)
def test_groups_that_are_not_the_columns_are_refused(tmp_path, groups) -> None:
    with pytest.raises(
        FormatError, match=r"names the hop columns .* and has 12 columns; its record is damaged"
    ):
        _fit(_write(tmp_path / "odd", groups))
