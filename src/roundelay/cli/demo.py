"""``roundelay demo``: a complete example, from audio to the report; each step prints the command that does the same."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from importlib import resources
from pathlib import Path

import click

from roundelay.cli.compare import show_answer
from roundelay.cli.screen.progress_bars import bars
from roundelay.cli.screen.study_display import StudyDisplay
from roundelay.errors import MissingExtra

__all__ = ["command"]

EPILOG = """\b
Examples:
  roundelay demo
  roundelay demo --out /tmp/demo --jobs 2
"""
USUAL_HOURS = 0.17
NEEDED = {"espeakng_loader": "synthetic", "soundfile": "speech", "kaldi_decoder": "speech"}


@click.command(epilog=EPILOG)
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Output folder.")
@click.option(
    "--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)), help="Processes; default: 1 per core."
)
@click.option("--hours", type=float, default=USUAL_HOURS, show_default=True, help="Hours of speech to make.")
@click.option("--study", type=click.Path(exists=True, path_type=Path), help="Compare by this study instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, out: Path, jobs: int, hours: float, study: Path | None, as_json: bool) -> None:
    """Make ten minutes of speech, prepare it, train by many strategies, decode, and report: some minutes on two cores.

    Three strategies train on two real processes.  All strategies of the papers train on sixteen simulated learners, one
    of them ten times slower than the others.  If the demo was stopped, run the same command to continue.
    """
    for package, extra in NEEDED.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
    from roundelay.corpora.synthetic.generator import make_corpus
    from roundelay.report.report_writer import write_report
    from roundelay.speech.gmm.gmm_training import GmmSettings
    from roundelay.speech.preparation.data_summary import summary_lines
    from roundelay.speech.preparation.pipeline import PrepareSettings, prepare
    from roundelay.study.scheduler import compare

    began, corpus, data, compared = time.monotonic(), out / "corpus", out / "data", out / "study"
    if study is None and hours <= USUAL_HOURS:
        click.echo(
            "The demo takes about 4 minutes on two cores; if you stop it, the same command continues it.", err=True
        )
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        with bars() as progress:
            _show(f"corpus synth --out {corpus} --hours {hours:g} --jobs {jobs}")
            make_corpus(corpus, hours=hours, jobs=jobs, progress=lambda done, total: progress("speaking", done, total))
            _show(f"prepare {corpus} --out {data} --jobs {jobs}")
            settings = PrepareSettings(hmm=GmmSettings(num_senones=300, num_gaussians=1000))  # the command's defaults
            outcome = prepare(corpus, data, settings, jobs=jobs, progress=progress)
        click.echo("\n".join(summary_lines(outcome.summary)))
        with resources.as_file(resources.files("roundelay") / "demo.toml") as ours, StudyDisplay() as display:
            _show(f"compare {study or ours} --data {data} --out {compared} --jobs {jobs}")
            summary = compare(study or ours, compared, data=data, jobs=jobs, watcher=display).summary
        report = write_report(compared)
        show_answer(summary)
    seconds, by_noise = time.monotonic() - began, _by_noise(compared)
    if as_json:
        said = {"study": str(compared), "report": str(report)} | {n: summary[n] for n in ("answer", "rows", "faults")}
        click.echo(json.dumps(said | {"wer_by_noise": by_noise, "seconds": round(seconds, 1)}))
        return
    if by_noise:
        rates = ", ".join(f"{rate} % {level}" for level, rate in by_noise.items())
        click.echo(f"\nWord error rates of one learner, by noise: {rates}.")
    click.echo(f"All of it took {seconds / 60:.1f} minutes.  The report: {report}")


def _show(command_line: str) -> None:
    click.secho(f"$ roundelay {command_line}", bold=True, err=True)


def _by_noise(compared: Path) -> dict[str, float]:
    """Return the word error rates of one learner by how noisy its speech was, the cleanest first."""
    from roundelay.speech.decoding.word_error_rate import UTTERANCES, ScoredUtterance, Wer

    cells = sorted(compared.glob("runs/*/cell.json"))
    alone = [cell.parent for cell in cells if json.loads(cell.read_text())["learners"] == 1]
    decoded = [found for run in alone for found in run.glob(f"decode/*/{UTTERANCES}")]
    levels: dict[str, list[ScoredUtterance]] = {}
    for scored in Wer.load(decoded[0]).utterances if decoded else ():
        _, noisy, decibels = scored.utterance.rpartition("-snr")
        levels.setdefault(f"{int(decibels)} dB" if noisy else "clean", []).append(scored)
    order = sorted(levels, key=lambda level: -int(level.split()[0]) if level != "clean" else -1000)
    return {level: round(Wer(tuple(levels[level])).wer, 1) for level in order}
