"""What every variant promises in every task; parametrised over the registry, so a new variant is tested as it is."""

from __future__ import annotations

import copy
import pickle
from typing import Any, get_args

import pytest
import torch
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from tiny import (
    EOS,
    PAD,
    batch,
    build,
    logits,
    make_dictionary,
    perturb,
    stacks,
    step_by_step,
    target_tokens,
)
from torch import Tensor, nn

from fairseq_residuals.plugin.models.builder import recompute_activations
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.common_options import Init
from fairseq_residuals.wirings.core.registry import VARIANTS
from tests.rotation import rotated

ALONE = [name for name in sorted(VARIANTS) if not VARIANTS[name].refusal(alone=True, topmost=True)]
# a wiring is told whether its stack is one of a pair, and not of which task: two tasks make pairs in turn
every_variant = pytest.mark.parametrize(
    ("task", "variant"),
    [
        *rotated(("translation", "speech"), sorted(VARIANTS)),
        *(("language_modeling", variant) for variant in ALONE),
    ],
)
# what a layer does by itself is the same in a pair and alone
every_variant_once = pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("language_modeling" if i % 2 and variant in ALONE else ("translation", "speech")[i // 2 % 2], variant)
        for i, variant in enumerate(sorted(VARIANTS))
    ],
)


def loss_of(out: Tensor) -> Tensor:
    return (out.float().log_softmax(-1) ** 2).mean()


