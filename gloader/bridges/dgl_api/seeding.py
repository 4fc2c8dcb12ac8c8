"""The seed of the loaders that are built from now on."""

from gloader.core.near_names import near_keywords

_SEEDS = [0]


@near_keywords
def seed(val: int) -> None:
    """Set the seed of the loaders that are built from now on: of their order, and of what they draw.

    Parameters
    ----------
    val : any integer
    """
    _SEEDS[0] = int(val)


def current_seed() -> int:
    """Return the seed that was set, or 0."""
    return _SEEDS[0]
