"""The loaders in a Lightning ``Trainer``: length, state, and resuming in the middle of an epoch through its loop."""

import warnings
from collections.abc import Iterator

import pytest
import torch

from gloader.adapters.dgl import BlockLoader
from gloader.adapters.pyg import NodeLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers, logging and deprecations of torch
        yield


class Module(lightning.LightningModule):
    """A linear layer on the seeds' own features; notes which seeds each step saw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(24, 4)
        self.seen: list[list[int]] = []

    def training_step(self, batch, batch_idx):
        if isinstance(batch, list | tuple):  # Lightning turns tuples into lists in some versions
            _, output_nodes, blocks = batch
            x, y, seeds = (
                blocks[0].srcdata["feat"][: len(output_nodes)],
                blocks[-1].dstdata["label"],
                output_nodes,
            )
        else:
            seeds = batch.n_id[: batch.batch_size]
            x, y = batch.x[: batch.batch_size], batch.y
        self.seen.append(seeds.tolist())
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class StopAt(Callback):
    """Ends the run, as an interrupted one ends, after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.steps:
            raise KeyboardInterrupt


def trainer(folder, *callbacks, **how):
    return lightning.Trainer(
        **({"max_epochs": 3} | how),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
    )


def every_step(folder):
    return ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False
    )


@pytest.mark.parametrize("adapter", [BlockLoader, NodeLoader])
def test_a_run_sees_every_seed_once_per_epoch(dataset, settings, adapter, tmp_path):
    module = Module()
    with adapter(dataset, **settings) as stream:
        trainer(tmp_path, enable_checkpointing=False).fit(module, stream)
        assert stream.state_dict()["next"] == [3, 0]
    assert len(module.seen) == 21
    for epoch in range(3):
        seeds = [seed for step in module.seen[7 * epoch : 7 * epoch + 7] for seed in step]
        assert sorted(seeds) == sorted(dataset.train.tolist())


@pytest.mark.parametrize("adapter", [BlockLoader, NodeLoader])
@pytest.mark.parametrize("step", [3, 7, 10, 14])
def test_resuming_at_a_step_continues_the_stream_and_the_weights(dataset, settings, adapter, step, tmp_path):
    whole = Module()
    with adapter(dataset, **settings) as stream:
        trainer(tmp_path, every_step(tmp_path)).fit(whole, stream)
    resumed = Module()
    with adapter(dataset, **settings) as stream:
        trainer(tmp_path, enable_checkpointing=False).fit(
            resumed, stream, ckpt_path=tmp_path / f"step={step}.ckpt"
        )
    assert resumed.seen == whole.seen[step:]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_fewer_batches_than_an_epoch_has_start_the_next_epoch_in_time(dataset, settings, tmp_path):
    module = Module()
    with NodeLoader(dataset, **settings) as stream:
        trainer(tmp_path, enable_checkpointing=False, limit_train_batches=3).fit(module, stream)
    assert len(module.seen) == 9


def test_an_interrupted_run_leaves_no_thread_behind(dataset, settings, tmp_path):
    module = Module()
    with NodeLoader(dataset, **settings) as stream, pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer(tmp_path, StopAt(4), enable_checkpointing=False).fit(module, stream)
    assert len(module.seen) == 4
