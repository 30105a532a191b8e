"""Where the mesh is, as the environment says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.service.errors import Invalid
from retinue.service.registry import open_registry
from retinue.service.settings import Settings, masked, path_of
from retinue.service.store import open_store


@pytest.mark.parametrize("folder", ["a#b", "c?d", "ä ö", "100%25"])
def test_embedded_files_lie_in_the_mesh_folder_whatever_its_name(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    settings = Settings.from_environment({}, make_home=True)
    assert path_of(settings.store, field="s") == tmp_path / folder / ".retinue" / "store.db"
    assert path_of(settings.registry, field="r") == tmp_path / folder / ".retinue" / "registry.db"


@pytest.mark.parametrize("url", ["sqlite://foo/bar.db", "sqlite:rel.db"])
def test_a_path_that_is_not_absolute_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="absolute"):
        open_store(url)
    with pytest.raises(Invalid, match="absolute"):
        open_registry(url.replace("sqlite", "local"))


def test_a_password_is_in_no_message() -> None:
    assert masked("redis://user:hunter2@h/0") == "redis://user:***@h/0"
    with pytest.raises(Invalid) as caught:
        open_store("reddis://user:hunter2@h/0")
    assert "hunter2" not in caught.value.message
