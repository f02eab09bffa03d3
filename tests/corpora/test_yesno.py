"""Yes and no from a tiny folder of the shape of the original."""

from __future__ import annotations

from pathlib import Path

from corpus_files import write_audio
from imported_corpus import imported, words


def test_yesno(tmp_path: Path) -> None:
    for i in range(12):
        write_audio(tmp_path / "in" / "waves_yesno" / f"{'_'.join(f'{i:08b}')}.wav", rate=8000)
    found = imported("yesno", tmp_path / "in", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 6, "dev": 2, "test": 4}
    assert words(found["train"])["ken-0_0_0_0_0_1_0_1"] == "NO NO NO NO NO YES NO YES"
