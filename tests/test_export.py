"""A stock model with folded weights computes what the plugin's model computes, or nothing is exported."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from fairseq.checkpoint_utils import load_model_ensemble
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.plugin.checkpoints.exporting.exporter import Exported, export_checkpoint
from fairseq_residuals.plugin.checkpoints.exporting.stock_form import FAIRSEQ_HAS
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.variants.b2t import B2T
from fairseq_residuals.wirings.variants.deepnet import DeepNetConnection
from fairseq_residuals.wirings.variants.layer_scale import LayerScaleConnection
from fairseq_residuals.wirings.variants.layernorm_scaling import LayerNormScalingConnection
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection


def export(
    folder: Path, task: str, variant: str, *flags: str, layers: int = 2, nested: bool = False
) -> tuple[nn.Module, Exported]:
    """A model away from its initial values, and its checkpoint exported.

    Args:
        nested: the checkpoint has its settings as a YAML file does, instead of those of a command line.
    """
    args = tiny.settings(f"{tiny.PREFIX[task]}_{variant}", *tiny.dimensions(task, layers), *flags)
    args.task = tiny.FAIRSEQ_TASKS[task]
    model = tiny.perturb(tiny.build(task, variant, *flags, layers=layers))
    cfg = {"model": vars(args) | {"_name": args.arch}, "task": {"_name": args.task}}
    torch.save({"model": model.state_dict()} | ({"cfg": cfg} if nested else {"args": args}), folder / "ours.pt")
    return model, export_checkpoint(folder / "ours.pt")


def loaded(exported: Exported, folder: Path) -> nn.Module:
    """By fairseq's own code."""
    save(exported.checkpoint, folder / "stock.pt")
    (model,), _ = load_model_ensemble([str(folder / "stock.pt")], task=tiny.make_task())
    return model.eval()


