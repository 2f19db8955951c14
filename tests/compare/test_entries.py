"""What is compared: names, options, lists, and a user's own file."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_residuals import build_stack
from fairseq_residuals.lab.compare.entries import load, read_entries
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS

TEN_LINES = """from fairseq_residuals.wirings.variants.pre_ln import PreLN, PreLNConnection


class Half(PreLNConnection):
    def write(self, s, y):
        return s | {"x": s["x"] + 0.5 * y}


class HalfPreLN(PreLN):
    connection = Half
"""


def file(folder: Path, name: str, text: str = TEN_LINES) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def forget(name: str) -> None:
    """Be another process, which has not loaded the file."""
    del sys.modules[f"compared_{name}"]


def test_names_options_and_lists(tmp_path: Path) -> None:
    entries, user_dir = read_entries(["pre_ln", "dlcl_pre/norm=false", "post_ln:0-5,pre_ln:6-17"], tmp_path)
    assert user_dir is None
    assert [e.overrides for e in entries] == [
        ["model.residual='pre_ln'"],
        ["model.residual='dlcl_pre'", "model.residual_args='norm=false'"],
        ["model.residual='post_ln:0-5,pre_ln:6-17'"],
    ]
    assert entries[2].label == "post_ln-0-5-pre_ln-6-17"


def test_a_file_of_ten_lines_is_a_wiring_that_is_called_as_the_file(tmp_path: Path) -> None:
    assert len(TEN_LINES.splitlines()) == 10
    entries, user_dir = read_entries(["pre_ln", file(tmp_path, "halved.py")], tmp_path / "out")
    assert [e.name for e in entries] == ["pre_ln", f"halved#{str(user_dir)[-4:]}"]
    assert entries[1].overrides == ["model.residual='halved'"]
    variant = VARIANTS["halved"]
    # what Pre-LN says of itself is not true of what derives from it
    assert (variant.title, variant.code, variant.export_as) == ("halved", "", "")
    assert variant.verified == "nothing"
    assert user_dir is not None and {p.name for p in user_dir.glob("*.py")} == {"__init__.py", "halved.py"}


def test_a_file_may_define_a_connection_alone(tmp_path: Path) -> None:
    alone = TEN_LINES[: TEN_LINES.index("\n\nclass HalfPreLN")]
    entries, _ = read_entries([file(tmp_path, "by_connection.py", alone)], tmp_path)
    assert entries[0].residual == "by_connection" and "#" in entries[0].name
    stack: Any = build_stack("by_connection", depth=2, dim=16, heads=2, ffn_dim=32)
    assert type(stack[0].ffn_connection).__name__ == "Half"


def test_a_changed_file_has_another_copy(tmp_path: Path) -> None:
    _, first = read_entries([file(tmp_path, "changing.py")], tmp_path)
    forget("changing")
    _, second = read_entries([file(tmp_path, "changing.py", TEN_LINES.replace("0.5", "0.25"))], tmp_path)
    assert first is not None and second is not None and first != second
    assert "0.5" in (first / "changing.py").read_text()


@pytest.mark.parametrize("name", ["own_norm", "_own_norm", "my_norms/__init__"])
def test_a_changed_norm_is_another_wiring(name: str, tmp_path: Path) -> None:
    """Its copy has the name of the file, or of the folder that is a package."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    names = []
    for norm in ("RMSNorm", "LayerNorm"):
        text = f"from torch import nn\nfrom fairseq_residuals import register_norm\nregister_norm('own', nn.{norm})\n"
        imported = Path(file(tmp_path, f"{name}.py", text))
        load(imported, wirings=False)
        entries, user_dir = read_entries(["pre_ln", "b2t/norm_type=own"], tmp_path, imported=[imported])
        assert user_dir is not None and (user_dir / f"{name.removesuffix('/__init__')}.py").read_text() == text
        names.append([entry.name for entry in entries])
        forget(imported.stem)
    assert names[0][0] == names[1][0] == "pre_ln"
    assert names[0][1] != names[1][1] and all(pair[1].startswith("b2t/norm_type=own#") for pair in names)


