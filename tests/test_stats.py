"""--log-residual-stats: what is logged, when, in which precision, and that training does not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from fairseq.optim.bmuf import FairseqBMUF
from tiny import TASKS, batch, build, stacks
from tiny_trainer import SGD, make_trainer, sample, update
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_residuals.plugin.training import layer_statistics
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of

CLIPPED = ("--clip-norm", "0.01")
"""Far below the norm of the gradients here: what is measured after clipping is off by a factor of 100."""


def of(kind: str, logged: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in logged.items() if name.startswith(f"{kind}/")}


def norm_of(parameters: Any) -> float:
    return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())


@pytest.mark.parametrize("task", TASKS)
def test_a_norm_per_layer_and_one_for_what_spans_them(task: str) -> None:
    model = build(task, "pre_ln").train()
    model(**batch(task))[0].logsumexp(-1).sum().backward()
    expected = {}
    for stack in stacks(model):
        speech = (task, stack.shape.stack) == ("speech", "encoder")
        path = "encoder.transformer_layers" if speech else f"{stack.shape.stack}.layers"
        for i in range(2):
            expected[f"gnorm/{path}.{i}"] = norm_of(stack[i].parameters())
        expected[f"gnorm/{path}.wiring"] = norm_of(stack.wiring.norm.parameters())
    norms = layer_statistics.gradient_norms(model)
    assert {name: norm.item() for name, norm in norms.items()} == pytest.approx(expected, rel=1e-5)
    assert all(norm > 0 for norm in expected.values())


def test_a_layer_without_gradients_has_norm_zero() -> None:
    model = build("translation", "post_ln")
    assert set(layer_statistics.gradient_norms(model)) == {
        f"gnorm/{s}.layers.{i}" for s in ("encoder", "decoder") for i in (0, 1)
    }
    assert all(norm == 0 for norm in layer_statistics.gradient_norms(model).values())


def test_a_norm_that_half_precision_cannot_hold() -> None:
    model = build("translation", "post_ln").half()
    for p in model.encoder.layers[0].parameters():
        p.grad = torch.full_like(p, 60_000.0)
    expected = 60_000 * sum(p.numel() for p in model.encoder.layers[0].parameters()) ** 0.5
    assert layer_statistics.gradient_norms(model)["gnorm/encoder.layers.0"].item() == pytest.approx(expected, rel=1e-3)


def test_what_a_wiring_has_learned() -> None:
    model = build("translation", "pre_ln")
    assert layer_statistics.learned_weights(model) == {}
    stack = model.encoder.layers
    wiring, connection = stack.wiring, stack[1].ffn_connection
    wiring.number = nn.Parameter(torch.tensor([0.0]))
    wiring.over_depth = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [2.0, 3.0, 0.0], [4.0, 5.0, 6.0]]).unsqueeze(-1))
    connection.per_channel = nn.Parameter(torch.arange(16.0))
    connection.both = nn.Parameter(torch.arange(16.0).repeat(2, 1) + torch.tensor([[1.0], [2.0]]))
    connection.large = nn.Parameter(torch.arange(33.0).repeat(33, 1))
    connection.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
    connection.projection = nn.Linear(4, 4)
    stack[0].ffn_connection.large = connection.large
    stack[0].ffn_connection.residual_gain = nn.Parameter(torch.full((16,), 2.0))
    assert layer_statistics.learned_weights(model) == {
        "learned/encoder.layers.wiring.number": 0,
        "learned/encoder.layers.wiring.over_depth.0.0": 1,
        "learned/encoder.layers.wiring.over_depth.1.0": 2,
        "learned/encoder.layers.wiring.over_depth.1.1": 3,
        "learned/encoder.layers.wiring.over_depth.2.0": 4,
        "learned/encoder.layers.wiring.over_depth.2.1": 5,
        "learned/encoder.layers.wiring.over_depth.2.2": 6,
        "learned/encoder.layers.1.ffn_connection.per_channel.mean": 7.5,
        "learned/encoder.layers.1.ffn_connection.per_channel.min": 0,
        "learned/encoder.layers.1.ffn_connection.per_channel.max": 15,
        "learned/encoder.layers.1.ffn_connection.both.0": 8.5,
        "learned/encoder.layers.1.ffn_connection.both.1": 9.5,
        "learned/encoder.layers.0.ffn_connection.large.mean": 16,
        "learned/encoder.layers.0.ffn_connection.large.min": 0,
        "learned/encoder.layers.0.ffn_connection.large.max": 32,
        # under the name that a checkpoint gives it
        "learned/encoder.layers.0.w_resid.mean": 2,
        "learned/encoder.layers.0.w_resid.min": 2,
        "learned/encoder.layers.0.w_resid.max": 2,
    }


def expected_norms(trainer: Any, *samples: dict[str, Any]) -> dict[str, float]:
    """In fp32: the gradient of the loss per token, over all samples at once."""
    model = make_trainer(*SGD, variant="dlcl_pre").get_model().train()
    with torch.no_grad():
        for p, q in zip(model.parameters(), trainer.get_model().parameters(), strict=True):
            p.copy_(q)
    for s in samples:
        probabilities = model(**s["net_input"])[0].log_softmax(-1)
        loss = nn.functional.nll_loss(
            probabilities.flatten(0, 1), s["target"].flatten(), ignore_index=1, reduction="sum"
        )
        (loss / sum(other["ntokens"] for other in samples)).backward()
    found = {}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side).layers
        for name, part in {"0": stack[0], "1": stack[1], "wiring": stack.wiring}.items():
            found[f"gnorm/{side}.layers.{name}"] = norm_of(part.parameters())
    return found


def with_loss_scale(trainer: Any) -> None:
    """What --amp has on a GPU; on a CPU, fairseq switches it off."""
    trainer.optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=64.0)


@pytest.mark.parametrize(
    ("precision", "error"),
    [
        ((), 1e-5),
        (("--fp16",), 0.01),
        (("--fp16", "--fp16-no-flatten-grads"), 0.01),
        (("--bf16",), 0.05),
        (("--amp",), 1e-5),
        (("--memory-efficient-fp16", "--optimizer", "adam"), 0.01),
    ],
)
def test_gradients_are_those_of_the_update_before_clipping(precision: tuple[str, ...], error: float) -> None:
    """Accumulated over two batches of different sizes, and without the loss scale."""
    trainer = make_trainer(*SGD, *CLIPPED, "--log-residual-stats", "2", *precision, variant="dlcl_pre")
    if "--amp" in precision:
        with_loss_scale(trainer)
    for n in range(1, 5):
        samples = [sample(n, 3), sample(n + 10, 2)]
        expected = expected_norms(trainer, *samples) if n % 2 == 0 else {}
        logged = update(trainer, *samples)
        assert of("gnorm", logged) == pytest.approx(expected, rel=error), n
        assert (logged["num_updates"], logged["clip"]) == (n, 100.0)


def test_bmuf_hides_the_optimizer_that_scales() -> None:
    trainer = make_trainer(*SGD, "--fp16")
    update(trainer, sample())
    trainer.optimizer.multiply_grads(0.25)
    wrapped = FairseqBMUF(trainer.cfg.bmuf, trainer.optimizer)
    assert layer_statistics._remaining_scale(wrapped) == layer_statistics._remaining_scale(trainer.optimizer) == 0.25


def test_weights_are_those_after_the_update() -> None:
    trainer = make_trainer(*SGD, "--log-residual-stats", "1", variant="dlcl_pre")
    weight = trainer.get_model().decoder.layers.wiring.weight
    before = weight.detach().clone()
    logged = of("learned", update(trainer, sample()))
    for i, j in torch.ones(3, 3).tril().nonzero().tolist():
        assert logged[f"learned/decoder.layers.wiring.weight.{i}.{j}"] == weight[i, j].item() != before[i, j].item()
    assert len(logged) == 12 and all(type(value) is float for value in logged.values())


def test_an_update_that_overflowed_is_not_logged() -> None:
    scale = ("--fp16", "--fp16-init-scale", str(2**18))
    trainer = make_trainer(*SGD, *scale, "--log-residual-stats", "1", variant="dlcl_pre")
    attempts = [update(trainer, sample()) for _ in range(12)]
    made = ["num_updates" in logged for logged in attempts]
    assert made[0] is False and made[-1] is True
    assert [bool(of("gnorm", logged)) for logged in attempts] == made
    assert all(torch.isfinite(torch.tensor(value)) for logged in attempts for value in of("gnorm", logged).values())


def test_a_reset_meter_is_not_logged_as_null() -> None:
    """As fairseq-train does with --log-interval 1; averaged where it logs more rarely."""
    trainer = make_trainer(*SGD, "--log-residual-stats", "2", variant="dlcl_pre")
    seen, values = [], []
    with metrics.aggregate(new_root=True) as meters:
        for n in range(1, 7):
            trainer.train_step([sample(n)])
            logged = meters.get_smoothed_values()
            assert None not in logged.values()
            seen.append(len(of("gnorm", logged)))
            if n in (1, 2, 3):
                meters.reset()
            if n in (4, 6):
                values.append(meters["gnorm/encoder.layers.0"].val)
        assert seen == [0, 6, 0, 6, 6, 6]
        assert meters["gnorm/encoder.layers.0"].smoothed_value == pytest.approx(sum(values) / 2)
        latest = trainer.get_model().encoder.layers.wiring.weight[2, 1].item()
        assert meters["learned/encoder.layers.wiring.weight.2.1"].smoothed_value == latest


class Recorder(TorchDispatchMode):
    """The operations that PyTorch runs, in order; reading a number from a device is one."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", [(), ("--fp16",)], ids=["fp32", "fp16"])
