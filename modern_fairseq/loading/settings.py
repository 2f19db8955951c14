"""The settings that a checkpoint holds compute nothing, and name nothing that a process would open or start."""

import argparse
import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, open_dict

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
        "quantization_config_path",
        # dictionaries and labels
        *("lang_dict", "source_dict", "target_dict", "fixed_dictionary", "label_dir"),
    )
)
"""Settings whose values fairseq opens, some of them also as addresses, when a model or its task is built."""
IN_DATA = frozenset(("config_yaml",))
"""Settings that name a file of the data folder, which may be nothing but a file's name."""
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
        for section in _sections(state.get(key)):
            # fairseq reads namespaces within cfg as they are, and completes all else by its defaults
            in_cfg = key == "cfg" and isinstance(section, argparse.Namespace)
            left_out |= _without_files(section, in_cfg)
    if left_out:
        logger.info("%s: left out, since only a user may name them: %s", name, ", ".join(sorted(left_out)))
    return state


def _sections(node: Any) -> Iterator[Any]:
    """Yield the node and all dictionaries, lists and namespaces in it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, argparse.Namespace | dict | list | tuple | DictConfig | ListConfig):
            yield node
            waiting.extend(_values(node))


def _values(node: Any) -> list[Any]:
    if isinstance(node, DictConfig | ListConfig):
        content = node._content
        if not isinstance(content, dict | list):
            return [content]  # of a node that is an interpolation itself, or has no value
        nodes = content.values() if isinstance(content, dict) else content
        return [item if isinstance(item, DictConfig | ListConfig) else item._value() for item in nodes]  # type: ignore[union-attr]
    node = vars(node) if isinstance(node, argparse.Namespace) else node
    return list(node.values()) if isinstance(node, dict) else list(node)


def _without_files(section: Any, keep_names: bool) -> set[str]:
    """Take them out, in place; returns their names."""
    settings = vars(section) if isinstance(section, argparse.Namespace) else section
    content = settings._content if isinstance(settings, DictConfig) else settings
    if not isinstance(content, dict):
        return set()
    given = {key for key in NAMES_OF_FILES & content.keys() if settings[key]}
    given |= {
        key for key in IN_DATA & content.keys() if settings[key] and Path(str(settings[key])).name != settings[key]
    }
    with open_dict(settings) if isinstance(settings, DictConfig) else contextlib.nullcontext():
        for key in given:
            if keep_names:
                settings[key] = None
            else:
                del settings[key]
        settings.update({key: ACTIONS[key] for key in ACTIONS.keys() & content.keys()})
    return given


def check_settings(settings: Any) -> None:
    """Refuse settings that OmegaConf would compute: of ``${...}``, only the name of another setting is data.

    ``${oc.env:NAME}`` reads the environment, and ``${a}${a}`` grows with every step.

    Raises:
        Refused: there is such a setting.
    """
    settings = vars(settings) if isinstance(settings, argparse.Namespace) else settings
    for text in _texts(settings):
        for _ in range(8):
            if not isinstance(text, str) or "${" not in text:
                break
            name = _INTERPOLATION.fullmatch(text)
            if name is None:
                raise Refused(f"has the setting {text[:80]!r}, which OmegaConf would compute")
            text = _look_up(settings, name[1].split("."))
            if isinstance(text, Mapping | list):
                raise Refused(f"has the setting {name[0]!r}, which stands for several others")
        else:
            raise Refused("has settings that refer to each other without end")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, argparse.Namespace):
        yield from _texts(vars(value))
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _look_up(settings: Any, path: list[str]) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings
