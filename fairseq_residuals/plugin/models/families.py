"""Differences between the three kinds of model, and the keys and flags that each of them has."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.plugin.models import extensions

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


@dataclass(frozen=True)
class Family:
    """Describe one kind of model: translation, language modelling, or speech."""

    model: str
    """The name under which the model is registered with fairseq."""
    stacks: tuple[str, ...]
    add_args: Callable[[ArgumentParser], None]
    """A function that adds the stock model's own flags."""
    extra_keys: frozenset[str]
    """Keys that fairseq's tasks or dataclasses give a model without a flag."""
    refused: dict[str, str]

    def flags(self) -> dict[str, Action]:
        """Return argparse's actions for the flags of such a model, by the names of their settings."""
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        self.add_args(parser)
        add_plugin_flags(parser)
        return {action.dest: action for action in parser._actions}

    def keys(self, base: Callable[[Namespace], None]) -> set[str]:
        """Return every key that a YAML file may give such a model."""
        defaults = Namespace()
        base(defaults)
        return {*self.flags(), *vars(defaults), *self.extra_keys, "_name", "arch"}


def add_plugin_flags(parser: Any) -> None:
    """Add what the plugin's models have beside the flags of stock ones.

    Two flags choose the wiring, a second pair is for a decoder that differs from its encoder, and every extension has
    its own.
    """
    parser.add_argument(
        "--residual",
        metavar="NAME",
        help="how norms and residuals are wired: a wiring's name, a list such as post_ln:0-5,pre_ln:6-17,"
        " or both for encoder/decoder",
    )
    parser.add_argument("--residual-args", metavar="K=V,...", help="options of the wiring")
    parser.add_argument("--decoder-residual", metavar="NAME", help="the decoder's wiring, where it differs")
    parser.add_argument("--decoder-residual-args", metavar="K=V,...", help="options of the decoder's wiring")
    extensions.add_flags(parser)
