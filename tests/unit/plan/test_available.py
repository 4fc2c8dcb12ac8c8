import os
from types import SimpleNamespace

import pytest

from gloader.plan import available
from gloader.plan.available import available_memory_bytes, cgroup_rooms, default_budget_bytes


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_available_memory_is_within_the_system():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory_bytes() <= total
    assert 0 < default_budget_bytes() <= total // 2


@pytest.mark.parametrize(
    ("text", "expected"), [("MemTotal: 9 kB\nMemAvailable:   3 kB\n", 3072), ("MemTotal: 9 kB\n", 20 << 12)]
)
def test_what_the_system_calls_available_is_read(monkeypatch, tmp_path, text, expected):
    (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(available, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(available, "_SELF_CGROUP", tmp_path / "missing")
    sizes = {"SC_AVPHYS_PAGES": 20, "SC_PAGE_SIZE": 1 << 12}
    monkeypatch.setattr(available, "os", SimpleNamespace(sysconf=sizes.__getitem__))
    assert available_memory_bytes() == expected


def test_version_1_limits_of_the_group_and_its_parents_count(tmp_path):
    write_tree(
        tmp_path,
        {
            "self": "4:memory:/a/b\n3:cpu:/x\n",
            "memory/a/b/memory.limit_in_bytes": "1000\n",
            "memory/a/b/memory.usage_in_bytes": "600\n",
            "memory/a/b/memory.stat": "cache 5\ntotal_inactive_file 100\n",
            "memory/a/memory.limit_in_bytes": "700\n",
            "memory/a/memory.usage_in_bytes": "650\n",
        },
    )
    assert list(cgroup_rooms(tmp_path / "self", tmp_path)) == [500, 50]


@pytest.mark.parametrize("mount", ["", "unified"])
def test_version_2_limits_count_and_max_is_none(tmp_path, mount):
    base = tmp_path / mount
    write_tree(
        base, {"g/memory.max": "900", "g/memory.current": "300", "g/memory.stat": "inactive_file 50\n"}
    )
    write_tree(base, {"memory.max": "max", "memory.current": "999"})
    write_tree(tmp_path, {"self": "0::/g\n"})
    assert list(cgroup_rooms(tmp_path / "self", tmp_path)) == [650]


def test_groups_that_cannot_be_seen_are_passed_over(tmp_path):
    write_tree(tmp_path, {"self": "0::/elsewhere\n4:memory:/gone\n"})
    assert list(cgroup_rooms(tmp_path / "self", tmp_path)) == []
    assert list(cgroup_rooms(tmp_path / "missing", tmp_path)) == []
