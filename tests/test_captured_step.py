"""--cuda-graphs: what surrounds the graphs; tests/test_on_gpu.py has the graphs themselves."""

from __future__ import annotations

import itertools
import types
import weakref
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from reruns import instead_of_graphs
from tiny import perturb, settings
from tiny_trainer import SGD, make_trainer, sample, update
from torch import Tensor

from fairseq_residuals.plugin.models import builder
from fairseq_residuals.plugin.speed import cuda_graph_step, cuda_graphs
from fairseq_residuals.plugin.speed.cuda_graph_step import RecordedSteps
from fairseq_residuals.wirings.core.errors import UserError
from tests.rotation import SHAPES_OF_CODE

FLAGS = ("--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", "0.1")


@pytest.fixture
def reruns(monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_graphs(monkeypatch)
    monkeypatch.setattr(cuda_graph_step, "refuse_unrecordable", lambda model, device: None)


def trainer_of(*flags: str, variant: str = "post_ln") -> Any:
    """A trainer that is about to train, with no checkpoint to begin with."""
    trainer = make_trainer(*FLAGS, *SGD, *flags, variant=variant)
    trainer.load_checkpoint("no_such_checkpoint.pt")
    return trainer


def steps_of(trainer: Any) -> RecordedSteps:
    (steps,) = trainer.criterion.sums.steps.values()
    return steps


BATCHES = [sample(1), sample(2, sentences=5), sample(3), sample(4, sentences=5), sample(1)]


@pytest.mark.usefixtures("reruns")
@pytest.mark.parametrize(
    "flags",
    (
        (),
        ("--share-all-embeddings", "--report-accuracy"),
        ("--bf16", "--ignore-prefix-size", "1"),
        ("--fp16", "--fp16-init-scale", "4"),
        ("--sentence-avg", "--clip-norm", "0.1"),
    ),
    ids=" ".join,
)
def test_training(flags: tuple[str, ...]) -> None:
    logs = []
    parameters: list[dict[str, Tensor]] = []
    for more in ((), ("--cuda-graphs",)):
        trainer = trainer_of(*flags, *more, variant="b2t")
        # one update of one batch each, then one of several batches, of which two have one shape
        logs.append([update(trainer, batch) for batch in BATCHES] + [update(trainer, *BATCHES)])
        parameters.append(dict(trainer.model.named_parameters()))
    assert len(steps_of(trainer).steps) == 2
    half = "--bf16" in flags or "--fp16" in flags
    for theirs, ours in zip(*logs, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"wall", "train_wall", "wps", "ups", "gnorm", "clip"}:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-2 if half else 1e-5), key
        assert ours["gnorm"] == pytest.approx(theirs["gnorm"], rel=3e-2 if half else 1e-4)
    torch.testing.assert_close(parameters[1], parameters[0], rtol=0, atol=3e-2 if half else 1e-5)


