"""gloader on a Ray cluster: python ray_train.py --dataset /local/products --workers 2 --storage /nfs/runs.

RAY_ADDRESS says where the cluster is; without one a Ray is started on this machine for the run.
"""

import argparse
import json

import gloader


def main() -> None:
    """Train GraphSAGE and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", default="builtin:digits", help="at the same path on every machine, or a URL"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpus", type=float, default=1, help="that Ray reserves for each worker")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--storage", help="a folder that all machines see, or a URL such as s3://bucket/runs")
    parser.add_argument("--name", help="of the run; the same name again goes on with it")
    parser.add_argument("--epochs", type=int, default=3)
    flags = parser.parse_args()

    result = gloader.ray.train(
        dataset=flags.dataset,
        num_workers=flags.workers,
        use_gpu=flags.gpu,
        resources_per_worker={"CPU": flags.cpus},
        storage_path=flags.storage,
        name=flags.name,
        max_failures=2,
        model="graphsage",
        fanouts=(10, 10),
        batch_size=256,
        epochs=flags.epochs,
        checkpoint_every=100,
    )
    figures = {name: result.metrics[name] for name in ("test_acc", "valid_acc", "world_size")}
    print(json.dumps({**figures, "run": result.checkpoint.path}))


if __name__ == "__main__":
    main()
