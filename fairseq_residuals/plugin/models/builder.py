"""The seam: fairseq builds a model with all of its own options, then its layers are replaced by our stacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

from omegaconf import DictConfig
from torch import nn

from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.plugin.models.activation_checkpointing import RecomputeActivations
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.plugin.models.args import Args, as_namespace
from fairseq_residuals.plugin.models.fairseq_stack import DecoderStack, EncoderStack
from fairseq_residuals.plugin.models.fixnorm import normalize_words, uses_fixnorm
from fairseq_residuals.plugin.models.saved_names import translate_state_dict
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring

logger = logging.getLogger(__name__)


def wirings_of(args: Args) -> dict[str, Wiring]:
    """Return the wiring of each stack, from completed settings."""
    name = args.get("_name") or args.get("arch") if isinstance(args, DictConfig) else args.arch
    return ARCHITECTURES[name](args)


def refuse_sharding(args: Args) -> None:
    """Refuse fully sharded training, which wraps layers that the stack must see.

    Raises:
        UserError: training is fully sharded.
    """
    root: Any = args._get_root() if isinstance(args, DictConfig) else args
    settings = getattr(root, "distributed_training", root)
    if getattr(settings, "ddp_backend", None) == "fully_sharded":
        raise UserError(
            "--ddp-backend fully_sharded is not carried by this plugin; choose pytorch_ddp, legacy_ddp or no_c10d"
        )


def forget_files(args: Args, *keys: str) -> None:
    """Forget the files that a model was begun with: checkpoints hold their parameters and need them no more."""
    for key in keys:
        if key in args:
            setattr(args, key, None)


def rewire_model(model: nn.Module, args: Args, wirings: dict[str, Wiring]) -> None:
    """Replace the layers of a stock model's stacks, attach what its settings ask for, and log what this makes."""
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
    if get("checkpoint_activations"):
        for _, rewired in owners:
            rewired.wrappers.append(RecomputeActivations())
    extensions.attach_all(model, as_namespace(args))
    # last: an extension may replace the embedding
    if uses_fixnorm(wirings):
        normalize_words(model)
    logger.info("parameters: %s", f"{sum(p.numel() for p in model.parameters()):,}")


def rewire(
    owner: nn.Module,
    wiring: Wiring,
    side: Literal["encoder", "decoder"],
    *,
    enc_depth: int,
    dec_depth: int,
    layerdrop: float = 0.0,
) -> Stack:
    """Replace the layers of a fairseq encoder or decoder, built without a norm on top, by a wired stack.

    The sub-layers stay the ones that fairseq built (same weights from the same seed); norms are the wiring's own.
    :func:`fairseq_residuals.wirings.core.initialization.initialise` comes after the last stack of a model.
    """
    attribute = "layers" if hasattr(owner, "layers") else "transformer_layers"
    built: list[Any] = list(getattr(owner, attribute)._modules.values())
    layer = built[0]
    shape = StackShape(
        stack=side,
        depth=len(built),
        dim=layer.self_attn.embed_dim,
        ffn_dim=layer.fc1.out_features,
        heads=layer.self_attn.num_heads,
        enc_depth=enc_depth,
        dec_depth=dec_depth,
        cross=enc_depth > 0 and dec_depth > 0,
    )
    variant = wiring.build(shape)
    stack_class = EncoderStack if side == "encoder" else DecoderStack
    stack = stack_class(built, variant, shape, layerdrop=layerdrop)
    assert owner.layer_norm is None, "fairseq's norm on top belongs to the variant here"
    setattr(owner, attribute, stack)
    translate_state_dict(owner, attribute)
    return stack
