"""Properties of every variant, in stacks of random depth, width and options.

Nothing leaks from the future, from padding or from other sentences. Wirings that are said to be equal are. What was
exported is imported as it was.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import DataObject, data, sampled_from
from random_stacks import Draw, draws, examples, shapes
from test_export import CASES, export
from tiny import build_model, make_task
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.plugin.checkpoints.exporting.exporter import export_checkpoint
from fairseq_residuals.plugin.checkpoints.importing.importer import import_checkpoint
from fairseq_residuals.wirings.core.config import options_of
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.stack import Stack

every_variant = pytest.mark.parametrize("variant", sorted(VARIANTS))


def run(one: Draw, x: Tensor, context: Context, dtype: torch.dtype) -> Tensor:
    stack = one.build().to(dtype)

    def cast(value: Any) -> Any:
        return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value

    with torch.no_grad():
        return stack(cast(x), Context(**{name: cast(value) for name, value in vars(context).items()}))[0]


def noise(x: Tensor, where: Tensor) -> Tensor:
    """``x`` (T, B, C) with something else where the mask (T, B) is True."""
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    # in the same order in memory, on which the order of sums depends
    return torch.where(where.unsqueeze(-1), other, x).contiguous()


@every_variant
@examples(3)
@given(data())
def test_the_future_has_no_influence(variant: str, data: DataObject) -> None:
    """Bit for bit: a masked score is -inf, whose softmax is 0, and 0 times a finite value adds nothing."""
    one = data.draw(draws(variant, shapes(variant).map(as_decoder)))
    dtype, now = data.draw(sampled_from((torch.float32, torch.float64))), data.draw(sampled_from((0, 1, 2)))
    x, context = one.inputs()
    future = (torch.arange(len(x)) > now)[:, None].expand(-1, x.size(1))
    expected, computed = (run(one, given, context, dtype) for given in (x, noise(x, future)))
    assert torch.equal(computed[: now + 1], expected[: now + 1])
    assert not torch.equal(computed[now + 1 :], expected[now + 1 :])


def as_decoder(shape: Any) -> Any:
    return replace(shape, stack="decoder", enc_depth=shape.enc_depth and shape.dec_depth, dec_depth=shape.depth)


@every_variant
@examples(3)
@given(data())
def test_padding_and_other_sentences_have_no_influence(variant: str, data: DataObject) -> None:
    """Bit for bit: of an encoder's own padding, or of the memory's in a decoder."""
    one = data.draw(draws(variant).filter(lambda one: one.shape.stack == "encoder" or one.shape.cross))
    dtype = data.draw(sampled_from((torch.float32, torch.float64)))
    x, context = one.inputs()
    padding = context.padding_mask if context.memory is None else context.memory_padding_mask
    assert padding is not None
    expected = run(one, x, context, dtype)
    if context.memory is None:
        computed = run(one, noise(x, padding.T), context, dtype)
        assert torch.equal(computed[~padding.T], expected[~padding.T])
    else:
        computed = run(one, x, replace(context, memory=noise(context.memory, padding.T)), dtype)
        assert torch.equal(computed, expected)
    first = torch.zeros_like(padding)
    first[0] = True
    computed = run(one, noise(x, first.T), context, dtype)
    assert torch.equal(computed[:, 1:], expected[:, 1:]) and not torch.equal(computed[:, 0], expected[:, 0])


def with_tiny_eps(stack: Stack) -> Stack:
    for module in stack.modules():
        if is_norm(module) and hasattr(module, "eps"):
            module.eps = 1e-14
    return stack


OTHERWISE = ("norm_type=dyt", "norm_type=derf", "values=normed")
"""What does not take a factor on the stream out again, or has no stream."""


@pytest.mark.parametrize("variant", sorted(name for name, v in VARIANTS.items() if v.starts_as))
@examples(10)
@given(data())
def test_it_starts_as_it_says(variant: str, data: DataObject) -> None:
    """With the sub-layers of the other, also where its options that both have are not the defaults."""
    one = data.draw(draws(variant).filter(lambda one: not any(choice in one.args for choice in OTHERWISE)))
    x, context = one.inputs()
    stack = with_tiny_eps(one.build(perturbed=False))
    output = stack(x, context)[0]
    if VARIANTS[variant].starts_as == "embedding":
        assert torch.equal(output, x)
        return
    known = options_of(VARIANTS[VARIANTS[variant].starts_as].Config)
    common = [option for option in one.args.split(",") if option.partition("=")[0] in known]
    other = replace(one, variant=VARIANTS[variant].starts_as, args=",".join(common)).build(perturbed=False)
    share(stack, with_tiny_eps(other))
    torch.testing.assert_close(output, other(x, context)[0], rtol=1e-6, atol=1e-6)


def share(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the parameters that both have under one name."""
    state = {name: value for name, value in source.state_dict().items() if name in target.state_dict()}
    assert any("fc1" in name or "out_proj" in name for name in state)
    target.load_state_dict(state, strict=False)


EQUAL = [
    ("mix_ln", "alpha=0", "pre_ln", ""),
    ("mix_ln", "alpha=1,final_norm=false", "post_ln", ""),
    ("peri_ln", "embed_norm=false", "sandwich_ln", ""),
    ("peri_ln", "embed_norm=false,dropout=before_norm", "sandwich_ln", "dropout=before_norm"),
    ("normformer", "scale_attn=false,scale_fc=false,scale_heads=false", "pre_ln", ""),
    ("attention_residuals", "block=1", "attention_residuals", ""),
    ("b2t_no_ln", "alpha=0,beta=1", "t_fixup", ""),
    ("residual_multiplier", "multiplier=1", "pre_ln", ""),
    ("complete_p", "depth_mup=false", "pre_ln", ""),
    ("complete_p", "base_depth=3", "pre_ln", "depth_mup=true,base_depth=3"),
]
"""Two wirings that are one, whatever their parameters, as far as both have them."""


@pytest.mark.parametrize(("variant", "args", "other", "other_args"), EQUAL, ids=str)
@examples(5)
@given(data())
def test_wirings_that_are_one(variant: str, args: str, other: str, other_args: str, data: DataObject) -> None:
    one = Draw(variant, args, data.draw(shapes(variant)), seed=3)
    twin = replace(one, variant=other, args=other_args).build()
    stack = one.build()
    share(stack, twin)
    x, context = one.inputs()
    torch.testing.assert_close(stack(x, context)[0], twin(x, context)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("task", "variant", "flags"), CASES, ids=[" ".join((t, v, *f)) for t, v, f in CASES])
def test_import_after_export_is_the_identity(task: str, variant: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """What was exported, imported and exported again is the same file, bit for bit."""
    exported = export(tmp_path, task, variant, *flags)[1]
    save(exported.checkpoint, tmp_path / "stock.pt")
    imported = import_checkpoint(tmp_path / "stock.pt", "fairseq").checkpoint
    model = build_model(imported["args"], make_task())
    model.load_state_dict(imported["model"])
    torch.save(imported, tmp_path / "ours.pt")
    again = export_checkpoint(tmp_path / "ours.pt").checkpoint["model"]
    first = exported.checkpoint["model"]
    assert again.keys() == first.keys()
    # fairseq's sinusoids have a buffer of one number that is never set
    stored = [name for name in first if not name.endswith("._float_tensor")]
    assert [name for name in stored if not torch.equal(again[name], first[name])] == []
