"""Hooks of mkdocs: formulas become MathML, files outside of docs/ that pages name become part of the site.

Pages are written to be read in the repository too, so their links to source files lead out of docs/.  Formulas are
converted while the site is built, so that a page needs no script from elsewhere.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
IN_HEADING = re.compile(r"\\\((.*?)\\\)")
HOME = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "README.md": "index.md", "docs": "index.md"}
"""Files at the top that are pages of the site, and folders of pages."""
FOLDERS = ("strategies", "decisions")


def on_config(config: Any) -> Any:
    """Make the navigation of the folders, so that a new page is in it by itself."""
    first = ["index.md", "install.md", "tutorial.md"]
    named = {*first, "architecture.md", "results.md", "glossary.md"}
    others = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in named]
    config.nav = [
        *first,
        {"How to": [*others, *_pages("how-to")]},
        {"Strategies": ["strategies/index.md", *_pages("strategies")]},
        {"Explanation": ["architecture.md", *_pages("explanation")]},
        {"Results": ["results.md", *_pages("results"), *_pages("studies")]},
        {"Reference": [*_pages("reference"), "glossary.md", "changelog.md", "security.md"]},
        {"Decisions": ["decisions/index.md", *_pages("decisions")]},
    ]
    return config


def _pages(folder: str) -> list[str]:
    docs = ROOT / "docs"
    return [path.relative_to(docs).as_posix() for path in sorted((docs / folder).rglob("*.md"))]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and the files outside of docs/ that pages name."""
    for name in ("CHANGELOG.md", "SECURITY.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        text = re.sub(r"\]\((?!https?:|#|mailto:)([A-Z]+\.md)", lambda m: f"]({HOME.get(m[1], '../' + m[1])}", text)
        text = re.sub(r"\]\((examples|src|tests|benchmarks|tools|experiments)/", r"](../\1/", text)
        files.append(File.generated(config, HOME[name], content=text))
    for folder in FOLDERS:
        files.append(File.generated(config, f"{folder}/index.md", content=_list(folder)))
    for source in sorted(_outside(files, config)):
        files.append(File.generated(config, f"source/{source}.txt", content=_text(ROOT / source)))
    return files


def _list(folder: str) -> str:
    """Return a page that names all pages of a folder by their titles."""
    lines = [f"# {folder.capitalize()}", ""]
    for path in sorted((ROOT / "docs" / folder).glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _text(path: Path) -> str:
    if path.is_dir():
        return "".join(f"{inner.relative_to(path)}\n" for inner in sorted(path.rglob("*")) if inner.is_file())
    return path.read_text(encoding="utf-8")


def _outside(files: Files, config: Any) -> set[str]:
    """Return the files and folders outside of docs/ to which pages link."""
    found = set()
    for page in files.documentation_pages():
        for target, _ in LINK.findall(page.content_string):
            name = _resolved(page.src_uri, target)
            if name is not None and (ROOT / name).exists():
                found.add(name)
    return found


def _resolved(page: str, target: str) -> str | None:
    """Return the path of a link from the repository's root, if it leads out of docs/ and to no page of the site."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") or path in HOME else path


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that lead out of docs/ lead to the copies in the site."""
    here = page.file.src_uri

    def rewrite(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(here), target))
        if path in HOME:
            return f"]({_relative(here, HOME[path])})"
        if path.removeprefix("docs/") in FOLDERS:
            return f"]({_relative(here, path.removeprefix('docs/') + '/index.md')})"
        if path.startswith("docs/"):
            return f"]({target}{anchor})"
        return f"]({_relative(here, f'source/{path}.txt')})"

    markdown = LINK.sub(rewrite, markdown)
    return re.sub(r"\]\((strategies|decisions)/\)", r"](\1/index.md)", markdown)


def _relative(page: str, target: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Turn the formulas of a page, and of its table of contents, into MathML."""
    items = [*page.toc]
    while items:
        item = items.pop()
        item.title = IN_HEADING.sub(lambda found: convert(_plain(found[1])), item.title)
        items += item.children

    def formula(found: re.Match[str]) -> str:
        tex = html.unescape(found[2]).strip()
        block = found[1] == "div"
        tex = tex.removeprefix(r"\(").removeprefix(r"\[").removesuffix(r"\)").removesuffix(r"\]")
        made = convert(_plain(tex), display="block" if block else "inline")
        return f'<div style="overflow-x:auto">{made}</div>' if block else made

    return FORMULA.sub(formula, content)


def _plain(tex: str) -> str:
    """Write what the converter does not know in other words."""
    tex = tex.replace(r"\tfrac", r"\frac").replace(r"\textstyle", "").replace(r"\dfrac", r"\frac")
    return re.sub(r"\\frac(\d)(\d|N)", r"\\frac{\1}{\2}", tex)
