"""Checks for `gloader doctor`: the machine, its disk, and the network between a launch's machines.

A check returns a finding: a name, a value, a severity and, if something is wrong, a fix. `diagnose` runs all checks of
one machine. With ``--network``, torchrun starts the command on several machines: this is a launch, and its processes
are ranks. `survey_launch` then tries several network interfaces, and `network_findings` turns the resulting survey into
findings. gloo is torch's library for communication between CPUs.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import gloader
from gloader.core.paths import nearest_existing
from gloader.core.units import format_bytes, format_count
from gloader.errors import ConfigError, GloaderError, install_command

if TYPE_CHECKING:
    from gloader.cli.ranks import RankLaunch
    from gloader.distributed.network.interfaces import Card, NetworkTrial
    from gloader.distributed.network.survey import Survey
    from gloader.ssd_store.cost.device_profile import DeviceProfile


Severity = Literal["ok", "note", "problem"]  # see `MachineFinding`

_REQUIRED = ("numpy", "numba", "torch")  # packages without which gloader does not run
# Optional packages, each with its extra in pyproject.toml.
_OPTIONAL = {
    "torch-geometric": "pyg",
    "dgl": "dgl",
    "ogb": "ogb",
    "tensorboard": "plot",
}
_MIN_PYTHON = (3, 11)
# A run below these limits works with smaller settings than the defaults: this is a note, not a problem.
_MIN_MEMORY_BYTES = 2 << 30
_MIN_FREE_BYTES = 5 << 30
# With less free space, a checkpoint or a compiled kernel may not find room.
_FULL_BYTES = 64 << 20
_MIN_DESCRIPTORS = 256  # open files of one process
_CGROUP = Path("/sys/fs/cgroup")  # the container's limits of cores and memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFinding:
    """One fact about the machine. A problem makes gloader unusable; a note makes it slower or smaller."""

    name: str
    value: str
    severity: Severity = "ok"
    fix: str | None = None  # advice, if the severity is not "ok"


def _finding_of(
    name: str, value: str, *, is_fine: bool, fix: str, severity: Severity = "note"
) -> MachineFinding:
    """Return a finding with severity "ok" if ``is_fine``, otherwise with ``severity`` and ``fix``. Pure."""
    if is_fine:
        return MachineFinding(name=name, value=value)
    return MachineFinding(name=name, value=value, severity=severity, fix=fix)


def diagnose(folder: Path) -> list[MachineFinding]:
    """Return the findings of all checks. Probing the disk of ``folder`` takes two to three seconds."""
    return [
        *check_versions(),
        check_cores(),
        check_memory(),
        *check_disk(folder),
        check_cuda(),
        check_kernel_cache(Path(__file__).parent),
        check_descriptors(),
    ]


def check_versions() -> list[MachineFinding]:
    """Return the versions of Python and of required and optional packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= _MIN_PYTHON
    findings = [
        _finding_of("python", python, is_fine=is_new, severity="problem", fix="install Python 3.11 or later"),
        MachineFinding(name="gloader", value=gloader.__version__),
    ]
    for package in _REQUIRED:
        installed, fix = _version(package), f"pip install {package} -c constraints.txt"
        value = installed or "not installed"
        findings.append(
            _finding_of(package, value, is_fine=installed is not None, severity="problem", fix=fix)
        )
    for package, extra in _OPTIONAL.items():
        value = _version(package) or f"not installed (optional: {install_command(extra)})"
        findings.append(MachineFinding(name=package, value=value))
    return findings


def _version(package: str) -> str | None:
    """Return the installed version of ``package``, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_cores() -> MachineFinding:
    """Return the number of cores available to this process, by its CPU affinity and its cgroup."""
    usable, present, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cpu_quota(_CGROUP)
    text = f"{usable} of {present}" + (f", limited to {quota:.3g} by its cgroup" if quota else "")
    fix = "with one core nothing overlaps; give the process two or more"
    return _finding_of("cores", text, is_fine=min(usable, quota or usable) >= 2, fix=fix)


def cpu_quota(cgroup: Path) -> float | None:
    """Return the cores that the cgroup mounted at ``cgroup`` (version 2 or 1) allows, or None without a limit."""
    # Version 2 has one file with two words. Version 1 has a file for each value.
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    # Without a limit the quota is "max" in version 2 and -1 in version 1.
    return int(quota) / int(period) if quota.isdigit() else None


def check_memory() -> MachineFinding:
    """Return the memory currently available to a run, within the cgroup's limits."""
    from gloader.plan.available import available_memory_bytes

    available = available_memory_bytes()
    text = f"{format_bytes(available)} available"
    fix = "use a small --memory-budget and --batch-size"
    return _finding_of("memory", text, is_fine=available >= _MIN_MEMORY_BYTES, fix=fix)


