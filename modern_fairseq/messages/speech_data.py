"""The configuration of speech data is read as plain values, and names no file outside of its folder."""

import types
from pathlib import Path
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.plain_yaml import read_yaml

FILES = frozenset(
    (
        *("vocab_filename", "speaker_set_filename", "stats_npz_path", "feature_stats_path", "bpe_codes", "bpe_vocab"),
        *("sentencepiece_model", "sentencepiece_vocab", "gpt2_encoder_json", "gpt2_vocab_bpe", "bpe_merges"),
    )
)
"""Settings that name a file of the data folder, at the top or inside of a tokenizer or a transform."""
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
            if name in FILES and not (folder / value).resolve().is_relative_to(folder):
                raise UserError(f"{path}: {name} is {value!r:.60}, which is no file in {path.parent}")
