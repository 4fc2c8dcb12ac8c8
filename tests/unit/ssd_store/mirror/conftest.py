"""A dataset in a store, for all tests of a session."""

import pytest
from mirrored import OPENED, uploaded

from gloader.ssd_store.mirror import block_fetch


@pytest.fixture(scope="session", name="remote")
def _remote(tmp_path_factory):
    return uploaded(tmp_path_factory.mktemp("remote"))


@pytest.fixture(name="mirror_dir")
def _mirror_dir(tmp_path):
    return tmp_path / "mirrors"


@pytest.fixture(autouse=True)
def _close_mirrors():
    yield
    while OPENED:
        OPENED.pop().close_mirror()


@pytest.fixture(autouse=True)
def _short_pauses(request, monkeypatch):
    if "real_pauses" not in request.fixturenames:
        monkeypatch.setattr(block_fetch, "_FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(block_fetch, "_LONGEST_PAUSE_S", 0.002)


@pytest.fixture(name="real_pauses")
def _real_pauses():
    return None
