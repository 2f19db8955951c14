"""The options ``depth_mup`` and ``base_depth``, and ``complete_p``: rates that transfer over depth."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.optim.composite import FairseqCompositeOptimizer
from golden_files import golden_path
from tiny import batch, build, logits, perturb, stacks
from tiny_trainer import make_trainer, sample, update
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import translate
from fairseq_residuals.plugin.models.builder import fairseq_name
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.plugin.training.update_scales import by_scale
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.depth_mup import UpdateScale
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.parameter_groups import scales_of
from tests.golden_check.parity import read
from tests.golden_check.rebuild import build as build_golden

BY_DEPTH = "it draws or scales its weights by depth already"
ADDITIVE = sorted(name for name, v in VARIANTS.items() if not v.contradiction(v.Config(depth_mup=True)))


def multipliers(model: nn.Module) -> Tensor:
    return torch.tensor([m.multiplier for m in model.modules() if isinstance(m, Connection)])


@pytest.mark.parametrize("name", ADDITIVE)
def test_every_branch_is_divided(name: str) -> None:
    """By (L / L_base)^alpha; at L_base nothing changes, bit for bit."""
    inputs = batch("translation")
    base = "depth_mup=true,base_depth=2"
    plain = perturb(build("translation", name, "--residual-args", base))
    off = perturb(build("translation", name, "--residual-args", "depth_mup=false"))
    assert torch.equal(logits(plain, "translation", inputs), logits(off, "translation", inputs))
    for alpha, factor in (("true", 1 / 2), ("0.5", 0.5**0.5)):
        model = build("translation", name, "--residual-args", f"depth_mup={alpha},base_depth=1")
        torch.testing.assert_close(multipliers(model), factor * multipliers(off))


@torch.no_grad()
@pytest.mark.parametrize("name", ADDITIVE)
def test_branches_times_zero_say_nothing(name: str) -> None:
    """So every additive wiring multiplies its branches, norms and all."""
    model, inputs = perturb(build("translation", name)), batch("translation")
    for module in model.modules():
        if isinstance(module, Connection):
            module.multiplier = 0.0
    out = logits(model, "translation", inputs)
    for stack in stacks(model):
        for i in range(len(stack)):
            stack[i].self_attn.out_proj.weight.normal_()
            stack[i].fc2.weight.normal_()
    assert torch.equal(logits(model, "translation", inputs), out)


def test_each_stack_has_its_own_depth() -> None:
    model = build("translation", "pre_ln", "--residual-args", "depth_mup=true", "--decoder-layers", "8", layers=4)
    assert [{m.multiplier for m in s.modules() if isinstance(m, Connection)} for s in stacks(model)] == [{0.5}, {0.25}]


@pytest.mark.parametrize(
    ("name", "other", "why"),
    [
        *((n, "", "the theory is") for n, v in sorted(VARIANTS.items()) if v.summation != "pre"),
        *((n, "", BY_DEPTH) for n in ("t_fixup", "sub_ln")),
        *(("pre_ln", o, BY_DEPTH) for o in ("init=ds_init", "init=ds_init_code", "init_scale=depth")),
    ],
)
def test_refused(name: str, other: str, why: str) -> None:
    """Where branches are not added, and where weights start by depth."""
    with pytest.raises(UserError, match=f"wiring '{name}' cannot take option depth_mup, for {why}"):
        Wiring.parse(name, f"depth_mup=true,{other}").check("decoder", 2, alone=False)


@pytest.mark.parametrize("name", ["completep", "depthmup_half"])
def test_groups_of_the_authors_optimizer(name: str) -> None:
    """Rates and decay of every parameter, and eps of the layers' (the authors' code has it everywhere)."""
    golden = read(golden_path(name))
    model, groups = build_golden(golden), golden.description["provenance"]["optimizer_groups_at_lr1e2_wd0p1_eps1e8"]
    scales = scales_of(model)
    authors = golden.recipe.authors_of(golden.description)
    checked = 0
    for group in groups:
        # three rows: a matrix of queries, keys and values is split
        for ours in translate({name: torch.zeros(3, 1) for name in group["params"]}, authors):
            parameter = model.get_parameter(module_name(model, ours))
            scale = scales.get(parameter, UpdateScale())
            assert scale.rate == pytest.approx(group["lr_scale"]), ours
            assert 0.1 * scale.decay == pytest.approx(group["weight_decay"]), ours
            if ours.startswith("layers."):
                assert 1e-8 * scale.eps == pytest.approx(group["eps"]), ours
            checked += 1
    assert checked == len(list(model.parameters()))


def module_name(model: nn.Module, ours: str) -> str:
    return next(name for name, _ in model.named_parameters() if fairseq_name(name) == ours)


@pytest.mark.parametrize("name", ["completep", "depthmup_half"])
def test_start_of_the_authors_weights(name: str) -> None:
    """Standard deviations at m_N = 2, of a model of ours with the same m_N."""
    official = read(golden_path(name)).description["provenance"]["official_init_std"]
    options = "mup=true,base_width=8" + (",depth_mup=0.5" if name == "depthmup_half" else "")
    model = build("language_modeling", "complete_p", "--residual-args", options)
    own = {"wte": "embed_tokens.weight", "attn.c_proj": "self_attn.out_proj.weight", "mlp.c_fc": "fc1.weight"}
    for theirs, ours in own.items():
        expected = [std for key, std in official.items() if theirs in key]
        found = torch.cat([p.flatten() for key, p in model.named_parameters() if key.endswith(ours)])
        assert found.std().item() == pytest.approx(sum(expected) / len(expected), rel=0.1), ours


ADAM = ("--lr", "0.01", "--lr-scheduler", "fixed", "--adam-eps", "0.001", "--weight-decay", "0.5")


def gradients_of_the_next_update(trainer: Any) -> dict[nn.Parameter, Tensor]:
    seen: dict[nn.Parameter, Tensor] = {}
    hooks_of(trainer.get_model()).before_clip.append(
        lambda trainer: seen.update({p: p.grad.clone() for p in trainer.model.parameters() if p.grad is not None})
    )
    return seen


@pytest.mark.parametrize("optimizer", ["adam", "fused_adam"])
def test_an_update(optimizer: str) -> None:
    """Adam's first: p - lr (g / (|g| + eps / sqrt(1 - beta_2)) + decay p), with each parameter's settings."""
    flags = (*ADAM, "--adam-betas", "(0.9, 0.98)", "--residual-args", "depth_mup=0.5,base_depth=1,gpas=layer")
    trainer = make_trainer("--optimizer", optimizer, *flags, variant="pre_ln")
    model = trainer.get_model()
    before = {p: p.detach().clone() for p in model.parameters()}
    gradients = gradients_of_the_next_update(trainer)
    update(trainer, sample())
    scales, in_layers = scales_of(model), {p for s in stacks(model) for i in range(len(s)) for p in s[i].parameters()}
    for name, p in model.named_parameters():
        scale = scales.get(p, UpdateScale())
        factor = 0.5**0.5 if p in in_layers else 1.0
        assert scale == (factor, 0.0 if "gpas" in name else 1.0, factor), name
        g = gradients[p]
        step = g / (g.abs() + 0.001 * scale.eps / 0.02**0.5)
        expected = before[p] - 0.01 * scale.rate * (step + 0.5 * scale.decay * before[p])
        torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-6, msg=name)
    (group,) = trainer.optimizer.param_groups
    assert group["lr"] == 0.01 and group["eps"] == 0.001 and len(group["params"]) == len(before)


def test_bf16_has_the_settings_in_its_copies() -> None:
    """A copy in single precision has the settings of its parameter."""
    flags = ("--optimizer", "adam", *ADAM, "--bf16", "--residual-args", "depth_mup=0.5,base_depth=1")
    trainer = make_trainer(*flags, variant="pre_ln")
    parts = by_scale(scales_of(trainer.get_model()), trainer)
    sizes = {scale.rate: sum(p.numel() for p in held) for scale, held in parts.items()}
    in_layers = {p for s in stacks(trainer.get_model()) for i in range(len(s)) for p in s[i].parameters()}
    assert sizes[0.5**0.5] == sum(p.numel() for p in in_layers)
    assert all(p.dtype == torch.float32 for held in parts.values() for p in held)
    assert update(trainer, sample())["loss"] > 0


def test_one_vector_of_parameters_and_several_optimizers_are_refused() -> None:
    model, flat = nn.Linear(2, 3), [{"lr": 0.1, "weight_decay": 0.0, "eps": 1e-8, "params": [torch.zeros(9)]}]
    trainer = Namespace(model=model, criterion=nn.Identity(), optimizer=Namespace(param_groups=flat))
    with pytest.raises(UserError, match="add --fp16-no-flatten-grads"):
        by_scale({model.weight: UpdateScale(eps=0.5)}, trainer)
    groups = FairseqCompositeOptimizer.param_groups.fget(Namespace(optimizers={}))
    trainer = Namespace(optimizer=Namespace(param_groups=groups))
    with pytest.raises(UserError, match="take --optimizer adam, not composite"):
        by_scale({}, trainer)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [("sgd", "fused_adam or radam"), ("adafactor", "fused_adam or radam"), ("adam --use-bmuf", "--average-sync")],
)
def test_other_optimizers_are_refused(optimizer: str, said: str) -> None:
    flags = ("--optimizer", *optimizer.split(), "--lr", "0.1", "--lr-scheduler", "fixed")
    trainer = make_trainer(*flags, "--residual-args", "depth_mup=true,base_depth=1", variant="pre_ln")
    with pytest.raises(UserError, match=said):
        update(trainer, sample())


def test_what_compounds_over_layers_may_have_a_smaller_rate() -> None:
    """In the groups of Adam, together with those of depth_mup."""
    for args, factor in (("", 1.0), (",depth_mup=0.5,base_depth=1", 0.5**0.5)):
        model = build("translation", "x0_lambdas", "--residual-args", f"stream_rate=0.01{args}")
        scales = scales_of(model)
        rates = {key: scales.get(p, UpdateScale()).rate for key, p in model.named_parameters()}
        slow = {key for key in rates if key.endswith(".stream_weight")}
        assert len(slow) == 4 and {rates[key] for key in slow} == {0.01 * factor}
        inside = {rates[key] for key in rates.keys() - slow if "layers.0." in key or "layers.1." in key}
        assert inside == {factor}


def test_a_stream_of_two_lanes_may_have_a_rate_of_its_own() -> None:
    """Of r in every sub-layer, and not of what weighs their outputs."""
    model = build("translation", "two_lane", "--residual-args", "stream_rate=5")
    scales = scales_of(model)
    faster = {key for key, p in model.named_parameters() if scales.get(p, UpdateScale()) == UpdateScale(5.0, decay=0.0)}
    named = {key for key, _ in model.named_parameters() if key.endswith(".stream_weight")}
    assert faster == named and len(faster) == 10


@pytest.mark.parametrize("name", ["sandwich_ln", "peri_ln", "beam_residual", "layer_scalar"])
def test_gains_that_start_by_depth_do_not_decay(name: str) -> None:
    for args, spared in (("depth_scaled=true", True), ("depth_scaled=pangu", True), ("depth_scaled=false", False)):
        model = build("translation", name, "--residual-args", args)
        decays = {key: scales_of(model).get(p, UpdateScale()).decay for key, p in model.named_parameters()}
        gains = {key for key in decays if key.endswith("out_norm.weight")}
        assert len(gains) == 10 and {decays[key] for key in gains} == {0.0 if spared else 1.0}
        assert all(decay == 1 for key, decay in decays.items() if key not in gains and not key.endswith(".scalar"))


def test_scalars_and_gates_do_not_decay() -> None:
    """Without decay there is nothing to do."""
    gates = {"residual_gate": "_connection.gate", "ngpt": ("_connection.rate", "_connection.query_gain")}
    for name in ("layer_scalar", "x0_lambdas", "unet_skip", "backout", "two_lane", *gates):
        model, ends = build("translation", name), gates.get(name, ())
        single = {key for key, p in model.named_parameters() if key.endswith(ends) or (not ends and p.numel() == 1)}
        spared = {key for key, p in model.named_parameters() if p in scales_of(model)}
        assert single == spared != set()
    trainer = make_trainer("--optimizer", "sgd", "--lr", "0.1", "--lr-scheduler", "fixed", variant="x0_lambdas")
    assert update(trainer, sample())["loss"] > 0
