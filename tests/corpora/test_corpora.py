"""The registry of corpora."""

from __future__ import annotations

import pytest

from roundelay import corpora
from roundelay.errors import SettingsError


def test_every_corpus_is_registered_and_told() -> None:
    for name in corpora.MODULES:
        corpus = corpora.load(name)
        assert corpus.name == name
        assert corpus.summary
        assert corpus.licence
        assert set(corpus.default_parts) <= set(corpus.parts)
        for download in corpus.parts.values():
            assert download.url.startswith("https://")
            assert download.sha256 is None or len(bytes.fromhex(download.sha256)) == 32
    with pytest.raises(SettingsError, match="did you mean 'librispeech'"):
        corpora.load("libirspeech")
