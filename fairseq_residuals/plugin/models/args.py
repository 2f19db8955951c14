"""Way from a command line or a YAML file to what is built: one place decides, refuses, and records.

fairseq hands a model either a flat ``argparse.Namespace`` (command line) or a ``DictConfig`` (YAML, possibly nested).
Both become flat and complete here, in place, so that a checkpoint carries the resolved wiring.
"""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from omegaconf import DictConfig, OmegaConf

from fairseq_residuals.plugin.checkpoints.setting_types import checked
from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.plugin.models.families import REFUSED, Family
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from fairseq_residuals.wirings.core.wiring import Wiring

logger = logging.getLogger(__name__)
Args = Namespace | DictConfig
GONE = {"compile_stack", "fused_kernels", "plain"}
"""Keys of earlier versions that changed no number beyond rounding; checkpoints may have them."""


def resolve(
    args: Args, family: Family, variant: str, depths: dict[str, int], base: Callable[[Any], None]
) -> dict[str, Wiring]:
    """Complete ``args`` in place for an architecture; applying it again changes nothing.

    Args:
        variant: the architecture's variant, unless ``residual`` is given.
        depths: the architecture's layers per stack, unless ``encoder_layers`` or ``decoder_layers`` is given.
        base: fairseq's function that fills in an architecture's defaults.

    Returns:
        the wiring of each stack.

    Raises:
        UserError: a key that is unknown, not carried or contradictory, or a value out of range.
    """
    _flatten(args)
    if isinstance(args, DictConfig):
        for key in GONE.intersection(map(str, args)):
            if args[key]:
                logger.warning("%s is no flag of this plugin any more, and does nothing", _flag(key))
            del args[key]
        valid = sorted(family.keys(base))
        unknown = sorted(set(map(str, args)).difference(valid))
        if unknown:
            hint = did_you_mean(unknown[0], valid)
            raise UserError(f"unknown key {', '.join(unknown)} under model{hint}; valid: {', '.join(valid)}")
        flags = family.flags()
        for key, value in vars(as_namespace(args)).items():
            setattr(args, key, checked(flags.get(key), f"model.{key}", value))
    for key, feature in (REFUSED | family.refused).items():
        # a number is off at zero, a list or text when it is absent: layer 0 may be all that is kept
        off = (None, "", []) if key.endswith(("_to_keep", "_config")) else (None, "", 0)
        if _get(args, key) not in off:
            raise UserError(f"{_flag(key)}: {feature} is not carried by this plugin; leave it out")
    if (_get(args, "min_params_to_wrap") or DEFAULT_MIN_PARAMS_TO_WRAP) != DEFAULT_MIN_PARAMS_TO_WRAP:
        raise UserError("--min-params-to-wrap: fully sharded training is not carried by this plugin; leave it out")
    for stack, depth in depths.items():
        if _get(args, f"{stack}_layers") is None:
            setattr(args, f"{stack}_layers", depth)
    wirings = _choose(args, family, variant)
    asked = {stack: _get(args, f"{stack}_normalize_before") for stack in family.stacks}
    decoder = wirings["decoder"]
    without_norm = bool(_get(args, "no_decoder_final_norm"))
    if without_norm:
        _check_omitted_norm(decoder)
    base(args)
    extensions.check_all(as_namespace(args))
    for stack, wiring in wirings.items():
        if asked[stack] is not None and bool(asked[stack]) != wiring.normalize_before:
            raise UserError(
                f"--{stack}-normalize-before contradicts the wiring {wiring.name}; choose the wiring by --residual"
                " alone (pre_ln is fairseq's normalize-before, post_ln its absence)"
            )
        setattr(args, f"{stack}_normalize_before", wiring.normalize_before)
        _check_dimensions(args, stack)
        wiring.check(stack, _get(args, f"{stack}_layers"), alone="encoder" not in family.stacks)
    # what an architecture of fairseq leaves out is the norm of fairseq's own wiring
    if without_norm or (_get(args, "no_decoder_final_norm") and decoder.normalize_before):
        wirings["decoder"] = decoder.with_default("final_norm", False)
    _record(args, wirings)
    return wirings


def as_namespace(args: Args) -> Namespace:
    """Return a copy of settings that are flat."""
    values: Any = OmegaConf.to_container(args, resolve=True) if isinstance(args, DictConfig) else vars(args)
    return Namespace(**values)


