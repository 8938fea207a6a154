"""The hooks of mkdocs.yml: bring README.md, CONTRIBUTING.md, CHANGELOG.md and the examples into the site.

`python tools/site_pages.py DIR` checks a site that was built: no page loads anything from another host.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that lie beside docs/, and where the site has them."""
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)(?=[)#])")
FETCHED: Final = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""Attributes that a browser follows by itself when it shows a page."""
STYLE_URL: Final = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"\s]+")


def site_link(page_dir: Path, link: str) -> str:
    """The link of a page in `page_dir` as the site has it; both are relative to a directory of the checkout."""
    target = (page_dir / link).resolve()
    if target.parent == ROOT and target.name in PAGES:
        return PAGES[target.name]
    for home in (ROOT / "docs", ROOT):
        if target.is_relative_to(home):
            return str(target.relative_to(home))
    return link


def with_site_links(markdown: str, page_dir: Path) -> str:
    """The text of a page with its links as the site has them. Code blocks keep theirs: none holds a Markdown link."""
    return LINK.sub(lambda found: site_link(page_dir, found[1]), markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside docs/, and the programs of examples/ as they are."""
    from mkdocs.structure.files import File

    for source, name in PAGES.items():
        text = with_site_links((ROOT / source).read_text(), ROOT)
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", content=path.read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links of docs/ that lead out of it lead to the same page of the site."""
    return with_site_links(markdown, ROOT / "docs")


class Fetches(HTMLParser):
    """The addresses of other hosts that a browser would load to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ("canonical", "next", "prev", "alternate"):
            return
        for name, value in attrs:
            if (tag, name) in FETCHED and re.match(r"(https?:)?//", value or ""):
                self.found.append(value or "")


def fetched_elsewhere(site: Path) -> Iterator[str]:
    """A line for each script, style, font or picture of another host that a page of the site would load."""
    for page in sorted(site.rglob("*.html")):
        parser = Fetches()
        parser.feed(page.read_text())
        yield from (f"{page.relative_to(site)}: {address}" for address in parser.found)
        yield from (f"{page.relative_to(site)}: {found}" for found in STYLE_URL.findall(page.read_text()))
    for style in sorted(site.rglob("*.css")):
        yield from (f"{style.relative_to(site)}: {found}" for found in STYLE_URL.findall(style.read_text()))


if __name__ == "__main__":
    problems = list(fetched_elsewhere(Path(sys.argv[1])))
    sys.exit("\n".join(problems) if problems else 0)
