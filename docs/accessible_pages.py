"""What the theme leaves out for those who hear a page or move through it by keys; axe-core looks for it."""

import re
from pathlib import Path

_MENDED = [
    # Captions of the navigation are headings of a level.
    (r'role="heading">', r'role="heading" aria-level="2">'),
    # Two regions of one kind have names that tell them apart.
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    (r'<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
    # What scrolls can be reached by keys.
    (r"<pre>", '<pre tabindex="0">'),
    (r'<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    # A corner of a table without words heads nothing.
    (r'<th class="head">(?:<p></p>)?</th>', "<td></td>"),
]


def mend_pages(folder: Path) -> None:
    """Mends all pages of a site."""
    for path in folder.rglob("*.html"):
        text = before = path.read_text()
        for pattern, mended in _MENDED:
            text = re.sub(pattern, mended, text)
        if path.name == "search.html" and "<h1" not in text:
            text = re.sub(r'(<article[^>]*role="main"[^>]*>)', r"\1<h1>Search</h1>", text)
        if text != before:
            path.write_text(text)
