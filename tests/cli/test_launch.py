"""``roundelay launch`` on the command line; what it starts is tested in user_loop/test_script_launcher.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import call


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nothing.py", "--learners", "2"], "roundelay: launch: nothing.py: there is no such file"),
        (["script.py", "--learners", "0"], "roundelay: launch: learners: at least 1, not 0"),
        (["script.py"], "roundelay: Missing option '--learners'."),
        (["script.py", "--learners", "2", "--hosts", "2"], "roundelay: --hosts 2: also give --rendezvous HOST:PORT"),
        (
            ["script.py", "--learners", "1", "--hosts", "2", "--rendezvous", "127.0.0.1:1", "--token", "x"],
            "roundelay: launch: learners: 1 are too few for 2 hosts",
        ),
        (
            ["script.py", "--learners", "2", "--hosts", "2", "--rendezvous", "127.0.0.1:29500"],
            "roundelay: rendezvous 127.0.0.1:29500: also give --token",
        ),
    ],
)
def test_bad_input_gets_one_line(words: list[str], line: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = call("launch", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_what_stands_behind_is_for_the_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import sys, beside\nif __name__ == '__main__':\n    print(sys.argv[1:], beside.name)\n"
    )
    done = call("launch", "script.py", "--learners", "1", "--", "--learners", "7", "x y", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert capfd.readouterr().out == "['--learners', '7', 'x y'] beside\n"
