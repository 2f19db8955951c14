"""What hooks see: the same as by hand, in every variant, task and precision, and the model stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from analysed_models import TINY, arguments, corpus, subject, subjects
from tiny import depth_for, perturb
from torch import Tensor, nn

from fairseq_residuals.lab.look import batches, change, gradients, models, similarity
from fairseq_residuals.lab.look.gradients import PointInLayer
from fairseq_residuals.lab.look.probes import Event, ModelAndLoss, run_forward, stacks, watch
from fairseq_residuals.lab.look.subjects import PREFIXES
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.wrap import wrap
from tests.rotation import SHAPES_OF_CODE

TASKS = {v: [t for t, prefix in PREFIXES.items() if f"{prefix}_{v}" in ARCHITECTURES] for v in sorted(VARIANTS)}
PLACES = [(v, tasks[i % len(tasks)]) for i, (v, tasks) in enumerate(TASKS.items())]
"""Each wiring in one of its tasks, in turn: hooks on a stack do not know the task."""
COMBINED_LATER = {"altup", "dlcl_pre", "dlcl_post", "dense_former", "mudd", "transparent_attention"}
"""What these combine with other layers' outputs or streams is what a layer itself gave."""
LISTS = [("post_ln:0-0,pre_ln:1-2", "translation"), ("dlcl_pre:0-1,b2t:2-2", "language_modeling")]


@pytest.mark.parametrize("variant", [*sorted(set(VARIANTS) - COMBINED_LATER), "mhc/close=learned"])
def test_the_last_layers_output_is_what_the_top_makes_of_the_stream(variant: str) -> None:
    """But for a norm of it, also where several streams are no longer alike."""
    analysed = subject(variant)
    perturb(analysed.model)
    outputs = {e.stack: e.tensor for e in run_forward(analysed) if e.point == "layer output"}
    for stack in stacks(analysed.model):
        closed: list[Tensor] = []
        closing = stack.wiring.close
        stack.wiring.close = lambda s, closing=closing, closed=closed: closed.append(closing(s)) or closed[-1]
        run_forward(analysed)
        state, norm = outputs[stack.shape.stack], getattr(stack.wiring, "norm", None)
        tops = [state] if norm is None else [state, norm(state)]
        assert any(torch.allclose(top, closed[-1], rtol=1e-5, atol=1e-5) for top in tops), (
            "of a stream of several tensors, Variant.layer_output says what `close` makes of them before its norm"
        )


def test_two_stacks_of_one_kind_are_not_added() -> None:
    twins = nn.ModuleList(build_stack("pre_ln", depth=1, dim=8, heads=2, ffn_dim=8) for _ in range(2))
    with pytest.raises(UserError, match=r"several stacks of one kind \(encoder, encoder\)"):
        gradients.parameter_gradients(
            ModelAndLoss(twins, lambda: sum(stack(torch.ones(2, 1, 8)).sum() for stack in twins))
        )


def post_ln_layer(layer: Any, x: Tensor, points: list[Tensor]) -> Tensor:
    """Of a language model, written out; in ``points`` what it computes, in the order of its computation."""
    y = layer.self_attn(x, x, x, attn_mask=causal(x))[0]
    total = x + y
    middle = layer.self_attn_connection.norm(total)
    z = layer.fc2(torch.relu(layer.fc1(middle)))
    last = middle + z
    out = layer.ffn_connection.norm(last)
    points += [x, y, total, middle, z, last, out]
    return out


def pre_ln_layer(layer: Any, x: Tensor, points: list[Tensor]) -> Tensor:
    fed = layer.self_attn_connection.norm(x)
    y = layer.self_attn(fed, fed, fed, attn_mask=causal(x))[0]
    total = x + y
    middle = layer.ffn_connection.norm(total)
    z = layer.fc2(torch.relu(layer.fc1(middle)))
    out = total + z
    points += [x, fed, y, total, middle, z, out]
    return out


def causal(x: Tensor) -> Tensor:
    return torch.full((len(x), len(x)), float("-inf")).triu(1)


BY_HAND = {"post_ln": post_ln_layer, "pre_ln": pre_ln_layer}


