"""``fairseq-residuals site OUT``: a static site with a page for each wiring, and the guide.

Everything is written from the registry, the source of the wirings, their traced layers, docs/ and results/.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fairseq_residuals.lab.site import charts, facts
from fairseq_residuals.lab.utils.checkout import ROOT, require_checkout
from fairseq_residuals.wirings.core.errors import UserError

HELP = "write a static site: a page for each wiring, a list that filters, a comparison, a family tree, the guide"
TEMPLATES = Path(__file__).with_name("templates")
FORMATTER = HtmlFormatter(nowrap=False, classprefix="hl-")
FILTERS = (
    ("stack", "Where", ("any model", "encoder of a pair")),
    ("post", "Norm after the sum", ("yes", "no")),
    ("extra", "Extra parameters", ("none", "some")),
    ("streams", "Streams", ("one", "several")),
    ("ships", "In a released model", ("yes", "no")),
    ("trained", "Trained here", ("yes", "no")),
    ("proof", "Compared", ("to the generated sentence", "activations and gradients", "equations")),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", type=Path, help="an empty or a new folder")


def run(args: argparse.Namespace) -> int:
    write(args.out, ROOT)
    print(f"{args.out / 'index.html'}: open it in a browser")
    return 0


def write(out: Path, root: Path) -> None:
    """Write the site.

    Args:
        out: an empty or a new folder.
        root: the checkout, whose README.md and docs/ are the guide.

    Raises:
        UserError: ``out`` has contents that are no site, there is no checkout, or a wiring lacks a field.
    """
    require_checkout(root / "docs")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "wirings.js").exists())):
        raise UserError(f"{out} is no empty folder: name a new one")
    parents, results = facts.family(), facts.read_results()
    pages: list[dict[str, Any]] = []
    for name in parents:
        print(f"\r{len(pages) + 1} of {len(parents)} wirings", end="", file=sys.stderr, flush=True)
        pages.append(facts.page(name, results, parents))
    print(file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)
    titles = {page["name"]: page["title"] for page in pages}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    shared = {"titles": titles, "filters": FILTERS, "wirings": pages, "charts": charts}
    environment.globals.update(shared, highlight=lambda code: highlight(code, PythonLexer(), FORMATTER))
    index: list[dict[str, str]] = []

    def put(path: str, template: str, title: str, text: str = "", **fields: Any) -> None:
        up = "../" * path.count("/")
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        html = environment.get_template(template).render(title=title, up=up, **fields)
        (out / path).write_text(html, encoding="utf-8")
        if text:
            index.append({"url": path, "title": title, "text": text})

    put("index.html", "list.html", "Wirings of deep Transformers")
    put("compare.html", "compare.html", "Side by side")
    put("search.html", "search.html", "Search")
    years = {page["name"]: page["year"] for page in pages}
    span = range(min(years.values()), max(years.values()) + 1)
    put("tree.html", "tree.html", "Family tree", years=span, descents=charts.tree(parents, years))
    for page in pages:
        words = (page["name"], page["title"], page["paper"], page["sentence"], *page["description"], page["ships_in"])
        put(f"wiring/{page['name']}.html", "wiring.html", page["title"], " ".join(words), w=page)
    for source in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        name = "docs/index.html" if source.parent == root else f"docs/{source.stem}.html"
        text = source.read_text(encoding="utf-8")
        put(name, "page.html", source.stem, text, body=guide(text, source, root, out))
    shown = ("name", "title", "sentence", "equations", "typeset", "code")
    draw: Any = environment.get_template("drawings.html").module
    first = {page["name"]: draw.scheme(page["schemes"][0][1], page["title"]) for page in pages}
    data = {page["name"]: {key: page[key] for key in shown} | {"scheme": first[page["name"]]} for page in pages}
    (out / "wirings.js").write_text(f"const WIRINGS = {json.dumps(data)};\n", encoding="utf-8")
    (out / "pages.js").write_text(f"const PAGES = {json.dumps(index)};\n", encoding="utf-8")
    shutil.copy(TEMPLATES / "site.js", out)
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    (out / "style.css").write_text(style + FORMATTER.get_style_defs(".highlight"), encoding="utf-8")


def guide(text: str, source: Path, root: Path, out: Path) -> Any:
    """Return a page of Markdown as HTML; files that it links to are copied beside it.

    Args:
        source: the file that ``text`` is of.
        root: the checkout.
        out: the site.
    """
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            plain = re.sub(r"[^\w\- ]", "", tokens[i + 1].content.strip().lower())
            token.attrSet("id", plain.replace(" ", "-"))
        for child in token.children or []:
            for key in ("href", "src"):
                if key in child.attrs:
                    child.attrSet(key, _link(str(child.attrs[key]), source, root, out))
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _link(target: str, source: Path, root: Path, out: Path) -> str:
    """Return where a link leads on the site."""
    path, mark, anchor = target.partition("#")
    if not path or re.match("[a-z]+:", path):
        return target
    file = (source.parent / path).resolve()
    if file == root / "README.md" or (file.suffix == ".md" and file.parent == root / "docs"):
        stem = "index" if file == root / "README.md" else file.stem
        return f"{stem}.html{mark}{anchor}"
    copied = out / "files" / file.relative_to(root)
    copied.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.copytree(file, copied, dirs_exist_ok=True)
    else:
        shutil.copy(file, copied)
    return f"../files/{file.relative_to(root)}"
