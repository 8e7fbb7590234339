"""The guide that the control plane serves below /docs/guide, made of the repository's own pages: `make site` builds it.

Sources are the pages where they are, read as GitHub reads them, so that a link or a list works in both or in neither.
"""

import hashlib
import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = html_title = "Pavane"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/*.md", "docs/specs/*.md"]
exclude_patterns = [".*", "api", "build", "dist", "services", "tests"]  # not even walked through
root_doc = "README"
nitpicky = True
myst_heading_anchors = 4  # as GitHub makes them
suppress_warnings = ["myst.header"]  # the reference of commands shows their groups without a level for each
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}  # nobody edits the page that a server shows
html_favicon = "../../api/pavane_api/static/favicon.svg"
html_copy_source = html_show_copyright = html_show_sphinx = False

NAVIGATION = {
    "Begin": ["tutorial", "connect", "dashboard"],
    "On Kubernetes": ["install", "operations", "gitops", "security", "troubleshooting"],
    "Kinds": ["raft", "keys", "swim", "waltz", "waltz-years", "immortals", "compute", "spark"],
    "Reference": ["cli", "rest", "api", "rollout", "telemetry", "limitations", "differences"],
    "How it is built": ["../ARCHITECTURE", "design", "../CONTRIBUTING", "handbook", "../CHANGELOG"],
    "Specifications": ["specs/operator", "specs/raft", "specs/swim", "specs/waltz", "specs/ambrosia", "specs/compute"],
}
PRESENTED = {' style="display: none;"': " hidden", ' style="opacity: 50%"': ' opacity="0.5"'}
"""Attributes that say the same without being a style."""
INSIDE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def setup(app: Sphinx) -> None:
    """Register what the settings above cannot say."""
    app.add_lexer("mermaid", TextLexer)  # a diagram is shown as its source
    app.connect("source-read", add_navigation)
    app.connect("build-finished", move_out)


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Give the first page the tables of contents that the margin shows; a page that is in none is an error."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            names = "\n".join(f"docs/{page}".replace("docs/../", "") for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n"


def move_out(app: Sphinx, failure: Exception | None) -> None:
    """Move the theme's scripts and styles into files: pages are served with a policy that allows none inside."""
    for page in Path(app.outdir).rglob("*.html"):
        up = "../" * (len(page.relative_to(app.outdir).parts) - 1)
        text = page.read_text()
        for found in INSIDE.finditer(text):
            text = text.replace(found[0], _moved(app, up, *found.groups()))
        for style, attribute in PRESENTED.items():
            text = text.replace(style, attribute)
        page.write_text(text)


def _moved(app: Sphinx, up: str, tag: str, text: str) -> str:
    name = f"_static/{hashlib.sha256(text.encode()).hexdigest()[:16]}.{'js' if tag == 'script' else 'css'}"
    Path(app.outdir, name).write_text(text)
    return f'<script src="{up}{name}"></script>' if tag == "script" else f'<link rel="stylesheet" href="{up}{name}">'
