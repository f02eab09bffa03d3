"""``roundelay decode``: recognise the words of a split, and count the errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from roundelay.cli.screen.progress_bars import bars

EPILOG = """\b
Examples:
  roundelay decode runs/an4-dnn --split test --language flat
  roundelay decode runs/an4-dnn --data corpora/official --language bigram --jobs 2
  roundelay decode runs/an4-lstm --split test --language bigram --against runs/an4-dnn
  roundelay decode runs/an4-all --data corpora/official --weights-of runs/an4-lstm
  roundelay decode runs/an4-dnn --lexicon digits.txt --nbest 5
"""
_RUN = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


def decoding_options(function: F) -> F:
    """Add the options that decode and transcribe have in common."""
    for option in reversed((
        click.option("--language", help="One of RUN's graphs (flat, bigram …); default: that of its language model."),
        click.option("--lexicon", type=_FILE, help="Recognise the words of this lexicon instead of RUN's."),
        click.option("--arpa", type=_FILE, help="Use this language model instead of RUN's."),
        click.option(
            "--scale", type=click.FloatRange(0, min_open=True), help="Weight of acoustic scores; default: tuned on dev."
        ),
        click.option("--penalty", type=float, help="Cost per word; default: tuned on dev."),
        click.option("--prior", type=float, help="Exponent of priors; default: tuned on dev."),
        click.option("--weights-of", type=_RUN, metavar="RUN", help="Use the weights tuned by this run."),
        click.option("--resample", is_flag=True, help="Accept audio at a lower rate than RUN was trained on."),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, or an accelerator such as cuda."),
        click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Cores to use."),
    )):  # fmt: skip
        function = option(function)
    return function


@click.command(epilog=EPILOG)
@click.argument("run", type=_RUN)
@click.option(
    "--data", type=_RUN, help="Prepared data, or a folder with wav.scp, text and utt2spk; default: RUN's own."
)
@click.option("--split", default="test", show_default=True)
@click.option("--against", type=_RUN, metavar="RUN", help="Test whether this run's word error rate differs.")
@click.option("--beam", default=13.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--max-active", default=2000, show_default=True, type=click.IntRange(2), help="Maximum number of paths.")
@click.option("--dev", type=_RUN, help="Data to tune weights on; default: those that RUN was trained on.")
@click.option("--nbest", default=0, type=click.IntRange(0), help="Also write this many alternatives per utterance.")
@decoding_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, run: Path, data: Path | None, split: str, language: str | None, against: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Decode a split with RUN and report the word error rate.

    Weights of scores, words and priors are tuned on dev, once for each model and graph.  Hypotheses, times and scores
    are written below RUN/decode.
    """
    from roundelay.speech.decoding.split_decoding import decode_run
    from roundelay.speech.decoding.word_error_rate import compare_wer

    settings = _settings(options)
    with bars() as progress:
        found = decode_run(run, data, split, language=language, settings=settings, progress=progress)
        comparison = None
        if against is not None:
            other = decode_run(
                against, data or _data_of(run), split, language=language, settings=settings, progress=progress
            )
            comparison = compare_wer(other.wer, found.wer)
    if as_json:
        said = found.report | {"folder": str(found.folder)}
        print(json.dumps(said | ({"against": comparison.describe() | {"run": str(against)}} if comparison else {})))
        return
    print("\n".join(lines(found.report)))
    if comparison is not None:
        print(_compared(comparison.describe(), against))
    print(found.folder)


def _data_of(run: Path) -> Path:
    """Return the data of the first run: those of the other may be prepared in another way."""
    from roundelay.speech.decoding.acoustic_bundle import Bundle

    return Bundle.open(run).data


def _settings(options: dict[str, Any]) -> Any:
    from roundelay.speech.decoding.beam_search import Pruning
    from roundelay.speech.decoding.split_decoding import DecodeSettings

    pruning = Pruning(options.pop("beam"), options.pop("max_active"))
    return DecodeSettings(pruning=pruning, **options)


def lines(report: dict[str, Any]) -> list[str]:
    """Return a report as a few lines."""
    low, high = report["interval"]
    tuned = f"chosen on {report['tuned_on']}" if report["tuned_on"] else "not chosen on dev"
    times = "once" if report["decoded"] == 1 else f"{report['decoded']} times"
    speed = 1 / report["real_time_factor"] if report["real_time_factor"] else 0.0
    return [
        f"{report['wer']:.2f} % word errors on {report['split']} with {report['language']} "
        f"(95 %: {low:.2f} to {high:.2f}); {report['errors']} of {report['words']} words: "
        f"{report['insertions']} inserted, {report['deletions']} deleted, {report['substitutions']} substituted",
        f"scale {report['scale']:g}, penalty {report['penalty']:g}, prior {report['prior']:g} ({tuned}); "
        f"beam {report['beam']:g}; {speed:.0f} times faster than real time; decoded {times} so far",
    ]


def _compared(comparison: dict[str, Any], against: Path | None) -> str:
    low, high = comparison["interval"]
    verdict = "significant" if comparison["significant"] else "could be chance"
    return (
        f"against {against} ({comparison['first']:.2f} %): {comparison['difference']:+.2f} points "
        f"(95 %: {low:+.2f} to {high:+.2f}), p = {comparison['p']:.4f}: {verdict}"
    )