def check_cuda() -> MachineFinding:
    """Return the GPU that torch finds."""
    # A torch installation whose libraries do not fit the system fails with OSError.
    try:
        import torch
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        return MachineFinding(
            name="cuda", value=f"torch fails to load: {reason}", severity="problem", fix="reinstall torch"
        )
    if not torch.cuda.is_available():
        build = torch.version.cuda
        return MachineFinding(
            name="cuda", value="no GPU; training runs on the CPU" if build else "none: a CPU build of torch"
        )
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return MachineFinding(name="cuda", value=f"{torch.version.cuda}, {', '.join(names)}")


def check_kernel_cache(package: Path) -> MachineFinding:
    """Return the folder that keeps compiled kernels between runs."""
    # By default, numba keeps kernels in the source files' folder.
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else package / "__pycache__"
    is_fine = os.access(nearest_existing(folder), os.W_OK)
    fix = "set NUMBA_CACHE_DIR to a writable folder, or kernels may be compiled at every start"
    return _finding_of(
        "kernel cache", f"{folder}{'' if is_fine else ' is not writable'}", is_fine=is_fine, fix=fix
    )


def check_descriptors() -> MachineFinding:
    """Return the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_limit = soft != resource.RLIM_INFINITY
    return _finding_of(
        "open files",
        f"limit {soft}" if has_limit else "no limit",
        is_fine=not has_limit or soft >= _MIN_DESCRIPTORS,
        fix=f"ulimit -n {min(max(hard, soft), 4096)}",
    )


def check_disk(folder: Path) -> list[MachineFinding]:
    """Return the disk of ``folder``: its space, rates and ways of reading."""
    base = nearest_existing(folder)
    free = shutil.disk_usage(base).free
    if free < _FULL_BYTES:
        value = f"the disk is full: {format_bytes(free)} free at {base}"
        fix = "free some space, or name another disk with --path and use that one"
        return [_finding_of("disk space", value, is_fine=False, severity="problem", fix=fix)]
    fix = "datasets go to $GLOADER_HOME or the OUT of `gloader prepare`; choose a larger disk"
    value = f"{format_bytes(free)} free at {base}"
    findings = [_finding_of("disk space", value, is_fine=free >= _MIN_FREE_BYTES, fix=fix)]
    # The probe writes a file: a read-only disk cannot be measured.
    if not os.access(base, os.W_OK):
        fix = "name a writable folder on the disk that holds your datasets with --path"
        return [*findings, _finding_of("disk rates", f"{base} is not writable", is_fine=False, fix=fix)]
    return [*findings, *_probe(base)]


def _probe(base: Path) -> list[MachineFinding]:
    """Measure the disk of the folder ``base``; return its rates, and whether it supports O_DIRECT and io_uring."""
    from gloader.ssd_store.cost.profile import io_capabilities, refresh_profile, remembered_profile

    try:
        rates, ways = refresh_profile(base), io_capabilities(base)
    except (GloaderError, OSError) as error:
        fix = "probe another folder with --path"
        return [_finding_of("disk rates", str(error), is_fine=False, fix=fix)]
    text = (
        f"{format_count(rates.random_reads_per_s)} random 4 KiB reads/s at depth {rates.queue_depth}, "
        f"{format_bytes(rates.read_bytes_per_s)}/s read, {format_bytes(rates.write_bytes_per_s)}/s written, "
        "as probed just now"
    )
    # Loaders use a remembered profile, which later runs may have corrected. Its rates can differ from the probe's.
    used = [] if (known := remembered_profile(base)) is None else [used_rates(known, time.time())]
    direct = _finding_of(
        "O_DIRECT",
        "available" if ways.has_direct else ways.direct_reason,
        is_fine=ways.has_direct,
        fix="keep datasets on a local disk (ext4, xfs); reads go through the page cache",
    )
    uring = _finding_of(
        "io_uring",
        "available" if ways.has_uring else f"not available: {ways.uring_reason}",
        is_fine=ways.has_uring,
        fix="reads use threads instead, at more CPU time; allow io_uring to the process",
    )
    return [MachineFinding(name="disk rates", value=text), *used, direct, uring]


def used_rates(profile: DeviceProfile, now: float) -> MachineFinding:
    """Return the rates that loaders use, with their age and the number of runs that corrected them.

    Each run records one lesson: the ratio of measured to predicted disk times. Lessons correct the probe's rates.

    Parameters
    ----------
    profile : the device's remembered rates and lessons
    now : seconds since 1970
    """
    times, learnt = profile.times, profile.learnt
    rates = (
        f"{format_count(times.small_per_s)} random reads/s of 4 KiB, {format_count(times.medium_per_s)} of 16 KiB and "
        f"{format_count(times.wide_per_s)} of 64 KiB, {format_bytes(times.bytes_per_s)}/s in file order, "
        f"{format_bytes(profile.write_bytes_per_s / learnt.ratio('write'))}/s written"
    )
    measured = f"measured {_age(now - profile.measured_at)}"
    if not learnt.lessons:
        return MachineFinding(name="rates used", value=f"{rates}: {measured}")
    runs = len(learnt.lessons)
    last = _age(now - learnt.lessons[0].when)  # the newest lesson comes first
    taught = f"learnt from {runs} {'run' if runs == 1 else 'runs'}, {'' if runs == 1 else 'the last '}{last}"
    return MachineFinding(name="rates used", value=f"{rates}: {taught}; {measured}")


def _age(seconds: float) -> str:
    """Return an age in words, such as "2 hours ago", in its largest whole unit."""
    for name, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "now"


HOW_TO_RUN: Final = (
    "the network is measured between the machines of a launch: start it on each of them with "
    "`torchrun --nnodes W --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gloader doctor "
    "--network`"
)
_START_S: Final = 60.0  # longest wait for all machines of the launch
# Maximum number of pairs of machines in the table. With more pairs, the slowest are shown.
_MOST_PAIRS: Final = 12


def survey_launch(launch: RankLaunch) -> Survey:
    """Measure the network between torchrun's machines; collective.

    Collective means that all ranks must call it, because each waits for the others.

    Raises
    ------
    ConfigError
        There is no launch, or it has only one machine.
    RankError
        The ranks do not find each other, or a rank does not answer.
    """
    if launch.world_size == 1:
        raise ConfigError(HOW_TO_RUN)
    from torch.distributed.rendezvous import rendezvous

    from gloader.cli.ranks import apart
    from gloader.distributed.network.survey import survey_network
    from gloader.training.rendezvous import fresh_store

    timeout = timedelta(seconds=_START_S)
    try:
        launch_store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        store = fresh_store(launch_store, rank=rank, world_size=world_size, timeout=timeout)
        return survey_network(store, rank=rank, world_size=world_size)
    except (RuntimeError, ValueError) as error:
        # A ConfigError is a ValueError, too, but its message is already complete.
        if isinstance(error, ConfigError):
            raise
        raise apart(launch, error) from error


def network_findings(survey: Survey) -> list[MachineFinding]:
    """Return a survey's findings. Pure.

    Their order: each machine, each pair, all machines with the current setting and with other settings, the advice.
    """
    findings = [_machine(card, survey.now, number) for number, card in enumerate(survey.cards)]
    findings += _pairs(survey)
    findings.append(_all_together(survey.now, "all together"))
    findings += [_all_together(trial, f"with {_interface_names(trial)}") for trial in survey.others]
    return [*findings, *_advice(survey)]


def to_json(survey: Survey) -> dict[str, Any]:
    """Return all measurements as JSON. Pure."""
    return {
        "machines": [asdict(card) for card in survey.cards],
        "now": _trial_json(survey.now),
        "others": [_trial_json(trial) for trial in survey.others],
        "export": list(survey.advice.lines),
        "reason": survey.advice.reason,
    }


def _trial_json(trial: NetworkTrial) -> dict[str, Any]:
    """Return a trial as JSON. JSON has no tuples as keys, so pairs become [machine, machine, bytes/s, seconds]."""
    pairs = [[*pair, *link] for pair, link in trial.pairs.items()]
    return {**asdict(trial), "pairs": pairs}


def _machine(card: Card, now: NetworkTrial, number: int) -> MachineFinding:
    """Return the network interface that gloo uses on machine ``number``, the reason, and the other interfaces.

    ``card`` describes the machine. ``now`` is the trial with the current setting.
    """
    from gloader.distributed.network.interfaces import INTERFACE_VARIABLE, interface_of

    # Without a connection, gloo's address is unknown. By default, gloo takes the host name's address.
    address = now.used[number] if now.used else card.resolved
    name = interface_of(address, card.interfaces)
    why = f"{INTERFACE_VARIABLE}={card.named}" if card.named else "what its host name resolves to"
    uses = f"gloo uses {name or 'no interface'} ({address}, {why})"
    if card.named and not now.used:
        uses = f"gloo is set to use {card.named} ({INTERFACE_VARIABLE})"
    interfaces = ", ".join(
        f"{each.name} {each.addresses[0]}" + (f" {_rate(each.bits_per_s / 8)}" if each.bits_per_s else "")
        for each in card.interfaces
    )
    return MachineFinding(
        name=card.name, value=f"{uses}; it has {interfaces or 'no interface with an address'}"
    )


def _pairs(survey: Survey) -> list[MachineFinding]:
    """Return the rate and the latency for each pair of machines, the slowest pair first."""
    names = [card.name for card in survey.cards]
    # ``pairs`` maps two machines' numbers to (bytes per second, seconds of latency).
    ranked = sorted(survey.now.pairs.items(), key=lambda pair: pair[1][0])
    return [
        MachineFinding(
            name=f"{names[first]} - {names[second]}",
            value=f"{_rate(num_bytes)} each way, {1e6 * latency:.0f} us",
        )
        for (first, second), (num_bytes, latency) in ranked[:_MOST_PAIRS]
    ]


def _all_together(trial: NetworkTrial, name: str) -> MachineFinding:
    """Return the rate while all machines send to all others, for one trial: one choice of network interfaces."""
    if not trial.is_connected:
        return MachineFinding(name=name, value=f"does not connect: {trial.error}")
    rate = f"{_rate(trial.bytes_per_s)} from each machine to all others"
    return MachineFinding(name=name, value=f"{rate}, {1e6 * trial.latency_s:.0f} us")


def _interface_names(trial: NetworkTrial) -> str:
    """Return the different values of the interface setting in a trial, each as for GLOO_SOCKET_IFNAME."""
    names = sorted({trial.setting.value_on(number) for number in range(len(trial.setting.names))})
    return " and ".join(names)


def _advice(survey: Survey) -> list[MachineFinding]:
    """Return one finding with the advice, or one for each machine if their commands to copy differ."""
    advice, names = survey.advice, [card.name for card in survey.cards]
    severity: Severity = "problem" if advice.is_needed else "note" if advice.lines else "ok"
    rate = "" if advice.trial is None else f", {_rate(advice.trial.bytes_per_s)} as measured with it"
    value = f"{advice.reason}{rate}"
    if len(set(advice.lines)) > 1:
        return [
            MachineFinding(name=f"advice for {name}", value=value, severity=severity, fix=line)
            for name, line in zip(names, advice.lines, strict=True)
        ]
    return [MachineFinding(name="advice", value=value, severity=severity, fix=next(iter(advice.lines), None))]


def what_to_do(survey: Survey) -> str:
    """Return the advice, with lines to copy if there are any. Pure."""
    advice = survey.advice
    if not advice.lines:
        return advice.reason if advice.is_needed else "nothing to do: no setting that was tried is faster"
    if len(set(advice.lines)) == 1:
        return f"run this on each machine before torchrun:\n{advice.lines[0]}"
    lines = [f"on {card.name}:\n{line}" for card, line in zip(survey.cards, advice.lines, strict=True)]
    return "\n".join(["run these before torchrun", *lines])


def _rate(num_bytes: float) -> str:
    """Return ``num_bytes`` per second as text."""
    return f"{format_bytes(int(num_bytes))}/s"
