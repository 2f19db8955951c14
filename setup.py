"""Adds modern_fairseq.pth to the wheel, and makes archives of the same bytes each time.

Everything else about the project is in pyproject.toml.

modern_fairseq.pth lets each interpreter of the environment import modern_fairseq when it starts, which waits for the
first import of fairseq.  setuptools has no setting for it: a regular wheel gets it from build_py, and an
editable one, which holds only what setuptools generates, afterwards.  Both list it in RECORD, so that pip
uninstall removes it.

Archives name no owner of a file, one mode for plain files, and one time for all of them: SOURCE_DATE_EPOCH, or the
first day that a zip archive can name. Of these, setuptools sees to the time in wheels.
"""

import base64
import gzip
import hashlib
import os
import tarfile
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

os.umask(0o022)  # the modes of files are in the archives
TIME = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800"))

NAME = "modern_fairseq.pth"
# One line, as .pth files are executed line by line; an ImportError is what an interrupted uninstall would
# leave.
LINE = 'import sys; exec("try:\\n import modern_fairseq\\nexcept ImportError:\\n pass")\n'


class BuildPy(build_py):
    """Puts the file beside the packages, that is, into site-packages."""

    def run(self):
        super().run()
        if not self.editable_mode:
            Path(self.build_lib).mkdir(parents=True, exist_ok=True)
            Path(self.build_lib, NAME).write_text(LINE)

    def get_outputs(self, include_bytecode=True):
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, str(Path(self.build_lib, NAME))]


class Wheel(bdist_wheel):
    """Rewrites the finished wheel with one mode for all files."""

    def run(self):
        super().run()
        for path in Path(self.dist_dir).glob("*.whl"):
            _rewrite(path)


class EditableWheel(editable_wheel):
    """Rewrites the finished wheel with the file and its line in RECORD."""

    def run(self):
        super().run()
        digest = base64.urlsafe_b64encode(hashlib.sha256(LINE.encode()).digest()).rstrip(b"=").decode()
        for path in Path(self.dist_dir).glob("*.whl"):
            _rewrite(path, f"{NAME},sha256={digest},{len(LINE)}\n".encode())


def _rewrite(path, record=b""):
    with zipfile.ZipFile(path) as wheel:
        members = [(info, wheel.read(info)) for info in wheel.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        if record:
            wheel.writestr(NAME, LINE)
        for info, data in members:
            info.external_attr = 0o100644 << 16
            wheel.writestr(info, data + record if info.filename.endswith(".dist-info/RECORD") else data)


class Sdist(sdist):
    """Sorts the files, and leaves out who owns them and when they were written."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        """Write ``base_name``.tar.gz from the folder ``base_dir``."""
        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=TIME) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as archive,
        ):
            for member in sorted(Path(base_dir).rglob("*")):
                archive.add(member, recursive=False, filter=_anonymous)
        return path


def _anonymous(member):
    runs = member.isdir() or member.mode & 0o100
    return member.replace(mtime=TIME, mode=0o755 if runs else 0o644, uid=0, gid=0, uname="", gname="", deep=False)


setup(cmdclass={"bdist_wheel": Wheel, "build_py": BuildPy, "editable_wheel": EditableWheel, "sdist": Sdist})
