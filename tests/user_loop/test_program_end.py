"""How a program ends that has not closed its learner."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from roundelay.user_loop import program_end

class Learner:
    def close(self): print("closed")
    def abandon(self, reason): print("abandoned:", reason)

program_end.watch_exit()
learner = Learner()
program_end.note_progress()
end = program_end.at_exit(learner, "learner 1")
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("", "closed\n"),
        ("sys.exit()", "closed\n"),
        ("sys.exit(0)", "closed\n"),
        ("sys.exit(3)", "abandoned: learner 1 has ended: exit status 3\n"),
        ("sys.exit('enough')", "abandoned: learner 1 has ended: exit status enough\n"),
        ("1 / 0", "abandoned: learner 1 has ended: ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt", "abandoned: learner 1 has ended: KeyboardInterrupt: \n"),
        ("program_end.forget(end)", ""),
        ("try: sys.exit(1)\nexcept SystemExit: program_end.note_progress()", "closed\n"),
    ],
)
def test_the_others_hear_of_an_error_alone(how: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE + how], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == said


def test_what_an_interactive_session_has_shown_does_not_count_for_ever() -> None:
    lines = CODE.replace("\n    def", "\n  def") + "\n1 / 0\nprogram_end.note_progress()\n"
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "closed\n"
    assert "ZeroDivisionError" in done.stderr
