"""What `gloader prepare` does beside converting where OUT is a URL."""

from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from gloader.cli.views.convert import convert_view
from gloader.cli.views.screen import Screen
from gloader.convert.registry import is_source
from gloader.core.units import format_bytes, format_seconds

_RECORD = "dataset.json"


def is_prepared(source: str) -> bool:
    """Return whether ``source`` is the folder of a dataset, and no source."""
    with suppress(OSError, ValueError):  # what is no path either
        return not is_source(source) and (Path(source) / _RECORD).is_file()
    return False


def draft_folder(held: ExitStack) -> Path:
    """Return the path of a folder to make, which is gone with everything in it when ``held`` is left.

    It is below $GLOADER_SPILL_DIR or the system's temporary folder; a later run removes it if this one is killed.
    """
    from gloader.ssd_store.spill.folder import SpillFolder

    # No budget: nothing is spilled there, and conversions look themselves whether the disk has room.
    return held.enter_context(SpillFolder(budget_bytes=0)).path / "dataset"


def upload(screen: Screen, root: Path, url: str, *, overwrite: bool) -> dict[str, object]:
    """Upload the dataset ``root`` to ``url`` in view of the user, and return what to tell programs."""
    # Imported here: the format comes with numpy.
    from gloader.convert.upload import upload_dataset

    with convert_view(screen) as progress:
        report = upload_dataset(root, url, overwrite=overwrite, progress=progress)
    screen.say(
        f"{format_bytes(report.num_bytes)} in {report.num_files:,} objects at {report.url}, "
        f"in {format_seconds(report.seconds)}"
    )
    return {"path": report.url, "uploaded": asdict(report)}
