"""Whole models on PyTorch alone: a language model, and an encoder with a decoder, wired as any paper has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.embedding import Positions
from fairseq_residuals.wirings.blocks.halves import Decoder, Encoder, build_halves
from fairseq_residuals.wirings.blocks.search import beam_search, check_tokens, sample
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings, StackSettings
from fairseq_residuals.wirings.build import (
    LayerOptions,
    Named,
    Options,
    check_effects,
    check_sizes,
    layer_settings,
    parse_wiring,
    start_omegas,
)
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.initialization import initialise
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.documents import parse_json
from fairseq_residuals.wirings.utils.precision import at_least_fp32

SETTINGS_FILE, WEIGHTS_FILE = "model.json", "model.safetensors"


class EmbeddingOptions(LayerOptions, total=False):
    """Options of a model beside its sizes and its wiring; the defaults are fairseq's."""

    positions: Positions
    """Kind of the embeddings of positions; by default none where positions are rotary, else sinusoids."""
    max_positions: int
    """The longest sentence where positions are learned; by default 1,024."""
    scale: float
    """Factor on the embeddings of tokens; by default sqrt(dim)."""
    input_dim: int
    """Channels of the embeddings of tokens, which are projected where these are not ``dim``."""
    norm_embedding: bool
    """Whether a LayerNorm follows the sum of embeddings."""


class SearchOptions(TypedDict, total=False):
    """Options of how sentences are continued."""

    max_new_tokens: int
    """Tokens at most, by default 100; fewer where no more positions were learned."""
    num_beams: int
    """Hypotheses at a time, by default 1: the most probable token is taken each time."""
    length_penalty: float
    """Power of the length by which a beam search divides scores, by default 1."""
    temperature: float
    """Divisor of the logits before a token is drawn; by default 0: none is drawn."""
    top_k: int
    """Number of the tokens that are drawn from, by default all."""
    top_p: float
    """Probability, among these, of the tokens that are drawn from, by default 1."""


