"""Prepared data as training and decoding read them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from roundelay.speech.features import digest_checks
from roundelay.speech.preparation.pipeline import open_prepared


def test_files_are_closed_with_the_data(data: Path) -> None:
    digest_checks.submit(data / "lexicon.txt", "", "").result(60)  # those of tests before are done
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    opened = open_prepared(data)
    read = [opened.features("train")[name] for name in opened.transcripts("train")]
    assert len(os.listdir("/proc/self/fd")) > before
    opened.finish_checks()
    del opened, read
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
