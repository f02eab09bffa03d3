"""``roundelay transcribe``: audio files to text with times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay.cli.progress_bars import bars

EPILOG = """\b
Examples:
  roundelay transcribe runs/an4-dnn call.wav
  roundelay transcribe runs/an4-dnn recordings --jobs 2 --json
  roundelay transcribe runs/an4-dnn lecture.flac --window 30 --overlap 4
  roundelay transcribe runs/an4-dnn call.wav --lexicon digits.txt
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_RUN = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(epilog=EPILOG)
@click.argument("run", type=_RUN)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(exists=True, path_type=Path))
@click.option("--language", help="flat, bigram …: one of RUN's graphs; else that of its language model.")
@click.option("--lexicon", type=_FILE, help="Recognise these words instead of RUN's.")
@click.option("--arpa", type=_FILE, help="Go by this language model instead of RUN's.")
@click.option("--window", default=30.0, show_default=True, type=click.FloatRange(1), help="Longer files are cut, in s.")
@click.option("--overlap", default=4.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Of windows.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), help="Of acoustic scores; else chosen on dev.")
@click.option("--penalty", type=float, help="Cost of a word; else chosen on dev.")
@click.option("--prior", type=float, help="Exponent of priors; else chosen on dev.")
@click.option("--weights-of", type=_RUN, metavar="RUN", help="Take those that this run chose.")
@click.option("--resample", is_flag=True, help="Take audio at a lower rate than RUN was trained on.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Cores to use.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, with a time for each word.")
def command(
    *, run: Path, files: tuple[Path, ...], language: str | None, window: float, overlap: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Print what is said in audio files, or in all that a folder has.

    Each file is taken for one speaker.  A line of text begins after each pause, with its begin and end in seconds.
    """
    from roundelay.speech.decoding.split_decoding import DecodeSettings
    from roundelay.speech.decoding.transcription import Windows, find_audio, transcribe

    with bars() as progress:
        found = transcribe(
            run, find_audio(files), language=language, settings=DecodeSettings(**options),
            windows=Windows(window, overlap), progress=progress,
        )  # fmt: skip
    if as_json:
        print(json.dumps({"run": str(run), "files": [_plain(transcript) for transcript in found]}, ensure_ascii=False))
        return
    for transcript in found:
        if len(found) > 1:
            print(f"{transcript.file}:")
        for line in transcript.lines():
            print(f"{line[0].begin:8.2f} {line[-1].end:8.2f}  {' '.join(word.word for word in line)}")


def _plain(transcript: Any) -> dict[str, Any]:
    words = [{"word": w.word, "begin": round(w.begin, 3), "end": round(w.end, 3)} for w in transcript.words]
    return {"file": str(transcript.file), "seconds": transcript.seconds, "text": transcript.text, "words": words}
