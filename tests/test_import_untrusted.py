"""Settings of another's checkpoint are data: never parsed as a command line, never another type."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from authors_checkpoints import write

from fairseq_residuals.plugin.checkpoints.importing.importer import import_checkpoint
from fairseq_residuals.wirings.core.errors import UserError


def user_dir(folder: Path) -> tuple[Path, Path]:
    """A folder that, imported, leaves a trace, and the trace."""
    trace = folder / "trace"
    plugin = folder / f"plugin_{folder.name}"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    return plugin, trace


@pytest.mark.parametrize("key", ["data", "source_lang", "activation_fn", "task", "criterion"])
def test_no_setting_of_a_file_is_parsed_as_a_command_line(key: str, tmp_path: Path) -> None:
    plugin, trace = user_dir(tmp_path)
    path = write(tmp_path, "postln_S", **{key: f"--user-dir={plugin}"})
    with contextlib.suppress(UserError):  # some are refused, but none may be followed
        assert import_checkpoint(path, "fairseq").checkpoint["args"].user_dir is None
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"encoder_attention_heads": "two"}, "encoder_attention_heads must be a whole number, not 'two'"),
        ({"encoder_attention_heads": [2]}, "encoder_attention_heads must be a whole number, not [2]"),
        ({"encoder_attention_heads": 2.5}, "encoder_attention_heads must be a whole number, not 2.5"),
        ({"dropout": {"a": 1}}, "dropout must be a number, not {'a': 1}"),
        ({"no_scale_embedding": "perhaps"}, "no_scale_embedding must be true or false, not 'perhaps'"),
        ({"adaptive_softmax_cutoff": [[1], 2]}, "adaptive_softmax_cutoff must be text, not [[1], 2]"),
        ({"label_smoothing": "much", "criterion": "label_smoothed_cross_entropy"}, "label_smoothing must be a number"),
        ({"left_pad_source": 3}, "left_pad_source must be true or false, not 3"),
        ({"data": {"a": 1}}, "data must be text"),
        ({"arch": ["transformer"]}, "arch must be a name, not ['transformer']"),
        ({"task": {"translation": 1}}, "task must be a name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_of_another_type_are_refused(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        import_checkpoint(write(tmp_path, "postln_S", **changed), "fairseq")
    assert reason in str(error.value)
