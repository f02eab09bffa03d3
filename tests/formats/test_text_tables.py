"""Text tables of Kaldi."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.files import write_text
from roundelay.formats.text_tables import read_lines, read_numbered, read_table, write_table


def test_tables_are_sorted_when_written_and_read_with_line_numbers(tmp_path: Path) -> None:
    write_table(tmp_path / "t", [("b", "2 3"), ("a", "1"), ("B", "")])
    assert (tmp_path / "t").read_text() == "B \na 1\nb 2 3\n"
    assert read_table(tmp_path / "t") == {"B": "", "a": "1", "b": "2 3"}
    (tmp_path / "t").write_text("\nx\ty z \n\nw v\n")
    assert read_numbered(tmp_path / "t") == {"x": ("y z", 2), "w": ("v", 4)}


def test_repeated_keys_and_other_encodings_name_their_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a 1\nb 2\na 3\n")
    with pytest.raises(DataError, match=r"t:3: 'a' is already in line 1"):
        read_table(tmp_path / "t")
    (tmp_path / "t").write_bytes(b"a 1\nb \xff\n")
    with pytest.raises(DataError, match=r"t:2: not UTF-8 \(byte 2\)"):
        list(read_lines(tmp_path / "t"))


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: cannot be read: No such file"):
        read_table(tmp_path / "none")
    with pytest.raises(DataError, match="x: cannot be written: No such file"):
        write_text(tmp_path / "none" / "x", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="folder: cannot be written"):
        write_text(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # nothing temporary is left
