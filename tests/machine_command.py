"""`gloader` on a rank of its own machine: the words behind the names, in which MACHINE stands for the rank's.

torchrun ... machine_command.py a,b infer --dataset FOLDER/MACHINE ...
"""

import os
import sys


def run() -> int:
    """Run the command on the machine that this rank is given."""
    name = sys.argv[1].split(",")[int(os.environ["RANK"])]
    os.environ["GLOADER_MACHINE"] = name
    from gloader.cli.main import main

    return main([word.replace("MACHINE", name) for word in sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(run())
