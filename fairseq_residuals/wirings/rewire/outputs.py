"""Outputs of a model, by which it is compared with what it becomes.

What would hide a difference is made to show for a while: maps that start at 0, dropouts, and stochastic depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_residuals.wirings.blocks.models import evaluating
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.rewire.passes import fed, first
from fairseq_residuals.wirings.utils.torch_private import times_written

TOLERANCE = 1e-3
"""Largest difference of an output, of their standard deviation, that rounding is taken to explain."""


@contextmanager
def recorded(modules: Mapping[str, nn.Module]) -> Iterator[tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]]:
    """Record what modules are given, and what they return.

    Raises:
        UserError: somebody writes into that.
    """
    given: dict[str, list[Tensor]] = {name: [] for name in modules}
    returned: dict[str, list[Tensor]] = {name: [] for name in modules}
    written: list[tuple[str, Tensor, int]] = []

    def record(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        for tensors, x in ((given, fed(args, kwargs)), (returned, first(output))):
            if isinstance(x, Tensor):
                written.append((name, x, times_written(x)))
            # what runs beside sub-layers may be given and return anything
            tensors[name].append(x.detach() if isinstance(x, Tensor) else x)

    handles = [
        module.register_forward_hook(lambda _, *call, name=name: record(name, *call), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        yield given, returned
        if name := next((name for name, x, times in written if times_written(x) != times), ""):
            raise UserError(
                f"what {name} is given or returns is written into, which a wiring would keep: instead of y += x, the"
                " code of the layers has to say y = y + x"
            )
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def drawn(model: nn.Module, norms: Iterable[nn.Module]) -> Iterator[None]:
    """Draw parameters of one number, or of 0 and 1, for a while: maps that start at 0 hide what a sub-layer computes.

    Args:
        norms: whose parameters stay as they are.
    """
    left = {parameter for norm in norms for parameter in norm.parameters()}
    starts: dict[nn.Parameter, Tensor] = {}
    seed = torch.Generator().manual_seed(1)
    try:
        for parameter in model.parameters():
            # quantized and sharded ones stay as they are
            is_plain = type(parameter.data) is Tensor and parameter.is_floating_point() and parameter.dtype.itemsize > 1
            if parameter in left or not is_plain or parameter.is_meta or not parameter.numel():
                continue
            number = parameter.detach().flatten()[0].clone()
            is_number = bool((parameter == number).all())
            if is_number or (float(number) in (0.0, 1.0) and bool(((parameter == 0) | (parameter == 1)).all())):
                starts[parameter] = number if is_number else parameter.detach().clone()
                deviation = parameter.size(-1) ** -0.5 if parameter.dim() > 1 else 0.2
                parameter.data.add_(torch.randn(parameter.shape, generator=seed).to(parameter), alpha=deviation)
        yield
    finally:
        for parameter, start in starts.items():
            parameter.data.copy_(start)


class Dropouts(TorchFunctionMode):
    """Have dropouts multiply, and what is drawn be a number, for a while: what a description leaves out shows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.dropout:
            given = dict(zip(("input", "p"), args, strict=False)) | (kwargs or {})
            return given["input"] * (1 - given.get("p", 0.5) / 2)
        if func is nn.functional.scaled_dot_product_attention:  # what it drops is within a sub-layer
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            return func(**dict(zip(names, args, strict=False)) | (kwargs or {}) | {"dropout_p": 0.0})
        if func in (Tensor.bernoulli_, torch.bernoulli, torch.rand, torch.rand_like):  # functions of stochastic depth
            return func(*args, **(kwargs or {})).fill_(0.625)
        return func(*args, **(kwargs or {}))


