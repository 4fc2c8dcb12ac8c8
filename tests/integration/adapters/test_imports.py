"""What importing gloader does not import."""

import subprocess
import sys


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
