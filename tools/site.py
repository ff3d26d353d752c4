"""What mkdocs asks while it builds the site: the pages that lie outside ``docs/``, and links to them.

Pages are written to be read in the repository: a link to ``../../examples/train_gpt.py`` or to
``../../events/README.md`` works there.  In the site nothing lies outside ``docs/``, so each file that a
page links to becomes a page of its own under ``repository/``: Markdown as it is, code as a listing,
a folder without a README as a list, anything else as the file itself.  The links between all of them are
put right, and mkdocs (strict) refuses what leads nowhere.

What never lives here: content.  ``mkdocs.yml`` names this file under ``hooks``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS, OUTSIDE = "docs", "repository"
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages that the navigation names."""

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
"""A Markdown link or image: what stands before its target, the target, what stands behind."""
FENCE = re.compile(r"^(?P<marks>`{3,}|~{3,}).*?^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)

LANGUAGES = {
    ".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".sh": "bash",
    ".sbatch": "bash", ".conf": "text", "Dockerfile": "docker", "Makefile": "make", "LICENSE": "text",
}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file of the repository that a page leads to, directly or over another."""
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)

    def add(target: str) -> None:
        if target not in seen and not target.startswith(f"{DOCS}/"):
            seen.add(target)
            waiting.append(target)
            files.append(File.generated(config, place(target), content=page_of(target)))

    for target in ALWAYS:
        add(target)
    while waiting:
        source = waiting.pop()
        if (ROOT / source).is_dir():
            for name in names_in(source):
                add(f"{source}/{name}")
        elif source.endswith(".md"):
            for target in targets(source, (ROOT / source).read_text(encoding="utf-8")):
                add(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point every link that leaves ``docs/``, or comes from outside of it, to its page in the site."""
    here = page.file.src_uri
    source = repository_path(here)

    def mended(match: re.Match[str]) -> str:
        target = resolved(source, match[2])
        if target is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(place(target), posixpath.dirname(here))}{match[3]}"

    return outside_of_code(markdown, lambda text: LINK.sub(mended, text))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the roles of docstrings (``:func:``) as the code that they mark."""
    return re.sub(r":(?:func|meth|class|mod|data|attr):(?=<code>)", "", html)


def targets(source: str, markdown: str) -> Iterator[str]:
    """Files of the repository that a Markdown file links to."""
    for match in LINK.finditer(FENCE.sub("", markdown)):
        target = resolved(source, match[2])
        if target is not None:
            yield target


def resolved(source: str, link: str) -> str | None:
    """The file or folder of the repository that a link means; None for an address, or where there is none."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path / "README.md").is_file():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def names_in(folder: str) -> list[str]:
    """The files of a folder that has no README of its own."""
    return sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file() and path.name[0] != ".")


def place(path: str) -> str:
    """Where a file of the repository is among the pages of the site."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if (ROOT / path).is_dir():
        return f"{OUTSIDE}/{path}/index.md"
    return f"{OUTSIDE}/{path}.md" if is_code(path) else f"{OUTSIDE}/{path}"


def repository_path(uri: str) -> str:
    """The file of the repository that a page of the site is made of."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return f"{DOCS}/{uri}"
    path = uri.removeprefix(f"{OUTSIDE}/")
    if (ROOT / path).is_file() or posixpath.basename(path) == "index.md":
        return path
    return path.removesuffix(".md")


def is_code(path: str) -> bool:
    """Whether a file is shown as a listing; Markdown, schemas and recordings are not."""
    name = posixpath.basename(path)
    return name in LANGUAGES or posixpath.splitext(name)[1] in LANGUAGES


def page_of(path: str) -> str | bytes:
    """The content of the page that shows a file, or of the file itself."""
    if (ROOT / path).is_dir():
        listed = "".join(f"- [{name}]({name})\n" for name in names_in(path))
        return f"# {posixpath.basename(path)}\n\n`{path}` in the repository.\n\n{listed}"
    if not is_code(path):
        return (ROOT / path).read_bytes()
    text = (ROOT / path).read_text(encoding="utf-8")
    name = posixpath.basename(path)
    language = LANGUAGES.get(name) or LANGUAGES[posixpath.splitext(name)[1]]
    return (
        f'# {name}\n\n`{path}` in the repository.\n\n``````{language} linenums="1"\n{text.rstrip()}\n``````\n'
    )


def outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change the text of a page, but nothing in its code blocks."""
    parts, end = [], 0
    for match in FENCE.finditer(markdown):
        parts += [change(markdown[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(markdown[end:])])
