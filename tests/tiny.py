"""Tiny models of every task, built as fairseq builds them from a command line, with batches to feed them."""

from __future__ import annotations

import argparse
import functools
import itertools
from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from perturbation import perturb as perturb
from torch import Tensor, nn

import fairseq_residuals  # noqa: F401  registers the architectures
from fairseq_residuals.plugin.models import extensions
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of, parse_options
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name

PAD, EOS = 1, 2
TASKS = ("translation", "language_modeling", "speech")
FAIRSEQ_TASKS = {"translation": "translation", "language_modeling": "language_modeling", "speech": "speech_to_text"}
PREFIX = {"translation": "transformer", "language_modeling": "transformer_lm", "speech": "s2t_transformer"}
STOCK = {"translation": "transformer", "language_modeling": "transformer_lm_big", "speech": "s2t_transformer"}


BOTH = {
    f"{stack}_{key}": value
    for stack in ("encoder", "decoder")
    for key, value in {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}.items()
}
"""Sizes of a pair as keys of YAML."""


def common_options(init: str = "fairseq", init_scale: str = "1") -> str:
    """The options that every variant has, spelled out as the settings of a checkpoint spell them."""
    others = "norm_type=layer,norm_eps=0,fixnorm=false,value_residual=none,gpas=none,depth_mup=false,base_depth=2"
    return f"init={init},init_scale={init_scale},{others}"


def choices(name: str, most: int = 1) -> list[str]:
    """Every value other than the default that an option of the variant can take, as far as they can be listed.

    Args:
        most: options at a time; of several, each combination that does not contradict itself.
    """
    common, variant, values = options_of(Variant.Config), VARIANTS[name], list[str]()
    options = options_of(variant.Config)
    for option in (option for option in options.values() if option.name not in common):
        own: tuple[Any, ...] = get_args(option.type) if get_origin(option.type) is Literal else ()
        if option.type is bool:
            own = (True, False)
        values += [f"{option.name}={str(v).lower()}" for v in own if v != option.default]
        if option.type is int:
            values += [f"{option.name}={n}" for n in (0, 1) if (option.minimum or 0) <= n != option.default]
    found = []
    for chosen in itertools.combinations(values, most):
        if len({value.partition("=")[0] for value in chosen}) == most:
            config = parse_options(name, variant.Config, ",".join(chosen))[0]
            if not variant.contradiction(config) and not any(o.is_idle(config) for o in options.values()):
                found.append(",".join(chosen))
    return found


def depth_for(variant: str, layers: int) -> int:
    """``layers``, or one more where the variant refuses that number: one wires layers in pairs."""
    return layers + bool(VARIANTS[variant].refusal(alone=False, topmost=True, depth=layers))


def make_dictionary(words: int = 36) -> Dictionary:
    dictionary = Dictionary()
    for i in range(words):
        dictionary.add_symbol(f"w{i}")
    return dictionary


@dataclass
class TinyTask:
    """What fairseq's models, and its loading of checkpoints, ask of a task."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary
    args: Namespace

    def load_state_dict(self, state: Any) -> None:
        assert state == {}

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        return build_model(cfg, self)


def make_task() -> TinyTask:
    dictionary = make_dictionary()
    args = Namespace(max_source_positions=512, max_target_positions=512, tokens_per_sample=512, add_bos_token=False)
    return TinyTask(dictionary, dictionary, args)


@functools.cache
def _parser(model_class: Any, *_extensions: extensions.Extension) -> argparse.ArgumentParser:
    """The flags of a model, of which the extensions of the moment add some."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    model_class.add_args(parser)
    return parser


def settings(arch: str, *flags: str) -> Namespace:
    """What fairseq-train would make of ``--arch ARCH FLAGS``."""
    args = _parser(ARCH_MODEL_REGISTRY[arch], *extensions.EXTENSIONS.values()).parse_args(flags)
    args.arch = arch
    args.input_feat_per_channel, args.input_channels = 8, 1
    args.max_source_positions = args.max_target_positions = args.tokens_per_sample = 512
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0"]


def sizes_of(stack: str, layers: int, dim: int, ffn_dim: int, heads: int) -> list[str]:
    """Flags for a stack, encoder or decoder."""
    sizes = {"layers": layers, "embed-dim": dim, "ffn-embed-dim": ffn_dim, "attention-heads": heads}
    return [part for name, size in sizes.items() for part in (f"--{stack}-{name}", str(size))]


