"""Importing gloader leaves optional packages alone."""

import subprocess
import sys
from pathlib import Path

SHOW = "print(*sys.modules)"


def modules_after(*statements: str) -> list[set[str]]:
    """Return what one process has imported after each of the statements."""
    code = "import sys, warnings; warnings.simplefilter('ignore')"
    code += "".join(f"; {statement}; {SHOW}" for statement in statements)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_import_gloader_and_its_adapter_of_pyg_import_only_what_they_need() -> None:
    bare, loader, adapter = modules_after(
        "import gloader", "gloader.Loader; gloader.Dataset", "import gloader.adapters.pyg"
    )
    assert not {"dgl", "torch", "torch_geometric", "lightning"} & bare
    assert not {"dgl", "torch_geometric", "torch_geometric.loader", "lightning"} & loader
    assert "dgl" not in adapter


def test_the_adapter_of_dgl_imports_no_pyg() -> None:
    (loaded,) = modules_after("import gloader.adapters.dgl")
    assert not {"torch_geometric", "torch_geometric.loader"} & loaded


def test_without_pyg_the_adapter_says_how_to_install_it_and_plain_tensors_are_still_read(
    tmp_path: Path,
) -> None:
    code = f"""
import sys
sys.modules["torch_geometric"] = None  # as if it were not installed
import torch
from gloader.convert.sources.pyg import _load
torch.save({{"x": torch.zeros(2, 1)}}, {str(tmp_path / "plain.pt")!r})
print(sorted(_load(__import__("pathlib").Path({str(tmp_path / "plain.pt")!r}))))
import gloader.adapters.pyg
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "['x']\n"
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "needs torch-geometric; install it in your clone of gloader with: pip install -e '.[pyg]' -c constraints.txt"
    ), last
