"""The code of docs/extending.md passes the suites, as a reader would run it: with none of this folder's settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_block_of_the_page_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "conftest.py").write_text(
        'import pytest\n\npytest.register_assert_rewrite("gloader.testing")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed in", done.stdout.splitlines()[-1])
