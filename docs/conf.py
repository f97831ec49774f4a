"""Configuration of the documentation."""

from __future__ import annotations

import os
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike
from sphinx.util import logging

import scvcc
from scvcc._training.graph import Matrix

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

project = "scvcc"
author = "scvcc contributors"
copyright = f"2026, {author}"
version = release = scvcc.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_autodoc_typehints",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints", "benchmarks/generated/*"]
templates_path = ["_templates"]
nitpicky = True
default_role = "literal"
suppress_warnings = ["config.cache"]  # typehints_formatter is a function

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # written by sphinx_autodoc_typehints
napoleon_google_docstring = False
napoleon_use_rtype = True
napoleon_use_param = True
typehints_defaults = "braces"
always_use_bars_union = True

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with their outputs
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

html_theme = "sphinx_book_theme"
html_title = "scvcc"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {"show_toc_level": 2, "use_fullscreen_button": False}

# References to other projects are resolved where their inventories can be fetched (SCVCC_INTERSPHINX=1), and passed
# over where they cannot: the documentation builds offline, and names of our own are checked in either case.
INVENTORIES = {
    "anndata": "https://anndata.readthedocs.io/en/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "python": "https://docs.python.org/3/",
    "scanpy": "https://scanpy.readthedocs.io/en/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "sklearn": "https://scikit-learn.org/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
intersphinx_mapping = {}
nitpick_ignore_regex = [
    # documented by the projects above under other names than the ones their classes carry
    (r"py:.*", r"(matplotlib|numpy|np|sklearn|scipy|torch)\..*"),
]
if os.environ.get("SCVCC_INTERSPHINX") == "1":
    intersphinx_mapping = {name: (address, None) for name, address in INVENTORIES.items()}
else:
    nitpick_ignore_regex.append((r"py:.*", r"(anndata|collections|os|pandas|pathlib|pd|scanpy|typing)\..*"))

TUTORIALS = HERE.parent / "tutorials"


def add_tutorials(app: Sphinx) -> None:
    """Copy the tutorials, with their stored outputs, to where sphinx looks for pages."""
    for notebook in TUTORIALS.glob("*.ipynb"):
        copy = HERE / "tutorials" / notebook.name
        if not copy.exists() or copy.read_bytes() != notebook.read_bytes():
            copy.write_bytes(notebook.read_bytes())


GENERATED = HERE / "benchmarks" / "generated"
NOTHING_GENERATED = "No results are stored yet: `make bench` measures them and writes them here.\n"


def add_benchmark_results(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the generated pages of results to the page on performance, or to that on benchmarks."""
    if docname not in ("benchmarks/index", "performance"):
        return
    pages = [
        page
        for page in sorted(GENERATED.glob("*.md"))
        if page.name.startswith("performance") == (docname == "performance")
    ]
    folder = "generated" if docname == "benchmarks/index" else "benchmarks/generated"
    includes = [f"```{{include}} {folder}/{page.name}\n:relative-images:\n```\n" for page in pages]
    source[0] = "\n".join([source[0], *(includes or [NOTHING_GENERATED])])


FITTED_NAME = re.compile(r"(?<![\w`])(\w+)_(?=[\s,.;:)]|$)")  # labels_ in running text is a link in reStructuredText


def sections_as_prose(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Write the Returns and Attributes sections as text: napoleon would look up each of their words as a type."""
    is_heading = [set(below.strip()) == {"-"} for below in [*lines[1:], ""]]
    for start in reversed(range(len(lines))):
        title = lines[start].strip()
        if not is_heading[start] or title not in ("Returns", "Attributes"):
            continue
        end = next((i for i in range(start + 2, len(lines)) if is_heading[i]), len(lines))
        body = lines[start + 2 : end]
        if title == "Returns":
            text = [":returns:", *(f"    {line}" if line.strip() else "" for line in body)]
        else:
            text = [".. rubric:: Attributes", "", *map(_attribute, body)]
        lines[start:end] = ["", "", *text, ""]  # two empty lines end napoleon's previous section
    lines[:] = [line if ">>>" in line else FITTED_NAME.sub(r"\1\\_", line) for line in lines]


def _attribute(line: str) -> str:
    """`name_ : type` as a term of a definition list; other lines as they are."""
    name, colon, kind = line.partition(" : ")
    is_term = colon and not line.startswith(" ")
    return f"``{name}`` : {kind}" if is_term else line


# unions that read better by their name than spelled out
NAMED_TYPES = {ArrayLike: ":data:`~numpy.typing.ArrayLike`", Matrix: "array or sparse matrix"}


def typehints_formatter(annotation: object, config: object) -> str | None:
    """Text for a type in a signature, or None to have it spelled out."""
    return next((text for named, text in NAMED_TYPES.items() if annotation == named), None)


def check_names(app: Sphinx, docname: str, source: list[str]) -> None:
    """Warn about names of our own, in text set as code, that do not exist: prose falls behind when code moves."""
    for name in sorted(set(re.findall(r"`(scvcc(?:\.\w+)+)`", source[0]))):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            logger.warning("%s is not a name of this package", name, location=docname)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", add_tutorials)
    app.connect("source-read", check_names)
    app.connect("autodoc-process-docstring", sections_as_prose, priority=400)  # before napoleon
    app.connect("source-read", add_benchmark_results)
