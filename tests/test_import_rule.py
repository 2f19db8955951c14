"""Which package may import which; the table here is the rule."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_residuals

ROOT = Path(fairseq_residuals.__file__).parent

DOORS = ("wirings", "plugin", "lab")
"""From below: a door may import itself and the doors below it."""
FAIRSEQ = {"fairseq", "fairseq_cli"}
OUT_OF_REACH = {*FAIRSEQ, "modern_fairseq", "fcntl", "resource", "hydra", "omegaconf", "numpy"}
"""What the library does without: it needs PyTorch alone, on any system, and so does whatever it reaches by imports."""


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it, but for type checkers alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(name: str) -> list[Path]:
    """The files that run when ``name`` is imported, those of this package; the last part may be a name in a module."""
    if name.partition(".")[0] != ROOT.name:
        return []
    parents = [ROOT.parent.joinpath(*name.split(".")[:i]) for i in range(1, name.count(".") + 2)]
    return [f for p in parents for f in (p.with_suffix(".py"), p / "__init__.py") if f.exists()]


def reach(door: str) -> dict[Path, set[str]]:
    """The files that a door reaches by imports, each with what it imports."""
    reached: dict[Path, set[str]] = {}
    todo = list((ROOT / door).rglob("*.py"))
    while todo:
        if (path := todo.pop()) not in reached:
            reached[path] = set(imports(path))
            todo += [f for name in reached[path] for f in files_of(name)]
    return reached


def test_the_house_has_three_doors() -> None:
    assert sorted(DOORS) == sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("door", DOORS)
def test_a_door_reaches_what_lies_below(door: str) -> None:
    above = DOORS[DOORS.index(door) + 1 :]
    wrong = [path for path in reach(door) if path.relative_to(ROOT).parts[0] in above]
    assert not wrong


def test_what_the_library_reaches() -> None:
    reached = reach("wirings")
    wrong = [
        (path, name) for path, names in reached.items() for name in names if name.partition(".")[0] in OUT_OF_REACH
    ]
    assert not wrong
    # it follows imports
    assert ROOT / "wirings" / "utils" / "torch_private.py" in reached


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRAINED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED or name.startswith("fairseq_residuals.plugin.training"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import torch
from fairseq_residuals import UserError, build_stack, list_variants

def train(*stacks, **inputs):
    parameters = [p for stack in stacks for p in stack.parameters()]
    out = torch.randn(5, 3, 16)
    for stack in stacks:
        out = stack(torch.randn(5, 3, 16), memory=out) if stack is not stacks[0] else stack(out)
    out.square().mean().backward()
    # torch.optim asks for NumPy's specification, and so gets no part here
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p -= 0.1 * p.grad
    assert all(p.isfinite().all() for p in parameters)
    # of ReZero's the gates alone move at first, and those of the decoder hide the encoder
    assert any(p.grad is not None and p.grad.any() for p in stacks[-1].parameters())

sizes = {"dim": 16, "heads": 2, "ffn_dim": 32, "depth": 2, "other_depth": 2}
alone = sizes | {"other_depth": None}
for variant in list_variants():
    done = []
    for task in ("language_model", "encoder"):
        try:
            stack = build_stack(variant, task=task, **alone)
        except UserError as error:
            print(variant, task, error)
            continue
        train(stack)
        done.append(task)
        break
    try:
        pair = [build_stack(variant, task="encoder", **sizes), build_stack(variant, task="decoder", **sizes)]
    except UserError as error:
        print(variant, "pair", error)
    else:
        train(*pair)
        done.append("pair")
    print(variant, "trained", *done)

import fairseq_residuals
for name in fairseq_residuals.__all__:
    getattr(fairseq_residuals, name)
"""


def test_the_library_trains_every_wiring_without_them() -> None:
    lines = run(TRAINED.replace("BLOCKED", repr(OUT_OF_REACH))).splitlines()
    trained = {name: done for name, _, done in (line.partition(" trained ") for line in lines) if done}
    assert sorted(trained) == sorted(fairseq_residuals.list_variants())
    # the others have no meaning in a pair, or in a language model
    assert set(trained.values()) <= {"language_model pair", "encoder pair", "pair", "language_model"}
    assert trained["admin"] == trained["mhc"] == "language_model pair"


FAST = """
import sys
sys.modules["fairseq"] = None
import copy, torch
from fairseq_residuals import build_stack, register
from fairseq_residuals.wirings.speed import cpu
stack = build_stack("b2t", depth=2, dim=256, heads=2, ffn_dim=32)
fast = copy.deepcopy(stack)
cpu.attach(fast, fast=True)
x, gradients = torch.randn(5, 3, 256), []
for model in (stack, fast):
    with cpu.tuned(model):
        gradients.append(torch.autograd.grad(model(x)[0].square().sum(), list(model.parameters()), allow_unused=True))
torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
print(fast.is_wide, type(fast[0].ffn_connection.norm).__name__)
try:
    register()
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_fast_on_a_cpu_without_fairseq() -> None:
    assert run(FAST) == "True RecomputedLayerNorm\nfairseq\n"


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = run("import sys, fairseq_residuals; print(*({'torch', 'fairseq', 'numpy'} & set(sys.modules)))")
    assert heavy == "\n"


def test_the_plugin_does_not_import_the_compiler() -> None:
    """It takes a second, and every command imports the plugin."""
    imported = run("import sys, fairseq, fairseq_residuals; print(*({'torch._dynamo', 'sympy'} & set(sys.modules)))")
    assert imported == "\n"


REGISTERED = """
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.tasks.fairseq_task import FairseqTask
assert "transformer_b2t" in ARCH_MODEL_REGISTRY and "transformer_lm_b2t" in ARCH_MODEL_REGISTRY
assert "chunked_label_smoothed_cross_entropy" in CRITERION_REGISTRY
assert "FasterSequenceGenerator" in FairseqTask.build_generator.__code__.co_names
"""
PARTLY = """
import sys
class DuringFairseq:
    def find_spec(name, path=None, target=None):
        if name == "fairseq.criterions":
            import fairseq_residuals
sys.meta_path.insert(0, DuringFairseq)
import fairseq
assert "fairseq_residuals" in sys.modules
"""


@pytest.mark.parametrize(
    "imports_first",
    (
        "import fairseq, fairseq_residuals",
        "import fairseq_residuals; fairseq_residuals.register(); fairseq_residuals.register()",
        "import fairseq_residuals, importlib.util; importlib.util.find_spec('fairseq'); import fairseq",
        "import fairseq_residuals.plugin.models.translation",
        "import fairseq_residuals.plugin.checkpoints.wiring_check",
        PARTLY,
    ),
)
def test_whatever_is_imported_first(imports_first: str) -> None:
    run(imports_first + REGISTERED)
