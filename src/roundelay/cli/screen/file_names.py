"""Complete the names of included files on the command line, beside those of files."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from roundelay.included_files import Kind, included_names


def complete(kind: Kind) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes an argument that is a file or the name of an included one."""

    def items(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        known = [CompletionItem(name) for name in included_names(kind) if name.startswith(begun)]
        return known or [CompletionItem(begun, type="file")]

    return items
