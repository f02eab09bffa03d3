"""Another user of the machine, who tries to change the settings of a run: ``stranger.py SETTINGS``.

Each line of standard input is a port on which a process of the run listens.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
from pathlib import Path
from typing import Any

NOBODY = 65534


def ports_of(group: int) -> set[int]:
    """Return the TCP ports on which processes of a process group listen."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                inodes |= {os.readlink(file) for file in (process / "fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:  # it listens
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def say(word: str) -> None:
    """Tell the test."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def attack(port: int, settings: str) -> None:
    """Write to the store there, if it is one of torch's; then send it nonsense."""
    import torch.distributed

    c10d: Any = torch.distributed  # its type information is incomplete

    with contextlib.suppress(RuntimeError):
        timeout = datetime.timedelta(seconds=2)
        store = c10d.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
        store.set("settings/0", settings)
        say("changed")
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(bytes(range(256)) * 16)


def main() -> None:
    """Attack every port that is named, as nobody if we may."""
    import torch.distributed  # noqa: F401  # before the run begins: it takes seconds

    "host".encode("idna")  # sockets need it, and later we may not read the file that has it
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    say("ready")
    for line in sys.stdin:
        attack(int(line), sys.argv[1])
    say("done")


if __name__ == "__main__":
    main()
