import psutil
import pytest

from gloader.memory.available import available_memory_bytes, cgroup_rooms, default_budget_bytes


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_available_memory_is_within_the_system():
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total
    assert 0 < default_budget_bytes() <= psutil.virtual_memory().total // 2


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
