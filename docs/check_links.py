"""Check every internal link, anchor and image of the built site, without a network: `python docs/check_links.py DIR`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

TEMPLATES = "_static"  # holds templates of the theme, no pages


class Page(HTMLParser):
    """Anchors of a page, and what it points to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.targets |= {values[name] for name in ("href", "src") if name in values}


def broken_links(site: Path) -> list[str]:
    """One line for each internal target that is not there."""
    site = site.resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if TEMPLATES not in path.relative_to(site).parts}
    if not pages:
        return [f"{site.name}: no page found"]
    broken = []
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[file].anchors if file in pages else {""}
            fragment = unquote(parts.fragment) if file.suffix == ".html" else ""
            if not file.is_file() or fragment not in anchors:
                broken.append(f"{path.relative_to(site)}: {target}")
    return broken


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    sys.exit("\n".join(["broken links:", *found]) if found else 0)
