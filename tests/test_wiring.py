"""Layers of one stack wired by different variants: ``--residual post_ln:0-5,pre_ln:6-17``."""

from __future__ import annotations

import pytest
import torch
from tiny import TASKS, batch, build, common_options, logits, perturb, settings, stacks

from fairseq_residuals import build_stack
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.wiring import Wiring

MIXED = ("--residual", "post_ln:0-1,resi_dual:2,pre_ln:3")


def test_names_and_options_are_written_as_they_are_read() -> None:
    wiring = Wiring.parse("post_ln:0-5, pre_ln:6-17", "init_scale=0.5,pre_ln.final_norm=false")
    assert wiring.name == "post_ln:0-5,pre_ln:6-17"
    common = common_options(init_scale="0.5").split(",")
    spelled_out = [f"{name}.{option}" for name in ("post_ln", "pre_ln") for option in common]
    assert wiring.args == ",".join([*spelled_out, "pre_ln.final_norm=false"])
    again = Wiring.parse(wiring.name, wiring.args)
    assert [part.config for part in again.parts] == [part.config for part in wiring.parts]
    assert not wiring.normalize_before and Wiring.parse("pre_ln:0-2,pre_ln:3").normalize_before


def test_a_layer_of_too_many_digits_is_refused() -> None:
    with pytest.raises(UserError, match="is not a wiring or a list of wirings with their layers"):
        Wiring.parse(f"post_ln:0-{'1' * 5000}")


def test_a_segment_is_a_stack_of_its_own() -> None:
    shape = StackShape("encoder", depth=18, dim=8, ffn_dim=16, heads=2, enc_depth=18, dec_depth=6, cross=True)
    segments = Wiring.parse("deepnet:0-5,pre_ln:6-17").build(shape)
    below, above = segments.at(5)[0].shape, segments.at(6)[0].shape
    assert (below.depth, below.enc_depth, below.dec_depth) == (6, 6, 6)
    assert (above.depth, above.enc_depth, above.dec_depth) == (12, 12, 6)
    assert [segments.at(i)[1] for i in (0, 5, 6, 17)] == [0, 5, 0, 11]


def test_a_list_of_wirings_can_be_printed() -> None:
    stack = build_stack("post_ln:0,pre_ln:1", depth=2, dim=16, heads=2, ffn_dim=32)
    assert "post_ln: x = LN(x + F(x))" in repr(stack) and "pre_ln: x = x + F(LN(x)); output LN(x)" in repr(stack)


def test_an_option_in_parentheses_may_be_a_path() -> None:
    args = settings("transformer_b2t", "--residual", "admin(profile=/tmp/a/b.json)/pre_ln(final_norm=false)")
    assert "profile=/tmp/a/b.json" in args.residual_args and args.residual == "admin"
    assert args.decoder_residual == "pre_ln" and "final_norm=false" in args.decoder_residual_args
    args = settings("transformer_b2t", "--residual", "admin(profile=/tmp/b.json)")
    assert args.residual == args.decoder_residual == "admin"


@pytest.mark.parametrize("task", TASKS)
def test_a_mixed_stack_is_its_segments_one_after_the_other(task: str) -> None:
    model = perturb(build(task, "post_ln", *MIXED, layers=4))
    for stack in stacks(model):
        alone = not stack.shape.cross
        memory = torch.randn(6, 2, 16) if stack.shape.stack == "decoder" and not alone else None
        args = () if stack.shape.stack == "encoder" else (memory,)
        x = torch.randn(5, 2, 16)
        with torch.no_grad():
            out = stack(x, *args)
            for variant, layers in stack.segments():
                s = variant.open(x)
                for i, layer in enumerate(layers):
                    s = variant.after_layer(i, layer(s, context(memory))[0])
                x = variant.close(s)
        torch.testing.assert_close(out if memory is None and args == () else out[0], x, rtol=0, atol=0)
        assert [len(layers) for _, layers in stack.segments()] == [2, 1, 1]


def context(memory: torch.Tensor | None) -> object:
    return Context(memory=memory)


@pytest.mark.parametrize("task", TASKS)
def test_state_dict_and_gradients(task: str) -> None:
    model, other = (build(task, "post_ln", *MIXED, layers=4, seed=seed) for seed in (1, 2))
    perturb(model)
    other.load_state_dict(model.state_dict(), strict=True)
    inputs = batch(task)
    assert torch.equal(logits(other, task, inputs), logits(model, task, inputs))
    logits(model, task, inputs).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_equal_variants_in_two_segments_are_one_stack_but_for_the_norm_between() -> None:
    whole = perturb(build("translation", "post_ln", layers=4))
    parts = build("translation", "post_ln", "--residual", "post_ln:0-1,post_ln:2-3", layers=4)
    parts.load_state_dict(whole.state_dict(), strict=True)
    inputs = batch("translation")
    assert torch.equal(logits(parts, "translation", inputs), logits(whole, "translation", inputs))


def test_options_scale_the_segment_that_they_name() -> None:
    plain = build("translation", "post_ln", "--residual", "post_ln:0-1,b2t:2-3", layers=4)
    args = ("--residual-args", "b2t.init_scale=depth")
    scaled = build("translation", "post_ln", "--residual", "post_ln:0-1,b2t:2-3", *args, layers=4)
    for i, factor in enumerate((1, 1, 2**-0.5, 2**-0.5)):
        for found, expected in zip(stacks(scaled)[0][i].parameters(), stacks(plain)[0][i].parameters(), strict=True):
            if expected.dim() == 2:
                torch.testing.assert_close(found, expected * factor)


def test_the_models_of_the_joeynmt_exercise() -> None:
    """Both pre, both post, and its baseline: pre-norm encoder without a norm on top, post-norm decoder."""
    for flags in (
        ("--residual", "pre_ln(final_norm=false)/post_ln"),
        ("--residual", "pre_ln", "--residual-args", "final_norm=false", "--decoder-residual", "post_ln"),
    ):
        encoder, decoder = stacks(build("translation", "b2t", *flags))
        assert (encoder.wiring.name, encoder.wiring.norm, decoder.wiring.name) == ("pre_ln", None, "post_ln")


def test_one_flag_for_both_stacks_is_recorded_as_two() -> None:
    args = settings("transformer_b2t", "--residual", "post_ln:0-2,b2t:3-5/pre_ln(final_norm=false,init_scale=0.5)")
    assert (args.residual, args.decoder_residual) == ("post_ln:0-2,b2t:3-5", "pre_ln")
    assert args.decoder_residual_args == f"{common_options(init_scale='0.5')},final_norm=false"
    with pytest.raises(UserError, match="and so does --decoder-residual; give one"):
        settings("transformer_b2t", "--residual", "post_ln/pre_ln", "--decoder-residual", "b2t")
    with pytest.raises(UserError, match="option 'final_norm' of wiring 'pre_ln' is given twice"):
        settings("transformer_b2t", "--residual", "pre_ln(final_norm=false)", "--residual-args", "final_norm=true")
