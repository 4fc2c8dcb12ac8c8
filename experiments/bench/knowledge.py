"""Knowledge graphs: seconds of an epoch and filtered ranks beside pykeen and dicee, and the leak of inverse relations.

    python experiments/bench/knowledge.py --data FOLDER --work FOLDER --out experiments/results/DATE-knowledge

FOLDER has a folder for each graph, with train.txt, valid.txt and test.txt, those of pykeen's wheel. PYTHONPATH may have
pykeen and dicee; without one of them, its rows are left out. All train ComplEx with equal widths, numbers of scored
wrong triples, batches, epochs and learning rates. gloader's entities have SparseAdam and lie on the SSD, once with room
for all rows and once for a part. pykeen has Adam in memory and the loss InfoNCE without a margin, which is the same
cross-entropy over negatives of each triple alone. dicee has Adam and its own loss, over a memory map of the triples.
Every contender ranks the test triples by its own evaluator; pykeen's also ranks gloader's trained rows, as a check.

The leak is measured on one graph: its triples with and without their inverses, divided by triples or by pairs of
entities, and ranked by the test triples of the original relations.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader import Dataset
from gloader.config import (
    EmbedConfig,
    KnowledgeConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    TrainSettings,
)
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.lab.bench.environment import provenance
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.knowledge_answers import open_ranker
from gloader.training.knowledge_ranks import rank_figures, read_triples
from gloader.training.train import RunFiles, fit

if TYPE_CHECKING:
    from collections.abc import Callable


GRAPHS: Final = ("umls", "kinships")
LEAK_GRAPH: Final = "umls"
DIM, NEGATIVES, BATCH, LR = 64, 32, 256, 0.01
EPOCHS: Final = 40
MADE_ENTITIES, MADE_TRIPLES, MADE_RELATIONS = 200_000, 100_000, 50
MADE_BATCH, MADE_DIM, MADE_NEGATIVES, MADE_EPOCHS = 1024, 128, 64, 3


def main() -> None:
    """Measure what is there and write the tables."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], Any]] = {
        "graphs": lambda: {name: _compare(options, name) for name in GRAPHS},
        "leak": lambda: _leak(options),
        "made": lambda: _made(options),
    }
    file = options.out.with_suffix(".json")
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= provenance()
    results["command"] = "python experiments/bench/knowledge.py --data FOLDER --work FOLDER --out OUT"
    for name in options.parts.split(","):
        results[name] = parts[name]()
        file.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps({name: results[name]}, indent=1))


def _options() -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("data", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parts", default="graphs,leak,made", help="the parts to measure")
    return parser.parse_args()


def _prepared(work: Path, name: str, spec: str, **options: Any) -> Dataset:
    """Return a dataset of triples."""
    out = work / name
    prepare(
        open_source(spec, SourceOptions()),
        out,
        PrepareOptions(memory_budget_bytes=1 << 30, overwrite=True, **options),
    )
    return Dataset.open(out)


def _settings(
    *, epochs: int, dim: int, negatives: int, batch: int, cache: float | None = None
) -> TrainSettings:
    """Return the settings of a run of gloader."""
    return TrainSettings(
        task="kg",
        model=ModelConfig(name="complex"),
        optim=OptimConfig(epochs=epochs, lr=LR, eval_every=epochs),
        loader=LoaderSettings.of(fanouts=(0,), batch_size=batch, memory_budget=4 << 30),
        links=LinkConfig(negatives=f"uniform:{negatives},shared"),
        knowledge=KnowledgeConfig(dim=dim),
        embed=EmbedConfig(optimizer="sparse-adam", lr=LR, cache=cache),
    )


def _ours(dataset: Dataset, settings: TrainSettings, out: Path) -> dict[str, Any]:
    """Train with gloader."""
    result = fit(dataset, settings, files=RunFiles(out=out, overwrite=True))
    (run,) = result.runs
    scores = json.loads((out / "scores.json").read_text()) if (out / "scores.json").exists() else {}
    seconds = [epoch.seconds for epoch in run.epochs[1:]]
    return {
        "epoch_s": median(seconds),
        "evaluate_s": run.epochs[-1].evaluate_seconds,
        **{name: scores["metrics"][name] for name in ("mrr", "hits@1", "hits@10") if scores},
        "bytes_written": sum(epoch.stats.bytes_written for epoch in run.epochs) // len(run.epochs),
    }


def _compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the figures of all contenders on a graph."""
    folder = options.data / name
    dataset = _prepared(options.work, name, f"triples:{folder}")
    settings = _settings(epochs=EPOCHS, dim=DIM, negatives=NEGATIVES, batch=BATCH)
    out = options.work / f"{name}-run"
    found = {"gloader": _ours(dataset, settings, out)}
    if find_spec("pykeen"):
        found["pykeen"] = _pykeen(folder, epochs=EPOCHS, dim=DIM, negatives=NEGATIVES, batch=BATCH)
        found["gloader ranked by pykeen"] = _ranked_by_pykeen(folder, dataset, out)
    if find_spec("dicee"):
        found["dicee"] = _dicee(folder, options.work / f"{name}-dicee")
    return found


def _factories(folder: Path) -> Any:
    """Return pykeen's factories of the three parts."""
    from pykeen.triples import TriplesFactory

    train = TriplesFactory.from_path(folder / "train.txt")
    others = [
        TriplesFactory.from_path(
            folder / f"{part}.txt", entity_to_id=train.entity_to_id, relation_to_id=train.relation_to_id
        )
        for part in ("valid", "test")
    ]
    return train, *others


def _pykeen(
    folder: Path, *, epochs: int, dim: int, negatives: int, batch: int, evaluates: bool = True
) -> dict[str, Any]:
    """Train with pykeen in memory."""
    from pykeen.losses import InfoNCELoss
    from pykeen.models import ComplEx
    from pykeen.training import SLCWATrainingLoop

    train, valid, test = _factories(folder) if evaluates else (*_factories(folder)[:1], None, None)
    torch.manual_seed(0)
    model = ComplEx(
        triples_factory=train,
        embedding_dim=dim // 2,
        regularizer=None,
        loss=InfoNCELoss(margin=0.0, log_adversarial_temperature=0.0),
        random_seed=0,
    )
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=train,
        optimizer=torch.optim.Adam(model.parameters(), lr=LR),
        negative_sampler_kwargs={"num_negs_per_pos": 2 * negatives},
    )
    started = time.perf_counter()
    loop.train(train, num_epochs=epochs, batch_size=batch, use_tqdm=False, checkpoint_name=None)
    found: dict[str, Any] = {"epoch_s": (time.perf_counter() - started) / epochs}
    if evaluates:
        found |= _pykeen_ranks(model, train, valid, test)
    return found


