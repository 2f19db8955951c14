"""The criterion that computes its loss in chunks gives fairseq's loss, gradients and log, or refuses the model."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.distributed.module_proxy_wrapper import ModuleProxyWrapper
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.multilingual_transformer import MultilingualTransformerModel
from tiny import PAD, TASKS, batch, build, perturb, target_tokens
from tiny_trainer import SGD, Task, make_config, make_trainer, sample, update
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.plugin.training import chunked_label_smoothed_cross_entropy as chunked
from fairseq_residuals.wirings.core.errors import UserError


def test_ddp_that_looks_for_unused_parameters(tmp_path: Path) -> None:
    """It takes a projection that is not an embedding too for one; fairseq's own loss is within its forward pass."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        flags = ("--criterion", "chunked_label_smoothed_cross_entropy", *SGD)
        criterion = build_criterion(make_config(*flags).criterion, Task(None))
        for flags, refused in (((), True), (("--share-all-embeddings",), False)):
            model = build("translation", "post_ln", *flags).train()
            wrapped = ModuleProxyWrapper(DistributedDataParallel(model, find_unused_parameters=True))
            wrapped = wrapped if flags else ModuleProxyWrapper(wrapped)  # as with --heartbeat-timeout
            with pytest.raises(UserError, match="legacy_ddp") if refused else nullcontext():
                criterion(wrapped, sample())[0].backward()
    finally:
        torch.distributed.destroy_process_group()


def criterion(name: str, *flags: str) -> Any:
    cfg = make_config("--criterion", name, "--label-smoothing", "0.1", *flags)
    return build_criterion(cfg.criterion, Task(cfg.task))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("fixnorm", ("false", "true"))
@pytest.mark.parametrize("flags", ((), ("--report-accuracy", "--ignore-prefix-size", "1", "--sentence-avg")), ids=len)
def test_criterion(task: str, fixnorm: str, flags: tuple[str, ...]) -> None:
    """Padding, gradients of every parameter, and the log."""
    net_input = batch(task)
    target = target_tokens(task, net_input)
    assert target.eq(PAD).any()
    given = {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum())}
    results = []
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        model = perturb(build(task, "b2t", "--residual-args", f"fixnorm={fixnorm}")).train()
        loss, size, logged = criterion(name, *flags)(model, given)
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((loss, size, {k: torch.as_tensor(v).float() for k, v in logged.items()}, gradients))
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("precision", ((), ("--fp16", "--fp16-init-scale", "4"), ("--bf16",)), ids=str)
def test_training(precision: tuple[str, ...]) -> None:
    losses = {}
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        flags = ("--criterion", name, "--label-smoothing", "0.1", "--optimizer", "adam", "--lr", "0.01")
        trainer = make_trainer(*flags, *precision)
        losses[name] = [update(trainer, sample())["loss"] for _ in range(6)]
        valid = trainer.valid_step(sample())
        losses[name].append(float(valid["loss"]))
    fairseqs, ours = losses.values()
    assert ours == pytest.approx(fairseqs, abs=0.05 if precision else 1e-3) and ours[-2] < ours[0]


def test_a_model_with_another_output_is_refused() -> None:
    model = build("translation", "b2t")
    model.decoder.output_projection = None
    with pytest.raises(UserError, match="use --criterion label_smoothed_cross_entropy, or adaptive_loss"):
        criterion("chunked_label_smoothed_cross_entropy")(model, {})
    assert isinstance(criterion("chunked_label_smoothed_cross_entropy"), chunked.LabelSmoothedCrossEntropyCriterion)


def test_a_projection_of_another_width_under_autocast() -> None:
    inputs = {"net_input": batch("translation"), "ntokens": 9}
    inputs["target"] = target_tokens("translation", inputs["net_input"])
    losses = []
    for name in ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"):
        model = build("translation", "b2t", "--decoder-output-dim", "8").train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(name)(model, inputs)[0]
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


SIZES = {f"{stack}_{key}": 8 for stack in ("encoder", "decoder") for key in ("embed_dim", "ffn_embed_dim")}
SIZES |= {f"{stack}_{key}": 1 for stack in ("encoder", "decoder") for key in ("layers", "attention_heads")}


def model(arch: str) -> nn.Module:
    words = Dictionary()
    words.add_symbol("word")
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    args = Namespace(arch=arch, alignment_layer=0, max_source_positions=9, max_target_positions=9, **SIZES)
    args.tokens_per_sample = args.max_positions = 9
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)  # type: ignore[no-any-return]


def multilingual() -> nn.Module:
    parts = [model("transformer") for _ in range(2)]
    return MultilingualTransformerModel({"a-b": parts[0].encoder}, {"a-b": parts[1].decoder})


MODELS = {
    "transformer_align": lambda: model("transformer_align"),
    "roberta": lambda: model("roberta"),
    "multilingual_transformer": multilingual,
    "one direction of multilingual_transformer": lambda: multilingual().models["a-b"],
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_one_projection(name: str) -> None:
    words = Dictionary()
    criterion = chunked.LabelSmoothedCrossEntropyCriterion(SimpleNamespace(target_dictionary=words), False, 0.1)
    given = {"target": torch.tensor([[4, 2]]), "ntokens": 2, "net_input": {}}
    with pytest.raises(UserError, match="is for models whose output is a projection by a matrix"):
        criterion(MODELS[name](), given)
