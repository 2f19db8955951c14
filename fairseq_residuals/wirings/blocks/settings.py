"""What has to be known to build a trained model again: plain values, which JSON can hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring

FORMAT_VERSION = 1
"""Of the settings and of the parameters' names."""
Positions = Literal["sinusoidal", "learned", "none"]
PAD, EOS, UNK = 1, 2, 3
"""Tokens of every dictionary of fairseq; its decoders begin with EOS."""


@dataclass(frozen=True)
class StackSettings:
    """An encoder or decoder with what is below it."""

    residual: str
    """As ``--residual`` takes it."""
    residual_args: str
    """As ``--residual-args`` takes it, every option spelled out."""
    words: int
    layers: int
    dim: int
    heads: int
    ffn_dim: int
    activation: str
    positions: Positions
    max_positions: int
    embed_scale: float
    """Factor on the embeddings of tokens."""
    input_dim: int
    """Channels of the embeddings of tokens; they are projected where it is not ``dim``."""
    norm_embedding: bool
    """Whether a LayerNorm follows the sum of embeddings (``--layernorm-embedding``)."""

    @classmethod
    def of_json(cls, values: Any, where: str) -> StackSettings:
        """Check values that a file holds.

        Raises:
            UserError: one is missing, unknown, of another type or out of range.
        """
        types = {f.name: f.type for f in fields(cls)}
        if not isinstance(values, dict) or values.keys() != types.keys():
            raise UserError(f"{where} must be an object with {', '.join(types)}")
        numbers = ("words", "layers", "dim", "heads", "ffn_dim", "max_positions", "input_dim")
        for name in numbers:
            if type(values[name]) is not int or not 0 < values[name] < 2**31:
                raise UserError(f"{name} of {where} must be a whole number of at least 1, not {values[name]!r:.80}")
        texts = {"activation": tuple(ACTIVATIONS), "positions": get_args(Positions)}
        for name, valid in texts.items():
            if values[name] not in valid:
                raise UserError(f"{name} of {where} must be one of {', '.join(valid)}, not {values[name]!r:.80}")
        for name in ("residual", "residual_args"):
            if not isinstance(values[name], str):
                raise UserError(f"{name} of {where} must be text, not {values[name]!r:.80}")
        if type(values["norm_embedding"]) is not bool or type(values["embed_scale"]) not in (int, float):
            raise UserError(f"norm_embedding and embed_scale of {where} must be true or false, and a number")
        if values["dim"] % values["heads"]:
            raise UserError(f"dim={values['dim']} of {where} is not divisible by heads={values['heads']}")
        return cls(**values)

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

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

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
        names = {f.name for f in fields(cls)}
        if values.keys() != names:
            raise UserError(f"the model's settings must have {', '.join(sorted(names))}")
        encoder = values["encoder"]
        encoder = None if encoder is None else StackSettings.of_json(encoder, "encoder")
        decoder = StackSettings.of_json(values["decoder"], "decoder")
        for name in ("share_input_output", "share_all"):
            if type(values[name]) is not bool:
                raise UserError(f"{name} of the model's settings must be true or false")
        if type(values["output_dim"]) is not int or not 0 < values["output_dim"] < 2**31:
            raise UserError("output_dim of the model's settings must be a whole number of at least 1")
        return cls(encoder, decoder, values["output_dim"], values["share_input_output"], values["share_all"])
