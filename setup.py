"""Adds modern_fairseq.pth to the wheel.

Everything else about the project is in pyproject.toml.

modern_fairseq.pth lets each interpreter of the environment import modern_fairseq when it starts, which waits for the
first import of fairseq.  setuptools has no setting for it: a regular wheel gets it from build_py, and an
editable one, which holds only what setuptools generates, afterwards.  Both list it in RECORD, so that pip
uninstall removes it.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

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


class EditableWheel(editable_wheel):
    """Rewrites the finished wheel with the file and its line in RECORD."""

    def run(self):
        super().run()
        digest = base64.urlsafe_b64encode(hashlib.sha256(LINE.encode()).digest()).rstrip(b"=").decode()
        record = f"{NAME},sha256={digest},{len(LINE)}\n".encode()
        for path in Path(self.dist_dir).glob("*.whl"):
            with zipfile.ZipFile(path) as wheel:
                members = [(info, wheel.read(info)) for info in wheel.infolist()]
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
                wheel.writestr(NAME, LINE)
                for info, data in members:
                    wheel.writestr(info, data + record if info.filename.endswith(".dist-info/RECORD") else data)


setup(cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel})
