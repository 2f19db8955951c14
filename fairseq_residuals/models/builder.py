"""What the three models share when they are built."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from torch import nn

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.initialization import initialise
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.models.architectures import ARCHITECTURES
from fairseq_residuals.models.args import Args
from fairseq_residuals.models.rewire import rewire
from fairseq_residuals.performance import compile_layers, cpu
from fairseq_residuals.training import admin_profile, layer_statistics
from fairseq_residuals.training.word_dropout import drop_words

logger = logging.getLogger(__name__)


def wirings_of(args: Args) -> dict[str, Wiring]:
    """The wiring of each stack, from completed settings."""
    name = args.get("_name") or args.get("arch") if isinstance(args, DictConfig) else args.arch
    return ARCHITECTURES[name](args)


def refuse_sharding(args: Args) -> None:
    """Raises UserError if training is fully sharded, which wraps layers that the stack must see."""
    root: Any = args._get_root() if isinstance(args, DictConfig) else args
    settings = getattr(root, "distributed_training", root)
    if getattr(settings, "ddp_backend", None) == "fully_sharded":
        raise UserError(
            "--ddp-backend fully_sharded is not carried by this plugin; choose pytorch_ddp, legacy_ddp or no_c10d"
        )


def forget_files(args: Args, *keys: str) -> None:
    """Checkpoints hold the parameters that a model was begun with: they are not to ask for these files again."""
    for key in keys:
        if key in args:
            setattr(args, key, None)


def rewire_model(model: nn.Module, args: Args, wirings: dict[str, Wiring]) -> None:
    """Replaces the layers of a stock model's stacks, and prints what is going to be trained."""
    get: Callable[[str], Any] = args.get if isinstance(args, DictConfig) else vars(args).get
    depths: dict[str, int] = {stack: get(f"{stack}_layers") for stack in wirings}
    owners = []
    for stack, wiring in wirings.items():
        owner = getattr(model, stack)
        rewired = rewire(
            owner,
            wiring,
            stack,  # type: ignore[arg-type]
            enc_depth=depths.get("encoder", 0),
            dec_depth=depths["decoder"],
            layerdrop=get(f"{stack}_layerdrop") or 0.0,
            checkpoint_activations=bool(get("checkpoint_activations")),
            compile_backend=compile_layers.BACKEND if get("compile_stack") else "",
        )
        logger.info(
            "%s: %d layers wired by %s, %s: %s",
            stack,
            depths[stack],
            wiring,
            wiring.title,
            "; ".join(wiring.equations),
        )
        owners.append((owner, rewired))
    initialise(owners)
    for stack, (owner, _) in zip(wirings, owners, strict=True):
        if get(f"{stack}_word_dropout"):
            drop_words(owner, get(f"{stack}_word_dropout"), keep_first=stack == "decoder")
    cpu.tune_training()
    if get("compile_stack"):
        compile_layers.look_for_a_compiler_before_training()
    if get("fast_on_cpu"):
        cpu.make_fast(model)
    if admin_profile.unprofiled(model):
        admin_profile.profile_before_training()
    if get("log_residual_stats"):
        layer_statistics.follow(model, get("log_residual_stats"))
    logger.info("parameters: %s", f"{sum(p.numel() for p in model.parameters()):,}")
