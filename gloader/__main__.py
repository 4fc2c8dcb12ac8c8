"""``python -m gloader`` runs the command line, like the command ``gloader``.

If a package of the command line is not installed, the error message has the command that installs it.
"""

import sys


def main() -> int:
    """Run one command and return its exit status."""
    try:
        from gloader.cli.main import main as run
    except ModuleNotFoundError as error:
        # A missing module of gloader itself is a fault of the installation or the code.
        if (error.name or "gloader").startswith("gloader"):
            raise
        print(  # noqa: T201 - a user reads it, and no command has begun
            f"error: {error}: the command line needs cyclopts, rich and PyYAML: pip install 'cyclopts>=5,<6' rich "
            "pyyaml; loading and training from Python need none of them",
            file=sys.stderr,
        )
        return 2  # the exit status for a wrong call
    except KeyboardInterrupt:
        print("error: interrupted before the command began", file=sys.stderr)  # noqa: T201 - as above
        return 130  # the shell's exit status after Ctrl-C: 128 + SIGINT
    return run()


if __name__ == "__main__":
    sys.exit(main())
