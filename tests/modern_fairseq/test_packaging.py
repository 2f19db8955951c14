"""Installing brings the .pth file along, and uninstalling leaves nothing behind."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

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
    "regular": lambda source, into: build(source, "build_wheel", into),
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
    # the first look at fairseq arms the hook, even where fairseq is missing
    armed = (
        "import importlib.util, sys; print(importlib.util.find_spec('fairseq'), "
        "[type(f).__module__ for f in sys.meta_path][0])"
    )
    assert run(python, "-c", armed) == "None modern_fairseq.finder\n"

    run(*pip, "uninstall", "--yes", "fairseq-residuals")
    assert (contents(site), contents(site.parents[2] / "bin")) == before


def test_an_interrupted_uninstall_does_not_disturb_python(source, empty, tmp_path):
    python, site = empty
    wheel = BUILDERS["regular"](source, tmp_path)
    shutil.unpack_archive(wheel, site, "zip")
    shutil.rmtree(site / "modern_fairseq")
    result = subprocess.run([python, "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("1\n", "")
