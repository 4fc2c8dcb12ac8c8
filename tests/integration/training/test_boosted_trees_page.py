"""The example of docs/propagate.md with LightGBM runs, and hop columns help it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks_of

pytest.importorskip("lightgbm")


def test_the_example_with_boosted_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = [
        block for block in blocks_of(ROOT / "docs" / "propagate.md") if block.heading == "Boosted trees"
    ]
    assert [block.language for block in blocks] == ["sh", "python"]
    for block in blocks:
        block.run(names)
    assert len(names["hops"]) == 4 * len(names["own"])
    assert names["with_hops"] > names["without"] + 0.1
