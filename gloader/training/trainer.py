"""One network's training, from its first batch to its test accuracy, on one rank or several.

`gloader.training.train` makes one `Trainer` per run. A rank is one process of a launch; each trains on its part of
every step. `Trainer.train` runs the epochs: it trains the batches, evaluates on the validation data, writes a line of
metrics and saves a checkpoint. At the end it tests the weights of the best epoch.

Methods marked as collective exchange values between ranks: every rank must call them in the same order.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from gloader.errors import CheckpointError, ConfigError, StateError
from gloader.observe.epoch_stats import EpochStats
from gloader.observe.peak_memory import release_freed_memory
from gloader.training.checkpoint.save import Checkpoint
from gloader.training.embeddings import NO_EMBEDDINGS
from gloader.training.metrics import EpochRecord, RunningMetrics, merge_stats, with_traffic
from gloader.training.process import all_cores
from gloader.training.reporter import BatchReport, Reporter
from gloader.training.run_folder import differing, is_of_the_model
from gloader.training.task import Evaluation, Scores
from gloader.training.train_step import TrainStep, first_network, learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from gloader.dataset import Dataset
    from gloader.loader.node_embedding import FrozenEmbedding
    from gloader.observe.peak_memory import PeakMemory
    from gloader.training.embeddings import RunEmbeddings
    from gloader.training.group import RankGroup, SideWork
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.run_folder import RunFolder
    from gloader.training.run_inference import MachineRows
    from gloader.training.task import AnyLoader, Split
    from gloader.training.train_step import TrainRecipe

# Seconds between two reports of a running epoch. A report reads sums from the device and waits for it. Ten reports a
# second look smooth and cost little.
_REPORT_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The training's result. The fields ``*_acc`` hold the task's metric, which is the accuracy for node tasks."""

    best_epoch: int  # number of the epoch, from 0
    valid_acc: float | None  # on the validation data, in the best epoch; None without such data
    test_acc: float | None  # on the test data, with the weights of the best epoch
    base: (
        Scores | None
    )  # of the network alone, if a step follows it; `valid_acc` and `test_acc` are behind the step
    epochs: tuple[EpochRecord, ...]


