"""The site: complete for every wiring, without broken links, and at work in a browser, from files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import Browser

from fairseq_residuals.lab import site
from fairseq_residuals.lab.look.list_wirings import EQUATIONS, SENTENCES
from fairseq_residuals.lab.look.scheme import scheme_of
from fairseq_residuals.lab.site import facts
from fairseq_residuals.wirings.core import registry
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, list_variants

WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    (out / "wiring").mkdir(parents=True)
    for name in ("wirings.js", "wiring/of_another_version.html", "CNAME"):
        (out / name).touch()
    with pytest.MonkeyPatch.context() as patch:  # a wiring of --import is none of the site's
        patch.setitem(registry._REGISTERED, "imported", VARIANTS["pre_ln"])
        site.write(out)
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


class Reader(HTMLParser):
    """The links, the names that links can lead to, and the text of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif key == "id" and value:
                self.names.add(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_wiring_has_a_page_in_the_same_order(written: Path) -> None:
    headings = ["Scheme", "Equations", "Code", "How to use it", "Options", "Costs and curves", "Evidence"]
    headings += ["Paper and code", "Cite"]
    assert {page.stem for page in (written / "wiring").glob("*.html")} == set(VARIANTS)
    for name in VARIANTS:
        page, variant = written / f"wiring/{name}.html", VARIANTS[name]
        text, shown = page.read_text(encoding="utf-8"), Reader(page).text
        assert re.findall("<h2>(.*?)</h2>", text) == headings, name
        assert text.count("<svg") >= 1 and "@misc{" in text, name
        assert variant.title in shown and "\n".join(variant.equations_of(variant.Config())) in shown, name


def test_no_link_is_broken_and_none_needs_a_network_to_show_a_page(written: Path) -> None:
    pages = {page: Reader(page) for page in written.rglob("*.html")}
    assert len(pages) > len(VARIANTS)
    broken = []
    for page, reader in pages.items():
        for link in reader.links:
            path, _, mark = unquote(link).partition("#")
            if re.match("https?:|data:|mailto:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            is_state = target.name == "compare.html" and re.fullmatch(r"a=\w+&b=\w+", mark)
            if not target.exists() or (mark and not is_state and mark not in pages[target].names):
                broken.append(f"{page.relative_to(written)}: {link}")
        raw = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|link)[^>]*(?:src|href)=.https?:", raw), page
    assert broken == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_renders_without_an_error_and_fits(written: Path, browser: Browser, width: int) -> None:
    browser.errors.clear()
    wrong = []
    for page in sorted(written.rglob("*.html")):
        browser.show(page, width=width)
        wide = browser.value("document.documentElement.scrollWidth")
        heading = browser.value("document.querySelector('h1')?.getBoundingClientRect().height || 0")
        if wide > width or heading == 0 or browser.errors:
            wrong.append((str(page.relative_to(written)), wide, heading, browser.errors[:1]))
            browser.errors.clear()
    assert wrong == []


SHOWN = """[...document.querySelectorAll('#wirings tbody tr')].filter(row => !row.hidden)
    .map(row => row.querySelector('code').textContent)"""


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ("", set(VARIANTS)),
        ("#text=Takase", {"b2t", "b2t_no_ln"}),
        ("#stack=encoder+of+a+pair", {"transparent_attention", "ode_rk2", "ode_rk4"}),
        ("#proof=equations&ships=yes", {n for n in VARIANTS if VARIANTS[n].ships_in} & {"keel", "laurel_lr"}),
        ("#text=NeoMME", {"x0_read"}),
        ("#start=yes&proof=equations", {"laurel_lr", "laurel_pa", "laurel_rw"}),
    ],
)
def test_the_list_filters(written: Path, browser: Browser, mark: str, expected: set[str]) -> None:
    browser.show(written / "index.html", mark=mark)
    assert set(browser.value(SHOWN)) == expected
    assert int(browser.value("document.getElementById('count').textContent")) == len(expected)


def test_the_list_fits_a_telephone(written: Path, browser: Browser) -> None:
    browser.show(written / "index.html", width=400)
    assert browser.value("(t => t.scrollWidth <= t.clientWidth)(document.querySelector('.wide'))")


