"""What importing gloader does not import."""

import subprocess
import sys
from pathlib import Path


def modules_after(statement: str) -> set[str]:
    code = f"import warnings; warnings.simplefilter('ignore'); {statement}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_import_gloader_imports_neither_dgl_nor_pygs_loaders() -> None:
    loaded = modules_after("import gloader")
    assert not {"dgl", "torch", "torch_geometric", "lightning"} & loaded
    loaded = modules_after("import gloader; gloader.Loader; gloader.Dataset")
    assert not {"dgl", "torch_geometric", "torch_geometric.loader", "lightning"} & loaded


def test_each_adapter_imports_its_own_library_alone() -> None:
    assert "dgl" not in modules_after("import gloader.adapters.pyg")
    assert not {"torch_geometric", "torch_geometric.loader"} & modules_after("import gloader.adapters.dgl")


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
