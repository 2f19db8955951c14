"""Settings from which a trained model is built again: plain values, which JSON can hold."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_args

from fairseq_residuals.wirings.blocks.embedding import Positions
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from fairseq_residuals.wirings.blocks.transformer import LayerSettings
from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring

FORMAT_VERSION = 1
"""The version of the settings and of the parameters' names."""
PAD, EOS, UNK = 1, 2, 3
"""Tokens of every dictionary of fairseq; its decoders begin with EOS."""


@dataclass(frozen=True, kw_only=True)
class StackSettings(LayerSettings):
    """An encoder or decoder with what is below it."""

    residual: str
    """The wiring, as ``--residual`` takes it."""
    residual_args: str
    """The options, as ``--residual-args`` takes them, every one spelled out."""
    words: int
    """Size of the vocabulary."""
    layers: int
    """Depth of the stack."""
    positions: Positions
    """Kind of the embeddings of positions."""
    max_positions: int
    """The longest sentence that the stack was made for."""
    embed_scale: float
    """Factor on the embeddings of tokens."""
    input_dim: int
    """Channels of the embeddings of tokens; they are projected where it is not ``dim``."""
    norm_embedding: bool
    """Whether a LayerNorm follows the sum of embeddings (``--layernorm-embedding``)."""
    padding: int = PAD
    """The token that pads sentences; -1: there is none."""

    @classmethod
    def of_json(cls, values: Any, where: str) -> StackSettings:
        """Check values that a file holds.

        Raises:
            UserError: one is missing, unknown, of another type or out of range.
        """
        _check_names(cls, values, where)
        settings = cls(**values)
        valid = {"activation": tuple(ACTIVATIONS), "positions": get_args(Positions)}
        least = {"kv_heads": 0, "window": 0, "padding": -1}
        for f in fields(cls):
            value = getattr(settings, f.name)
            if f.name in valid:
                if value not in valid[f.name]:
                    raise UserError(f"{f.name} of {where} must be one of {', '.join(valid[f.name])}, not {value!r:.80}")
            elif f.type == "int":
                smallest = least.get(f.name, 1)
                if type(value) is not int or not smallest <= value < 2**31:
                    raise UserError(
                        f"{f.name} of {where} must be a whole number of at least {smallest}, not {value!r:.80}"
                    )
            elif f.type == "float":
                if type(value) not in (int, float) or not abs(value) < 2**31:
                    raise UserError(f"{f.name} of {where} must be a number, not {value!r:.80}")
            elif type(value) is not {"bool": bool, "str": str}[str(f.type)]:
                raise UserError(f"{f.name} of {where} must be of type {f.type}, not {value!r:.80}")
        if settings.dim % settings.heads:
            raise UserError(f"dim={settings.dim} of {where} is not divisible by heads={settings.heads}")
        return settings

    @property
    def wiring(self) -> Wiring:
        """The wiring, parsed; UserError if there is none of this name."""
        return Wiring.parse(self.residual, self.residual_args)


@dataclass(frozen=True)
class ModelSettings:
    """An encoder-decoder model, or a language model, which has no encoder."""

    encoder: StackSettings | None
    decoder: StackSettings
    output_dim: int
    """Channels of the output matrix; the decoder's output is projected where it is not its ``dim``."""
    share_input_output: bool
    """Whether the output matrix is the decoder's embedding."""
    share_all: bool
    """Whether the encoder's embedding is the decoder's as well."""
    version: int = FORMAT_VERSION
    end: int = EOS
    """The token that ends sentences, with which a decoder of a pair begins; -1: there is none."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without those that every model of version 1 had before it could be said."""
        encoder = None if self.encoder is None else _said(self.encoder)
        return _said(self) | {"encoder": encoder, "decoder": _said(self.decoder), "version": self.version}

    @classmethod
    def of_json(cls, values: Any) -> ModelSettings:
        """Check values that a file holds.

        Raises:
            UserError: another version wrote them, or they are not those of a model.
        """
        version = values.get("version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"the model's settings are of version {version!r:.40}, and this program reads version {FORMAT_VERSION};"
                " export the checkpoint again"
            )
        _check_names(cls, values, "the model's settings")
        encoder = values["encoder"]
        encoder = None if encoder is None else StackSettings.of_json(encoder, "encoder")
        settings = cls(**values | {"encoder": encoder, "decoder": StackSettings.of_json(values["decoder"], "decoder")})
        for name in ("share_input_output", "share_all"):
            if type(getattr(settings, name)) is not bool:
                raise UserError(f"{name} of the model's settings must be true or false")
        for name, least in (("output_dim", 1), ("end", -1)):
            value = getattr(settings, name)
            if type(value) is not int or not least <= value < 2**31:
                raise UserError(f"{name} of the model's settings must be a whole number of at least {least}")
        return settings

    def shape(self, side: str) -> StackShape:
        """Return the shape of the encoder or the decoder; a model without an encoder has no shape of one."""
        stack = self.encoder if side == "encoder" else self.decoder
        assert stack is not None
        depths = self.encoder.layers if self.encoder else 0, self.decoder.layers
        return StackShape(
            stack=side,  # type: ignore[arg-type]
            depth=stack.layers,
            dim=stack.dim,
            ffn_dim=stack.ffn_dim,
            heads=stack.heads,
            enc_depth=depths[0],
            dec_depth=depths[1],
            cross=min(depths) > 0,
        )

    @property
    def tied(self) -> dict[str, str]:
        """The parameters that are another one's, by name, and the names of those others."""
        tied = {}
        if self.share_input_output:
            tied["decoder.output_projection.weight"] = "decoder.embed_tokens.weight"
        if self.share_all and self.encoder is not None:
            tied["encoder.embed_tokens.weight"] = "decoder.embed_tokens.weight"
        return tied


def _said(settings: Any) -> dict[str, Any]:
    """Return the values of settings that differ from their defaults, or have none; and the activation, as ever."""
    defaults = {f.name: f.default for f in fields(settings) if f.name != "activation"}
    return {name: value for name, value in asdict(settings).items() if value != defaults.get(name, MISSING)}


def _check_names(cls: Any, values: Any, where: str) -> None:
    names = {f.name for f in fields(cls)}
    needed = {f.name for f in fields(cls) if f.default is MISSING}
    if not isinstance(values, dict) or not needed <= values.keys() <= names:
        more = ", ".join(sorted(names - needed))
        raise UserError(f"{where} must be an object with {', '.join(sorted(needed))} (and perhaps {more})")
