"""``fairseq-residuals site OUT``: a static site with a page for each wiring, and the guide.

Everything is written from the registry, the source of the wirings, their traced layers, docs/ and results/.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fairseq_residuals.lab.site import facts
from fairseq_residuals.lab.utils.checkout import ROOT, require_checkout
from fairseq_residuals.wirings.core.errors import UserError

HELP = "write a static site: a page for each wiring, a list that filters, a comparison, a family tree, the guide"
TEMPLATES = Path(__file__).with_name("templates")
FORMATTER = HtmlFormatter(nowrap=False, classprefix="hl-")
COMPARED = ("name", "title", "sentence", "equations", "listing")
"""Fields that two wirings side by side show."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", type=Path, help="an empty or a new folder")


def run(args: argparse.Namespace) -> int:
    write(args.out)
    print(f"{args.out / 'index.html'}: open it in a browser")
    return 0


def write(out: Path) -> None:
    """Write the site of this checkout to an empty or a new folder.

    Raises:
        UserError: ``out`` has contents that are no site, there is no checkout, or a wiring lacks a field.
    """
    require_checkout(ROOT / "docs")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "wirings.js").exists())):
        raise UserError(f"{out} is no empty folder: name a new one")
    parents, results = facts.family(), facts.read_results()
    pages = [facts.page(name, results, parents) for name in parents]
    shutil.rmtree(out, ignore_errors=True)
    titles, years = ({page["name"]: page[key] for page in pages} for key in ("title", "year"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.globals.update(titles=titles, wirings=pages, facts=facts, parents=parents)
    environment.globals.update(highlight=lambda code: highlight(code, PythonLexer(), FORMATTER))
    index: list[dict[str, str]] = []

    def put(path: str, template: str, title: str, text: str = "", **fields: Any) -> None:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        html = environment.get_template(template).render(title=title, up="../" * path.count("/"), **fields)
        (out / path).write_text(html, encoding="utf-8")
        if text:
            index.append({"url": path, "title": title, "text": text})

    put("index.html", "list.html", "Wirings of deep Transformers")
    put("compare.html", "compare.html", "Side by side")
    put("search.html", "search.html", "Search")
    span = range(min(years.values()), max(years.values()) + 1)
    put("tree.html", "tree.html", "Family tree", years=span, places=facts.tree(parents, years))
    drawings: Any = environment.get_template("drawings.html").module
    shown = {}
    for page in pages:
        words = (page["name"], page["title"], page["paper"], page["sentence"], *page["description"], page["ships_in"])
        put(f"wiring/{page['name']}.html", "wiring.html", page["title"], " ".join(words), w=page)
        scheme = drawings.scheme(page["schemes"][0][1], page["title"])
        shown[page["name"]] = {key: page[key] for key in COMPARED} | {"scheme": scheme}
    for source in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = source.read_text(encoding="utf-8")
        put(_place(source), "page.html", source.stem, text, body=guide(text, source, out))
    for name, data in (("wirings", shown), ("pages", index)):
        (out / f"{name}.js").write_text(f"const {name.upper()} = {json.dumps(data)};\n", encoding="utf-8")
    shutil.copy(TEMPLATES / "site.js", out)
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    (out / "style.css").write_text(style + FORMATTER.get_style_defs(".highlight"), encoding="utf-8")


def guide(text: str, source: Path, out: Path) -> Any:
    """Return the Markdown of a file as HTML; files that it links to are copied beside it."""
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    html = re.sub(r"<(h\d)>(.*?)(?=</h\d>)", lambda found: f'<{found[1]} id="{_anchor(found[2])}">{found[2]}', html)
    return Markup(re.sub(' (href|src)="(.*?)"', lambda found: f' {found[1]}="{_link(found[2], source, out)}"', html))


def _anchor(heading: str) -> str:
    """Return what a link to a heading has behind its #."""
    return re.sub(r"<.*?>|&\w+;|[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _place(page: Path) -> str:
    """Return where a page of the guide stands on the site."""
    return "docs/index.html" if page.parent == ROOT else f"docs/{page.stem}.html"


def _link(target: str, source: Path, out: Path) -> str:
    """Return where a link leads on the site."""
    path, mark, anchor = target.partition("#")
    if not path or re.match("[a-z]+:", path):
        return target
    file = (source.parent / path).resolve()
    if file == ROOT / "README.md" or (file.suffix == ".md" and file.parent == ROOT / "docs"):
        return f"../{_place(file)}{mark}{anchor}"
    copied = out / "files" / file.relative_to(ROOT)
    copied.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.copytree(file, copied, dirs_exist_ok=True)
    else:
        shutil.copy(file, copied)
    return f"../files/{file.relative_to(ROOT)}"