class Trainer:
    """Trains and evaluates one network. Owns nothing; seeds torch's generators: use it in `private_randomness`.

    Every rank of ``group`` trains on its part of each step, and the gradients are averaged. Only the first rank
    evaluates, reports and writes metrics, while the others wait. In an evaluation, each layer needs the output of the
    layer below for all nodes. Several ranks would therefore repeat this work, or send every activation to every rank.
    Ranks on one machine would also compete for its cores, memory and SSD.

    Parameters
    ----------
    recipe : task, optimisation, precision and seed
    dataset : the dataset, whose fingerprint is saved in checkpoints
    group : the ranks that train together
    loader : a loader over this rank's training data
    inference : inference over all neighbours, for evaluation; needed only on the first rank
    device : the network's device
    folder : folder for metrics and checkpoints; None writes nothing
    reporter : receives batches, epochs and evaluations
    rows : readers of all machines' feature rows, if each machine stores a part; ``inference`` on the first rank uses
        them
    peak : watches this rank's memory
    embeddings : the trained rows in the batches, at the position of the checkpoint to resume from

    Raises
    ------
    ConfigError, BudgetError
        The model is not allowed, or evaluation does not fit its budget. Raised before training.
    """

    def __init__(  # noqa: PLR0913 - what a run consists of, each a keyword
        self,
        *,
        recipe: TrainRecipe,
        dataset: Dataset,
        group: RankGroup,
        loader: AnyLoader,
        inference: HeteroInference | None,
        device: torch.device,
        folder: RunFolder | None,
        reporter: Reporter,
        rows: MachineRows | None,
        peak: PeakMemory,
        embeddings: RunEmbeddings = NO_EMBEDDINGS,
    ) -> None:
        self._recipe = recipe
        self._task, self._spec = recipe.task, recipe.task.spec
        self._optim = recipe.optim
        self._dataset = dataset
        self._group = group
        self._loader = loader
        self._inference = inference
        self._device = device
        self._folder = folder
        self._reporter = reporter
        self._rows = rows
        self._peak = peak
        self._embeddings = embeddings
        self._moved = (0, 0)  # bytes that the embeddings read and wrote before the epoch
        # This precedes every random draw: the weights are equal on every rank.
        self._model = first_network(recipe, device)
        # The first rank checks for all: the budget is the machine's, and an error must reach every rank
        # before DDP waits.
        group.run_on_first(self._require_inference)
        num_steps = recipe.optim.epochs * len(loader)
        self._step = TrainStep(self._model, recipe, group, num_steps=num_steps, embeddings=embeddings)
        self._optimizer = self._step.optimizer
        # Without a checkpoint, the first epoch starts with no progress and the initial weights as the best ones.
        self._progress = _Progress(epochs=(), best_epoch=-1, best_valid=None, partial=None)
        self._best_weights = self._weights()

    @property
    def num_parameters(self) -> int:
        """Number of trained weights, those of embeddings included."""
        of_network = sum(parameter.numel() for parameter in self._model.parameters())
        return of_network + self._embeddings.num_weights

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that `train` runs next, from 0."""
        return len(self._progress.epochs)

    def resume_from(self, checkpoint: Checkpoint) -> None:
        """Continue from the position of ``checkpoint``.

        Raises
        ------
        CheckpointError, StateError
            The checkpoint is malformed, or belongs to another run, model, dataset or batch stream.
        """
        content = checkpoint.progress
        try:
            progress = _Progress.from_json(content["progress"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the training state in the checkpoint is malformed: {error!r}") from error
        self._require_same_run(checkpoint, epochs_done=len(progress.epochs))
        try:
            self._model.load_state_dict(content["weights"])
            self._optimizer.load_state_dict(content["optimizer"])
            loader_state = content["loader"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the training state in the checkpoint is malformed: {error!r}") from error
        self._progress = progress
        self._best_weights = dict(checkpoint.weights)
        self._loader.load_state_dict(loader_state)

    def train(self) -> Outcome:
        """Train the remaining epochs, then test the best weights. Collective."""
        if self._folder is not None and self._group.is_first:
            self._folder.start_metrics(record.to_json() for record in self._progress.epochs)
        while not self._is_finished():
            record = self._train_epoch(self.next_epoch)
            self._progress = self._progress.after(record, is_error=self._task.is_error)
            is_best = self._progress.best_epoch == record.epoch
            if is_best:
                self._best_weights = self._weights()
            if self._folder is not None and self._group.is_first:
                self._folder.append_metrics(record.to_json())
            # The checkpoint follows the line of metrics: a run killed between them repeats the epoch and its line.
            self._save(is_best=is_best)
            self._reporter.on_epoch(record)
        return self._test()

    def _require_same_run(self, checkpoint: Checkpoint, *, epochs_done: int) -> None:
        """Raise CheckpointError or StateError with every difference between this run and the checkpoint's run."""
        saved = {**checkpoint.settings, "dataset": checkpoint.fingerprint}
        ours = {**self._recipe.settings, "dataset": self._dataset.fingerprint}
        # The names of settings that differ and may not.
        names = differing(saved, ours, epochs_done=epochs_done)
        texts = [f"{name} is {saved.get(name)!r} there and {ours.get(name)!r} here" for name in names]
        if checkpoint.run_id != self._recipe.run_id:
            others = "".join(f"; {text}" for text in texts)
            raise CheckpointError(
                f"the checkpoint is of run {checkpoint.run_id}, and config.yaml in its folder is of another run"
                f"{others}; restore the config.yaml of the checkpoint's run, or train without --resume, which deletes "
                "the checkpoint"
            )
        if texts:
            kind = CheckpointError if is_of_the_model(names) else StateError
            raise kind(
                f"the checkpoint is of a run with other settings: {'; '.join(texts)}; use the same settings or another "
                "--out"
            )
        if checkpoint.spec != self._spec:
            raise CheckpointError(f"the checkpoint is of {checkpoint.spec}, this run trains {self._spec}")

    def _require_inference(self) -> None:
        """Raise BudgetError if evaluation does not fit its budget. For the first rank."""
        if self._inference is None:
            raise ConfigError("the first rank evaluates; give its trainer an inference")
        self._task.require_memory(self._model, self._inference)

    def _is_finished(self) -> bool:
        """Return True after the last epoch, or after ``patience`` epochs without a better one; 0 is no limit."""
        patience = self._optim.patience
        stale = self.next_epoch - 1 - self._progress.best_epoch  # finished epochs since the best one
        is_stale = patience > 0 and self._progress.best_valid is not None and stale >= patience
        return self.next_epoch >= self._optim.epochs or is_stale

    def _train_epoch(self, epoch: int) -> EpochRecord:
        """Train and validate one epoch, or the rest of it after a resume. Return its figures. Collective."""
        self._optimizer.lr = learning_rate(self._optim, epoch)
        self._model.train()
        self._peak.begin_course()  # starts the record of the epoch's memory, see `_memory_bytes`
        metrics = self._train_batches(epoch).over(self._group)  # summed over all ranks
        seconds, rows_per_second = metrics.seconds, metrics.rows_per_second
        bottleneck, stats = self._share_stats()
        # The loader's figures are taken first: an evaluation's reads do not belong to the epoch.
        self._end_phase()
        valid_acc, evaluate_seconds = self._validate(epoch)
        return EpochRecord(
            epoch=epoch,
            loss=metrics.loss,
            train_acc=metrics.accuracy,
            valid_acc=valid_acc,
            lr=self._optimizer.lr,
            seconds=seconds,
            evaluate_seconds=evaluate_seconds,
            rows_per_second=rows_per_second,
            bottleneck=bottleneck,
            stats=stats,
            metric=self._task.metric,
            memory_bytes=self._memory_bytes(),
            embedding_bytes=self._embedding_bytes(),
        )

    def _train_batches(self, epoch: int) -> RunningMetrics:
        """Train the remaining batches of ``epoch``, with reports and checkpoints. Return this rank's metrics."""
        metrics = RunningMetrics(
            self._device, objective=self._task.objective, saved=self._progress.partial_of(self._group)
        )
        reported = time.perf_counter()
        for given in self._loader:
            index = given.id.index
            is_last = index + 1 == len(self._loader)
            self._peak.require_below()  # frees memory, or raises an error, if the planned bytes are exceeded
            batch, rows = self._task.drawn(given, self._loader)
            outputs, loss = self._step.take(batch, is_last=is_last, rows=rows)
            metrics.add(batch, outputs, loss)
            now = time.perf_counter()
            if is_last or now - reported >= _REPORT_EVERY_S:
                reported = now
                self._reporter.on_batch(_batch_report(epoch, index, len(self._loader), metrics))
            every = self._optim.checkpoint_every
            # The last batch is saved by the epoch's checkpoint, which also holds its metrics.
            if every and (index + 1) % every == 0 and not is_last:
                self._save(partial=self._group.gather(metrics.state()))
        return metrics

    def _share_stats(self) -> tuple[str, EpochStats]:
        """Return a sentence on the first rank's slowest part, and the loaders' sums over all ranks. Collective."""
        stats = with_traffic(self._loader.stats, self._dataset.mirrored)
        parts = self._group.gather({"bottleneck": self._loader.bottleneck(), "stats": asdict(stats)})
        return parts[0]["bottleneck"], merge_stats([EpochStats(**part["stats"]) for part in parts])

    def _memory_bytes(self) -> tuple[int, ...]:
        """Return the memory of all ranks on the first machine, over the course of the epoch. Collective.

        The epoch's time is divided into equal parts, with one number of bytes for each part.
        """
        # Memory that this rank maps from another process counts only there.
        borrowed = self._loader.borrowed_bytes
        parts = self._group.gather([max(held - borrowed, 0) for held in self._peak.course()])
        return tuple(map(sum, zip(*(parts[rank] for rank in self._group.first_machine), strict=True)))

    def _embedding_bytes(self) -> tuple[int, int] | None:
        """Return the bytes that the embeddings read and wrote since the last call; None without embeddings."""
        if not self._embeddings.by_type or not self._group.is_first:
            return None
        before, self._moved = self._moved, self._embeddings.bytes_moved
        return self._moved[0] - before[0], self._moved[1] - before[1]

    def _end_phase(self) -> None:
        """Free the training steps' memory before an evaluation uses it."""
        self._optimizer.zero_grad()
        release_freed_memory()

    def _validate(self, epoch: int) -> tuple[float | None, float]:
        """Return the validation score and its seconds, or None and 0 in an epoch without evaluation. Collective."""
        is_due = (epoch + 1) % self._optim.eval_every == 0 or epoch + 1 == self._optim.epochs
        if not is_due:
            return None, 0.0

        def validate() -> list[float | None]:
            started = time.perf_counter()
            valid_acc = self._evaluate("valid", self._embeddings.views).score
            return [valid_acc, time.perf_counter() - started]

        # All ranks use one measurement, so that they decide equally on patience and the best epoch.
        valid_acc, seconds = self._group.run_on_first(validate, meanwhile=self._serve)
        return valid_acc, seconds or 0.0

    def _evaluate(self, split: Split, embeddings: Mapping[str, FrozenEmbedding]) -> Evaluation:
        """Return the network's score on a split, with these trained rows. For the first rank; the others wait."""
        if self._inference is None:
            return Evaluation(score=None)
        inference = replace(self._inference, embeddings=embeddings)
        reading = nullcontext() if self._rows is None else self._rows.reading()
        with all_cores(self._group, self._device), reading:
            found = self._task.score(split, self._model, inference, self._reporter.on_evaluate)
        # The next step or the test uses this memory.
        release_freed_memory()
        return found

    def _score_test(self) -> list[Any]:
        """Return the network's score on the test data, and those behind a following step (valid, test) or None.

        Writes the summary of the scores. For the first rank.
        """
        with self._embeddings.at_best() as embeddings:
            found = self._evaluate("test", embeddings)
        if self._folder is not None and found.summary is not None:
            self._folder.write_scores(found.summary())
        return [found.score, None if found.behind is None else [found.behind.valid, found.behind.test]]

    @property
    def _serve(self) -> SideWork | None:
        """The work of the other ranks during an evaluation: they send their machines' rows to the first rank."""
        return None if self._rows is None else self._rows.serve

    def _test(self) -> Outcome:
        """Load the weights of the best epoch, score them once on the test data, and return the result. Collective."""
        self._model.load_state_dict(self._best_weights)
        test_acc, behind = self._group.run_on_first(self._score_test, meanwhile=self._serve)
        progress = self._progress
        base = Scores(valid=progress.best_valid, test=test_acc)
        final = base if behind is None else Scores(valid=behind[0], test=behind[1])
        return Outcome(
            best_epoch=progress.best_epoch,
            valid_acc=final.valid,
            test_acc=final.test,
            base=None if behind is None else base,
            epochs=progress.epochs,
        )

    def _weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the network's current weights in host memory, by name."""
        return {name: value.detach().cpu().clone() for name, value in self._model.state_dict().items()}

    def _save(self, partial: Sequence[dict[str, float]] | None = None, *, is_best: bool = False) -> None:
        """Save a checkpoint, if the run has a folder. Collective.

        Parameters
        ----------
        partial : each rank's sums within an epoch, see `_Progress.partial`; None after an epoch
        is_best : whether the ended epoch is the best one so far
        """
        loader = self._loader.state_dict()
        # The records come first: a run killed before the checkpoint resumes from the older one, with the older records.
        self._embeddings.commit(tuple(loader["next"]), self._group, is_best=is_best)
        if self._folder is None:
            self._embeddings.settle(self._group, is_kept=False)
            return
        progress = asdict(self._progress) | {"partial": partial}
        self._folder.save_checkpoint(
            Checkpoint(
                run_id=self._recipe.run_id,
                settings=self._recipe.settings,
                spec=self._spec,
                fingerprint=self._dataset.fingerprint,
                weights=self._best_weights,
                # The state to resume from: the current weights, in contrast to the best ones above.
                progress={
                    "weights": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "progress": progress,
                    "loader": loader,
                },
                embeddings=self._embeddings.saved,
            ),
            group=self._group,
        )
        self._embeddings.settle(self._group, is_kept=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The finished epochs, and the state of the current epoch."""

    epochs: tuple[EpochRecord, ...]
    best_epoch: int  # -1 before the first epoch is finished
    best_valid: float | None  # the best epoch's score on the validation data
    # Each rank's sums (`RunningMetrics.state`) if the checkpoint was saved within an epoch, otherwise None.
    partial: Sequence[dict[str, float]] | None

    def partial_of(self, group: RankGroup) -> dict[str, float] | None:
        """Return this rank's sums to continue from, or None to start at zero."""
        if self.partial is None or len(self.partial) == group.world_size:
            return None if self.partial is None else self.partial[group.rank]
        # The run resumes on another number of ranks. Then only the first rank continues the saved sums, all of them, so
        # that nothing counts twice.
        if not group.is_first:
            return None
        total = {name: sum(part[name] for part in self.partial) for name in self.partial[0]}
        # The ranks ran at the same time, so their seconds are not added up.
        return total | {"seconds": max(part["seconds"] for part in self.partial)}

    def after(self, record: EpochRecord, *, is_error: bool) -> _Progress:
        """Return the progress with one more epoch. Without validation the last epoch is the best."""
        valid, best = record.valid_acc, self.best_valid
        # Only a strictly better epoch counts: the earliest of equal epochs stays the best.
        is_better = best is None or (valid is not None and (valid < best if is_error else valid > best))
        return _Progress(
            epochs=(*self.epochs, record),
            best_epoch=record.epoch if is_better else self.best_epoch,
            best_valid=valid if is_better else self.best_valid,
            partial=None,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> _Progress:
        """Return the progress from the result of `dataclasses.asdict`; KeyError or TypeError if it is malformed."""
        if set(content) != {field.name for field in fields(cls)}:
            raise TypeError(f"progress has the entries {sorted(content)}")
        epochs = tuple(map(_record_of, content["epochs"]))
        return cls(**(dict(content) | {"epochs": epochs}))


def _record_of(content: Mapping[str, Any]) -> EpochRecord:
    """Return an epoch's record from its entry in a checkpoint."""
    stats = EpochStats(**content["stats"])
    memory_bytes = tuple(content.get("memory_bytes", ()))  # earlier versions recorded none
    moved = content.get("embedding_bytes")  # JSON has no tuples
    return EpochRecord(
        **{
            **content,
            "stats": stats,
            "memory_bytes": memory_bytes,
            "embedding_bytes": None if moved is None else tuple(moved),
        }
    )


def _batch_report(epoch: int, index: int, num_batches: int, metrics: RunningMetrics) -> BatchReport:
    """Return a report on the epoch up to batch ``index``. Reading the metrics waits for the device."""
    return BatchReport(
        epoch=epoch,
        index=index,
        num_batches=num_batches,
        loss=metrics.loss,
        accuracy=metrics.accuracy,
        rows_per_second=metrics.rows_per_second,
    )
