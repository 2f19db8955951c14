"""From a command line or a YAML file to what is built: one place decides, refuses, and records.

fairseq hands a model either a flat ``argparse.Namespace`` (command line) or a ``DictConfig`` (YAML, possibly nested).
Both become flat and complete here, in place, so that a checkpoint carries the resolved wiring.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from omegaconf import DictConfig, OmegaConf

from fairseq_residuals.core.errors import UserError, did_you_mean
from fairseq_residuals.core.wiring import Wiring

REFUSED = {
    "encoder_layers_to_keep": "layer pruning",
    "decoder_layers_to_keep": "layer pruning",
    "quant_noise_pq": "quantization noise",
    "quant_noise_scalar": "scalar quantization",
    "encoder_xformers_att_config": "xFormers attention",
    "decoder_xformers_att_config": "xFormers attention",
    "cross_self_attention": "joint cross- and self-attention",
    "offload_activations": "offloading of activations (--checkpoint-activations is carried)",
    "base_layers": "BASE layers",
    "export": "export to TorchScript",
    "char_inputs": "character input",
    "scale_fc": "NormFormer by fairseq's own flags (the wiring is chosen by --residual)",
    "scale_attn": "NormFormer by fairseq's own flags (the wiring is chosen by --residual)",
    "scale_heads": "NormFormer by fairseq's own flags (the wiring is chosen by --residual)",
    "scale_resids": "NormFormer by fairseq's own flags (the wiring is chosen by --residual)",
}
"""Keys of stock fairseq models that this plugin does not carry, and what they ask for."""

Args = Namespace | DictConfig


@dataclass(frozen=True)
class Family:
    """What distinguishes the three kinds of model: translation, language modelling, speech."""

    model: str
    """The name under which the model is registered with fairseq."""
    stacks: tuple[str, ...]
    add_args: Callable[[ArgumentParser], None]
    """Adds the stock model's own flags."""
    extra_keys: frozenset[str]
    """Keys that fairseq's tasks or dataclasses give a model without a flag."""
    refused: dict[str, str]

    def keys(self, base: Callable[[Namespace], None]) -> set[str]:
        """Every key that a YAML file may give such a model."""
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        self.add_args(parser)
        add_wiring_flags(parser)
        defaults = Namespace()
        base(defaults)
        return {a.dest for a in parser._actions} | set(vars(defaults)) | self.extra_keys | {"_name", "arch"}


def add_wiring_flags(parser: Any) -> None:
    """The two flags that choose the wiring, the pair for a decoder that differs from its encoder, and what training
    needs beside them."""
    parser.add_argument(
        "--residual",
        metavar="NAME",
        help="how norms and residuals are wired: a variant's name, a list such as post_ln:0-5,pre_ln:6-17,"
        " or both for encoder/decoder",
    )
    parser.add_argument("--residual-args", metavar="K=V,...", help="options of the variant")
    parser.add_argument("--decoder-residual", metavar="NAME", help="the decoder's variant, where it differs")
    parser.add_argument("--decoder-residual-args", metavar="K=V,...", help="options of the decoder's variant")
    for stack in ("encoder", "decoder"):
        parser.add_argument(
            f"--{stack}-word-dropout",
            type=float,
            metavar="P",
            help=f"in training, probability that a word of the {stack}'s input is missing",
        )
    parser.add_argument(
        "--log-residual-stats",
        type=int,
        metavar="N",
        help="every N updates log gradient norms per layer and the learned weights of the wiring",
    )
    parser.add_argument(
        "--fast-on-cpu",
        action="store_true",
        default=None,
        help="train faster on a CPU by products and attention that add up in another order, and by a dropout that"
        " draws other random numbers; no effect on other devices",
    )
    parser.add_argument(
        "--keep-freed-memory",
        action="store_true",
        default=None,
        help="on a CPU under Linux, a process that trains or searches with the model keeps the memory that it frees for"
        " what it allocates next, which is faster; --fast-on-cpu implies it",
    )
    parser.add_argument(
        "--compile-stack",
        action="store_true",
        default=None,
        help="train with layers compiled by torch.compile (in evaluation and generation they are not): the same numbers"
        " up to rounding, but other random numbers for dropout",
    )