def dimensions(task: str, layers: int = 2, dim: int = 16) -> list[str]:
    stacks = ("decoder",) if task == "language_modeling" else ("encoder", "decoder")
    flags = [flag for stack in stacks for flag in sizes_of(stack, layers, dim, 2 * dim, heads=2)]
    return [*flags, *(["--conv-channels", "8"] if task == "speech" else []), *NO_DROPOUT]


def build(task: str, variant: str, *flags: str, layers: int = 2, seed: int = 1) -> nn.Module:
    """A model of the plugin in evaluation mode, as initialised."""
    torch.manual_seed(seed)
    args = settings(f"{PREFIX[task]}_{variant}", *dimensions(task, layers), *flags)
    return build_model(args, make_task()).eval()


def build_stock(task: str, *flags: str, normalize_before: bool, layers: int = 2, seed: int = 1) -> nn.Module:
    """fairseq's own model in evaluation mode, as initialised. Norm placement is set on the completed settings, since
    fairseq's language and speech architectures force Pre-LN or have no flag against it."""
    torch.manual_seed(seed)
    args = settings(STOCK[task], *dimensions(task, layers), *flags)
    args.encoder_normalize_before = args.decoder_normalize_before = normalize_before
    if task == "language_modeling":
        args = Namespace(**{**vars(TransformerLanguageModelConfig()), **vars(args)})
    return ARCH_MODEL_REGISTRY[STOCK[task]].build_model(args, make_task()).eval()


def batch(task: str, sentences: int = 3, seed: int = 5) -> dict[str, Tensor]:
    """Inputs with padding on the right, as the keyword arguments of the model's forward."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.arange(7, 7 - sentences, -1)
    previous = tokens(lengths - 1, generator)
    previous[:, 0] = EOS
    if task == "language_modeling":
        return {"src_tokens": previous, "src_lengths": lengths - 1}
    if task == "speech":
        frames = lengths * 6
        features = torch.randn(sentences, int(frames.max()), 8, generator=generator)
        for feature, n in zip(features, frames, strict=True):
            feature[n:] = 0
        return {"src_tokens": features, "src_lengths": frames, "prev_output_tokens": previous}
    return {"src_tokens": tokens(lengths, generator), "src_lengths": lengths, "prev_output_tokens": previous}


def tokens(lengths: Tensor, generator: torch.Generator) -> Tensor:
    out = torch.randint(4, 40, (len(lengths), int(lengths.max())), generator=generator)
    for row, n in zip(out, lengths, strict=True):
        row[n - 1] = EOS
        row[n:] = PAD
    return out


def target_tokens(task: str, inputs: dict[str, Tensor]) -> Tensor:
    return inputs["src_tokens"] if task == "language_modeling" else inputs["prev_output_tokens"]


def logits(model: nn.Module, task: str, inputs: dict[str, Tensor]) -> Tensor:
    """The model's logits at non-pad positions, (positions, vocabulary)."""
    out: Any = model(**inputs)
    return out[0][target_tokens(task, inputs).ne(PAD)]


def step_by_step(model: Any, task: str, inputs: dict[str, Tensor]) -> Tensor:
    """The model's logits at non-pad positions, decoded one word at a time, (positions, vocabulary)."""
    previous, encoder_out = target_tokens(task, inputs), None
    state: dict[str, Any] = {}
    with torch.no_grad():
        if task != "language_modeling":
            encoder_out = model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])
        steps = [
            model.decoder(previous[:, : t + 1], encoder_out=encoder_out, incremental_state=state)[0]
            for t in range(previous.size(1))
        ]
    return torch.cat(steps, 1)[previous.ne(PAD)]


def stacks(model: Any) -> list[Any]:
    """The wired stacks of a model, encoder first."""
    found = []
    for owner in (getattr(model, "encoder", None), model.decoder):
        if owner is not None:
            found.append(owner.layers if hasattr(owner, "layers") else owner.transformer_layers)
    return found


def gradients_by_fairseq_name(model: nn.Module) -> dict[str, Tensor]:
    """Gradients under the names that a state dict gives their parameters, in the parameters' order."""
    return {fairseq_name(name): p.grad for name, p in model.named_parameters() if p.grad is not None}
