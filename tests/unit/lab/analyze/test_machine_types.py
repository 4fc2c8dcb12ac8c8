"""The file of machines: what it may say, and what a mistake in it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replayed_runs import RATES, header

from gloader.errors import ConfigError
from gloader.lab.analyze.machines import DiskType, MachineType, read_machines
from gloader.replay.changes import Ratio, changed_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLE = Path(__file__).parents[4] / "docs" / "machines.yaml"
ONE = "{name: small, cores: 8, memory: 64GB, ssd: 1TB, dollars_per_hour: 0.5}"
SMALL = MachineType(name="small", cores=8, memory_bytes=64 * 10**9, ssd_bytes=10**12, dollars_per_hour=0.5)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "machines.yaml"
    path.write_text(text)
    return path


def listed(text: str) -> str:
    return f"machines:\n  - {text}\n"


def changed(**values: object) -> str:
    """Return the machine with other values; None leaves a key out."""
    known: Mapping[str, object] = {
        "name": "small",
        "cores": 8,
        "memory": "64GB",
        "ssd": "1TB",
        "dollars_per_hour": 0.5,
    }
    merged = {name: value for name, value in {**known, **values}.items() if value is not None}
    return listed("{" + ", ".join(f"{name}: {value}" for name, value in merged.items()) + "}")


def test_a_machine_is_as_it_is_written(tmp_path: Path) -> None:
    assert read_machines(write(tmp_path, listed(ONE))) == (SMALL,)
    disk = "{random_reads_per_s: 20000, read_bytes_per_s: 3GB/s, write_bytes_per_s: 1.5e+9}"
    (found,) = read_machines(
        write(tmp_path, changed(disk=disk, gpu="4x", network="25Gb/s", dollars_per_hour=0))
    )
    assert found.disk == DiskType(random_reads_per_s=20_000.0, read_bytes_per_s=3e9, write_bytes_per_s=1.5e9)
    assert (found.gpu, found.network, found.dollars_per_hour) == ("4x", "25Gb/s", 0.0)


def test_the_example_can_be_read() -> None:
    assert [machine.name for machine in read_machines(EXAMPLE)] == [
        "small",
        "small with a faster disk",
        "large",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(core=4), "machine 1: unknown key 'core'; did you mean 'cores'?"),
        (changed(zzz=4), "machine 1: unknown key 'zzz'; keys are: name, cores, memory, ssd, dollars_per_hour, disk"),
        (changed(ssd=None), "machine 1: ssd is missing"),
        (changed(ssd=None, memory=None), "machine 1: memory and ssd are missing"),
        (changed(name=7), "machine 1: its name is 7; write a text"),
        (changed(name="' '"), "machine 1: its name is ' '; write a text"),
        (changed(cores=0), "machine 1 (small): cores is 0; write a whole number of at least 1"),
        (changed(cores=2.5), "machine 1 (small): cores is 2.5; write a whole number of at least 1"),
        (changed(cores="true"), "machine 1 (small): cores is True; write a whole number of at least 1"),
        (changed(memory="64 apples"), "machine 1 (small): memory: '64 apples' is not a size; write bytes as 8GB"),
        (changed(memory=-1), "machine 1 (small): memory: -1 is not a size"),
        (changed(memory=0), "machine 1 (small): memory is 0; write a size above 0, such as 64GB"),
        (changed(ssd="[1]"), "machine 1 (small): ssd: [1] is not a size"),
        (changed(dollars_per_hour=-0.1), "dollars_per_hour is -0.1; write a number of at least 0"),
        (changed(dollars_per_hour="cheap"), "dollars_per_hour is 'cheap'; write a number of at least 0"),
        (changed(dollars_per_hour=".nan"), "dollars_per_hour is nan; write a number of at least 0"),
        (changed(dollars_per_hour=".inf"), "dollars_per_hour is inf; write a number of at least 0"),
        (changed(disk="fast"), "machine 1 (small): disk='fast' is not understood; it takes a factor such as 2x"),
        (changed(disk=2), "machine 1 (small): disk is 2; write a text such as 2x"),
        (changed(gpu="'4x,cores=2'"), "machine 1 (small): gpu is '4x,cores=2'; write a text such as 2x"),
        (changed(network="25"), "machine 1 (small): network is 25; write a text such as 2x"),
        (
            changed(disk="{read_bytes_per_s: 1}"),
            "machine 1 (small), disk: random_reads_per_s and write_bytes_per_s are missing",
        ),
        (
            changed(disk="{random_reads_per_s: 0, read_bytes_per_s: 1, write_bytes_per_s: 1}"),
            "machine 1 (small), disk: random_reads_per_s is 0; write a number above 0",
        ),
        (
            changed(disk="{random_reads: 1, read_bytes_per_s: 1, write_bytes_per_s: 1}"),
            "machine 1 (small), disk: unknown key 'random_reads'; did you mean 'random_reads_per_s'?",
        ),
        (listed("small"), "machine 1 is a str, not a mapping with name, cores, memory, ssd, dollars_per_hour"),
        (listed(f"{ONE}\n  - {ONE}"), "machine 2: there is another machine named 'small'"),
        ("machines: []", "holds no list of machines; write 'machines:'"),
        ("machines: 3", "holds no list of machines; write 'machines:'"),
        (f"machine:\n  - {ONE}", "holds no list of machines; write 'machines:'"),
        (f"- {ONE}", "holds a list, not machines; write 'machines:'"),
        ("machines: [", "is not YAML"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_machines(path)
    said = str(caught.value)
    assert message in said
    assert str(path) in said
    assert "\n" not in said


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the file of machines .*none\.yaml cannot be read: No such file"):
        read_machines(tmp_path / "none.yaml")


def test_a_machine_changes_what_it_names_and_nothing_else() -> None:
    assert SMALL.changes(header(), loader_bytes=None).values == {"cores": 8, "threads": 8}
    fast = MachineType(
        name="fast",
        cores=2,
        memory_bytes=1,
        ssd_bytes=1,
        dollars_per_hour=0,
        disk="3x",
        gpu="4x",
        network="2x",
    )
    assert fast.changes(header(settings={"threads": 1}), loader_bytes=5000).values == {
        "cores": 2,
        "disk": Ratio(factor=3.0),
        "gpu": Ratio(factor=4.0),
        "network": Ratio(factor=2.0),
        "memory": 5000,
    }


def test_rates_of_a_disk_are_what_the_replay_then_reads_with() -> None:
    disk = DiskType(random_reads_per_s=3.3e4, read_bytes_per_s=4.7e9, write_bytes_per_s=0.9e9)
    machine = MachineType(name="fast", cores=2, memory_bytes=1, ssd_bytes=1, dollars_per_hour=0, disk=disk)
    rates = changed_rates(RATES, machine.changes(header(), loader_bytes=None))
    assert rates.random_reads_per_s == pytest.approx(3.3e4, rel=1e-12)
    assert rates.read_bytes_per_s == pytest.approx(4.7e9, rel=1e-12)
    assert rates.write_bytes_per_s == pytest.approx(0.9e9, rel=1e-12)
