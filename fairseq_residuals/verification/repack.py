"""Write golden files of any layout in the one that tests/golden/README.md describes.

No number changes, and the same input gives the same bytes: ``python -m fairseq_residuals.verification.repack IN OUT``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.verification.archive import (
    FORMAT,
    Arrays,
    read_arrays,
    read_description,
    read_sidecar,
    write,
    write_json,
)
from fairseq_residuals.verification.old_layouts import convert, convert_statistics


def repack(source: Path, folder: Path) -> list[Path]:
    """Write the golden file ``source``, or all of a folder and the folders in it, into ``folder``.

    Returns:
        The sidecars written.

    Raises:
        UserError: a file is damaged or has no layout of golden files, or there are two of one name. Nothing of it is
            written then.
    """
    files = sorted(source.rglob("*.json")) if source.is_dir() else [source.with_suffix(".json")]
    if not files:
        raise UserError(f"there are no golden files in {source}")
    names = [file.name for file in files]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UserError(f"there are two files {double} in {source}; they would be written as one")
    folder.mkdir(parents=True, exist_ok=True)
    return [_repack_file(file, folder) for file in files]


def _repack_file(file: Path, folder: Path) -> Path:
    target = folder / file.name
    archive = file.with_suffix(".npz")
    if not archive.exists():
        description = read_description(file)
        if description.get("format") != FORMAT:
            description = convert_statistics(file, description) | {"format": FORMAT}
        write_json(target, description)
        return target
    arrays, description = read_whole(archive)
    write(target.with_suffix(".npz"), arrays, {key: x for key, x in description.items() if key != "arrays"})
    return target


def read_whole(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read a golden file of any layout, as the arrays and the description of the one that is written.

    Raises:
        UserError: the file is damaged or has no layout of golden files.
    """
    sidecar = read_sidecar(path)
    arrays = read_arrays(path, sidecar)
    if sidecar.get("format") == FORMAT:
        return arrays, sidecar
    # the parameters of a large model were in files of their own
    for name in sidecar.pop("param_files", []):
        arrays |= read_arrays(path.with_name(Path(name).name), {})
    return convert(path, arrays, sidecar)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="repack", description=__doc__)
    parser.add_argument("source", type=Path, metavar="IN", help="a golden file, or a folder of them")
    parser.add_argument("folder", type=Path, metavar="OUT", help="the folder to write to")
    args = parser.parse_args(argv)
    try:
        written = repack(args.source, args.folder)
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"{len(written)} golden files in {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
