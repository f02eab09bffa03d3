"""The command line: one file per command, imported only when the command is called."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from roundelay._version import __version__
from roundelay.errors import RoundelayError, suggest

COMMANDS = {
    "calibrate": "Measure a cluster from a recorded run, for plan and train.",
    "compare": "Compare strategies, learners and seeds under one budget; write a report.",
    "corpus": "Make or import a corpus: list, synth, import, fetch, check.",
    "decode": "Decode a split with a trained run; print the word error rate.",
    "demo": "Run a complete example in minutes: speech, training, decoding, report.",
    "doctor": "Say what this machine has, what is missing, and how to get it.",
    "export": "Export the acoustic model of a run as ONNX.",
    "init": "Write an experiment, a study, a cluster or a training loop to start from.",
    "launch": "Start a script with roundelay.join on many learners; a lost one comes back.",
    "models": "List the acoustic models with their presets and settings.",
    "plan": "Rank all strategies by simulated speed on a described cluster.",
    "prepare": "Make features, lexicon, alignments and decoding graph of a corpus.",
    "recommend": "Recommend one strategy for a cluster and a task, and say why.",
    "replay": "Run a recorded asynchronous run again in the simulator.",
    "report": "Write one page about a study or runs: tables, plots, a timeline.",
    "resume": "Continue a run from its last checkpoint.",
    "runs": "List runs with their state and scores.",
    "strategies": "List the strategies with their papers.",
    "theory": "Show how fast topologies mix, and the terms that bound AD-PSGD.",
    "train": "Train a model by any strategy, on processes, under MPI or in the simulator.",
    "transcribe": "Transcribe audio files with a trained run: text with times.",
    "watch": "Show a run's progress: loss, speed, and what each learner does.",
}
"""Each command ``x`` is ``command`` in ``roundelay/cli/x.py``; its line here is shown without importing it."""


class _Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"roundelay.cli.{name}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing any command."""
        found = [CompletionItem(name, help=COMMANDS[name]) for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return found if not incomplete.startswith("-") else click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"unknown command {suggest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in sorted(COMMANDS)])


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="roundelay")
@click.option("--traceback", is_flag=True, help="Show where an error came from, not only its line.")
@click.option(
    "--load", multiple=True, metavar="FILE", help="Execute a Python file, whose models runs may then name; repeatable."
)
@click.pass_context
def roundelay(ctx: click.Context, *, traceback: bool, load: tuple[str, ...]) -> None:
    """Train acoustic models on many learners at once.

    \b
    roundelay train tiny --out runs/tiny --learners 2
    roundelay train tiny --out runs/ring --on simulator --learners 16 --strategy adpsgd
    """  # noqa: D301 (\b is click's mark for text that is not to be wrapped)
    ctx.obj = {"traceback": traceback}
    for file in load:
        from roundelay.plugins import load_file

        load_file(Path(file))


def main() -> NoReturn:
    """Run the command line; one clear line and exit status 2 on bad input, 130 on Ctrl-C."""
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    traceback = "--traceback" in sys.argv
    try:
        status = roundelay.main(standalone_mode=False)
    except click.ClickException as error:
        sys.exit(_complain(f"roundelay: {error.format_message()}"))
    except (click.Abort, KeyboardInterrupt):
        logging.disable()  # libraries that were interrupted may still say something at the end
        sys.exit(_complain("roundelay: interrupted", 128 + signal.SIGINT))
    except BrokenPipeError:
        sys.exit(128 + signal.SIGPIPE)
    except (RoundelayError, OSError) as error:
        if traceback:
            raise
        sys.exit(_complain(f"roundelay: {_one_line(error)}"))
    except (MemoryError, RuntimeError) as error:
        if traceback or not _is_full(error):
            raise
        sys.exit(_complain("roundelay: not enough memory; use a smaller model, smaller minibatches or fewer learners"))
    sys.exit(status if isinstance(status, int) else 0)


def _is_full(error: Exception) -> bool:
    """Return whether memory was missing; torch raises a RuntimeError for it."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _complain(line: str, status: int = 2) -> int:
    print(line, file=sys.stderr)
    return status
