"""`python -m gloader` is `gloader`; without the command line's packages it names the command that installs them."""

import sys


def main() -> int:
    """Run one command and return its exit status."""
    try:
        from gloader.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "gloader").startswith("gloader"):
            raise
        print(  # noqa: T201 - a user reads it, and no command has begun
            f"error: {error}: the command line needs cyclopts, rich and PyYAML: pip install 'cyclopts>=5,<6' rich "
            "pyyaml; loading and training from Python need none of them",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("error: interrupted before the command began", file=sys.stderr)  # noqa: T201 - as above
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
