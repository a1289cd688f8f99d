"""The documentation site: Sphinx with MyST and the theme Furo, built by `make docs` into build/site.

The pages are the Markdown files of the repository as they are: links are relative, as a browser of the repository
follows them. Here are what such a browser lacks, the navigation, and what Sphinx lacks, links to folders. Warnings are
errors, and a link or an anchor that does not exist is a warning. The pages need no network.
"""

import re
import shutil
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from lambert import __version__

ROOT = Path(__file__).parents[1]
ATTRIBUTIONS = ("src/lambert/verbs/demo/data/README.md", "tests/golden/README.md")
project, release = "Lambert", __version__
html_title = f"Lambert {__version__}"
extensions = ["myst_parser"]
root_doc = "README"
html_theme = "furo"
html_show_copyright = html_show_sourcelink = False
html_copy_source = html_use_index = False
html_static_path = ["site"]
html_css_files = ["wide.css"]
myst_heading_anchors = 6
include_patterns = ["*.md", "docs/**.md", "benchmarks/**.md", *ATTRIBUTIONS]
exclude_patterns = [".*", "build", "dist", "runs"]

STUDIES = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob("benchmarks/**/*.md"))
DESIGN = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob("docs/design/0*.md"))
NAVIGATION = {
    "Begin": ["docs/first-csv", "docs/install", "docs/demo", "docs/tour", "docs/recipes", "docs/README"],
    "Commands": [
        f"docs/{name}"
        for name in (
            *(
                "prepare",
                "pretrain",
                "finetune",
                "vectors",
                "adapt",
                "sweep",
                "evaluate",
                "compare",
                "predict",
                "serve",
            ),
            *("convert", "bench", "plan", "verify", "report", "doctor"),
        )
    ],
    "Several devices": [f"docs/{name}" for name in ("cluster", "exchange", "sharding", "horovod")],
    "Coming from": [
        f"docs/{name}"
        for name in ("migrating/README", "migrating/transformers", "migrating/nvidia", "migrating/determined")
    ],
    "Python": ["docs/library", "docs/reference", "docs/extending"],
    "Reference": [
        f"docs/{name}" for name in ("settings", "contracts", "errors", "numerics", "reliability", "security")
    ],
    "Studies and the log": ["docs/numbers", "docs/log", *STUDIES],
    "Decisions": ["docs/design/README", *DESIGN],
    "The project": ["CHANGELOG", "CONTRIBUTING", "SECURITY", *(name.removesuffix(".md") for name in ATTRIBUTIONS)],
}
"""The pages by heading. A page that is missing here is a warning."""

LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds the navigation to the first page. Makes a link to a folder one to the page that describes it."""
    folder = PurePosixPath(page).parent

    def link(match: re.Match[str]) -> str:
        readme = ROOT / folder / match[1] / "README.md"
        return f"]({match[1].rstrip('/')}/README.md{match[2] or ''})" if readme.is_file() else match[0]

    source[0] = LINK.sub(link, source[0])
    if page == root_doc:
        trees = (
            f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) for title, pages in NAVIGATION.items()
        )
        source[0] += "\n\n" + "\n```\n\n".join(trees) + "\n```\n"


LOADS = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?https?://|url\(["']?https?://""")
"""A page or a style sheet that loads something over the network; links that a reader follows are none."""


def finish(app: Sphinx, error: Exception | None) -> None:
    """Gives the first page the name that web servers expect. Raises SphinxError if a page needs the network."""
    if error is not None:
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := LOADS.search(path.read_text(encoding="utf-8"))):
            raise SphinxError(f"{path} loads something over the network: {found[0]}")
    shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read)
    app.connect("build-finished", finish)
