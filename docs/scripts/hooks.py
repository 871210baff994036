"""What MkDocs asks while it builds the site: files outside `docs/` that pages link to become pages of it.

On a code host `../examples/triton_gemm.py` leads to the file. On the site it leads to a page that shows it, or to the
file itself where it is data.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"(\]\()\.\./([\w./=-]+)(#[\w-]+)?\)")
LANGUAGES = {
    ".py": "python",
    ".cu": "cuda",
    ".c": "c",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".csv": "text",
    ".toml": "toml",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file of the repository that a page links to, and those that a shown page links to in turn."""
    asked = [path for file in files.documentation_pages() for path in _outside(file.content_string)]
    while asked:
        path = asked.pop()
        if files.get_file_from_path(_shown_at(path)) is None and (ROOT / path).is_file():
            text = _shown(path)
            kind = {"content": text} if text is not None else {"abs_src_path": str(ROOT / path)}
            files.append(File.generated(config, _shown_at(path), inclusion=InclusionLevel.NOT_IN_NAV, **kind))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links out of `docs/` to where their files are shown. One that leads nowhere stays, and ends the build."""

    def there(link: re.Match[str]) -> str:
        opening, path, anchor = link.groups()
        found = files.get_file_from_path(_shown_at(path)) is not None
        return f"{opening}{_shown_at(path)}{anchor or ''})" if found else link[0]

    return OUTSIDE.sub(there, markdown)


def _outside(markdown: str) -> list[str]:
    return [path for _, path, _ in OUTSIDE.findall(markdown)]


def _shown_at(path: str) -> str:
    """Where the site has a file of the repository."""
    return f"repository/{path}.md" if Path(path).suffix in LANGUAGES else f"repository/{path}"


def _shown(path: str) -> str | None:
    """The page of a file: its name and its text, highlighted; None for what is served as it is."""
    language = LANGUAGES.get(Path(path).suffix)
    if language is None:
        return None
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}````\n"
