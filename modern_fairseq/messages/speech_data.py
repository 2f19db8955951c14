"""The configuration of speech data is read as plain values, and names no file outside of its folder."""

import types
from pathlib import Path
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.loading.settings import NAMES_OF_FILES
from modern_fairseq.plain_yaml import read_yaml

FILES = NAMES_OF_FILES.union(
    ("vocab_filename", "speaker_set_filename", "speaker_emb_filename", "stats_npz_path", "feature_stats_path"),
    ("target_speaker_embed", "config", "checkpoint", "dict", "data"),
)
"""Settings that name a file or folder of the data folder, also inside of a tokenizer, a transform, a vocoder or a task.

Sounds may lie elsewhere: lists of sentences name them, below audio_root.
"""
SWITCHES = ("shuffle", "use_audio_input", "prepend_tgt_lang_tag")
"""Settings for which any text, such as "no", would count as true."""


def settings_as_data(module: types.ModuleType) -> None:
    """Read the configuration of speech data as plain values (data/audio/data_cfg.py:21).

    PyYAML's FullLoader can name objects of loaded modules. Can go when fairseq > 0.12.2 uses SafeLoader, and checks
    names.
    """

    def get_config_from_yaml(yaml_path: Path) -> dict[str, Any]:
        settings = read_yaml(yaml_path)
        if not isinstance(settings, dict):
            raise UserError(f"{yaml_path} has to be a mapping, such as vocab_filename: dict.txt")
        for name in SWITCHES:
            if not isinstance(settings.get(name), bool | None):
                raise UserError(f"{yaml_path}: {name} has to be true or false, not {settings[name]!r:.60}")
        _check_names(yaml_path, settings)
        # fairseq looks into what is there: a name without a value is to have the default
        return {name: value for name, value in settings.items() if value is not None}

    module.get_config_from_yaml = get_config_from_yaml  # type: ignore[attr-defined]


def _check_names(path: Path, settings: dict[Any, Any]) -> None:
    """Let a data folder name its own files only, and no address, which fairseq would connect to.

    Each name becomes a path, in place: fairseq looks for some files in the folder that it runs in.

    Raises:
        UserError: it names another.
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_names(path, value)
        elif isinstance(value, str):
            if "://" in value:
                raise UserError(f"{path}: {name} is the address {value!r:.60}, and a data folder names no addresses")
            folder = path.parent.resolve()
            if name in FILES and value:
                places = (path.parent.absolute() / value, Path(value).absolute())
                inside = [place for place in places if place.resolve().is_relative_to(folder)]
                if not inside:
                    raise UserError(f"{path}: {name} is {value!r:.60}, which is no file in {path.parent}")
                settings[name] = str(next((place for place in inside if place.exists()), inside[0]))
