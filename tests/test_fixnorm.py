"""The option ``fixnorm``: each word's vector has length one wherever it is used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fairseq.models import build_model
from tiny import PAD, TASKS, batch, build, logits, make_task, perturb, settings, step_by_step
from torch import nn

from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.errors import UserError

ARGS = ("--residual-args", "norm=scalenorm,fixnorm=true")


def tables(model: Any) -> list[nn.Parameter]:
    """The embeddings, and the output matrix."""
    owners = [owner for owner in (getattr(model, "encoder", None), model.decoder) if hasattr(owner, "embed_tokens")]
    return [*(owner.embed_tokens.weight for owner in owners), model.decoder.output_projection.weight]


@pytest.mark.parametrize("shared", (True, False), ids=("shared", "apart"))
@pytest.mark.parametrize("task", TASKS)
def test_lengths_do_not_matter(task: str, shared: bool) -> None:
    """Rescaling each row of the tables leaves the model as it is, and makes its gradients smaller by that much."""
    flag = ("--share-decoder-input-output-embed",) if shared else ()
    model, inputs = perturb(build(task, "pre_ln", *ARGS, *flag)), batch(task)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for table in dict.fromkeys(tables(other)):
            table.mul_(1 + torch.arange(len(table)).unsqueeze(-1))
    out, same = logits(model, task, inputs), logits(other, task, inputs)
    torch.testing.assert_close(same, out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(step_by_step(model, task, inputs), out, rtol=1e-4, atol=2e-5)
    out.square().sum().backward()
    same.square().sum().backward()
    for ours, theirs in zip(tables(model), tables(other), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        factor = 1 + torch.arange(len(ours)).unsqueeze(-1)
        torch.testing.assert_close(theirs.grad * factor, ours.grad, rtol=1e-3, atol=1e-4)


def test_the_model_is_stocks_with_a_normalized_table() -> None:
    flags = ("--share-all-embeddings", "--residual-args")
    model = perturb(build("translation", "pre_ln", *flags, "fixnorm=true"))
    plain = build("translation", "pre_ln", *flags, "fixnorm=false")
    state = model.state_dict()
    assert state.keys() == plain.state_dict().keys()
    for name in [name for name in state if name.endswith(("embed_tokens.weight", "output_projection.weight"))]:
        state[name] = nn.functional.normalize(state[name])
    plain.load_state_dict(state)
    inputs = batch("translation")
    torch.testing.assert_close(
        logits(model, "translation", inputs), logits(plain, "translation", inputs), rtol=1e-5, atol=1e-5
    )


def test_padding_is_no_source_of_large_gradients() -> None:
    """fairseq's vector of padding is zero, and is a row of the output matrix."""
    model = build("translation", "pre_ln", *ARGS, "--share-all-embeddings")
    logits(model, "translation", batch("translation")).log_softmax(-1)[:, 5].sum().backward()
    gradient = model.decoder.embed_tokens.weight.grad
    assert gradient is not None and not model.decoder.embed_tokens.weight[PAD].any()
    assert gradient[PAD].norm() < 10 * gradient.norm(dim=-1).max()
    half = copy.deepcopy(model).half()
    assert logits(half, "translation", batch("translation")).isfinite().all()


def test_word_dropout_leaves_zeros() -> None:
    model = build("translation", "pre_ln", *ARGS, "--encoder-word-dropout", "0.9").train()
    vectors = model.encoder.embed_tokens(torch.arange(4, 40))
    lengths = vectors.norm(dim=-1)
    assert 1 < lengths.gt(0).sum() < 30
    torch.testing.assert_close(lengths[lengths > 0], torch.ones(int(lengths.gt(0).sum())))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--decoder-residual", "pre_ln"), "both stacks"),
        (("--residual", "post_ln:0-0,pre_ln:1-1", "--residual-args", "pre_ln.fixnorm=true"), "all their parts"),
    ],
)
def test_half_a_model_is_refused(flags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build("translation", "pre_ln", *ARGS, *flags)


def test_adaptive_softmax_is_refused() -> None:
    args = settings("transformer_lm_pre_ln", *ARGS, "--adaptive-softmax-cutoff", "10,20", "--decoder-layers", "1")
    with pytest.raises(UserError, match="adaptive softmax"):
        build_model(args, make_task())


def test_a_stack_by_itself_has_no_words() -> None:
    with pytest.raises(UserError, match="a stack by itself does not have"):
        build_stack("pre_ln", depth=1, dim=8, heads=2, ffn_dim=8, options={"fixnorm": True})