class TransformerModel(nn.Module):
    """A model as its settings say; its weights are yet to be loaded, or to be drawn as its wirings ask."""

    def __init__(self, settings: ModelSettings, wiring: Wiring | None = None) -> None:
        """Build it; ``wiring`` is that of a class, which settings cannot name."""
        super().__init__()
        self.settings, self.is_of_class = settings, wiring is not None
        self.encoder, self.decoder = build_halves(settings, wiring)
        _tie(self)
        # what comes from the device meta, or is assigned, is a parameter for each name
        self.register_load_state_dict_post_hook(_tie)

    def save(self, folder: str | Path) -> None:
        """Write settings and weights to a folder, which is made if it is not there.

        Raises:
            UserError: the wiring is a class, a weight is quantized or sharded, or the package safetensors is missing.
            OSError: a file cannot be written.
        """
        for name, weight in self.named_parameters():
            if (kind := type(weight)) is not nn.Parameter:
                raise UserError(f"{name} is a {kind.__name__}, quantized or sharded: save the model before that")
        if self.is_of_class:
            raise UserError(
                f"load would not know {self.settings.decoder.residual}: give the name that register_variant has given"
                " the class, or save state_dict() and build the model anew"
            )
        safetensors, folder = safetensors_package(), Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(self, str(folder / WEIGHTS_FILE))
        write_settings(self.settings, "weights", folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the model that :meth:`save` has written, on the CPU and in evaluation; nothing in its files is run.

        Raises:
            UserError: a file is missing or damaged, or is of another model; or the package safetensors is missing.
        """
        safetensors, folder = safetensors_package(), Path(folder)
        settings = read_settings(folder, "weights", f"{cls.__name__}.save")
        if issubclass(cls, EncoderDecoder if settings.encoder is None else LanguageModel):
            raise UserError(f"{folder} holds another kind of model than {cls.__name__}")
        model = cls.__new__(cls)
        TransformerModel.__init__(model, settings)
        try:
            weights = safetensors.torch.load_file(folder / WEIGHTS_FILE)
            for name, parameter in model.named_parameters():
                # of two that are tied, the file has one
                parameter.data = parameter.data.to(weights.get(name, weights["decoder.embed_tokens.weight"]).dtype)
            safetensors.torch.load_model(model, folder / WEIGHTS_FILE)
        except (OSError, RuntimeError, LookupError, safetensors.SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder / WEIGHTS_FILE} is missing, damaged, or of another model: {reason}") from error
        start_omegas(model)  # of one that was saved before it was trained
        return model.eval()

    def _start(self, wiring: Wiring, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Draw the weights as papers have it, for training.

        Raises:
            UserError: a setting is none that could be loaded, such as a number of NumPy's.
        """
        ModelSettings.of_json(self.settings.to_json())
        halves = [half for half in (self.encoder, self.decoder) if half is not None]
        for half in halves:
            check_effects(half.layers, half.settings, wiring)
        initialise([(half, half.layers) for half in halves])
        start_omegas(self)
        self.to(device=device, dtype=dtype)

    def generate(
        self,
        prompts: Tensor,
        source: Tensor | None = None,
        *,
        max_new_tokens: int = 100,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> list[list[int]]:
        """Continue prompts, (B, T), given what an encoder reads, (B, S)."""
        decoder, end = self.decoder.settings, self.settings.end
        check_sizes(max_new_tokens=max_new_tokens, num_beams=num_beams)
        if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
            raise UserError("temperature and top_k must be at least 0, and top_p above 0 and at most 1")
        if not temperature and (top_k or top_p < 1):
            raise UserError("top_k and top_p say what is drawn from: give a temperature, such as 1.0, too")
        if num_beams > 1 and temperature:
            raise UserError("a beam is searched and not drawn: leave out num_beams, or temperature")
        if num_beams == 1 and length_penalty != 1:
            raise UserError("length_penalty compares hypotheses of a beam: give num_beams, such as 4, too")
        if num_beams > 1 and end < 0:
            raise UserError("beam search needs a token that ends sentences: build the model with end=")
        if decoder.positions == "learned":  # the last token is not read
            max_new_tokens = min(max_new_tokens, decoder.max_positions - prompts.size(1) + 1)
        tokens = {"padding": decoder.padding, "end": end}
        with evaluating(self):
            steps = DecoderSteps(self.decoder, self.encoder, source, num_beams)
            if num_beams == 1:
                draw = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
                return sample(steps, prompts, longest=max_new_tokens, **draw, **tokens)  # type: ignore[arg-type]
            # the end is the last of the tokens
            sizes = {"beam": num_beams, "longest": max_new_tokens - 1}
            found = beam_search(steps, prompts, **sizes, length_penalty=length_penalty, **tokens)
        return [hypotheses[0].tokens for hypotheses in found]


class LanguageModel(TransformerModel):
    """A decoder alone, with its embeddings and its output matrix."""

    def __init__(
        self,
        variant: Named,
        *,
        vocab: int,
        depth: int,
        dim: int,
        heads: int,
        ffn_dim: int,
        options: Options | None = None,
        tied: bool = True,
        padding: int | None = None,
        end: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parts: Unpack[EmbeddingOptions],
    ) -> None:
        """Build it, wired and initialised as a paper has it.

        Args:
            variant, depth, dim, heads, ffn_dim, options, device, dtype: as for :func:`.build_stack`.
            vocab: size of the vocabulary.
            tied: whether the output matrix is the embedding.
            padding: the token that pads sentences; None: none does.
            end: the token behind which :meth:`generate` stops; None: none.
            parts: what else the model is made of, as :class:`EmbeddingOptions` and :class:`.LayerOptions` say.

        Raises:
            UserError: as :func:`.build_stack`.
        """
        _apart(padding, end)
        sizes = {"words": vocab, "layers": depth, "dim": dim, "heads": heads, "ffn_dim": ffn_dim}
        stack, asked, wiring = _stack_settings(variant, options, sizes, _token("padding", padding, vocab), **parts)
        settings = ModelSettings(
            encoder=None,
            decoder=stack,
            output_dim=stack.input_dim if tied else dim,
            share_input_output=tied,
            share_all=False,
            end=_token("end", end, vocab),
        )
        super().__init__(settings, wiring)
        self._start(asked, device, dtype)

    def forward(self, tokens: Tensor, *, cache: DecoderCache | None = None) -> Tensor:
        """Return logits, (B, T) -> (B, T, words).

        Args:
            cache: of the tokens before, to which those given are added.
        """
        return self.decoder(tokens, cache=cache)  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean cross entropy of each token after the first, (B, T) -> (); padding counts for nothing.

        Raises:
            UserError: there is no token after the first, or no batch.
        """
        if tokens.dim() != 2 or tokens.size(1) < 2:
            raise UserError(f"tokens must be (sentences, tokens), of two tokens at least, not {tuple(tokens.shape)}")
        padding, target = self.decoder.padding_of(tokens[:, :-1]), tokens[:, 1:]
        if padding is not None:  # that on the left is no token before the first one
            target = target.masked_fill(padding, self.decoder.padding_idx)
        return _loss(self(tokens[:, :-1]), target, self.decoder, label_smoothing)

    def generate(self, prompts: Tensor, **search: Unpack[SearchOptions]) -> list[list[int]]:  # type: ignore[override]
        """Continue prompts: greedily, by draws at a temperature, or by a beam search.

        Args:
            prompts: (B, T), padded on the left.
            search: how, as :class:`SearchOptions` says.

        Returns:
            The new tokens of each sentence, with its end if it has one.

        Raises:
            UserError: an argument is not valid.
        """
        check_tokens("prompts", prompts, self.decoder.settings, dims=2)
        padding = self.decoder.padding_of(prompts)
        if padding is not None and padding[:, -1].any():
            raise UserError("prompts must be padded on the left: what follows the last column is generated")
        return super().generate(prompts, **search)


class EncoderDecoder(TransformerModel):
    """An encoder and a decoder that reads its output, each with its embeddings, and the output matrix."""

    encoder: Encoder

    def __init__(
        self,
        variant: Named,
        *,
        vocab: int | tuple[int, int],
        depth: int | tuple[int, int],
        dim: int,
        heads: int,
        ffn_dim: int,
        options: Options | None = None,
        tied: bool = True,
        padding: int = PAD,
        end: int = EOS,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parts: Unpack[EmbeddingOptions],
    ) -> None:
        """Build it, wired and initialised as a paper has it.

        Args:
            variant, dim, heads, ffn_dim, options, device, dtype: as for :func:`.build_stack`, of both stacks.
            vocab: size of the vocabulary that source and target share, or of theirs.
            depth: layers of both stacks, or of the encoder and of the decoder.
            tied: whether the output matrix is the decoder's embedding, and the encoder's of a vocabulary that they
                share.
            padding: the token that pads sentences.
            end: the token that ends sentences, with which the decoder begins.
            parts: what else the model is made of, as :class:`EmbeddingOptions` and :class:`.LayerOptions` say.

        Raises:
            UserError: as :func:`.build_stack`.
        """
        (words, target_words), (layers, target_layers) = (x if isinstance(x, tuple) else (x, x) for x in (vocab, depth))
        sizes = {"dim": dim, "heads": heads, "ffn_dim": ffn_dim}
        _token("padding", padding, min(words, target_words))
        _apart(padding, end)
        encoder, decoder = (
            _stack_settings(variant, options, {"words": w, "layers": n, **sizes}, padding, **parts)
            for w, n in ((words, layers), (target_words, target_layers))
        )
        super().__init__(
            ModelSettings(
                encoder[0],
                decoder[0],
                decoder[0].input_dim if tied else dim,
                share_input_output=tied,
                share_all=tied and isinstance(vocab, int),
                end=_token("end", end, min(words, target_words)),
            ),
            decoder[2],
        )
        self._start(decoder[1], device, dtype)

    def forward(self, source: Tensor, tokens: Tensor, *, cache: DecoderCache | None = None) -> Tensor:
        """Return logits, (B, S) and (B, T) -> (B, T, words).

        Args:
            tokens: what the decoder is given, which begins with the end of a sentence.
            cache: of the tokens before, to which those given are added.
        """
        return self.decoder(tokens, self.encoder(source), self.encoder.padding_of(source), cache)  # type: ignore[no-any-return]

    def loss(self, source: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean cross entropy of the target's tokens, (B, S) and (B, T) -> (); padding counts for nothing.

        Args:
            source, target: sentences with their ends, padded on the right.

        Raises:
            UserError: they are no batches.
        """
        if source.dim() != 2 or target.dim() != 2:
            shapes = f"{tuple(source.shape)} and {tuple(target.shape)}"
            raise UserError(f"source and target must be (sentences, tokens), not {shapes}")
        begin = torch.full_like(target[:, :1], self.settings.end)
        return _loss(self(source, torch.cat([begin, target[:, :-1]], 1)), target, self.decoder, label_smoothing)

    def generate(self, source: Tensor, **search: Unpack[SearchOptions]) -> list[list[int]]:  # type: ignore[override]
        """Return targets of sources: greedily, by draws at a temperature, or by a beam search.

        Args:
            source: (B, S), sentences with their ends, padded on the right.
            search: how, as :class:`SearchOptions` says.

        Returns:
            The tokens of each target, with its end if it was reached.

        Raises:
            UserError: an argument is not valid.
        """
        check_tokens("source", source, self.encoder.settings, dims=2)
        return super().generate(torch.full_like(source[:, :1], self.settings.end), source, **search)


class DecoderSteps:
    """The :class:`~.search.Steps` of a decoder with its cache."""

    def __init__(self, decoder: Decoder, encoder: Encoder | None, source: Tensor | None, beam: int) -> None:
        """Encode the source (B, S) of a pair, of which each sentence gets ``beam`` rows."""
        self.decoder, self.cache = decoder, DecoderCache()
        self.memory = self.padding = None
        if encoder is not None and source is not None:
            self.memory = encoder(source).repeat_interleave(beam, 1)
            padding = encoder.padding_of(source)
            self.padding = None if padding is None else padding.repeat_interleave(beam, 0)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read new tokens, (rows, T), and return the logits behind the last of them, (rows, words)."""
        return self.decoder(tokens, self.memory, self.padding, self.cache)[:, -1]  # type: ignore[no-any-return]

    def reorder(self, rows: Tensor) -> None:
        """Go on with other rows; those of a sentence have one memory."""
        self.cache.reorder(rows)


def _tie(model: TransformerModel, loaded: Any = None) -> None:
    """Have one parameter for those that are tied, unless a state dict had other numbers for one of them."""
    for name, original in model.settings.tied.items():
        module: Any = model.get_submodule(name.removesuffix(".weight"))
        own, weight = module.weight, model.get_parameter(original)
        if own is weight:
            continue
        absent = loaded is None or name in loaded.missing_keys
        if absent or (type(own) is type(weight) and torch.equal(own, weight)):  # one may be quantized
            module.weight = weight


def _stack_settings(
    variant: Named, options: Options | None, sizes: dict[str, int], padding: int, **parts: Unpack[EmbeddingOptions]
) -> tuple[StackSettings, Wiring, Wiring | None]:
    """Return the settings of a stack with its embeddings, the wiring, and it once more if it is a class."""
    dim, heads, ffn_dim = (sizes[name] for name in ("dim", "heads", "ffn_dim"))
    check_sizes(vocab=sizes["words"], depth=sizes["layers"], dim=dim, heads=heads, ffn_dim=ffn_dim)
    if dim % heads:
        raise UserError(f"dim={dim} is not divisible by heads={heads}")
    given: dict[str, Any] = dict(parts)
    positions = given.pop("positions", "none" if given.get("rotary") else "sinusoidal")
    if positions not in get_args(Positions):
        raise UserError(f"positions={positions!r} is unknown; valid are {', '.join(get_args(Positions))}")
    if "max_positions" in given and positions != "learned":
        raise UserError(
            f"max_positions is the number of learned positions, and with positions={positions!r} does nothing"
        )
    own: dict[str, Any] = {
        "max_positions": given.pop("max_positions", 1024),
        "input_dim": given.pop("input_dim", dim),
        "embed_scale": float(given.pop("scale", dim**0.5)),
        "norm_embedding": given.pop("norm_embedding", False),
    }
    check_sizes(max_positions=own["max_positions"], input_dim=own["input_dim"])
    layers, options = layer_settings(dim, heads, ffn_dim, options, **given)
    wiring = parse_wiring(variant, options)
    if "scale" not in parts and any(getattr(part.config, "mup", False) for part in wiring.parts):
        raise UserError("option mup has embeddings that do not grow with dim: give scale, such as 1.0, not sqrt(dim)")
    own |= {"residual": wiring.name, "residual_args": wiring.args, "positions": positions, "padding": padding}
    return StackSettings(**asdict(layers) | sizes | own), wiring, None if isinstance(variant, str) else wiring


def _token(name: str, token: int | None, words: int) -> int:
    """Return the number of a token, -1 for None.

    Raises:
        UserError: the vocabulary has no such token.
    """
    if token is not None and not 0 <= token < words:
        raise UserError(f"{name}={token} is no token of a vocabulary of {words}")
    return -1 if token is None else token


def _apart(padding: int | None, end: int | None) -> None:
    """Check that padding, which counts for nothing, is not the end, which a model learns.

    Raises:
        UserError: it is.
    """
    if end is not None and padding == end:
        raise UserError(
            f"padding and end are both token {end}: no end would be learned or generated; give padding another"
        )


def _loss(logits: Tensor, target: Tensor, decoder: Decoder, label_smoothing: float) -> Tensor:
    """Return the mean cross entropy, (B, T, words) and (B, T) -> (), in single precision at least."""
    ignored = decoder.padding_idx if decoder.padding_idx >= 0 else -100
    exact = at_least_fp32(logits).flatten(0, 1)
    return cross_entropy(exact, target.flatten(), ignore_index=ignored, label_smoothing=label_smoothing)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model without gradients and without dropout, and leave the mode of its modules as it was."""
    modes, usual = {module: module.training for module in model.modules()}, model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        # a module that was added meanwhile has the mode of the model
        for module in model.modules():
            module.training = modes.get(module, usual)


def safetensors_package() -> Any:
    """Return the package safetensors.

    Raises:
        UserError: it is missing.
    """
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise UserError("this needs the package safetensors: pip install safetensors") from error
    return safetensors


def write_settings(settings: ModelSettings, kind: str, folder: Path, **more: Any) -> None:
    """Write what :func:`read_settings` reads."""
    content = {"format": kind, "model": settings.to_json(), **more}
    (folder / SETTINGS_FILE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_settings(folder: Path, kind: str, written_by: str) -> ModelSettings:
    """Read the settings of a model that a folder holds.

    Args:
        kind: the format of the rest.
        written_by: what writes such folders, for messages.

    Raises:
        UserError: the folder holds none of this kind, or those of another version.
    """
    try:
        content = parse_json((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no exported model: {SETTINGS_FILE} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise UserError(f"{folder} was not written by {written_by}")
    return ModelSettings.of_json(content.get("model"))