def loss_by_hand(analysed: ModelAndLoss, points: list[Tensor]) -> Tensor:
    decoder = analysed.model.decoder
    tokens, target = analysed.batch.sample["net_input"]["src_tokens"], analysed.batch.sample["target"]
    x = (decoder.embed_scale * decoder.embed_tokens(tokens) + decoder.embed_positions(tokens)).transpose(0, 1)
    for i in range(len(decoder.layers)):
        x = BY_HAND[analysed.wiring](decoder.layers[i], x, points)
    if analysed.wiring == "pre_ln":
        x = decoder.layers.wiring.norm(x)
        points.append(x)
    logits = decoder.output_projection(x.transpose(0, 1))
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("variant", BY_HAND)
def test_norms_are_those_computed_by_hand(variant: str) -> None:
    analysed = subject(variant, *TINY, "--task", "language_modeling")
    points: list[Tensor] = []
    loss = loss_by_hand(analysed, points)
    # what a layer gives is what the next takes: listed twice
    expected = [g.norm().item() for g in torch.autograd.grad(loss, points, retain_graph=True)]
    found = gradients.parts(analysed)
    above = [0] * (variant == "pre_ln")
    assert [p.layer for p in found] == [1] * 7 + [2] * 7 + [3] * (7 + len(above))
    assert [p.norm for p in found] == pytest.approx(expected, rel=1e-4)
    layers = [list(analysed.model.decoder.layers[i].parameters()) for i in range(3)]
    by_layer = [torch.autograd.grad(loss, parameters, retain_graph=True) for parameters in layers]
    norms = [torch.cat([g.flatten() for g in gradients]).norm().item() for gradients in by_layer]
    assert gradients.parameter_gradients(analysed)["decoder"] == pytest.approx(norms, rel=1e-4)
    assert analysed.loss().item() == pytest.approx(loss.item(), rel=1e-5)


def test_points_are_named_for_what_they_are() -> None:
    names = [(p.point, p.is_norm) for p in gradients.parts(subject("post_ln")) if (p.stack, p.layer) == ("encoder", 2)]
    assert names == [
        *[("layer input", False), ("self-attention", False), ("sum self-attention", False)],
        *[("norm self-attention", True), ("FFN", False), ("sum FFN", False), ("norm FFN", True)],
    ]
    pre = [p.point for p in gradients.parts(subject("pre_ln")) if (p.stack, p.layer) == ("decoder", 3)]
    assert pre[:4] == ["layer input", "norm self-attention", "self-attention", "sum self-attention"]
    assert pre[-2:] == ["sum FFN", gradients.ABOVE]


def test_a_batch_of_sound_has_the_features_of_all_channels() -> None:
    """Kaldi's energies and their differences, say: a model is built for the product of the two settings."""
    args = arguments(*TINY, "--task", "speech_to_text", "--conv-channels", "8")
    model, settings, task = models.build("pre_ln", args)
    settings.input_feat_per_channel, settings.input_channels = 40, 2
    assert model(**batches.make_up(args, settings, task, model).sample["net_input"])[0].isfinite().all()


def test_an_encoder_that_training_froze_at_first_has_gradients() -> None:
    """Those of the same model without the flag."""
    flags = (*TINY, "--task", "speech_to_text", "--conv-channels", "8")
    frozen, free = (subject("b2t", *flags, *more) for more in (("--encoder-freezing-updates", "5"), ()))
    assert gradients.parameter_gradients(frozen) == gradients.parameter_gradients(free)


@pytest.mark.parametrize(("variant", "task"), PLACES + LISTS)
def test_every_variant_and_every_task(variant: str, task: str) -> None:
    analysed = subject(variant, *TINY, "--task", task, *(["--conv-channels", "8"] if task == "speech_to_text" else []))
    depth = depth_for(variant, 3) if variant in VARIANTS else 3
    depths = dict.fromkeys((stack.shape.stack for stack in stacks(analysed.model)), depth)
    # before training ReZero is the identity: nothing changes, and of a pair the loss does not see the encoder
    least = -1.0 if variant == "re_zero" else 0.0
    norms = gradients.parameter_gradients(analysed)
    assert {stack: len(values) for stack, values in norms.items()} == depths
    assert all(least < value < float("inf") for values in norms.values() for value in values)
    changes = change.change(analysed)
    assert {stack: len(values) + 1 for stack, values in changes.items()} == depths
    assert all(least < value < float("inf") for values in changes.values() for value in values)
    for matrix in similarity.similarity(analysed).values():
        assert torch.allclose(matrix.diagonal(), torch.ones(depth), atol=1e-5)
        assert torch.equal(matrix, matrix.T) and (matrix.abs() <= 1 + 1e-5).all()
    found = gradients.parts(analysed)
    assert {(p.stack, p.layer) for p in found} == {(s, n) for s in depths for n in range(1, depth + 1)}
    assert {p.point for p in found} >= {"self-attention", "layer input"}
    assert len(by_point(found)) == len(found)


def by_point(found: list[PointInLayer]) -> dict[tuple[str, int, str], float]:
    return {(p.stack, p.layer, p.point): p.norm for p in found}