def gradients(model: nn.Module, task: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(logits(model, task, inputs)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_variant
def test_forward_is_finite(task: str, variant: str) -> None:
    """In each precision; in half precision near what the same parameters give in single precision."""
    model = perturb(build(task, variant))

    def logits_in(dtype: torch.dtype) -> Tensor:
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch(task).items()}
        return logits(model.to(dtype), task, inputs)

    for dtype, far in ((torch.float32, 0), (torch.bfloat16, 0.2), (torch.float16, 0.03)):
        out, full = logits_in(dtype), logits_in(torch.float32)
        assert out.dtype == dtype and out.isfinite().all()
        assert (out.float() - full).abs().max() <= far * full.std()


@every_variant_once
def test_training_under_autocast(task: str, variant: str) -> None:
    """A step in bf16, near that in single precision: forward and backward."""
    model, inputs = perturb(build(task, variant)).train(), batch(task)
    expected, changes = gradients(model, task, inputs), []
    for connection in connections(model):
        connection.register_forward_hook(lambda m, args, out: changes.append((args[0]["x"].dtype, out[0]["x"].dtype)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(model, task, inputs)
    assert all(after.itemsize >= before.itemsize for before, after in changes), "the stream is rounded"
    assert found.keys() == expected.keys()
    assert all(gradient.isfinite().all() for gradient in found.values())
    exact, rounded = (torch.cat([g.flatten() for g in of.values()]) for of in (expected, found))
    assert 0 < (rounded - exact).norm() < 0.3 * exact.norm()


@every_variant
def test_a_gradient_reaches_every_parameter(task: str, variant: str) -> None:
    model = perturb(build(task, variant))
    found = gradients(model, task, batch(task))
    unreached = {n for n, p in model.named_parameters() if n not in found or not found[n].abs().sum() > 0}
    # softmax does not change when a constant is added to all its scores, and the keys' bias adds one
    assert {n for n in unreached if not n.endswith("k_proj.bias")} == set(), "no gradient reaches: unused, or detached?"


@every_variant
def test_incremental_decoding_equals_full(task: str, variant: str) -> None:
    model, inputs = perturb(build(task, variant)), batch(task)
    full = logits(model, task, inputs)
    torch.testing.assert_close(step_by_step(model, task, inputs), full, rtol=1e-4, atol=2e-5)


@every_variant
def test_beam_score_is_the_teacher_forced_score(task: str, variant: str) -> None:
    model, inputs = perturb(build(task, variant), scale=0.3), batch(task)
    beam = SequenceGenerator([model], make_dictionary(), beam_size=4, max_len_b=8, normalize_scores=False)
    if task == "language_modeling":
        prefix = inputs["src_tokens"][:, 1:3]
        sample = {"net_input": {"src_tokens": inputs["src_tokens"][:, :1], "src_lengths": torch.ones(len(prefix))}}
        found = beam.generate([model], sample, prefix_tokens=prefix)
    else:
        sample = {"net_input": inputs}
        found = beam.generate([model], sample)
    for i, hypotheses in enumerate(found):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            target = hypothesis["tokens"]
            previous = torch.cat([torch.tensor([EOS]), target[:-1]]).expand(len(found), -1)
            forced = (
                {"src_tokens": previous} if task == "language_modeling" else inputs | {"prev_output_tokens": previous}
            )
            with torch.no_grad():
                lprobs = model(**forced)[0][i].log_softmax(-1)
            score = lprobs.gather(1, target[:, None]).sum()
            torch.testing.assert_close(hypothesis["score"], score, rtol=1e-4, atol=1e-4)


@every_variant_once
def test_activation_checkpointing_equals_plain(task: str, variant: str) -> None:
    inputs = batch(task)
    plain, saving = perturb(build(task, variant)), perturb(build(task, variant, "--checkpoint-activations"))
    assert all(stack.wrappers == [recompute_activations] for stack in stacks(saving))
    with torch.no_grad():
        torch.testing.assert_close(logits(saving, task, inputs), logits(plain, task, inputs), rtol=0, atol=0)
    expected, found = gradients(plain.train(), task, inputs), gradients(saving.train(), task, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@every_variant_once
def test_layerdrop_skips_layers_in_training_only(task: str, variant: str) -> None:
    flags = ["--decoder-layerdrop", "0.5"] + ([] if task == "language_modeling" else ["--encoder-layerdrop", "0.5"])
    model, inputs = perturb(build(task, variant, *flags)), batch(task)
    plain = logits(perturb(build(task, variant)), task, inputs)
    torch.testing.assert_close(logits(model, task, inputs), plain, rtol=0, atol=0)
    model.train()
    seen = {tuple(logits(model, task, inputs)[0].tolist()) for _ in range(12)}
    assert 2 <= len(seen) <= 2 ** sum(map(len, stacks(model)))
    for stack in stacks(model):
        stack.layerdrop = 1.0
        x = torch.randn(5, 2, 16)
        with torch.no_grad():
            out = stack(x)
            s = stack.wiring.open(x)
            for i in range(len(stack)):
                s = stack.wiring.after_layer(i, s)
            torch.testing.assert_close(out[0] if isinstance(out, tuple) else out, stack.wiring.close(s))


@every_variant
def test_padding_and_batch_composition_do_not_matter(task: str, variant: str) -> None:
    model, inputs = perturb(build(task, variant)), batch(task)
    with torch.no_grad():
        together = model(**inputs)[0]
        for i, n in enumerate(inputs["src_lengths"]):
            if task == "speech":
                # with the longest: fairseq's convolutions see past a sentence's end, so its padding must stay as it is
                rows, width = [i, 0], inputs["src_tokens"].size(1)
            else:
                rows, width = [i], int(n)
            fewer = {k: v[rows] for k, v in inputs.items()}
            fewer["src_tokens"] = fewer["src_tokens"][:, :width]
            real = target_tokens(task, fewer)[0].ne(PAD)
            out = model(**fewer)[0][0]
            torch.testing.assert_close(out[real], together[i, : len(real)][real], rtol=1e-4, atol=2e-5)
        if task == "translation":
            left = dict(inputs)
            left["src_tokens"] = torch.stack([row.roll(int(row.eq(PAD).sum())) for row in inputs["src_tokens"]])
            assert left["src_tokens"][-1, 0] == PAD
            torch.testing.assert_close(logits(model, task, left), logits(model, task, inputs), rtol=1e-4, atol=2e-5)


@every_variant_once
def test_state_dict_round_trip(task: str, variant: str) -> None:
    model, other, inputs = perturb(build(task, variant)), perturb(build(task, variant, seed=2)), batch(task)
    expected = logits(model, task, inputs)
    assert not torch.equal(logits(other, task, inputs), expected)
    state = model.state_dict()
    for found in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        found.load_state_dict(state, strict=True)
        assert set(found.state_dict()) == set(state)
        torch.testing.assert_close(logits(found, task, inputs), expected, rtol=0, atol=0)


# generating code for the backward pass is dear, and each op has a test of that: one variant has it
@pytest.mark.parametrize(
    ("variant", "backend"), [*((variant, "eager") for variant in sorted(VARIANTS)), ("b2t", "aot_eager")]
)
def test_stacks_compile_as_one_graph(variant: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that is made for one size of batches serves another.

    Attention is the same code in every variant that does not open it: it is traced in one, and less stands in its place
    in the others. A decoder alone is traced, unless a variant is for pairs.
    """
    if backend == "eager":
        monkeypatch.setattr(MultiheadAttention, "forward", mean_of_the_values)
    torch.compiler.reset()
    model = perturb(build("language_modeling" if variant in ALONE else "translation", variant)).train()
    for stack in stacks(model):
        compiled = torch.compile(stack, fullgraph=True, backend=backend)
        for length, sentences in ((6, 2), (9, 4)):
            x, args = inputs_of(stack, length, sentences)
            for given in filter(torch.is_tensor, (x, *args)):
                for i in range(given.dim() - given.is_floating_point() * (given.size(-1) == stack.shape.dim)):
                    torch._dynamo.maybe_mark_dynamic(given, i)
            results = []
            with torch.compiler.set_stance("default" if length == 6 else "fail_on_recompile"):
                for run in (stack, compiled):
                    out = run(x, *args)
                    out = out[0] if isinstance(out, tuple) else out
                    results.append((out.detach(), *torch.autograd.grad(out.square().mean(), x)))
            torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def mean_of_the_values(attn: Any, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Tensor, None]:
    return attn.out_proj(attn.q_proj(query) + attn.k_proj(key).mean(0) * attn.v_proj(value).mean(0)), None


def inputs_of(stack: Any, length: int, sentences: int) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """For a wired stack in training: x (T, B, C), and what fairseq's loops hand to its layers."""
    mask = torch.zeros(sentences, length, dtype=torch.bool)
    mask[1, 4:] = True
    if stack.shape.stack == "encoder":
        return torch.randn(length, sentences, 16, requires_grad=True), (mask,)
    memory = (torch.randn(length, sentences, 16), mask) if stack.shape.cross else (None, None)
    causal = torch.full((length - 1, length - 1), -torch.inf).triu(1)
    return torch.randn(length - 1, sentences, 16, requires_grad=True), (*memory, None, causal)


@every_variant_once
def test_positions_of_zeros_have_gradients(task: str, variant: str) -> None:
    """Padding is zero below the first layer."""
    for stack in stacks(perturb(build(task, variant)).train()):
        x, args = inputs_of(stack, 6, 2)
        x.data[4:] = 0
        out = stack(x, *args)
        out = out[0] if isinstance(out, tuple) else out
        found = torch.autograd.grad(out.square().mean(), [x, *stack.parameters()], materialize_grads=True)
        assert all(gradient.isfinite().all() for gradient in found)


def tensors_on_modules(model: nn.Module) -> dict[tuple[str, str], int]:
    """Which tensors lie in attributes of modules, beside parameters and buffers, also within containers."""

    def inside(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        return [t for part in value for t in inside(part)] if isinstance(value, (list, tuple, set)) else []

    ours = [(name, m) for s in stacks(model) for name, m in s.named_modules(prefix=s.shape.stack)]
    hidden = ("_parameters", "_buffers", "_modules")
    return {
        (name, key): sum(t.numel() for t in inside(value))
        for name, module in ours
        for key, value in vars(module).items()
        if key not in hidden and inside(value)
    }


@every_variant_once
def test_no_module_keeps_a_tensor_between_two_calls(task: str, variant: str) -> None:
    """A kept tensor breaks activation checkpointing, threads and graphs; what a connection has to carry is a key of the
    stream. (Parameters and buffers are what a module owns.)"""
    model = perturb(build(task, variant))
    before = tensors_on_modules(model)
    gradients(model.train(), task, batch(task))
    step_by_step(model.eval(), task, batch(task))
    assert tensors_on_modules(model) == before, "a module has kept a tensor: hand it on as a key of the stream"


@pytest.mark.parametrize("variant", sorted(n for n, v in VARIANTS.items() if not v.draws_weights))
def test_what_starts_at_a_value_does_so_under_every_init(variant: str) -> None:
    """The option init draws matrices anew; a parameter of the wiring that starts constant is not for it to draw.
    (A variant with draws_weights has a rule of its own, and refuses the option.)"""

    def constants(init: str) -> dict[str, float]:
        model = build("translation", variant, "--residual-args", f"init={init}")
        own = {id(p) for s in stacks(model) for m in (s.wiring, *connections(s)) for p in m.parameters()}
        return {
            name: p.flatten()[0].item()
            for name, p in model.named_parameters()
            if id(p) in own and p.numel() > 1 and bool((p == p.flatten()[0]).all()) and not name.endswith("bias")
        }

    expected = constants("fairseq")
    for init in get_args(Init):
        if VARIANTS[variant].contradiction(VARIANTS[variant].Config(init=init)):
            continue  # refused: CompleteP's weights start by its own rule of depth
        lost = expected.items() - constants(init).items()
        assert not lost, f"init={init} draws what the wiring starts at a value: set it in Variant.init_weights"


def connections(stack: Any) -> list[nn.Module]:
    return [m for m in stack.modules() if isinstance(m, Connection)]