def _pykeen_ranks(model: Any, train: Any, valid: Any, test: Any) -> dict[str, Any]:
    """Return the figures of pykeen's evaluator: filtered, realistic, both sides."""
    from pykeen.evaluation import RankBasedEvaluator

    started = time.perf_counter()
    result = RankBasedEvaluator(filtered=True).evaluate(
        model,
        test.mapped_triples,
        additional_filter_triples=[train.mapped_triples, valid.mapped_triples],
        batch_size=256,
        use_tqdm=False,
    )
    names = {"mrr": "inverse_harmonic_mean_rank", "hits@1": "hits_at_1", "hits@10": "hits_at_10"}
    figures = {ours: float(result.get_metric(f"both.realistic.{theirs}")) for ours, theirs in names.items()}
    return {"evaluate_s": time.perf_counter() - started, **figures}


def _ranked_by_pykeen(folder: Path, dataset: Dataset, run: Path) -> dict[str, Any]:
    """Return the figures of pykeen's evaluator for gloader's trained rows."""
    from pykeen.models import ComplEx

    train, valid, test = _factories(folder)
    model = ComplEx(triples_factory=train, embedding_dim=DIM // 2, regularizer=None)
    entities, relations = (dataset.node_tables[each] for each in ("entity", "relation"))
    with open_ranker(dataset, load_checkpoint(run)) as ranker:
        rows = ranker.entities.rows(np.arange(entities.num_nodes))
        tables = (
            (model.entity_representations[0], rows, entities, train.entity_to_id),
            (
                model.relation_representations[0],
                ranker.network.relations.detach(),
                relations,
                train.relation_to_id,
            ),
        )
        for representation, ours, nodes, ids in tables:
            keys = sorted(ids, key=ids.__getitem__)
            half = ours[torch.from_numpy(nodes.ids_of(keys))].chunk(2, dim=1)
            (parameter,) = representation.parameters()
            with torch.no_grad():
                parameter.copy_(torch.stack(half, dim=-1).reshape(parameter.shape))
    return _pykeen_ranks(model, train, valid, test)


def _dicee(folder: Path, work: Path) -> dict[str, Any]:
    """Train with dicee over a memory map of the triples."""
    import tiktoken

    # dicee fetches the vocabulary of GPT-2 at its start, which ComplEx does not use.
    tiktoken.get_encoding = lambda _: SimpleNamespace(n_vocab=1, encode=lambda _: [0])
    from dicee.config import Namespace
    from dicee.executer import Execute

    args = Namespace()
    args.dataset_dir, args.path_to_store_single_run = str(folder), str(work)
    args.model, args.embedding_dim, args.scoring_technique = "ComplEx", DIM, "NegSample"
    args.neg_ratio, args.batch_size, args.num_epochs, args.lr = 2 * NEGATIVES, BATCH, EPOCHS, LR
    args.optim, args.eval_model, args.trainer, args.num_core = "Adam", "test", "torchCPUTrainer", 0
    args.backend, args.byte_pair_encoding, args.random_seed = "pandas", False, 0
    started = time.perf_counter()
    report = Execute(args).start()
    seconds = time.perf_counter() - started
    test = report["Test"]
    return {
        "epoch_s": float(report.get("Runtime", seconds)) / EPOCHS,
        "mrr": float(test["MRR"]),
        "hits@1": float(test["H@1"]),
        "hits@10": float(test["H@10"]),
    }


def _made(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of an epoch on a made-up graph, whose entities are many beside its triples."""
    folder, random = options.work / "made-files", np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    ends = (random.pareto(1.0, (MADE_TRIPLES, 2)) * MADE_ENTITIES / 50).astype(np.int64) % MADE_ENTITIES
    relations = random.integers(0, MADE_RELATIONS, MADE_TRIPLES)
    every = np.arange(0, MADE_ENTITIES, 2)
    heads, tails = np.append(ends[:, 0], every), np.append(ends[:, 1], every + 1)
    relations = np.append(relations, random.integers(0, MADE_RELATIONS, len(every)))
    lines = [f"e{h}\tr{r}\te{t}\n" for h, r, t in zip(heads, relations, tails, strict=True)]
    (folder / "train.txt").write_text("".join(lines))
    for part in ("valid", "test"):
        (folder / f"{part}.txt").write_text("".join(lines[:50]))
    dataset = _prepared(options.work, "made", f"triples:{folder}/train.txt")
    given: dict[str, Any] = {
        "epochs": MADE_EPOCHS,
        "dim": MADE_DIM,
        "negatives": MADE_NEGATIVES,
        "batch": MADE_BATCH,
    }
    found: dict[str, Any] = {"triples": len(lines), "entities": MADE_ENTITIES}
    for name, cache in (("gloader, all rows in memory", None), ("gloader, a tenth in memory", 0.1)):
        found[name] = _ours(dataset, _settings(**given, cache=cache), options.work / "made-run")
    if find_spec("pykeen"):
        # One epoch of dense steps over all entities takes minutes.
        found["pykeen"] = _pykeen(folder, **(given | {"epochs": 1}), evaluates=False)
    return found


def _leak(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of ComplEx with inverse relations kept and dropped, divided by triples and by pairs."""
    folder = options.data / LEAK_GRAPH
    triples = sorted(
        {
            tuple(line.split("\t"))
            for part in ("train", "valid", "test")
            for line in (folder / f"{part}.txt").read_text().splitlines()
        }
    )
    inverse = [(t, f"inverse of {r}", h) for h, r, t in triples]
    order = np.random.default_rng(0).permutation(2 * len(triples))
    rows = []
    for text, given in (("dropped", triples), ("kept", triples + inverse)):
        for by in ("triples", "pairs of entities"):
            place = options.work / f"leak-{text}-{by.split()[0]}"
            place.mkdir(exist_ok=True)
            if by == "triples":
                shuffled = [given[i] for i in order if i < len(given)]
                ends = [0, int(0.8 * len(given)), int(0.9 * len(given)), len(given)]
                for part, a, b in zip(("train", "valid", "test"), ends, ends[1:], strict=False):
                    (place / f"{part}.txt").write_text(
                        "".join("\t".join(each) + "\n" for each in shuffled[a:b])
                    )
                dataset = _prepared(options.work, f"{place.name}-data", f"triples:{place}")
            else:
                (place / "all.tsv").write_text("".join("\t".join(each) + "\n" for each in given))
                dataset = _prepared(
                    options.work, f"{place.name}-data", f"triples:{place}/all.tsv", edge_split=(0.8, 0.1, 0.1)
                )
            run = options.work / f"{place.name}-run"
            settings = _settings(epochs=EPOCHS, dim=DIM, negatives=NEGATIVES, batch=BATCH)
            fit(dataset, settings, files=RunFiles(out=run, overwrite=True))
            rows.append({"inverse relations": text, "divided by": by, **_original_figures(dataset, run)})
    return rows


def _original_figures(dataset: Dataset, run: Path) -> dict[str, Any]:
    """Return the figures of the test triples of original relations."""
    relations = dataset.node_tables["relation"]
    keys = relations.keys_of(np.arange(relations.num_nodes))
    is_original = np.array([not str(key).startswith("inverse of ") for key in keys])
    (test,) = read_triples(dataset.link_table("test"))
    chosen = np.flatnonzero(is_original[test.relations])
    test = replace(test, heads=test.heads[chosen], relations=test.relations[chosen], tails=test.tails[chosen])
    with open_ranker(dataset, load_checkpoint(run)) as ranker:
        ranks = np.concatenate([ranker.ranks(test, asks_heads=side) for side in (True, False)])
    figures = rank_figures(ranks)
    return {"test triples": len(test), **{name: figures[name] for name in ("mrr", "hits@1", "hits@10")}}


if __name__ == "__main__":
    main()
