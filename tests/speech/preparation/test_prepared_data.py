"""Prepared data as training and decoding read them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from roundelay.speech.preparation.pipeline import open_prepared


def test_files_are_closed_with_the_data(data: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    opened = open_prepared(data)
    read = [opened.features("train")[name] for name in opened.transcripts("train")]
    assert len(os.listdir("/proc/self/fd")) > before
    del opened, read
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