def resolve(
    args: Args, family: Family, variant: str, depths: dict[str, int], base: Callable[[Any], None]
) -> dict[str, Wiring]:
    """Completes ``args`` in place for an architecture; applying it again changes nothing.

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
        valid = sorted(family.keys(base))
        unknown = sorted(set(map(str, args)).difference(valid))
        if unknown:
            hint = did_you_mean(unknown[0], valid)
            raise UserError(f"unknown key {', '.join(unknown)} under model{hint}; valid: {', '.join(valid)}")
    for key, feature in (REFUSED | family.refused).items():
        # a number is off at zero, a list or text when it is absent: layer 0 may be all that is kept
        off = (None, "", []) if key.endswith(("_to_keep", "_config")) else (None, "", 0)
        if _get(args, key) not in off:
            raise UserError(f"{_flag(key)}: {feature} is not carried by this plugin; leave it out")
    if (_get(args, "min_params_to_wrap") or DEFAULT_MIN_PARAMS_TO_WRAP) != DEFAULT_MIN_PARAMS_TO_WRAP:
        raise UserError("--min-params-to-wrap: fully sharded training is not carried by this plugin; leave it out")
    for stack, depth in depths.items():
        if _get(args, f"{stack}_layers") is None:
            _set(args, f"{stack}_layers", depth)
    wirings = _choose(args, family, variant)
    asked = {stack: _get(args, f"{stack}_normalize_before") for stack in family.stacks}
    decoder = wirings["decoder"]
    without_norm = bool(_get(args, "no_decoder_final_norm"))
    if without_norm:
        _check_omitted_norm(decoder)
    base(args)
    _check_training(args)
    for stack, wiring in wirings.items():
        if asked[stack] is not None and bool(asked[stack]) != wiring.normalize_before:
            raise UserError(
                f"--{stack}-normalize-before contradicts the wiring {wiring.name}; choose the wiring by --residual"
                " alone (pre_ln is fairseq's normalize-before, post_ln its absence)"
            )
        _set(args, f"{stack}_normalize_before", wiring.normalize_before)
        _check_dimensions(args, stack)
        wiring.check(stack, _get(args, f"{stack}_layers"), alone="encoder" not in family.stacks)
    # what an architecture of fairseq leaves out is the norm of fairseq's own wiring
    if without_norm or (_get(args, "no_decoder_final_norm") and decoder.normalize_before):
        wirings["decoder"] = decoder.with_default("final_norm", False)
    _record(args, wirings)
    return wirings


def for_stock_build(args: Args) -> Namespace:
    """A copy for fairseq to build from: without what the stack takes over (norms, layer dropout, checkpointing)."""
    values = OmegaConf.to_container(args, resolve=True) if isinstance(args, DictConfig) else vars(args)
    copy = Namespace(**values)  # type: ignore[arg-type]
    for stack in ("encoder", "decoder"):
        setattr(copy, f"{stack}_normalize_before", False)
        setattr(copy, f"{stack}_layerdrop", 0.0)
    copy.checkpoint_activations = False
    return copy


def _choose(args: Args, family: Family, variant: str) -> dict[str, Wiring]:
    # options in parentheses may be paths
    name, *rest = re.split(r"/(?![^()]*\))", _get(args, "residual") or variant, maxsplit=1)
    above = "".join(rest)
    options = _options(args, "residual_args")
    first = Wiring.parse(name, options)
    own_name, own_options = _get(args, "decoder_residual"), _options(args, "decoder_residual_args")
    if rest and own_name:
        raise UserError(
            f"--residual {name}/{above} names the decoder's wiring, and so does --decoder-residual; give one"
        )
    own_name = own_name or above
    differs = own_name or own_options is not None
    decoder = Wiring.parse(own_name or name, own_options) if differs else first
    return {stack: decoder if stack == "decoder" else first for stack in family.stacks}


def _options(args: Args, key: str) -> str | None:
    value = _get(args, key)
    if isinstance(value, (dict, DictConfig)):
        return ",".join(f"{k!s}={v}" for k, v in value.items())
    return value


def _record(args: Args, wirings: dict[str, Wiring]) -> None:
    first, decoder = next(iter(wirings.values())), wirings["decoder"]
    _set(args, "residual", first.name)
    _set(args, "residual_args", first.args)
    _set(args, "decoder_residual", decoder.name)
    _set(args, "decoder_residual_args", decoder.args)
    _set(args, "no_decoder_final_norm", decoder.value("final_norm") is False)


def _check_omitted_norm(decoder: Wiring) -> None:
    if decoder.is_given("final_norm") and decoder.value("final_norm"):
        raise UserError(f"--no-decoder-final-norm contradicts final_norm=true of {decoder.name}; give one of them")
    if decoder.value("final_norm") is None and not decoder.is_stock_post_ln:
        raise UserError(
            f"--no-decoder-final-norm is not for the wiring {decoder.name}, which has no option final_norm;"
            " leave it out"
        )


def _check_training(args: Args) -> None:
    for stack in ("encoder", "decoder"):
        p = _get(args, f"{stack}_word_dropout")
        if p is not None and (isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1):
            raise UserError(f"--{stack}-word-dropout must be a number of at least 0 and less than 1, not {p!r}")
    if _get(args, "decoder_word_dropout") and _get(args, "adaptive_input"):
        raise UserError("--decoder-word-dropout is not carried with --adaptive-input; leave one of them out")
    if _get(args, "decoder_word_dropout") and _get(args, "character_embeddings"):
        raise UserError("--decoder-word-dropout is not carried with --character-embeddings; leave one of them out")
    every = _get(args, "log_residual_stats")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 0):
        raise UserError(f"--log-residual-stats must be a whole number of updates, or 0 for never, not {every!r}")
    for key in ("fast_on_cpu", "keep_freed_memory", "compile_stack"):
        if not isinstance(value := _get(args, key), bool | None):
            raise UserError(f"{_flag(key)} is either on or off, in a YAML file true or false, not {value!r}")


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
    """``encoder: {layers: 4}`` becomes ``encoder_layers: 4``, as the flat names of the command line."""
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
            _set(args, flat, value)
        args.pop(prefix) if isinstance(args, DictConfig) else delattr(args, prefix)


def _get(args: Args, key: str) -> Any:
    return args.get(key) if isinstance(args, DictConfig) else getattr(args, key, None)


def _set(args: Args, key: str, value: Any) -> None:
    setattr(args, key, value)
