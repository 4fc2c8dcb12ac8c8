"""The command line as it is typed."""

from __future__ import annotations

from gloader.cli.main import normalise


def test_underscores_become_hyphens_in_flags_only() -> None:
    words = ["train", "--memory_budget", "a_b", "--batch_size=1_0", "out_dir", "--", "--keep_this"]
    assert normalise(words) == [
        "train",
        "--memory-budget",
        "a_b",
        "--batch-size=1_0",
        "out_dir",
        "--",
        "--keep_this",
    ]


def test_symmetrize_stands_alone_before_a_source_or_a_path() -> None:
    assert normalise(["prepare", "--symmetrize", "npy:a", "out"]) == [
        "prepare",
        "npy:a",
        "out",
        "--symmetrize",
    ]
    assert normalise(["prepare", "npy:a", "--symmetrize", "data/out"])[-1] == "--symmetrize"
    words = ["prepare", "pyg:a", "out", "--symmetrize", "cites", "--symmetrize", "a:b:a"]
    assert normalise(words) == words
