"""The settings that a checkpoint holds compute nothing, and name nothing that a process would open or start."""

import argparse
import logging
import re
from collections.abc import Iterator
from typing import Any

from modern_fairseq.loading.untrusted import Refused

_INTERPOLATION = re.compile(r"\$\{([a-zA-Z_]\w*(?:\.\w+)*)\}")
logger = logging.getLogger(__name__)

NAMES_OF_FILES = frozenset(
    (
        # what models are begun with: a checkpoint has the parameters itself
        *("encoder_embed_path", "decoder_embed_path", "load_pretrained_encoder_from", "load_pretrained_decoder_from"),
        *("pretrained_checkpoint", "pretrained_mlm_checkpoint", "pretrained_xlm_checkpoint", "w2v_path"),
        # tokenizers
        *("bpe_codes", "bpe_merges", "bpe_vocab", "bpe_vocab_file", "sentencepiece_model", "sentencepiece_model_path"),
        *("gpt2_encoder_json", "gpt2_vocab_bpe", "sentencepiece_vocab"),
        # tasks and criteria
        *("speaker_emb_path", "sampling_weights_from_file", "wer_args", "wer_kenlm_model", "wer_lexicon"),
        *("quantization_config_path", "extra_data", "lang_to_offline_shard_ratio", "replace_unk"),
        *("save_predictions", "tensorboard_logdir"),  # to write them
        # dictionaries and labels
        *("lang_dict", "source_dict", "target_dict", "fixed_dictionary", "label_dir"),
    )
)
"""Settings whose values fairseq opens, some of them also as addresses, when it builds a model, task or criterion."""
IN_DATA = frozenset(("config_yaml", "multitask_config_yaml", "langs"))
"""Settings that name files or folders of the data folder, and may be nothing but names."""
DEPTHS = ("encoder_layers", "decoder_layers", "layers")
"""Settings that say how many layers are built."""
_NO_NAME = re.compile(r"/|\.\.|\$")
ACTIONS = {"user_dir": None, "use_plasma_view": False}
"""Settings that import a folder or start a program, and what they are instead."""


def harmless_settings(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Take from a checkpoint's settings, in place, what would make a process open, import or start something.

    What a user gives beside (``--model-overrides``, keywords of ``from_pretrained``) is set after this, and holds.

    Args:
        state: a fairseq checkpoint, with ``args`` or ``cfg``.
        name: the file's.
    """
    left_out: set[str] = set()
    for key in ("args", "cfg"):
        for section in _nested(state.get(key)):
            if isinstance(section, argparse.Namespace | dict):
                # fairseq reads namespaces within cfg as they are, and completes all else by its defaults
                in_cfg = key == "cfg" and isinstance(section, argparse.Namespace)
                left_out |= _without_files(_mapping(section), in_cfg)
    if left_out:
        logger.info("%s: left out, since only a user may name them: %s", name, ", ".join(sorted(left_out)))
    return state


def _nested(node: Any) -> Iterator[Any]:
    """Yield settings and all that is in them."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        inside = _mapping(node)
        if isinstance(inside, dict):
            waiting.extend(inside.values())
        elif isinstance(inside, list | tuple | set):
            waiting.extend(inside)


def _mapping(node: Any) -> Any:
    return vars(node) if isinstance(node, argparse.Namespace) else node


def _without_files(settings: dict[str, Any], keep_names: bool) -> set[str]:
    """Take them out, in place; returns their names."""
    given = {key for key in NAMES_OF_FILES & settings.keys() if settings[key]}
    given |= {key for key in IN_DATA & settings.keys() if _NO_NAME.search(str(settings[key]))}
    for key in given:
        if keep_names:
            settings[key] = None
        else:
            del settings[key]
    settings.update({key: ACTIONS[key] for key in ACTIONS.keys() & settings.keys()})
    return given


def check_settings(settings: Any, parameters: int) -> None:
    """Refuse settings that OmegaConf would compute: of ``${...}``, only the name of another setting is data.

    ``${oc.env:NAME}`` reads the environment, and ``${a}${a}`` grows with every step. Millions of layers take hours.

    Raises:
        Refused: there is such a setting.
    """
    most = max(parameters, 1000)  # a file of a sharded model has few
    for node in _nested(settings):
        text = _mapping(node)
        depths = [text.get(key) for key in DEPTHS] if isinstance(text, dict) else []
        if any(isinstance(depth, int) and depth > most for depth in depths):
            raise Refused(f"has settings of more layers than its {parameters} parameters can be of")
        for _ in range(8):
            if not isinstance(text, str) or "${" not in text:
                break
            name = _INTERPOLATION.fullmatch(text)
            if name is None:
                raise Refused(f"has the setting {text[:80]!r}, which OmegaConf would compute")
            text = _mapping(settings)
            for part in name[1].split("."):
                text = text.get(part) if isinstance(text, dict) else None
            if isinstance(text, dict | list):
                raise Refused(f"has the setting {name[0]!r}, which stands for several others")
        else:
            raise Refused("has settings that refer to each other without end")