def test_a_file_is_named_by_itself_whatever_else_is_compared(tmp_path: Path) -> None:
    """So what several machines trained of one file each can be merged."""
    other = file(tmp_path, "other.py", TEN_LINES.replace("0.5", "0.25"))
    (alone,), _ = read_entries([file(tmp_path, "alone.py")], tmp_path / "one")
    forget("alone")
    together, _ = read_entries([file(tmp_path, "alone.py"), other], tmp_path / "two")
    assert together[0].name == alone.name and together[1].name.startswith("other#")


def test_a_wiring_of_the_clone_that_is_not_committed_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_residuals.lab.compare.entries.is_committed", lambda path: path.stem != "b2t")
    (pre_ln, b2t), _ = read_entries(["pre_ln", "b2t"], tmp_path)
    assert pre_ln.name == "pre_ln" and b2t.name.startswith("b2t#")


def test_registered_wirings_of_a_file_have_their_own_names_and_options(tmp_path: Path) -> None:
    text = TEN_LINES.replace("class HalfPreLN", '@register_variant("my_half")\nclass HalfPreLN') + (
        '    title = "Half"\n    paper = "Unpublished 2026"\n    year = 2026\n'
        '    verified = "nothing"\n'
        '    equations = classmethod(lambda cls, o: ("x = x + F(LN(x)) / 2",))\n'
        '    code = ""\n    export_as = None\n    normalize_before = True\n'
    )
    text = "from fairseq_residuals import register_variant\n" + text
    entries, _ = read_entries([file(tmp_path, "registering.py", text), "my_half/norm_type=rms"], tmp_path)
    assert [e.name.partition("#")[0] for e in entries] == ["my_half", "my_half/norm_type=rms"]


def test_what_papers_train_without_warm_up_is_also_compared_so(tmp_path: Path) -> None:
    entries, _ = read_entries(["pre_ln", "t_fixup", "b2t@warmup=7"], tmp_path)
    assert [(e.name, e.warmup) for e in entries] == [
        ("pre_ln", None),
        ("t_fixup", None),
        ("b2t@warmup=7", 7),
        ("t_fixup@warmup=0", 0),
    ]
    assert entries[2].overrides == ["model.residual='b2t'", "lr_scheduler.warmup_updates=7"]
    entries, _ = read_entries(["pre_ln", "t_fixup", "t_fixup@warmup=0"], tmp_path)
    assert [e.name for e in entries] == ["pre_ln", "t_fixup", "t_fixup@warmup=0"]
    own = file(tmp_path, "warmed.py")
    entries, _ = read_entries(["pre_ln", own, f"{own}@warmup=0"], tmp_path / "out")
    assert [(e.residual, e.warmup) for e in entries[1:]] == [("warmed", None), ("warmed", 0)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["b2t", "b2t"], "b2t is named twice"),
        (["pre_ln/depth=3"], "wiring 'pre_ln' has no option 'depth'"),
        (["nowhere.py"], "nowhere.py cannot be read"),
    ],
)
def test_mistakes(texts: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_entries(texts, tmp_path)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """One would take the place of the other."""
    other = tmp_path / "other"
    other.mkdir()
    mine, changed = file(tmp_path, "twins.py"), file(other, "twins.py", TEN_LINES.replace("0.5", "0.25"))
    for imported in ([], [Path(changed)]):
        with pytest.raises(UserError, match=r"two files are called twins\.py: rename one"):
            read_entries([mine, *([] if imported else [changed])], tmp_path, imported=imported)
    load(Path(mine))
    with pytest.raises(UserError, match=r"two files are called twins\.py: rename one"):
        load(Path(changed))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none", "x = 1\n", "none.py defines no wirings"),
        ("two", f"{TEN_LINES}\n\nclass Other(PreLN):\n    connection = Half\n", "two.py defines 2 wirings"),
        ("wrong", "1 / 0\n", "wrong.py fails: ZeroDivisionError: division by zero"),
        ("b2t", TEN_LINES, "b2t.py fails: ValueError: a wiring named 'b2t' is registered already"),
    ],
)
def test_mistakes_in_a_file(name: str, text: str, message: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it is not taken for loaded
        with pytest.raises(UserError, match=message):
            load(Path(file(tmp_path, f"{name}.py", text)))
