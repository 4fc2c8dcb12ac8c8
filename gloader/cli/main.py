"""The `gloader` command: parses the command line, runs one command, and turns errors into a message and a status.

`main` is the entry point. It normalises the words of the command line, and calls the app from `build_app`. The app is
made with cyclopts, which takes flags and help texts from the commands' signatures and docstrings.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, Parameter

import gloader
from gloader.cli import (
    analyze,
    autotune,
    bench,
    doctor,
    fit,
    infer,
    info,
    inspect,
    migrate,
    plan,
    prepare,
    propagate,
    train,
    verify,
)
from gloader.cli import report as report_command
from gloader.cli.failure import (
    EXIT_OK,
    REPORTED_ERRORS,
    exit_status,
    interruption_behind,
    report,
    termination_unwinds,
)
from gloader.cli.recipe import apply_recipe
from gloader.cli.screen import show_logs
from gloader.convert.registry import is_source

_HELP = """Train graph neural networks on graphs whose features do not fit in memory.

`gloader prepare SOURCE OUT` turns a graph into a dataset directory, `gloader train --dataset OUT` trains on it.
`gloader train --dataset builtin:digits` does both on a small real graph. `gloader report RUN ...` compares runs.
`gloader fit` checks whether a graph fits this machine; it needs only the graph's size.
"""


def build_app() -> App:
    """Return a new app for the command line."""
    app = App(
        name="gloader",
        help=_HELP,
        help_format="markdown",
        version=gloader.__version__,
        # A repeated flag is a typing error, except for flags with the annotation `core.flag_values.REPEATED`.
        default_parameter=Parameter(allow_repeating=False),
        # `main` reports errors itself, so cyclopts only raises them.
        exit_on_error=False,
        print_error=False,
        help_on_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.command(prepare.prepare)
    # `apply_recipe` adds the flags from a recipe: a YAML file with flags, given by ``--config``.
    app.command(train.train, config=apply_recipe)
    for command in (propagate.propagate, infer.infer, info.info, inspect.inspect, analyze.analyze):
        app.command(command)
    app.command(autotune.autotune, config=apply_recipe)
    for other in (plan.plan, fit.fit, verify.verify, doctor.doctor, report_command.report, migrate.migrate):
        app.command(other)
    app.command(bench.build_app())
    return app


def normalise(words: Sequence[str]) -> list[str]:
    """Return the command line with every flag hyphenated: ``--batch_size=8`` becomes ``--batch-size=8``. Pure.

    ``--symmetrize`` takes an optional value: a relation. A source or a path after it is no relation but the next
    argument. The flag is then moved to the end, so that the parser does not take this argument as its value:
    ``prepare --symmetrize edges:FILE OUT`` becomes ``prepare edges:FILE OUT --symmetrize``.
    """
    normal: list[str] = []
    last: list[str] = []  # flags that are moved to the end
    for position, word in enumerate(words):
        # Everything after a bare "--" is an argument, in any form.
        if word == "--":
            return [*normal, *last, *words[position:]]
        flag, equals, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else ""
        if word == "--symmetrize" and (is_source(following) or "/" in following):
            last.append(word)
            continue
        normal.append(flag.replace("_", "-") + equals + value if word.startswith("--") else word)
    return [*normal, *last]


def _command(arguments: Sequence[str]) -> App | None:
    """Return the command that the first of ``arguments`` names, or None.

    `failure.report` needs it to write an error message with the command's flags.
    """
    app = build_app()
    return next((app[word] for word in arguments[:1] if word in app), None)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done; 1: the run failed; 2: the command line, a configuration or an input is wrong; 130: Ctrl-C;
    143: SIGTERM.
    """
    # With PASSIVE, torch's idle threads sleep. By default they spin, on the cores that sampling and gathering need. The
    # variable must be set before torch is imported, because the import reads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = normalise(sys.argv[1:] if words is None else words)
    try:
        with termination_unwinds():
            status = build_app()(arguments)
    except BrokenPipeError:
        # The program that reads stdout, such as `head`, has ended. With stderr closed, Python prints no message about
        # this at exit.
        sys.stderr.close()
        return EXIT_OK
    except REPORTED_ERRORS as error:
        if "--debug" in arguments:
            raise
        report(error, _command(arguments))
        return exit_status(error)
    except BaseException as error:
        # After Ctrl-C or SIGTERM, the end of a ``with`` block may raise another error. `report` then describes the
        # signal, because such an error is no bug. All other exceptions, bugs and exits, are raised again.
        signalled = interruption_behind(error)
        if signalled is None:
            raise
        report(error)
        return signalled
    finally:
        # A later command in this process must not write its log to this command's console.
        show_logs(None)
    return status if isinstance(status, int) else EXIT_OK
