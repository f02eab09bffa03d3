"""``roundelay demo``: the whole story, from audio to the report, by the commands that one would call oneself."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import click

from roundelay.errors import MissingExtra

__all__ = ["command"]

EPILOG = """\b
Examples:
  roundelay demo
  roundelay demo --out /tmp/demo --jobs 2
"""
NEEDED = {"espeakng_loader": "synthetic", "soundfile": "speech", "kaldi_decoder": "speech"}


@click.command(epilog=EPILOG)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Where it all goes."
)
@click.option("--jobs", type=int, help="Processes at a time; by default one for each core.")
@click.option("--hours", type=float, default=0.17, show_default=True, help="How much speech is made.")
@click.option(
    "--study", type=click.Path(exists=True, path_type=Path), help="Compare something else on the same speech."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, out: Path, jobs: int | None, hours: float, study: Path | None, as_json: bool) -> None:
    """Make ten minutes of speech, prepare it, train by many strategies, decode, and report: some minutes on two cores.

    On two real processes three strategies are trained, and on sixteen simulated learners, one of them ten times slower
    than the others, all strategies of the papers.  Called again, it goes on where it was stopped.
    """
    for package, extra in NEEDED.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
    began = time.monotonic()
    many = ["--jobs", str(jobs)] if jobs is not None else []
    corpus, data, compared = out / "corpus", out / "data", out / "study"
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        _call("corpus", "synth", "--out", str(corpus), "--hours", f"{hours:g}", *many)
        _call("prepare", str(corpus), "--out", str(data), *many)
        with resources.as_file(resources.files("roundelay") / "demo.toml") as ours:
            _call("compare", str(study or ours), "--data", str(data), "--out", str(compared), *many)
    seconds, by_noise = time.monotonic() - began, _by_noise(compared)
    if as_json:
        click.echo(json.dumps(_told(compared) | {"wer_by_noise": by_noise, "seconds": round(seconds, 1)}))
    else:
        if by_noise:
            rates = ", ".join(f"{rate} % {level}" for level, rate in by_noise.items())
            click.echo(f"\nWord error rates of one learner, by noise: {rates}.")
        click.echo(f"All of it took {seconds / 60:.1f} minutes.  The report: {compared / 'report.html'}")


def _call(name: str, *words: str) -> None:
    """Call one of our own commands, and show which."""
    click.secho(f"$ roundelay {' '.join([name, *words])}", bold=True, err=True)
    made: click.Command = importlib.import_module(f"roundelay.cli.{name}").command
    made.main([*words], standalone_mode=False)


def _told(compared: Path) -> dict[str, Any]:
    from roundelay.study.summary import summarise

    summary = summarise(compared)
    said = {"study": str(compared), "report": str(compared / "report.html"), "answer": summary["answer"]}
    return said | {"rows": summary["rows"], "faults": summary["faults"]}


def _by_noise(compared: Path) -> dict[str, float]:
    """Return the word error rates of one learner by how noisy its speech was, the cleanest first."""
    from roundelay.speech.decoding.word_error_rate import UTTERANCES, ScoredUtterance, Wer

    alone = [
        path for path in sorted(compared.glob("runs/*/cell.json")) if json.loads(path.read_text())["learners"] == 1
    ]
    decoded = [found for path in alone for found in path.parent.glob(f"decode/*/{UTTERANCES}")]
    levels: dict[str, list[ScoredUtterance]] = {}
    for scored in Wer.load(decoded[0]).utterances if decoded else ():
        _, noisy, decibels = scored.utterance.rpartition("-snr")
        levels.setdefault(f"{int(decibels)} dB" if noisy else "clean", []).append(scored)
    order = sorted(levels, key=lambda level: -int(level.split()[0]) if level != "clean" else -1000)
    return {level: round(Wer(tuple(levels[level])).wer, 1) for level in order}
