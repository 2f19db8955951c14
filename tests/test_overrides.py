"""Other settings than a checkpoint's own (``--model-overrides``) leave its wiring as it was trained."""

from __future__ import annotations

import argparse
import threading
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_residuals.plugin.checkpoints.fairseq_config import COMPUTING
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack
from modern_fairseq.fixes.checkpoint_loading import Loaded, Request, steps

LAYOUTS = ("args", "cfg", "namespace in cfg")
HISTORY = {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}

NOT_IN_YAML = ("task", "input_feat_per_channel", "input_channels", "tokens_per_sample")


def write(folder: Path, layout: str, arch: str = "transformer_post_ln", *flags: str) -> Path:
    """A checkpoint with its settings as a command line, an old version's command line, or a YAML file leaves them."""
    args = tiny.settings(arch, *tiny.dimensions("translation"), *flags)
    args.task = "translation"
    model = tiny.perturb(tiny.build_model(args, tiny.make_task()))
    yaml = {key: value for key, value in vars(args).items() if key not in NOT_IN_YAML} | {"_name": arch}
    settings: dict[str, Any] = {
        "args": None,
        "cfg": {"model": yaml if layout == "cfg" else args, "task": {"_name": "translation"}},
    }
    settings = {"args": args, "cfg": None} if layout == "args" else settings
    state = {"model": model.state_dict(), "optimizer_history": [HISTORY], "extra_state": {"train_iterator": None}}
    torch.save(state | settings, folder / "model.pt")
    return folder / "model.pt"


def load(path: Path, **overrides: Any) -> nn.Module:
    (model,), _ = checkpoint_utils.load_model_ensemble([str(path)], arg_overrides=overrides, task=tiny.make_task())
    return model


POST_LN, B2T, STOCK = "transformer_post_ln", "transformer_b2t", "transformer"
WIRED = "FILE was trained with the wiring post_ln.*--model-overrides"
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    (POST_LN, {"residual": "b2t"}, WIRED),
    (POST_LN, {"decoder_residual": "b2t"}, WIRED),
    (POST_LN, {"residual": "b2t", "decoder_residual": "b2t"}, WIRED),
    (POST_LN, {"residual_args": "norm_type=rms"}, WIRED),
    (POST_LN, {"decoder_residual_args": "value_residual=identity"}, WIRED),
    (POST_LN, {"residual": None, "decoder_residual": None}, WIRED),
    (B2T, {"arch": STOCK, "_name": STOCK}, "to a model that is none of this plugin's"),
    (STOCK, {"arch": B2T, "_name": B2T}, "FILE was trained with a model that is none of this plugin's"),
    (POST_LN, {"encoder_normalize_before": True}, "contradicts the wiring post_ln"),
    (POST_LN, {"layernorm_embedding": True}, "it lacks encoder.layernorm_embedding.weight"),
    (POST_LN, {"encoder_attention_heads": 4}, "FILE was trained with encoder_a.* to encoder_attention_heads=4"),
    (POST_LN, {"activation_fn": "gelu"}, "FILE was trained with activation_fn=.* change that to activation_fn=gelu"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("arch", "overrides", "says"), OTHERS, ids=str)
def test_another_model_is_refused(arch: str, overrides: dict[str, Any], says: str, layout: str, tmp_path: Path) -> None:
    """Another wiring, fairseq's own model in the place of the plugin's or the reverse, norms, another computation."""
    path = write(tmp_path, layout, arch)
    with pytest.raises(UserError, match=says.replace("FILE", str(path))):
        load(path, **overrides)


def test_files_that_threads_read_at_once_are_compared_with_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=60)
    for name, function in (("open", open), ("_upgrade_state_dict", checkpoint_utils._upgrade_state_dict)):
        waiting = lambda *args, function=function: together.wait() < 2 and function(*args)  # noqa: E731
        monkeypatch.setattr(checkpoint_utils, name, waiting, raising=False)
    paths = []
    for name in ("post_ln", "b2t"):
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name, "cfg", f"transformer_{name}"))
    with ThreadPoolExecutor() as pool:
        models = list(pool.map(lambda path: load(path, data="elsewhere"), paths))
    assert [model.decoder.layers.wiring.name for model in models] == ["post_ln", "b2t"]


def test_another_wiring_is_refused_where_an_override_is_nested_as_in_yaml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was trained with the wiring post_ln"):
        load(write(tmp_path, "cfg"), model={"residual": "b2t"})


@pytest.mark.parametrize("layout", ["args", "namespace in cfg"])
def test_fairseqs_own_normformer_is_refused(layout: str, tmp_path: Path) -> None:
    """In YAML's layout fairseq sets only the keys that a checkpoint has, of which this is none."""
    with pytest.raises(UserError, match="the wiring is chosen by --residual"):
        load(write(tmp_path, layout), scale_fc=True)


OTHERWISE = {
    "translation": ("encoder_attention_heads", "share_all_embeddings"),
    "language_modeling": ("adaptive_input", "tie_adaptive_weights", "tie_adaptive_proj"),
    "speech": ("decoder_attention_heads",),
}
"""What is tried in this task, beside the settings that all three have."""


def another(action: argparse.Action, value: Any) -> Any:
    """Some valid value of a flag that is not ``value``; None where only the model knows one (text)."""
    if action.nargs == 0:
        return not value
    if action.choices:
        return [choice for choice in action.choices if choice != value][-1]
    if isinstance(value, int | float):
        return value * 2 or 1
    return None


@pytest.mark.parametrize("task", tiny.TASKS)
def test_no_flag_of_a_model_changes_what_trained_parameters_compute(task: str) -> None:
    """Each flag of an architecture either is refused, by this check or later, or changes nothing."""
    arch = f"{tiny.PREFIX[task]}_post_ln"
    own = tiny.settings(arch, *tiny.dimensions(task))
    inputs, parameters = tiny.batch(task), tiny.perturb(tiny.build_model(own, tiny.make_task())).state_dict()
    parser = argparse.ArgumentParser(add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    expected, tried = None, set()
    for action in [None, *parser._actions]:
        used = Namespace(**vars(own))
        if action is not None:
            setattr(used, action.dest, another(action, getattr(own, action.dest, None)))
            if getattr(used, action.dest) is None:
                continue
        try:
            for step in steps:
                step(Loaded("model.pt", {"args": used}, {"args": own}, Request()))
            model = tiny.build_model(used, tiny.make_task()).eval()
            model.load_state_dict(parameters)
        except (UserError, RuntimeError, TypeError) as error:
            if isinstance(error, UserError) and "was trained with" in str(error):
                tried.add(action.dest)
            continue
        computed = tiny.logits(model, task, inputs)
        expected = computed if expected is None else expected
        assert torch.equal(computed, expected), action.dest
    common = {"activation_fn", "decoder_attention_heads", "no_scale_embedding", "share_decoder_input_output_embed"}
    assert common | set(OTHERWISE[task]) <= tried <= set(COMPUTING)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_no_part_of_the_wiring_may_be_given(layout: str, tmp_path: Path) -> None:
    path = write(tmp_path, layout)
    given = {"residual": "post_ln", "data": "elsewhere", "dropout": 0.5, "max_source_positions": 99}
    # how parameters start is of no consequence for those of a file
    model = load(path, **given, residual_args="init_scale=0.5")
    assert [m.wiring.name for m in model.modules() if isinstance(m, Stack)] == ["post_ln", "post_ln"]
    assert model.encoder.layers[0].dropout_module.p == 0.5 and model.encoder.max_source_positions == 99
