"""What `gloader doctor --network` says of the network between the machines of a launch."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gloader.cli.machine_check import Finding, Severity
from gloader.core.units import format_bytes
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.cli.ranks import Launch
    from gloader.distributed.network.settings import Card, Trial
    from gloader.distributed.network.survey import Survey

HOW_TO_RUN: Final = (
    "the network is measured between the machines of a launch: start it on each of them with "
    "`torchrun --nnodes W --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gloader doctor "
    "--network`"
)
_START_S: Final = 60.0
_MOST_PAIRS: Final = 12  # lines of a table; the slowest ones, where there are more


def survey_launch(launch: Launch) -> Survey:
    """Measure the network between the machines that torchrun started; collective.

    Raises
    ------
    ConfigError
        There is no launch, or it has one machine.
    RankError
        The ranks do not find one another, or one of them does not answer.
    """
    if launch.world_size == 1:
        raise ConfigError(HOW_TO_RUN)
    from torch.distributed.rendezvous import rendezvous

    from gloader.cli.ranks import apart
    from gloader.distributed.network.survey import survey_network
    from gloader.training.rendezvous import fresh_store

    timeout = timedelta(seconds=_START_S)
    try:
        found, rank, world_size = next(rendezvous("env://", timeout=timeout))
        store = fresh_store(found, rank=rank, world_size=world_size, timeout=timeout)
        return survey_network(store, rank=rank, world_size=world_size)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise apart(launch, error) from error


def network_findings(survey: Survey) -> list[Finding]:
    """Return what was found, and what to do about it. Pure."""
    findings = [_machine(card, survey.now, number) for number, card in enumerate(survey.cards)]
    findings += _pairs(survey)
    findings.append(_together(survey.now, "all together"))
    findings += [_together(trial, f"with {_named(trial)}") for trial in survey.others]
    return [*findings, *_advice(survey)]


def to_json(survey: Survey) -> dict[str, Any]:
    """Return all that was measured as JSON. Pure."""
    return {
        "machines": [asdict(card) for card in survey.cards],
        "now": _trial_json(survey.now),
        "others": [_trial_json(trial) for trial in survey.others],
        "export": list(survey.advice.lines),
        "reason": survey.advice.reason,
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    pairs = [[*pair, *link] for pair, link in trial.pairs.items()]
    return {**asdict(trial), "pairs": pairs}


def _machine(card: Card, now: Trial, number: int) -> Finding:
    from gloader.distributed.network.interfaces import INTERFACE_VARIABLE, interface_of

    address = now.used[number] if now.used else card.resolved
    name = interface_of(address, card.interfaces)
    why = f"{INTERFACE_VARIABLE}={card.named}" if card.named else "what its host name resolves to"
    uses = f"gloo uses {name or 'no interface'} ({address}, {why})"
    if card.named and not now.used:
        uses = f"gloo was told to use {card.named} ({INTERFACE_VARIABLE})"
    there = ", ".join(
        f"{one.name} {one.addresses[0]}" + (f" {_rate(one.bits_per_s / 8)}" if one.bits_per_s else "")
        for one in card.interfaces
    )
    return Finding(name=card.name, value=f"{uses}; it has {there or 'no interface with an address'}")


def _pairs(survey: Survey) -> list[Finding]:
    names = [card.name for card in survey.cards]
    ranked = sorted(survey.now.pairs.items(), key=lambda pair: pair[1][0])
    return [
        Finding(
            name=f"{names[first]} - {names[second]}",
            value=f"{_rate(num_bytes)} each way, {1e6 * latency:.0f} us",
        )
        for (first, second), (num_bytes, latency) in ranked[:_MOST_PAIRS]
    ]


def _together(trial: Trial, name: str) -> Finding:
    if not trial.is_connected:
        return Finding(name=name, value=f"does not connect: {trial.error}")
    rate = f"{_rate(trial.bytes_per_s)} from each machine to all others"
    return Finding(name=name, value=f"{rate}, {1e6 * trial.latency_s:.0f} us")


def _named(trial: Trial) -> str:
    names = sorted({trial.setting.value_on(number) for number in range(len(trial.setting.names))})
    return " and ".join(names)


def _advice(survey: Survey) -> list[Finding]:
    advice, names = survey.advice, [card.name for card in survey.cards]
    severity: Severity = "problem" if advice.is_needed else "note" if advice.lines else "ok"
    rate = "" if advice.trial is None else f", {_rate(advice.trial.bytes_per_s)} as measured with it"
    value = f"{advice.reason}{rate}"
    if len(set(advice.lines)) > 1:
        return [
            Finding(name=f"advice for {name}", value=value, severity=severity, fix=line)
            for name, line in zip(names, advice.lines, strict=True)
        ]
    return [Finding(name="advice", value=value, severity=severity, fix=next(iter(advice.lines), None))]


def what_to_do(survey: Survey) -> str:
    """Return what to do, as lines to be copied where there are any. Pure."""
    advice = survey.advice
    if not advice.lines:
        return advice.reason if advice.is_needed else "nothing to do: no setting that was tried is faster"
    if len(set(advice.lines)) == 1:
        return f"run this on each machine before torchrun:\n{advice.lines[0]}"
    lines = [f"on {card.name}:\n{line}" for card, line in zip(survey.cards, advice.lines, strict=True)]
    return "\n".join(["run these before torchrun", *lines])


def _rate(num_bytes: float) -> str:
    return f"{format_bytes(int(num_bytes))}/s"
