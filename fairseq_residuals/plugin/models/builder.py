"""The seam: fairseq builds a model with all of its own options, then its layers are replaced by our stacks.

The models save and load fairseq's names, which :mod:`fairseq_residuals.wirings.core.state_dict_names` translates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.plugin.models.args import Args, as_namespace
from fairseq_residuals.plugin.models.fairseq_stack import DecoderStack, EncoderStack
from fairseq_residuals.plugin.models.fixnorm import normalize_words, uses_fixnorm
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.stack import Run, Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name, stack_names
from fairseq_residuals.wirings.core.wiring import Wiring

logger = logging.getLogger(__name__)


def wirings_of(args: Args) -> dict[str, Wiring]:
    """Return the wiring of each stack, and complete the settings.

    Raises:
        UserError: settings that the plugin does not carry; one is fully sharded training, which wraps layers that the
            stack must see.
    """
    root: Any = args._get_root() if isinstance(args, DictConfig) else args
    if getattr(getattr(root, "distributed_training", root), "ddp_backend", None) == "fully_sharded":
        raise UserError(
            "--ddp-backend fully_sharded is not carried by this plugin; choose pytorch_ddp, legacy_ddp or no_c10d"
        )
    name = args.get("_name") or args.get("arch") if isinstance(args, DictConfig) else args.arch
    return ARCHITECTURES[name](args)


def forget_files(args: Args, *keys: str) -> None:
    """Forget the files that a model was begun with: checkpoints hold their parameters and need them no more."""
    for key in keys:
        if key in args:
            setattr(args, key, None)


def wire_model(model: nn.Module, args: Args, wirings: dict[str, Wiring]) -> None:
    """Replace the layers of a stock model's stacks, attach what its settings ask for, and log what this makes."""
    get: Callable[[str], Any] = args.get if isinstance(args, DictConfig) else vars(args).get
    depths: dict[str, int] = {stack: get(f"{stack}_layers") for stack in wirings}
    owners = []
    for stack, wiring in wirings.items():
        owner = getattr(model, stack)
        wired = wire_stack(
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
        owners.append((owner, wired))
    initialise(owners)
    if get("checkpoint_activations"):
        for _, wired in owners:
            wired.wrappers.append(recompute_activations)
    extensions.attach_all(model, as_namespace(args))
    # last: an extension may replace the embedding
    if uses_fixnorm(wirings):
        normalize_words(model)
    logger.info("parameters: %s", f"{sum(p.numel() for p in model.parameters()):,}")


def wire_stack(
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


def translate_state_dict(owner: nn.Module, layers: str) -> None:
    """Make ``owner``, an encoder or decoder whose stack is its attribute ``layers``, save and load fairseq's names."""
    owner.register_state_dict_post_hook(partial(_save, layers))
    owner.register_load_state_dict_pre_hook(partial(_load, layers))
    owner.register_load_state_dict_post_hook(_report)


def _save(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}{layers}.")]:
        state[fairseq_name(key)] = state.pop(key)


def _load(layers: str, owner: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    if getattr(owner, "adaptive_softmax", None) is not None:
        # fairseq adds it to every checkpoint with shared embeddings (transformer_decoder.py, upgrade_state_dict_named)
        state.pop(f"{prefix}output_projection.weight", None)
    names = stack_names(state, prefix, layers)
    values = {name: state[key] for key, name in names.items()}
    for key in [key for key in state if key.startswith((f"{prefix}{layers}.", f"{prefix}layer_norm."))]:
        del state[key]
    for name, value in values.items():
        state[f"{prefix}{layers}.{name}"] = value


def _report(owner: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = map(fairseq_name, keys)


def recompute_activations(run: Run) -> Run:
    """Run a layer once more in the backward pass, and keep its input alone (``--checkpoint-activations``).

    It wraps layers (:attr:`~fairseq_residuals.wirings.core.stack.Stack.wrappers`); without gradients there is nothing
    to keep. fairseq's own one loses gradients through nested tensors, and a stream is one.
    """
    return partial(checkpoint, run, use_reentrant=False) if torch.is_grad_enabled() else run
