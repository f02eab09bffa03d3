"""``roundelay decode``: from a trained run to words, and how many of them are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay.cli.progress_bars import bars

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


@click.command(epilog=EPILOG)
@click.argument("run", type=_RUN)
@click.option(
    "--data", type=_RUN, help="Prepared data, or any folder with wav.scp, text and utt2spk; else what RUN trained on."
)
@click.option("--split", default="test", show_default=True)
@click.option("--language", help="flat, bigram …: one of RUN's graphs; else that of its language model.")
@click.option("--lexicon", type=_FILE, help="Recognise these words instead of RUN's.")
@click.option("--arpa", type=_FILE, help="Go by this language model instead of RUN's.")
@click.option("--against", type=_RUN, metavar="RUN", help="Test whether this run's word error rate differs.")
@click.option("--beam", default=13.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--max-active", default=2000, show_default=True, type=click.IntRange(2), help="Paths kept at most.")
@click.option("--scale", type=click.FloatRange(0, min_open=True), help="Of acoustic scores; else chosen on dev.")
@click.option("--penalty", type=float, help="Cost of a word; else chosen on dev.")
@click.option("--prior", type=float, help="Exponent of priors; else chosen on dev.")
@click.option("--dev", type=_RUN, help="Data to choose them on, instead of what RUN trained on.")
@click.option("--weights-of", type=_RUN, metavar="RUN", help="Take those that this run chose.")
@click.option("--nbest", default=0, type=click.IntRange(0), help="Write so many alternatives, too.")
@click.option("--resample", is_flag=True, help="Take audio at a lower rate than RUN was trained on.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Cores to use.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    *, run: Path, data: Path | None, split: str, language: str | None, against: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Decode a split with RUN and report the word error rate.

    Weights of scores, words and priors are chosen on dev, once for each model and graph.  Hypotheses, times and scores
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
    """Compare on what the first run decoded: the other's own data may be another preparation."""
    from roundelay.speech.decoding.acoustic_bundle import Bundle

    return Bundle.open(run).data


def _settings(options: dict[str, Any]) -> Any:
    from roundelay.speech.decoding.beam_search import Pruning
    from roundelay.speech.decoding.split_decoding import DecodeSettings

    pruning = Pruning(options.pop("beam"), options.pop("max_active"))
    return DecodeSettings(pruning=pruning, **options)


def lines(report: dict[str, Any]) -> list[str]:
    """Say a report in a few lines."""
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