def test_training_does_not_notice(precision: tuple[str, ...]) -> None:
    """The same operations except on every third update, and the same weights, bit for bit."""
    flags = (*SGD, *CLIPPED, "--dropout", "0.1", *precision)
    off = make_trainer(*flags, variant="dlcl_pre")
    on = make_trainer(*flags, "--log-residual-stats", "3", variant="dlcl_pre")
    same = []
    for n in range(1, 7):
        operations = []
        for trainer in (off, on):
            with Recorder() as recorder:
                update(trainer, sample(n))
            operations.append(recorder.names)
        same.append(operations[0] == operations[1])
    assert same == [True, True, False, True, True, False]
    torch.testing.assert_close(on.get_model().state_dict(), off.get_model().state_dict(), rtol=0, atol=0)


def test_without_the_flag_nothing_is_installed() -> None:
    for flags in ((), ("--log-residual-stats", "0")):
        hooks = hooks_of(build("translation", "b2t", *flags))
        assert not hooks.before_clip and not hooks.on_log
    hooks = hooks_of(build("translation", "b2t", "--log-residual-stats", "7"))
    assert hooks.before_clip[0].__self__.every == hooks.on_log[0].__self__.every == 7


def test_weights_of_the_value_residual_are_logged() -> None:
    learned = layer_statistics.learned_weights(
        build("translation", "post_ln", "--residual-args", "value_residual=learnable")
    )
    place = "learned/encoder.layers.1.value_residual"
    assert (learned[f"{place}.first_weight"], learned[f"{place}.own_weight"]) == (0.5, 0.5)
