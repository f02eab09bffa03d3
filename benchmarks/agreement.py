"""Compare the alignments of a preparation with a reference: python benchmarks/agreement.py CORPUS DATA.

For the synthetic corpus the reference is espeak-ng's phoneme events, with figures for each noise level; for AN4
it is the alignment shipped in the pack.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

from roundelay.speech.preparation.pipeline import open_prepared
from segment_agreement import compare_all_segments

Timed = tuple[str, float, float]
SHIFT, MIDDLE = 0.010, 0.0125  # frame t is centred at 10 t + 12.5 ms, half a frame being 5 ms of it


def read_ctm(path: Path) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        utterance, _, begin, length, phone = line.split()
        offset = MIDDLE / SHIFT - 0.5
        first, last = float(begin) / SHIFT - offset, (float(begin) + float(length)) / SHIFT - offset
        found.setdefault(utterance, []).append((phone.replace("SIL", "sil"), first, last))
    return found


def read_states(path: Path) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            utterance, *runs = line.split()
            now, segments = 0, []
            for run in runs:
                state, _, frames = run.rpartition(":")
                phone = state.split("_s")[0].split("[")[0].upper().replace("SIL", "sil")
                segments.append((phone, float(now), float(now + int(frames))))
                now += int(frames)
            found[utterance] = segments
    return found


def pairs(corpus: Path, folder: Path, split: str) -> Iterator[tuple[str, list[Timed], list[Timed]]]:
    data = open_prepared(folder)
    names = data.lexicon.phones
    synthetic = (corpus / split / "reference.ctm").exists()
    reference = read_ctm(corpus / split / "reference.ctm") if synthetic else read_states(corpus / "align/states.txt.gz")
    levels = {}
    if synthetic:
        levels = dict(line.split() for line in (corpus / split / "utt2snr").read_text().splitlines())
    phones = data.phones(split)
    for utterance in phones:
        found = [(names[int(phone)], float(begin), float(end)) for phone, begin, end in phones[utterance]]
        if reference.get(utterance):
            yield levels.get(utterance, "all"), found, reference[utterance]


def main() -> None:
    corpus, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for split in ("train", "dev", "test"):
        for level, found in sorted(compare_all_segments(pairs(corpus, folder, split)).items(), reverse=True):
            what = {"inf": "clean", "all": "all"}.get(level, f"{level} dB")
            frames, edges = 100 * found.frame_share, 100 * found.boundary_share
            print(f"{split:6s} {what:6s} frames {frames:.1f} %  boundaries within 20 ms {edges:.1f} %")


if __name__ == "__main__":
    main()
