"""``fairseq-residuals site OUT``: a static site with a page for each wiring.

Everything is written from the registry, the source of the wirings, their traced layers, and results/.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import jinja2
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fairseq_residuals.lab.site import facts
from fairseq_residuals.lab.utils.checkout import ROOT, require_checkout
from fairseq_residuals.wirings.core.errors import UserError

HELP = "write a static site: a page for each wiring, a list that filters, a comparison, a family tree"
TEMPLATES = Path(__file__).with_name("templates")
FORMATTER = HtmlFormatter(nowrap=False, classprefix="hl-")
COMPARED = ("name", "title", "sentence", "equations", "listing")
"""Fields that two wirings side by side show."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", type=Path, help="an empty or a new folder, or one with such a site")


def run(args: argparse.Namespace) -> int:
    write(args.out)
    print(f"{args.out / 'index.html'}: open it in a browser")
    return 0


def write(out: Path) -> None:
    """Write the site of this checkout to an empty or a new folder, or over a site; what else is in it stays.

    Raises:
        UserError: ``out`` has contents that are no site, there is no checkout, or a wiring lacks a field.
    """
    require_checkout(ROOT / "docs")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "wirings.js").exists())):
        raise UserError(f"{out} is no empty folder: name a new one")
    parents, results = facts.family(), facts.read_results()
    pages = [facts.page(name, results, parents) for name in parents]
    for old in (out / "wiring").glob("*.html"):
        old.unlink()
    titles, years = ({page["name"]: page[key] for page in pages} for key in ("title", "year"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.globals.update(titles=titles, wirings=pages, facts=facts, parents=parents)
    environment.globals.update(highlight=lambda code: highlight(code, PythonLexer(), FORMATTER))

    def put(path: str, template: str, title: str, **fields: Any) -> None:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        html = environment.get_template(template).render(title=title, up="../" * path.count("/"), **fields)
        (out / path).write_text(html, encoding="utf-8")

    put("index.html", "list.html", "Wirings of deep Transformers")
    put("compare.html", "compare.html", "Side by side")
    span = range(min(years.values()), max(years.values()) + 1)
    put("tree.html", "tree.html", "Family tree", years=span, places=facts.tree(parents, years))
    drawings: Any = environment.get_template("drawings.html").module
    shown = {}
    for page in pages:
        put(f"wiring/{page['name']}.html", "wiring.html", page["title"], w=page)
        scheme = drawings.scheme(page["schemes"][0][1], page["title"])
        shown[page["name"]] = {key: page[key] for key in COMPARED} | {"scheme": scheme}
    (out / "wirings.js").write_text(f"const WIRINGS = {json.dumps(shown)};\n", encoding="utf-8")
    shutil.copy(TEMPLATES / "site.js", out)
    shutil.copy(ROOT / "docs/EQUATIONS.md", out / "notation.txt")
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    (out / "style.css").write_text(style + FORMATTER.get_style_defs(".highlight"), encoding="utf-8")
