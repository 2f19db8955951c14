"""Prints what an environment of requirements.lock is made of, as a CycloneDX 1.6 document (JSON).

Usage: ``python scripts/sbom.py > sbom.cdx.json``. The document is the same each time; licences are those that the
packages of this environment state.
"""

from __future__ import annotations

import json
import re
import uuid
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAME = "fairseq-residuals"


def pins(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and SHA-256 hashes of each package of a lock file."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})*)", lock, re.MULTILINE)
    return {name: (version, re.findall(r"sha256:(\w+)", hashes)) for name, version, hashes in found}


def component(name: str, version: str, hashes: list[str], kind: str = "library") -> dict[str, Any]:
    """Describe a package; ``hashes`` are those of the files that it is published in."""
    address = f"pkg:pypi/{name}@{version}"
    described: dict[str, Any] = {"type": kind, "name": name, "version": version, "bom-ref": address, "purl": address}
    if hashes:
        files = [{"alg": "SHA-256", "content": one} for one in hashes]
        described["externalReferences"] = [{"type": "distribution", "url": address, "hashes": files}]
    if licence := _licence(name):
        described["licenses"] = [{"expression": licence}]
    return described


def _licence(name: str) -> str | None:
    """Return the SPDX expression that the installed package states."""
    try:
        return metadata(name).get("License-Expression")
    except PackageNotFoundError:
        return None


def document(lock: str, version: str) -> dict[str, Any]:
    """Return the document for a lock file and a version of this project."""
    project = component(NAME, version, [], "application")
    parts = [component(name, *pin) for name, pin in pins(lock).items()]
    described = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": project},
        "components": parts,
        "dependencies": [
            {"ref": project["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(described))
    return {"serialNumber": f"urn:uuid:{serial}", **described}


if __name__ == "__main__":
    version = re.search(r'^__version__ = "(.*)"', (ROOT / "fairseq_residuals/__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    print(json.dumps(document((ROOT / "requirements.lock").read_text(), version[1]), indent=1))
