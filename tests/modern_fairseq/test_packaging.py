"""Installing brings the .pth file along, and uninstalling leaves nothing behind."""

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2]
NAME = "modern_fairseq.pth"


def run(*arguments, **options):
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=300, **options).stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what the packages are built from, so that building leaves no trace in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "fairseq_residuals_errors.py"):
        if (PROJECT / name).exists():
            shutil.copy(PROJECT / name, copy)
    for name in ("modern_fairseq", "fairseq_residuals"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def build(source, hook, into):
    """Call a build hook of pyproject.toml's backend, as pip does."""
    code = f"import setuptools.build_meta as backend; print(backend.{hook}({str(into)!r}))"
    return Path(into, run(sys.executable, "-c", code, cwd=source).splitlines()[-1])


@pytest.fixture
def empty(tmp_path):
    """The Python and the site-packages folder of a new environment that has no packages, not even pip."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=os.name != "nt")
    python = str(tmp_path / "venv" / "bin" / "python")
    return python, Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def wheel_from_sdist(source, into):
    archive = build(source, "build_sdist", into)
    shutil.unpack_archive(archive, into)
    return build(into / archive.name.removesuffix(".tar.gz"), "build_wheel", into)


BUILDERS = {
    "editable": lambda source, into: build(source, "build_editable", into),
    "from sdist": wheel_from_sdist,
}


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("kind", BUILDERS)
def test_install_and_uninstall(kind, source, empty, tmp_path):
    python, site = empty
    before = contents(site), contents(site.parents[2] / "bin")
    wheel = BUILDERS[kind](source, tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", str(wheel))

    assert (site / NAME).exists()
    show = (
        "import sys; print('modern_fairseq' in sys.modules, "
        "[f.__name__ for f in sys.meta_path if isinstance(f, type)][0])"
    )
    assert run(python, "-c", show) == "True _Trigger\n"
    assert run(python, "-I", "-c", show) == "True _Trigger\n"
    assert run(python, "-S", "-c", show).startswith("False")
    # nothing is loaded before there is a fairseq: it may lie in the current folder
    look = "import importlib.util as u, sys; u.find_spec('fairseq'); print('modern_fairseq.table' in sys.modules)"
    assert run(python, "-c", look, cwd=tmp_path) == "False\n"
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").touch()
    assert run(python, "-c", look, cwd=tmp_path) == "True\n"

    run(*pip, "uninstall", "--yes", "fairseq-residuals")
    assert (contents(site), contents(site.parents[2] / "bin")) == before


def test_an_interrupted_uninstall_does_not_disturb_python(source, empty, tmp_path):
    python, site = empty
    wheel = build(source, "build_wheel", tmp_path)
    shutil.unpack_archive(wheel, site, "zip")
    shutil.rmtree(site / "modern_fairseq")
    result = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("1\n", "")


def with_requirements(name):
    """The names of a package and of all that it requires here; PyTorch for CUDA asks for extras of other packages."""
    done, waiting = set(), [(name, "")]
    while waiting:
        name, extra = package = waiting.pop()
        if package not in done:
            done.add(package)
            required = map(Requirement, distribution(name).requires or [])
            here = [r for r in required if r.marker is None or r.marker.evaluate({"extra": extra})]
            waiting += [(r.name, extra) for r in here for extra in ("", *r.extras)]
    return {name for name, _ in done}


def link(name, site):
    """Let an environment see an installed package, without installing it anew."""
    for top in {path.parts[0] for path in distribution(name).files if path.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).is_symlink():  # those of CUDA share a folder
            (site / top).symlink_to(distribution(name).locate_file(top))


WITHOUT_FAIRSEQ = """
import sys
import torch
import fairseq_residuals
from fairseq_residuals import DecoderCache, TokenEmbedding, build_stack, contributions, list_variants, wrap
from fairseq_residuals.lab.look.change import change
from fairseq_residuals.lab.look.probes import ModelAndLoss

embed = TokenEmbedding(11, 8)
stack = build_stack("b2t", depth=2, dim=8, heads=2, ffn_dim=16, task="language_model", embed_tokens=embed.embed_tokens)
tokens = torch.tensor([[4, 5, 6]])
whole, cache = stack(embed(tokens)), DecoderCache()
steps = [stack(embed(token, cache=cache), cache=cache) for token in tokens.split(1, 1)]
assert torch.allclose(torch.cat(steps), whole, atol=1e-5)
whole.sum().backward()
assert torch.allclose(contributions(stack.eval(), embed(tokens)).terms.sum(0), whole, atol=1e-5)
wrapped = wrap("mhc", [(torch.nn.Identity(), torch.nn.Linear(8, 8)) for _ in range(2)], dim=8, heads=2, ffn_dim=16)
assert len(change(ModelAndLoss(wrapped, lambda: wrapped(torch.ones(3, 1, 8)).sum()))["encoder"]) == 1
present = {"fairseq", "hydra", "omegaconf", "sacrebleu", "numpy"} & set(sys.modules)
print(fairseq_residuals.__version__, "b2t" in list_variants(), present or "nothing else")
"""


def test_the_library_needs_torch_alone(source, empty, tmp_path):
    python, site = empty
    wheel = build(source, "build_wheel", tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    for name in with_requirements("torch"):
        link(name, site)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("PIP_")}
    bare["PIP_CONFIG_FILE"] = os.devnull  # settings of a user's could have pip replace torch, which is but linked
    run(*pip, "install", "--no-index", str(wheel), env=bare)  # were there more requirements than torch, it would fail
    bare["PYTHONWARNINGS"] = "ignore"  # torch warns that there is no numpy
    version, *said = run(python, "-c", WITHOUT_FAIRSEQ, cwd=tmp_path, env=bare).split(maxsplit=1)
    assert said == ["True nothing else\n"] and version in wheel.name

    command = str(Path(python).with_name("fairseq-residuals"))
    assert "\nb2t " in run(command, "list", env=bare)
    assert "Takase et al. 2023" in run(command, "show", "b2t", env=bare)
    for arguments, status, needed in (
        ("average", 1, "needs fairseq"),
        ("condition", 2, "needs the package matplotlib"),
        ("reproduce b2t/table1", 1, "needs the package subword_nmt"),
    ):
        done = subprocess.run([command, *arguments.split()], env=bare, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert needed in done.stderr and done.stderr.count("\n") == 1
    usage = " ".join(run(command, "--help", env=bare).split())
    assert " list " in usage and "Further commands need fairseq: `pip install" in usage