def for_stock_build(args: Args) -> Namespace:
    """Return a copy for fairseq to build from, without what the stack takes over.

    That is: norms, layer dropout, activation recomputation.
    """
    copy = as_namespace(args)
    for stack in ("encoder", "decoder"):
        setattr(copy, f"{stack}_normalize_before", False)
        setattr(copy, f"{stack}_layerdrop", 0.0)
    copy.checkpoint_activations = False
    return copy


def _choose(args: Args, family: Family, variant: str) -> dict[str, Wiring]:
    chosen, options = _get(args, "residual"), _get(args, "residual_args")
    own_name, own_options = _get(args, "decoder_residual") or None, _get(args, "decoder_residual_args")
    is_alone = "encoder" not in family.stacks
    # options in parentheses may be paths
    name, *above = re.split(r"/(?![^()]*\))", chosen or variant, maxsplit=1)
    if above:
        if is_alone:
            raise UserError(
                f"--residual {chosen} is for an encoder and a decoder, and this model has one stack; name one"
            )
        if own_name:
            raise UserError(f"--residual {chosen} names the decoder's wiring, and so does --decoder-residual; give one")
        if options:
            raise UserError(
                f"--residual-args does not say for which of the two wirings in --residual {chosen} it is; write options"
                " in brackets, as in b2t(init_scale=0.5)/pre_ln"
            )
        (own_name,) = above
    first = Wiring.parse(name, options)
    differs = own_name is not None or own_options is not None
    decoder = Wiring.parse(name if own_name is None else own_name, own_options) if differs else first
    if is_alone and (chosen or options is not None) and str(first) != str(decoder):
        raise UserError(
            "this model has one stack, whose wiring is given twice: by --residual or its options, and by"
            " --decoder-residual or its options; give it once"
        )
    return {stack: decoder if stack == "decoder" else first for stack in family.stacks}


def _record(args: Args, wirings: dict[str, Wiring]) -> None:
    first, decoder = next(iter(wirings.values())), wirings["decoder"]
    args.residual = first.name
    args.residual_args = first.args
    args.decoder_residual = decoder.name
    args.decoder_residual_args = decoder.args
    args.no_decoder_final_norm = decoder.value("final_norm") is False


def _check_omitted_norm(decoder: Wiring) -> None:
    if "final_norm" in decoder.parts[-1].given and decoder.value("final_norm"):
        raise UserError(f"--no-decoder-final-norm contradicts final_norm=true of {decoder.name}; give one of them")
    # of Post-LN nothing is on top, asked for or not
    is_post_ln = all(part.variant.export_as == "post_ln" for part in decoder.parts)
    if decoder.value("final_norm") is None and not is_post_ln:
        raise UserError(
            f"--no-decoder-final-norm is not for the wiring {decoder.name}, which has no option final_norm;"
            " leave it out"
        )


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _check_dimensions(args: Args, stack: str) -> None:
    for key in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        value = _get(args, f"{stack}_{key}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{_flag(f'{stack}_{key}')} must be a whole number of at least 1, not {value!r}")
    dim, heads = _get(args, f"{stack}_embed_dim"), _get(args, f"{stack}_attention_heads")
    if dim % heads:
        divisors = [n for n in range(1, min(dim, 64) + 1) if dim % n == 0]
        raise UserError(
            f"--{stack}-embed-dim {dim} is not divisible by --{stack}-attention-heads {heads};"
            f" for {dim} channels the heads may be {', '.join(map(str, divisors))}"
        )


def _flatten(args: Args) -> None:
    """Turn what a YAML file nests, such as ``encoder: {layers: 4}``, into what the command line takes."""
    for prefix in ("encoder", "decoder", "quant_noise"):
        nested = _get(args, prefix)
        if nested is None:
            continue
        if not isinstance(nested, (dict, DictConfig)):
            raise UserError(f"{prefix} under model must hold keys such as layers, not {nested!r}")
        for key, value in nested.items():
            flat = f"{prefix}_{key!s}"
            if _get(args, flat) not in (None, value):
                raise UserError(f"{flat} under model is given twice: {_get(args, flat)!r} and {value!r}")
            setattr(args, flat, value)
        args.pop(prefix) if isinstance(args, DictConfig) else delattr(args, prefix)
    for key in ("residual_args", "decoder_residual_args"):
        if isinstance(options := _get(args, key), (dict, DictConfig)):
            setattr(args, key, ",".join(f"{name!s}={value}" for name, value in options.items()))


def _get(args: Args, key: str) -> Any:
    return args.get(key) if isinstance(args, DictConfig) else getattr(args, key, None)
