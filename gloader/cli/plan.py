"""`gloader plan`: the best machines for a recorded run.

A replay simulates the recorded run with another machine's rates, and so predicts its time on each machine of a file. An
offer is a machine with a memory budget, the predicted seconds of an epoch, and their price. `gloader.lab.analyze` makes
the offers; this module shows the best ones.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell, numbers
from gloader.core.units import format_bytes, format_exact_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.lab.analyze.machines import MachineOffer, Offers


def plan(
    run: Path,
    /,
    *,
    machines: Path,
    max_dollars: Annotated[float | None, Parameter(metavar="DOLLARS")] = None,
    max_seconds: Annotated[float | None, Parameter(metavar="SECONDS")] = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Predict an epoch of a recorded run on other machines, and show the best ones.

    Each machine is tried with several memory budgets, from the least that works to most of the machine's memory. The
    table has the offers that no other offer beats in seconds, memory, disk and dollars of an epoch. Machines and prices
    come only from the file; docs/machines.yaml is an example.

    Parameters
    ----------
    run
        The folder of `gloader train --trace`, or a trace.
    machines
        A YAML file of machine types and their prices.
    max_dollars
        Highest price of an epoch. The fastest machine within this price is named.
    max_seconds
        Longest time of an epoch. The cheapest machine within this time is named.
    """
    from gloader.lab.analyze.machines import read_machines

    screen = Screen.open(is_json=output.json)
    for flag, bound in (("--max-dollars", max_dollars), ("--max-seconds", max_seconds)):
        if bound is not None and not bound >= 0:  # true for NaN, too
            raise ConfigError(f"{flag} is {bound}; it must be a number of at least 0")
    machine_types = read_machines(machines)

    from gloader.lab.analyze.machines import RunMemory, find_offers
    from gloader.lab.analyze.predict import open_run

    with open_run(run) as predictor, screen.console.status("replaying") as status:
        offers = find_offers(
            predictor,
            machine_types,
            memory=RunMemory.of_run(run, predictor.recording.header),
            says=lambda name: status.update(f"replaying on {name}"),
        )
    chosen = offers.choose(most_dollars=max_dollars, most_seconds=max_seconds)
    if not screen.is_json:
        _show(screen, offers, chosen, bounds=_bounds(max_dollars, max_seconds))
    screen.result(
        {
            "run": str(run),
            "predicted": offers.num_predicted,
            "best": [offer.to_json() for offer in offers.best],
            "left_out": dict(offers.left_out),
            "chosen": None if chosen is None else chosen.to_json(),
        }
    )


def _show(screen: Screen, offers: "Offers", chosen: "MachineOffer | None", *, bounds: str) -> None:
    """Write the table of the best offers, the impossible machines, and the choice.

    Parameters
    ----------
    screen : the command's screen
    offers : the predictions
    chosen : the best offer within the bounds, or None
    bounds : the bounds in words, from `_bounds`
    """
    if offers.best:
        screen.console.print(_table(offers.best))
    for name, reason in offers.left_out.items():
        screen.say(f"not on {name}: {reason}")
    if chosen is not None:
        # With a bound on dollars alone (" for at most ..."), the fastest offer is chosen, see `Offers.choose`.
        heading = "the fastest" if bounds.startswith(" for") else "the cheapest"
        screen.say(f"\n{heading}{bounds}: {_offer_text(chosen)}")
    elif not offers.best:
        screen.say("\nthe run fits none of these machines")
    else:
        # ``best`` is sorted by seconds, the fastest offer first.
        cheapest = min(offers.best, key=lambda offer: offer.dollars)
        screen.say(
            f"\nnone{bounds}: the fastest is {_offer_text(offers.best[0])}; the cheapest is {_offer_text(cheapest)}"
        )


def _bounds(max_dollars: float | None, max_seconds: float | None) -> str:
    """Return the bounds in words that follow "the fastest", "the cheapest" or "none". Pure."""
    parts = []
    if max_seconds is not None:
        parts.append(f" in at most {format_exact_seconds(max_seconds)} an epoch")
    if max_dollars is not None:
        parts.append(f" for at most {_dollars(max_dollars)} an epoch")
    return " and".join(parts)


def _offer_text(offer: "MachineOffer") -> str:
    """Return one line on an offer. The budget has no space, so that it can be copied as a flag."""
    return (
        f"{offer.machine.name} with --memory-budget {format_bytes(offer.budget_bytes).replace(' ', '')}, "
        f"{format_exact_seconds(offer.seconds)} and {_dollars(offer.dollars)} an epoch"
    )


def _table(best: "tuple[MachineOffer, ...]") -> Table:
    """Return a row for each offer. Pure."""
    table = numbers("an epoch", "memory", "SSD", "$ an epoch", first="machine")
    for offer in best:
        table.add_row(
            cell(offer.machine.name),
            cell(format_exact_seconds(offer.seconds)),
            cell(format_bytes(offer.budget_bytes)),
            cell(format_bytes(offer.ssd_bytes)),
            cell(_dollars(offer.dollars)),
        )
    return table


def _dollars(dollars: float) -> str:
    """Return dollars with cents, or below one dollar with three significant digits. Pure."""
    places = 2 if dollars >= 1 or not dollars else 2 - math.floor(math.log10(dollars))
    return f"${dollars:,.{places}f}"