@pytest.mark.usefixtures("reruns")
@pytest.mark.parametrize("variant", SHAPES_OF_CODE)
def test_a_wiring_of_each_shape(variant: str) -> None:
    results = []
    for more in ((), ("--cuda-graphs",)):
        trainer = trainer_of(*more, variant=variant)
        model = perturb(trainer.model).train()
        for batch in BATCHES[:2]:
            model.zero_grad()
            loss, _, _ = trainer.criterion(model, batch)
            loss.backward()
        results.append((loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (expected, gradients_expected), (found, gradients) = results
    assert found == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == gradients_expected.keys()
    for name, gradient in gradients_expected.items():
        scale = gradient.abs().max().item() + 1
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-4 * scale, msg=name)


@pytest.mark.usefixtures("reruns")
def test_shapes_beyond_the_limit_are_computed_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda_graph_step._tell_of_too_many_shapes.cache_clear()
    monkeypatch.setattr(cuda_graph_step, "MOST_SHAPES", 1)
    losses = []
    for more in ((), ("--cuda-graphs",)):
        trainer = trainer_of(*more)
        # within one update too, where gradients of both kinds are added up
        losses.append([update(trainer, *BATCHES)["loss"], update(trainer, *BATCHES[::-1])["loss"]])
    assert len(steps_of(trainer).steps) == 1
    assert caplog.text.count("batches have more than 1 shapes") == 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.usefixtures("reruns")
def test_memory_beyond_the_share_of_graphs_is_left_to_what_is_computed_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each recording takes three bytes of ten: after the second, graphs have more than half of them."""
    cuda_graph_step._tell_of_too_many_shapes.cache_clear()
    taken = itertools.accumulate(itertools.cycle((0, 3)))
    monkeypatch.setattr(cuda_graph_step.cuda_graphs, "taken_bytes", lambda device: next(taken))
    monkeypatch.setattr(cuda_graph_step.cuda_graphs, "device_bytes", lambda device: 10)
    trainer = trainer_of("--cuda-graphs")
    for sentences in (2, 3, 4, 5, 2):
        update(trainer, sample(1, sentences))
    assert len(steps_of(trainer).steps) == 2 and steps_of(trainer).bytes == 6
    assert caplog.text.count("batches have more than 2 shapes") == 1


def frozen(trainer: Any) -> None:
    trainer.get_model().encoder.layers[0].fc1.weight.requires_grad = False


def replaced(trainer: Any) -> None:
    weight = trainer.get_model().encoder.layers[0].fc1.weight
    weight.data = 2 * weight.data


def frozen_at_the_top(trainer: Any) -> None:
    trainer.get_model().decoder.output_projection.weight.requires_grad = False


@pytest.mark.usefixtures("reruns")
@pytest.mark.parametrize("change", (frozen, replaced, frozen_at_the_top))
def test_parameters_that_are_frozen_or_replaced_between_updates(change: Any) -> None:
    results = []
    for more in ((), ("--cuda-graphs",)):
        trainer = trainer_of(*more)
        losses = [update(trainer, BATCHES[0])["loss"]]
        change(trainer)
        trainer.optimizer.zero_grad()
        for p in trainer.get_model().parameters():
            p.grad = None
        losses += [update(trainer, batch)["loss"] for batch in BATCHES[:3]]
        parameters = {name: p.detach().clone() for name, p in trainer.get_model().named_parameters()}
        results.append((losses, parameters))
    (losses, parameters), (losses_of_graphs, parameters_of_graphs) = results
    assert losses_of_graphs == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(parameters_of_graphs, parameters, rtol=0, atol=1e-5)


def test_only_fairseq_is_told_of_padding_without_a_look() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)

    def ask(mask: Tensor) -> Any:
        return mask.any()

    of_fairseq = types.FunctionType(ask.__code__, {"__name__": "fairseq.models.some"})
    with cuda_graphs.AnyPadding():
        assert of_fairseq(nothing) is True
        own = ask(nothing)
    assert isinstance(own, Tensor) and not own


@pytest.mark.usefixtures("reruns")
def test_what_has_no_gradient_stays_without() -> None:
    trainer = trainer_of("--cuda-graphs", "--no-cross-attention")
    unused = torch.nn.Parameter(torch.ones(3))
    trainer.get_model().unused = unused
    update(trainer, sample())
    assert unused.grad is None


@pytest.mark.usefixtures("reruns")
def test_validation_is_computed_without() -> None:
    trainer = trainer_of("--cuda-graphs")
    trainer.valid_step(sample())
    assert not trainer.criterion.sums.steps


def test_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match="--cuda-graphs is for training on a CUDA device"):
        trainer_of("--cuda-graphs")


@pytest.mark.usefixtures("reruns")
def test_a_model_with_hooks_is_computed_without() -> None:
    trainer = trainer_of("--cuda-graphs")
    seen: list[Tensor] = []
    trainer.get_model().encoder.layers[0].fc1.register_forward_hook(lambda module, args, out: seen.append(out))
    update(trainer, sample())
    assert len(seen) == 1 and not steps_of(trainer).steps


@pytest.mark.usefixtures("reruns")
def test_what_cannot_be_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(work: object, device: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graph_step.cuda_graphs, "warm_up", wait)
    trainer = trainer_of("--cuda-graphs")
    with pytest.raises(UserError, match=r"cannot be recorded \(operation not permitted when stream is capturing\);"):
        trainer.criterion(trainer.model.train(), sample())


@pytest.mark.usefixtures("reruns")
def test_tensors_that_the_model_makes_anew_are_kept() -> None:
    """A graph reads the mask that there was when it was recorded; a longer batch replaces it."""
    trainer = trainer_of("--cuda-graphs")
    update(trainer, sample())
    mask = weakref.ref(trainer.get_model().decoder._future_mask)
    longer = sample()
    longer["target"] = longer["target"].repeat(1, 3)
    longer["net_input"]["prev_output_tokens"] = longer["net_input"]["prev_output_tokens"].repeat(1, 3)
    trainer.valid_step(longer)
    assert trainer.get_model().decoder._future_mask is not mask() is not None


@pytest.mark.usefixtures("reruns")
def test_a_forward_pass_has_one_backward_pass() -> None:
    trainer = trainer_of("--cuda-graphs")
    first, second = (trainer.criterion(trainer.model.train(), batch)[0] for batch in BATCHES[:2])
    second.backward(retain_graph=True)
    for loss in (first, second):
        with pytest.raises(RuntimeError, match="one backward pass has to follow each forward pass"):
            loss.backward()


@pytest.mark.usefixtures("reruns")
def test_two_models_of_one_criterion() -> None:
    criterion = trainer_of("--cuda-graphs").criterion
    models = [make_trainer(*SGD, seed=seed).model.train() for seed in (1, 2)]
    losses = [criterion(model, sample())[0] for model in models]
    losses[1].backward()
    assert losses[0] != losses[1] and len(criterion.sums.steps) == 2
    assert all(p.grad is None for p in models[0].parameters()) and any(
        p.grad is not None for p in models[1].parameters()
    )


def test_an_output_projection_that_stays_and_sound_are_refused() -> None:
    model = make_trainer(*SGD).model
    model.decoder.output_projection.weight.requires_grad = False
    for refused in (model, make_trainer(*SGD, task="speech").model):  # whose sound goes through a hook
        with pytest.raises(UserError, match="needs words as input, a trained output projection, no hooks"):
            cuda_graph_step.refuse_unrecordable(refused, torch.device("cuda"))


OTHERS = (("--encoder-layerdrop", "0.1"), ("--checkpoint-activations",))


@pytest.mark.parametrize("flags", OTHERS, ids=" ".join)
def test_what_does_not_go_with_graphs_is_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=f"--cuda-graphs does not go with {flags[0]}; leave one of them out"):
        make_trainer(*FLAGS, *SGD, "--cuda-graphs", *flags)


def test_another_criterion_is_refused() -> None:
    trainer = make_trainer(*SGD, "--criterion", "cross_entropy", "--cuda-graphs")
    with pytest.raises(UserError, match="not for --criterion cross_entropy; it is for chunked_label_smoothed_cross_en"):
        trainer.load_checkpoint("no_such_checkpoint.pt")


def test_half_precision_by_autocast_is_refused() -> None:
    trainer = make_trainer(*FLAGS, *SGD, "--cuda-graphs", "--amp")
    trainer.cfg.common.amp = True  # fairseq switches it off on a CPU
    with pytest.raises(UserError, match="--cuda-graphs is not for --amp"):
        trainer.load_checkpoint("no_such_checkpoint.pt")


def test_it_is_a_flag_of_the_model() -> None:
    """On the command line beside any criterion, in a YAML file under model; criterions have none."""
    assert settings("transformer_b2t_6l", "--cuda-graphs").cuda_graphs is True
    builder.wirings_of(OmegaConf.create({"_name": "transformer_b2t_6l", "cuda_graphs": True}))
    criterion = make_trainer(*FLAGS, *SGD).cfg.criterion
    assert criterion._name == FLAGS[1] and "cuda_graphs" not in criterion
