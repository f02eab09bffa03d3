"""Prepared tones for the tests of tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tones
from roundelay.speech.prepare import prepare
from roundelay.speech.vectors import IvectorSettings


@pytest.fixture(scope="session")
def toned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of prepared data with all that a network may hear, in seconds."""
    folder = tmp_path_factory.mktemp("toned")
    settings = replace(
        tones.SETTINGS,
        hmm=replace(tones.SETTINGS.hmm, adapt=True),
        language=replace(tones.SETTINGS.language, ctc=True),
        ivectors=IvectorSettings(size=4),
    )
    prepare(tones.make(folder / "corpus"), folder / "data", settings)
    return str(folder / "data")


@pytest.fixture
def data(toned: str) -> Path:
    """The same as a path."""
    return Path(toned)