def hooks_of(model: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [dict(getattr(module, kind)) for module in model.modules() for kind in kinds]


@pytest.mark.parametrize("variant", SHAPES_OF_CODE)
def test_the_model_stays_as_it_was(variant: str) -> None:
    analysed = subject(variant)
    model, inputs = analysed.model, analysed.batch.sample["net_input"]
    hooks, before, state = hooks_of(model), model(**inputs)[0], {k: v.clone() for k, v in model.named_parameters()}
    with watch(model, lambda event: None):
        assert torch.equal(model(**inputs)[0], before)
        assert hooks_of(model) != hooks
    gradients.parts(analysed)

    def stop(event: Event) -> None:
        if event.layer == 2 and event.point == "sublayer":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watch(model, stop):
        model(**inputs)
    assert hooks_of(model) == hooks
    assert torch.equal(model(**inputs)[0], before)
    assert all(torch.equal(value, state[key]) for key, value in model.named_parameters())
    assert not model.training


def test_after_an_exception_inside_a_sublayer_the_next_pass_is_seen_whole() -> None:
    analysed = subject("sub_ln")
    expected = [(e.stack, e.layer, e.kind, e.point) for e in run_forward(analysed)]
    matrix = analysed.model.decoder.layers[1].fc2
    broken = matrix.register_forward_pre_hook(lambda *_: 1 / 0)
    seen: list[Event] = []
    with watch(analysed.model, seen.append):
        with pytest.raises(ZeroDivisionError):
            analysed.loss()
        broken.remove()
        seen.clear()
        analysed.loss()
    assert [(e.stack, e.layer, e.kind, e.point) for e in seen] == expected


def test_padding_does_not_count(tmp_path) -> None:
    sentences = [([5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16]), ([7, 9], [17, 18])]
    folders = [tmp_path / name for name in ("both", "first", "second")]
    for folder, chosen in zip(folders, (sentences, sentences[:1], sentences[1:]), strict=True):
        folder.mkdir()
        corpus(folder, chosen)
    flags = [*TINY, "--source-lang", "s", "--target-lang", "t"]
    both, *each = (next(subjects("--variants", "pre_ln", *flags, "--data", str(folder))) for folder in folders)
    assert both.batch.sample["target"].eq(both.batch.padding).any()
    # tokens of the two sentences, with the one that ends them
    for stack, sizes in {"encoder": (8, 3), "decoder": (6, 3)}.items():
        changes = [change.change(s)[stack] for s in each]
        mean = [(sizes[0] * a + sizes[1] * b) / sum(sizes) for a, b in zip(*changes, strict=True)]
        assert change.change(both)[stack] == pytest.approx(mean, rel=1e-4)
        alike = [similarity.similarity(s)[stack] for s in each]
        mean_alike = (sizes[0] * alike[0] + sizes[1] * alike[1]) / sum(sizes)
        assert torch.allclose(similarity.similarity(both)[stack], mean_alike, atol=1e-5)


@pytest.mark.parametrize("kinds", [("ffn",), ("ffn", "self", "ffn")])
def test_change_is_of_what_the_first_sublayers_are_fed(kinds: tuple[Any, ...]) -> None:
    """Of Post-LN, the layers' inputs."""
    stack = wrap("post_ln", [[nn.Linear(8, 8) for _ in kinds] for _ in range(3)], dim=8, kinds=kinds)
    x, fed = torch.randn(5, 2, 8), []
    for i in range(3):
        stack[i].register_forward_pre_hook(lambda layer, inputs: fed.append(inputs[0]["x"]))
    changes = change.change(ModelAndLoss(stack, lambda: stack(x).sum()))["encoder"]
    assert changes == pytest.approx([(fed[1] - fed[0]).abs().mean().item(), (fed[2] - fed[1]).abs().mean().item()])


def test_dropout_is_off_unless_asked_for() -> None:
    quiet, loud = subject("post_ln"), subject("post_ln", *TINY, "--training", "--dropout", "0.3")
    assert quiet.loss() == quiet.loss()
    assert loud.loss() != loud.loss()


def test_gradients_do_not_add_up() -> None:
    analysed = subject("pre_ln")
    first = gradients.parameter_gradients(analysed)
    assert gradients.parameter_gradients(analysed) == first
    points = by_point(gradients.parts(analysed))
    assert by_point(gradients.parts(analysed)) == points


@pytest.mark.parametrize("variant", ["sub_ln", "normformer"])
def test_norms_inside_of_a_sublayer_are_part_of_it(variant: str) -> None:
    places, plain = ([(p.stack, p.layer, p.point) for p in gradients.parts(subject(v))] for v in (variant, "pre_ln"))
    assert places == plain