def logits_of_both(folder: Path, task: str, variant: str, *flags: str, layers: int = 2) -> tuple[Tensor, Tensor]:
    """Of a model and of what it was exported to, which agree."""
    ours, exported = export(folder, task, variant, *flags, layers=layers)
    theirs = loaded(exported, folder)
    assert type(theirs).__module__.startswith("fairseq.models")
    assert exported.deviation <= 1e-6
    inputs = tiny.batch(task)
    with torch.no_grad():
        expected, found = (tiny.logits(model, task, inputs) for model in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    return expected, found


CASES = [
    ("translation", "post_ln", ()),
    ("translation", "pre_ln", ("--share-all-embeddings",)),
    ("translation", "deepnet", ("--share-all-embeddings",)),
    ("translation", "deepnet", ("--layernorm-embedding", "--share-decoder-input-output-embed")),
    ("translation", "deepnet", ("--encoder-learned-pos", "--no-scale-embedding")),
    ("translation", "deepnet", ("--no-token-positional-embeddings",)),
    ("translation", "admin", ("--share-all-embeddings",)),
    ("translation", "admin", ("--decoder-residual", "pre_ln", "--share-all-embeddings")),
    ("translation", "pre_ln", ("--decoder-residual", "deepnet")),
    ("language_modeling", "post_ln", ()),
    ("language_modeling", "pre_ln", ("--no-decoder-final-norm",)),
    ("language_modeling", "deepnet", ("--share-decoder-input-output-embed",)),
    ("language_modeling", "deepnet", ("--decoder-input-dim", "8")),
    ("speech", "pre_ln", ()),
    ("speech", "post_ln", ("--decoder-residual", "deepnet")),
    ("translation", "layernorm_scaling", ("--share-all-embeddings",)),
    ("translation", "layernorm_scaling", ("--decoder-residual", "layer_scale")),
    ("translation", "layer_scale", ("--decoder-residual", "deepnet")),
    ("language_modeling", "layernorm_scaling", ("--no-decoder-final-norm",)),
    ("language_modeling", "layer_scale", ("--residual-args", "gain=2")),
    ("speech", "layernorm_scaling", ()),
    ("speech", "layer_scale", ()),
]
FOLDED = {"admin", "deepnet", "layernorm_scaling", "layer_scale"}
"""Their factors go into the weights, which rounds; without one, a model computes the same bit for bit."""


@pytest.mark.parametrize(("task", "variant", "flags"), CASES, ids=[" ".join((t, v, *f)) for t, v, f in CASES])
def test_the_stock_model_computes_the_same(task: str, variant: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    expected, found = logits_of_both(tmp_path, task, variant, *flags, layers=3)
    if not FOLDED & {variant, *flags}:
        assert torch.equal(found, expected)


def test_nothing_is_folded_approximately(tmp_path: Path) -> None:
    """Where norms see little variance their eps counts: a factor that divided the sum would show."""
    export(tmp_path, "translation", "deepnet", layers=6)
    state = torch.load(tmp_path / "ours.pt", weights_only=False)
    for name, value in state["model"].items():
        if "_norm." in name or "embed_tokens" in name or "output_projection" in name:
            value.mul_(1e-2)
    torch.save(state, tmp_path / "ours.pt")
    assert export_checkpoint(tmp_path / "ours.pt").deviation <= 1e-6


def test_settings_of_a_yaml_file(tmp_path: Path) -> None:
    _, exported = export(tmp_path, "translation", "deepnet", nested=True)
    assert exported.checkpoint["args"].encoder_layers == 2
    assert exported.checkpoint["args"].arch == "transformer"


def test_a_gain_on_the_branch_of_pre_ln(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gain = torch.linspace(0.5, 2, 16)
    monkeypatch.setattr(PreLNConnection, "write", lambda self, s, y: s | {"x": s["x"] + gain.to(y) * y})
    monkeypatch.setattr(PreLNConnection, "gains", lambda self: (1.0, gain))
    logits_of_both(tmp_path, "translation", "pre_ln")


def refusal(folder: Path, task: str, variant: str, *flags: str) -> str:
    with pytest.raises(UserError) as error:
        export(folder, task, variant, *flags)
    return str(error.value)


OTHERS = ["b2t", "b2t_no_ln", "resi_dual", "sub_ln", "normformer", "t_fixup", "dlcl_pre", "post_ln:0-0,pre_ln:1-1"]
OTHERS += ["sandwich_ln", "peri_ln", "post_sublayer_norm", "mix_ln", "re_zero", "keel"]


@pytest.mark.parametrize("wiring", OTHERS)
def test_other_wirings_are_refused(wiring: str, tmp_path: Path) -> None:
    said = refusal(tmp_path, "translation", "post_ln", "--residual", wiring)
    assert f"its encoder is wired by {wiring} (" in said


@pytest.mark.parametrize(
    ("task", "variant", "flags", "reason"),
    [
        ("translation", "pre_ln", "--residual-args final_norm=false", "its encoder is Pre-LN without a norm on top"),
        ("translation", "post_ln", "--activation-fn silu", "fairseq itself has no activation silu"),
        ("speech", "deepnet", "", "encoder layer 1, self cannot be folded"),
        ("language_modeling", "deepnet", "--adaptive-input --adaptive-input-cutoff 10,20", "an adaptive embedding"),
    ],
)
def test_what_a_stock_model_lacks_is_refused(task: str, variant: str, flags: str, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(tmp_path, task, variant, *flags.split())


def test_a_factor_of_zero_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeepNetConnection, "gains", lambda self: (torch.arange(16.0), 1.0))
    assert "it is zero in some channel" in refusal(tmp_path, "translation", "deepnet")


def test_a_factor_on_the_residual_of_pre_ln_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreLNConnection, "gains", lambda self: (2.0, 1.0))
    assert "a Pre-LN residual has no norm before it" in refusal(tmp_path, "translation", "pre_ln")


def test_a_model_that_would_differ_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(B2T, "export_as", "post_ln")
    assert "its logits differ by" in refusal(tmp_path, "translation", "b2t")
    monkeypatch.setattr(DeepNetConnection, "gains", lambda self: (self.alpha * 1.001, 1.0))
    assert "its logits differ by" in refusal(tmp_path, "language_modeling", "deepnet")
    monkeypatch.setattr(LayerScaleConnection, "gains", lambda self: (1.0, 1.001 * self.gain))
    assert "its logits differ by" in refusal(tmp_path, "translation", "layer_scale")
    monkeypatch.setattr(LayerNormScalingConnection, "read", lambda self, s: (self.norm(s["x"]), s))
    assert "its logits differ by" in refusal(tmp_path, "translation", "layernorm_scaling")


@pytest.mark.parametrize("variant", ["post_ln", "pre_ln", "layernorm_scaling"])
@pytest.mark.parametrize("choice", ["norm_type=rms", "norm_type=dyt", "value_residual=constant"])
def test_what_fairseq_has_no_choice_of_is_refused(variant: str, choice: str, tmp_path: Path) -> None:
    option = choice.partition("=")[0]
    said = refusal(tmp_path, "translation", variant, "--residual-args", choice)
    assert f"its encoder has {choice}, and fairseq's own model has {option}={FAIRSEQ_HAS[option]}" in said


def test_a_stock_checkpoint_is_refused(tmp_path: Path) -> None:
    args = tiny.settings("transformer", *tiny.dimensions("translation"))
    torch.save({"args": args, "model": {}}, tmp_path / "stock.pt")
    with pytest.raises(UserError, match="architecture 'transformer', which is none of this plugin's"):
        export_checkpoint(tmp_path / "stock.pt")


def test_no_setting_of_a_file_is_parsed_as_a_command_line(tmp_path: Path) -> None:
    plugin, trace = tmp_path / "plugin_of_export", tmp_path / "trace"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    export(tmp_path, "translation", "post_ln")
    state = torch.load(tmp_path / "ours.pt", weights_only=False)
    state["args"].data = f"--user-dir={plugin}"
    torch.save(state, tmp_path / "ours.pt")
    assert export_checkpoint(tmp_path / "ours.pt").checkpoint["args"].user_dir is None
    assert not trace.exists()
