"""``roundelay transcribe``: audio files to text with times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay.cli.decode import decoding_options
from roundelay.cli.screen.progress_bars import bars

EPILOG = """\b
Examples:
  roundelay transcribe runs/an4-dnn call.wav
  roundelay transcribe runs/an4-dnn recordings --jobs 2 --json
  roundelay transcribe runs/an4-dnn lecture.flac --window 30 --overlap 4
  roundelay transcribe runs/an4-dnn call.wav --lexicon digits.txt
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--window",
    default=30.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds; a longer file is divided into windows of this length.",
)
@click.option(
    "--overlap",
    default=4.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds by which two windows overlap.",
)
@decoding_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the time of each word.")  # fmt: skip
def command(
    *, run: Path, files: tuple[Path, ...], language: str | None, window: float, overlap: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Print what is said in audio files; of a folder, in all its audio files.

    Each file is treated as one speaker.  A new line begins after each pause, with its begin and end in seconds.
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