@contextmanager
def acting(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Have what acts in training alone, such as stochastic depth, multiply, for a while, as dropouts do."""
    acts: dict[nn.Module, bool] = {}

    def multiply(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if module not in acts:  # the model runs as it was made: norms pass nothing on yet
            acts[module] = isinstance(output, Tensor) and any(output is x for x in args) and _acts(module, output)
        return output * 0.75 if acts[module] else None

    modules: set[nn.Module] = set()
    for layer in layers:
        modules.update(layer.modules())
        # what acts may be a function that the layer's own code calls
        layer.training = not getattr(layer, "gradient_checkpointing", False)
    with ExitStack() as hooks:
        for module in (module for module in modules if not [*module.children(), *module.parameters()]):
            hooks.callback(module.register_forward_hook(multiply).remove)
        yield


def _acts(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module that passes ``x`` on in evaluation does not in training."""
    module.train()
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        output = module.forward(x)
    module.eval()
    return output is not x


def outputs_of(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return what is compared of a model's output: its logits, or else all of its tensors of two dimensions or more.

    Hidden states are the wiring's stream, and no output. The least number there is rules words out, as -inf does.

    Raises:
        UserError: there is no such tensor.
    """
    args = batch if isinstance(batch, tuple) else () if isinstance(batch, Mapping) else (batch,)
    output = model(*args, **(batch if isinstance(batch, Mapping) else {}))
    found = [x for x in _tensors(getattr(output, "logits", output)) if x.is_floating_point() and x.dim() > 1]
    if not found:
        raise UserError(f"{type(model).__name__} returns no tensor of two dimensions or more to compare")
    return [x.masked_fill(x == torch.finfo(x.dtype).min, -torch.inf).float() for x in found]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors([part for name, part in output.items() if not str(name).endswith("hidden_states")])
    elif isinstance(output, tuple | list):
        for part in output:
            yield from _tensors(part)


def difference_of(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the largest difference of two outputs, as a share of the standard deviation on its side of the mean.

    What is infinite in both, such as logits of words that are ruled out, does not differ. TAPAS takes 10,000 from such
    logits instead, and what the others differ by is no share of that. Other shapes, such as a longer speech, differ by
    infinity.
    """
    shares = []
    for x, y in ((x, y) for x, y in zip(before, after, strict=True) if not torch.equal(x, y)):
        if x.shape != y.shape:
            return torch.inf
        finite, differences = x[x.isfinite()], (y - x).masked_fill(x == y, 0.0).abs()
        whole, high = finite.std() if finite.numel() > 1 else finite.abs().max(), x > finite.mean()
        for side in (high, ~high):
            differing, own = differences[side], x[side & x.isfinite()]
            if differing.any():
                deviation = own.std(correction=0) if own.numel() else 0.0
                shares.append(differing.max() / (deviation + whole / 100 if deviation > 0 else whole))
    return float(torch.stack(shares).max()) if shares else 0.0


def tolerance_of(model: nn.Module, ends: Iterable[nn.Module], batch: Any, before: list[Tensor]) -> float:
    """Return the largest difference, as a share, that rounding in the model's precision is taken to explain.

    In half precision it is twice the difference that comes of rounding otherwise what sub-layers return.

    Args:
        ends: modules by which sub-layers end.
        before: what the model returns.
    """
    eps = torch.finfo(next(model.parameters()).dtype).eps
    if eps < TOLERANCE / 16:
        return TOLERANCE
    draw = torch.Generator().manual_seed(1)

    def round_otherwise(module: nn.Module, args: Any, output: Any) -> Any:
        y = first(output)
        share = (torch.randn(y.shape, generator=draw) / 4).clamp(-0.5, 0.5).to(y.device)
        y = (y * (1 + eps * share)).to(y.dtype)
        return y if output is first(output) else type(output)((y, *output[1:]))

    with ExitStack() as hooks:
        for module in ends:
            hooks.callback(module.register_forward_hook(round_otherwise).remove)
        differences = [difference_of(before, outputs_of(model, batch)) for _ in range(3)]
    return max(TOLERANCE, 2 * max(differences))


def example_for(model: Any) -> dict[str, Tensor]:
    """Return random words or pixels that a model of transformers runs on.

    Raises:
        UserError: it is another kind of model, or needs more than these.
    """
    like, seed = next(model.parameters()), torch.Generator().manual_seed(1)
    refusal = f"give batch=, what {type(model).__name__} is to be called with to compare its outputs"
    try:
        config, name = model.config, model.main_input_name
        if name == "input_ids":
            text = config.get_text_config()
            words = torch.randint(text.vocab_size, (2, 12), generator=seed).to(like.device)
            pad = getattr(text, "pad_token_id", None)
            if pad is not None:  # whose embedding is 0, of which a norm shows its eps
                words[words == pad] = text.vocab_size // 2
            batch = {name: words} | ({"decoder_input_ids": words[:, :9]} if config.is_encoder_decoder else {})
        else:
            size, channels = config.image_size, getattr(config, "num_channels", 3)
            size = (size, size) if isinstance(size, int) else size
            batch = {name: torch.randn(2, channels, *size, generator=seed).to(like.device, like.dtype)}
        with evaluating(model):
            model(**batch)
    except Exception as error:  # what the config does not say, or the model misses
        raise UserError(refusal) from error
    return batch
