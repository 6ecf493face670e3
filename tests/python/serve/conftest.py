"""Fixtures that tests of the server share: folders of tiny models, and models that draw tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packhorse import TextModel
from serve_room import make_models, serve_chance


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def models() -> Iterator[list[TextModel]]:
    """Those that are loaded from the path "chance", which generate."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield serve_chance(monkeypatch)
