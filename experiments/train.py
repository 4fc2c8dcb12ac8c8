"""The runner: `python experiments/train.py --model gcn --dataset ...` is `gloader train --model gcn --dataset ...`."""

import sys

from gloader.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
