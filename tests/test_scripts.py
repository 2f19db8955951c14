"""The shell scripts, and the lock file that they install.

pip itself is replaced by a module that records how it was called; the real one, which needs a network and
minutes, has been at work wherever scripts/test.sh runs these tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SCRIPTS = [*sorted(ROOT.glob("scripts/**/*.sh")), ROOT / ".ci/run"]
SOURCES = ("*.md", "*.py", "*.toml", "*.lock", "LICENSE", ".gitignore", ".ci", "configs", "docs")
SOURCES += ("fairseq_residuals", "modern_fairseq", "results", "scripts", "tests")

# What a pinned package asks for and the lock leaves out on purpose.
LEFT_OUT = {
    ("fairseq", "torchaudio"),  # modern_fairseq reads and transforms sound without it
    ("subword-nmt", "mock"),  # imported by its tests only
}
OVERRULED = {
    ("fairseq", "hydra-core"),
    ("fairseq", "omegaconf"),
}  # its bounds name releases for Python < 3.11
CUDA = re.compile(r"nvidia-|cuda-|triton$")  # torch's CUDA build brings these in versions of its own

FAKE_PIP = """
import json, os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit()
with open(os.environ["PIP_LOG"], "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if "-r" in sys.argv:
    with open(sys.argv[sys.argv.index("-r") + 1]) as file, open("requirements.log", "a") as log:
        print(json.dumps(file.read().splitlines()), file=log)
sys.exit(os.environ.get("PIP_FAILS_ON", "no argument") in sys.argv)
"""


UNHASHED = {"torch"}  # there are builds of it for CPUs and for versions of CUDA, and the user chooses one


def entries() -> dict[str, tuple[str, int]]:
    """By name: version and number of hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    entry = r"([a-z0-9-]+)==([0-9][0-9a-z.]*)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n"
    assert re.fullmatch(f"(?:{entry})+", text)
    return {name: (version, hashes.count("sha256")) for name, version, hashes in re.findall(entry, text)}


def pins() -> dict[str, str]:
    return {name: version for name, (version, _) in entries().items()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_script_parses_and_can_be_called(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) or script.name == "lock_lines.sh"  # which others source


def test_lock_is_sorted_and_has_no_name_twice() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if re.match("[a-z0-9]", line)]
    assert names == sorted(set(names)) == list(entries())


def test_lock_has_hashes_of_everything_but_torch() -> None:
    assert {name for name, (_, hashes) in entries().items() if not hashes} == UNHASHED


def test_lock_satisfies_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [Requirement(r) for r in project["dependencies"]]
    required += [Requirement(r) for group in project["optional-dependencies"].values() for r in group]
    locked = pins()
    wrong = [
        str(r)
        for r in required
        if r.name != project["name"] and not r.specifier.contains(locked.get(canonicalize_name(r.name), "0"))
    ]
    assert not wrong


def test_lock_is_closed() -> None:
    """setup.sh installs without dependencies: whatever a pinned package requires has to be pinned as well."""
    locked = pins()
    missing = []
    for name in locked:
        for text in distribution(name).requires or []:
            required = Requirement(text)
            edge = (name, canonicalize_name(required.name))
            if required.marker and not required.marker.evaluate({"extra": ""}):
                continue
            if edge in LEFT_OUT or CUDA.match(edge[1]):
                continue
            fits = edge in OVERRULED or required.specifier.contains(locked.get(edge[1], "0"))
            if edge[1] not in locked or not fits:
                missing.append(f"{name} requires {text}")
    assert not missing


class Checkout:
    """A copy of what setup.sh reads, with an environment of its own whose pip is the recording one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "pip.log"
        (folder / "scripts").mkdir(parents=True)
        for name in ("setup.sh", "lock_lines.sh"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        for name in ("requirements.lock", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, folder)
        (folder / "modules/pip").mkdir(parents=True)
        (folder / "modules/pip/__main__.py").write_text(FAKE_PIP)

    def setup(self, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """Runs setup.sh; how it ended, and the arguments of each call of pip."""
        self.log.write_text("")
        env = {k: v for k, v in os.environ.items() if k not in ("VENV", "PYTHON")}
        env |= {"PYTHONPATH": str(self.folder / "modules"), "PIP_LOG": str(self.log)} | variables
        command = ["bash", str(self.folder / "scripts/setup.sh")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return done, [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "a checkout")
    venv.create(made.folder / ".venv", symlinks=True)
    return made


def test_setup_installs_once_and_again_when_the_lock_changes(checkout: Checkout) -> None:
    done, calls = checkout.setup()
    assert done.returncode == 0, done.stderr
    tools, packages, torch, project = calls
    for call in (tools, packages):
        assert {"--require-hashes", "--no-deps", "-r"} <= set(call)
    assert "--only-binary=:all:" in tools and "--no-build-isolation" in packages
    assert torch == ["install", "--no-warn-conflicts", f"torch=={pins()['torch']}"]
    assert project[-2:] == ["-e", str(checkout.folder)]
    assert checkout.setup()[1] == []
    with (checkout.folder / "requirements.lock").open("a") as lock:
        lock.write("zzz==1\n")
    assert len(checkout.setup()[1]) == 4


def test_setup_gives_pip_every_line_of_the_lock_but_torch(checkout: Checkout) -> None:
    checkout.setup()
    tools, packages = (json.loads(line) for line in (checkout.folder / "requirements.log").read_text().splitlines())
    lock = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in packages if not line.startswith("#")] == [x for x in lock if not x.startswith("torch==")]
    names = [line.partition("==")[0] for line in tools if not line.startswith(" ")]
    assert names == ["cython", "numpy", "pdm-backend", "setuptools", "wheel"]
    assert set(tools) <= set(lock)
    assert all("--hash=sha256:" in tools[tools.index(line) + 1] for line in tools if not line.startswith(" "))


def test_setup_does_not_take_a_failed_installation_for_done(checkout: Checkout) -> None:
    done, calls = checkout.setup(PIP_FAILS_ON="--no-warn-conflicts")
    assert (done.returncode, len(calls)) == (1, 3)
    assert done.stderr.splitlines()[-1].startswith("setup: error: pip could not install")
    done, calls = checkout.setup()
    assert (done.returncode, len(calls)) == (0, 5)
    assert ["--ignore-installed" in call for call in calls] == [True, True, True, False, False]
    assert checkout.setup()[1] == []


def last_line_of_failed_setup(checkout: Checkout, **variables: str) -> str:
    done, calls = checkout.setup(**variables)
    assert (done.returncode, calls) == (1, [])
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("setup: error: ")
    return done.stderr


def test_setup_refuses_an_old_python(checkout: Checkout, tmp_path: Path) -> None:
    old = tmp_path / "python3.6"
    old.write_text(f'#!/bin/sh\n(echo "import sys; sys.version_info = (3, 6, 15)"; cat) | "{sys.executable}" "$@"\n')
    old.chmod(0o755)
    new = str(tmp_path / "new")
    assert "Python 3.11 to 3.14 are served" in last_line_of_failed_setup(checkout, PYTHON=str(old), VENV=new)
    assert not Path(new).exists()


def test_setup_refuses_what_is_no_python(checkout: Checkout, tmp_path: Path) -> None:
    new = str(tmp_path / "new")
    assert "not an interpreter" in last_line_of_failed_setup(checkout, PYTHON="no-such-python", VENV=new)
    assert "not an interpreter" in last_line_of_failed_setup(checkout, PYTHON="no-such-python")
    assert not Path(new).exists()


def test_setup_refuses_a_machine_without_compiler(checkout: Checkout) -> None:
    assert "compiler 'no-such-compiler'" in last_line_of_failed_setup(checkout, CXX="no-such-compiler")


def test_setup_leaves_a_folder_alone_that_is_no_environment(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("precious")
    message = last_line_of_failed_setup(checkout, VENV=str(tmp_path / "mine"))
    assert "is not a virtual environment" in message
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["file"]


def test_scripts_run_with_tcmalloc_where_it_is_installed(checkout: Checkout) -> None:
    found = checkout.folder / "modules/ctypes/util.py"
    found.parent.mkdir()
    (found.parent / "__init__.py").touch()
    checkout.setup()
    ask = f'. "{checkout.folder}/scripts/setup.sh" 2>/dev/null; echo "${{LD_PRELOAD-unset}}"'
    without = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "MALLOC", "VENV", "PYTHON")}

    def preloaded(library: str | None, **variables: str) -> str:
        found.write_text(f"def find_library(name): return {{'tcmalloc_minimal': {library!r}}}.get(name)")
        env = without | {"PYTHONPATH": str(checkout.folder / "modules")} | variables
        return subprocess.run(["bash", "-c", ask], env=env, capture_output=True, text=True, check=False).stdout

    assert preloaded("libtcmalloc.so") == "libtcmalloc.so\n"
    assert preloaded(None) == preloaded("libtcmalloc.so", MALLOC="libc") == "unset\n"
    assert preloaded("libtcmalloc.so", LD_PRELOAD="libmine.so") == "libmine.so\n"
    done, _ = checkout.setup(MALLOC="jemalloc")
    assert done.returncode == 1 and done.stderr.endswith("MALLOC=jemalloc is not known: valid are tcmalloc and libc\n")


def test_no_file_names_a_machine_or_a_package_index() -> None:
    forbidden = re.compile(r"(?<![\w.$}])/(?:root|home|work|Users)/|pypi[.]org|pythonhosted[.]org|download[.]pytorch")
    found = []
    for top in [path for pattern in SOURCES for path in ROOT.glob(pattern)]:
        files = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]
        for path in files:
            if path.suffix in (".npz", ".pt", ".pyc", ".png", ".so"):
                continue
            found += [f"{path.relative_to(ROOT)}: {m.group()}" for m in forbidden.finditer(path.read_text())]
    assert not found


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, on which the script would work")
def test_the_session_on_a_gpu_says_that_there_is_none(tmp_path: Path) -> None:
    environment = os.environ | {"SETUP": "no", "PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    done = subprocess.run(["bash", str(ROOT / "scripts/gpu.sh")], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "gpu.sh: error: PyTorch sees no GPU\n"
    assert not (tmp_path / "out").exists()