def test_the_list_filters_as_one_types(written: Path, browser: Browser) -> None:
    browser.show(written / "index.html")
    browser.value(
        "const f = document.forms[0].elements; f.post.value = 'yes';"
        "f.post.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    shown = set(browser.value(SHOWN))
    assert {"post_ln", "b2t", "admin", "deepnet"} <= shown and not {"pre_ln", "t_fixup", "re_zero"} & shown
    assert browser.value("location.hash") == "#post=yes"


def test_two_wirings_side_by_side(written: Path, browser: Browser) -> None:
    browser.show(written / "compare.html", mark="#a=post_ln&b=pre_ln")
    rows = browser.value("[...document.querySelectorAll('#lines tr')].map(r => [r.className, r.innerText.trim()])")
    assert sorted(rows) == [["only", "output LN(x)"], ["only", "x = LN(x + F(x))"], ["only", "x = x + F(LN(x))"]]
    browser.show(written / "compare.html", mark="#a=sandwich_ln&b=peri_ln")
    kinds = browser.value("[...document.querySelectorAll('#lines tr')].map(r => r.className)")
    assert sorted(kinds) == ["only", "same", "same"]  # Peri-LN also normalizes the embedding
    assert browser.value("document.querySelectorAll('#schemes svg').length") == 2
    assert browser.value("[...document.querySelectorAll('#pair select')].map(s => s.value)") == [
        "sandwich_ln",
        "peri_ln",
    ]
    assert "def write" in browser.value("document.getElementById('code').innerText")


@pytest.mark.parametrize("name", list_variants())
def test_a_scheme_has_every_sublayer_stream_and_the_gradients_way(name: str) -> None:
    _, layers = facts.traced(name)
    for number, graph in layers:
        drawn = scheme_of(graph, {})
        for kind in ("sublayer", "in", "out", "norm"):
            mark = "\N{PRIME}" if kind == "out" else ""
            expected = sorted(node.label + mark for node in graph.nodes if node.kind == kind)
            assert sorted(box.name for box in drawn.boxes if box.kind == kind) == expected, (name, number, kind)
        way = [box.kind for box in drawn.boxes if box.on_way]
        assert {"in", "out"} <= set(way) and way.count("norm") == graph.crossed("norm") and "sublayer" not in way
        assert len([line for line in drawn.lines if line.on_way]) >= len(way) - 1
        places = [p for line in drawn.lines for point in line.points for p in point]
        places += [p for box in drawn.boxes for p in (box.x, box.y)]
        assert min(places) >= 0 and max(places) <= max(drawn.width, drawn.height)


def test_schemes_tell_wirings_of_several_streams_apart() -> None:
    parents, results = facts.family(), facts.read_results()
    hyper, manifold = (facts.page(name, results, parents)["schemes"] for name in ("hyper_connections", "mhc"))
    ((_, hyper, _),), ((_, manifold, _),) = hyper, manifold
    hyper, manifold = ([box.name for box in scheme.boxes] for scheme in (hyper, manifold))
    assert "tanh" in str(hyper) and "sinkhorn" not in str(hyper) and "sinkhorn" in str(manifold)
    assert hyper.count("mix") == 2  # one for each sub-layer


@pytest.mark.parametrize(
    ("name", "passed", "code"),
    [
        ("mix_ln", [2, 0], "PostLNConnection(site) if site.layer < post"),
        ("scmoe", [0, 0], "shortcut_out"),
        ("dense_former", [0, 0], "self.weights"),
        ("dlcl_pre", [0], "def combine"),
        ("altup", [0, 0], "def corrected"),
    ],
)
def test_a_page_has_what_sets_a_wiring_apart(name: str, passed: list[int], code: str) -> None:
    """The lowest quarter of Mix-LN is Post-LN, with two norms; all have connections of Pre-LN, too."""
    found = facts.page(name, facts.read_results(), facts.family())
    assert [norms for _, _, norms in found["schemes"]] == passed
    assert "class PreLNConnection" in found["listing"] and code in found["listing"]


@pytest.mark.parametrize(
    ("name", "start", "refused"),
    [
        ("hyper_connections", "keep", ""),
        ("mudd", "keep", ""),
        ("b2t", "paper", ""),
        ("scmoe", "paper", ""),
        ("admin", "", "use build_stack"),
        ("realformer", "", "scores before the softmax"),
    ],
)
def test_how_rewire_takes_a_wiring(name: str, start: str, refused: str) -> None:
    """As measured in results/library/what_works.csv."""
    found = facts.page(name, facts.read_results(), facts.family())
    assert found["rewired"] == start and refused in found["refused"] and bool(refused) == bool(found["refused"])


def test_what_of_pytorch_works_is_on_page_and_list(written: Path) -> None:
    results = facts.read_results()
    broken = next(row for row in results["works"] if row["wiring"] == "b2t") | {"DDP": "RuntimeError: unused"}
    fields = facts.page("b2t", {**results, "works": [broken]}, facts.family())
    assert len(fields["works"]) == 11 and fields["works"]["DDP"] == "RuntimeError: unused"
    assert "Works with autocast to bfloat16; compile" in (written / "wiring/b2t.html").read_text(encoding="utf-8")
    text = (written / "index.html").read_text(encoding="utf-8")
    assert "All wirings work with all of it." in text and text.count(">computes on<") == sum(
        not row["rewire, keep"] for row in results["works"]
    )


def test_the_command_of_fairseq_has_what_fairseq_demands(written: Path) -> None:
    text = (written / "wiring/b2t.html").read_text(encoding="utf-8")
    assert "--optimizer adam --lr" in text and "--max-tokens" in text


def test_code_on_a_page_is_whole(written: Path) -> None:
    """B2T reads by the class that it derives from; mHC differs from Hyper-Connections by its router."""
    text = (written / "wiring/b2t.html").read_text(encoding="utf-8").partition("<details>")[0]
    assert "BottomConnection</span>" in text and "MHCRouter" in (written / "wiring/mhc.html").read_text(
        encoding="utf-8"
    )


def test_what_is_not_measured_is_named_so(written: Path) -> None:
    text = (written / "wiring/keel.html").read_text(encoding="utf-8")
    assert "Validation loss, English to Italian, 18 + 18 layers: not measured." in text
    assert ": not measured." not in (written / "wiring/b2t.html").read_text(encoding="utf-8")


def test_what_only_a_comparison_trained_is_called_trained() -> None:
    results, family = facts.read_results(), facts.family()
    assert all(row["row"] != "mudd" for row in results["rates"]) and facts.page("mudd", results, family)["trained"]
    assert not facts.page("backout", results, family)["trained"]


def test_citations_and_marks_of_evidence_say_what_the_registry_says() -> None:
    """An author is a name, a team's in braces; what is marked as compared is what the list says of the wiring."""
    results, parents = facts.read_results(), facts.family()
    for name in VARIANTS:
        page = facts.page(name, results, parents)
        title, author = re.findall(r"^  (?:title|author) = \{(.*)\},$", page["bibtex"], re.MULTILINE)
        assert re.fullmatch(r"\{[\w ]+\}|[\w ]+ and [\w ]+", author) and not re.search(r"\d{4}", author), author
        assert not title.startswith(("of ", "after ")) and "; " not in title, title
        marks = [mark for mark, compared in page["compared"].items() if compared]
        assert marks[:2] == ([] if page["evidence"] == EQUATIONS else ["activations", "gradients"]), name
        assert ("generated sentences" in marks) == (page["evidence"] == SENTENCES), name
    assert "{{Kimi Team}}" in facts.bibtex(VARIANTS["attention_residuals"])


def test_layers_of_different_structure_are_drawn() -> None:
    """U-net skips are in the upper half only."""
    assert [number for number, _ in facts.traced("unet_skip")[1]] == [2, 5]
    assert [number for number, _ in facts.traced("pre_ln")[1]] == [2]


def test_the_family_has_every_wiring_and_nobody_else_or_a_younger_parent() -> None:
    parents = facts.family()
    assert parents.keys() == VARIANTS.keys() >= {name for above in parents.values() for name in above}
    assert [n for n in parents for p in parents[n] if VARIANTS[p].year > VARIANTS[n].year] == []


def test_a_second_call_replaces_the_pages_of_wirings_and_deletes_nothing_else(written: Path) -> None:
    assert (written / "CNAME").is_file() and not (written / "wiring/of_another_version.html").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is no empty folder"):
        site.write(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
