"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import roundelay

SOURCE = Path(roundelay.__file__).parent


def modules_with_examples() -> list[str]:
    """Name the modules whose docstrings have examples."""
    files = sorted(file for file in SOURCE.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8"))
    return [".".join(("roundelay", *file.relative_to(SOURCE).with_suffix("").parts)) for file in files]


def test_there_are_examples() -> None:
    assert "roundelay.user_loop.joined_learner" in modules_with_examples()


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # whatever one writes is gone afterwards
    torch.manual_seed(0)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0, "see what was printed"
