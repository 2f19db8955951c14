"""Rewire a model that somebody else wrote, in place: :func:`rewire`, and :func:`load` for what it made."""

from __future__ import annotations

import copy
import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.wirings.blocks.models import evaluating
from fairseq_residuals.wirings.build import Named, Options, parse_wiring
from fairseq_residuals.wirings.core.base import Connection, StackShape, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.rewire.blocks import UNCALLED, Blocks, SubLayerNames
from fairseq_residuals.wirings.rewire.keep import EPS, STARTS, Start, calibrate, eps_of, is_rms, rescale, start_values
from fairseq_residuals.wirings.rewire.outputs import (
    TOLERANCE,
    Dropouts,
    acting,
    difference_of,
    drawn,
    example_for,
    outputs_of,
    recorded,
    tolerance_of,
)
from fairseq_residuals.wirings.rewire.rewiring import Rewiring
from fairseq_residuals.wirings.rewire.traced import trace_blocks

Model = TypeVar("Model", bound=nn.Module)
SETTINGS = "fairseq_residuals"
"""Attribute of a config of transformers: how the model is wired."""
DRAWING = frozenset(("init", "init_scale", "beta", "init_std", "out_scale"))
"""Options, all for training alone, by which a wiring draws the weights of sub-layers."""


def rewire(
    model: Model,
    variant: Named,
    options: Options | None = None,
    *,
    start: Literal["keep", "paper"] = "keep",
    batch: Any = None,
    blocks: Blocks | Sequence[Blocks] | None = None,
) -> Model:
    """Wire the layers of a model of transformers, timm or one's own, in place.

    The framework's loop, modules and names of parameters stay. Its norms are called where the wiring has norms, and new
    parameters have ``.wiring.`` in their names.

    Args:
        model: whose layers are recognised by running it (:mod:`.traced`), or described by ``blocks``.
        variant: as for :func:`.build_stack`.
        options: of the wiring, as for :func:`.build_stack`.
        start: ``keep``: the model computes what it computed, with options and values chosen for it; ``paper``: the
            wiring starts as its authors have it. Weights of the model stay as they are either way.
        batch: what the model is called with, to see its layers and to compare its outputs: a dictionary of keyword
            arguments, a tuple of positional ones, or a tensor; by default, for models of transformers, random words or
            pixels.
        blocks: where the layers are, of the encoder first.

    Returns:
        ``model``.

    Raises:
        UserError: the layers are not known, or do not compute what is known of them; the wiring cannot start from this
            model, or needs what its sub-layers do not show. The model is then as it was.
    """
    if start not in ("keep", "paper"):
        raise UserError(f"start={start!r} is unknown; valid are keep, paper")
    if _is_wired(model):
        raise UserError("this model is rewired already; rewire a fresh one")
    # torch.compile has a model within its own, and so has PEFT
    whole, model = model, getattr(model, "_orig_mod", model)
    model = getattr(model, "get_base_model", lambda: model)()
    wiring = parse_wiring(variant, options)
    given = [blocks] if isinstance(blocks, Blocks) else list(blocks or ())
    _check_weights(model)
    with torch.compiler.set_stance("force_eager"):  # hooks come and go, and functions are watched
        batch = example_for(model) if batch is None else batch
        known, wiring, stacks = _wire(model, given or trace_blocks(model, batch), wiring, start, batch)
    if hasattr(getattr(model, "config", None), "save_pretrained"):  # others than transformers' own write no config
        eps = {name: eps_of(norm) for stack in stacks for name, norm in stack.norms().items()}
        factors = {name: factor.number for stack in stacks for name, factor in stack.factors.items()}
        record = {"variant": wiring.name, "options": wiring.args, "start": start, "eps": eps, "factors": factors}
        part = {"part": type(model).__name__, "blocks": [asdict(blocks) for blocks in known]}
        _own_config(model)
        setattr(model.config, SETTINGS, record | part)
    return whole


def load(path: str | Path, *, wiring: type[Connection] | type[Variant] | None = None, **kwargs: Any) -> Any:
    """Load a rewired model of transformers from the folder that its ``save_pretrained`` wrote.

    Args:
        path: of the folder; of a model on the Hub, what ``huggingface_hub.snapshot_download`` returns.
        wiring: the class that wired the model, where it is one of your own that is not registered.
        kwargs: of ``from_pretrained``, such as ``dtype``.

    Raises:
        UserError: the folder has no config, one of no rewired model, or other weights than it describes.
    """
    tells, path = kwargs.pop("output_loading_info", False), Path(path, kwargs.pop("subfolder", None) or "")
    try:
        text = (path / "config.json").read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no folder of a model of transformers: {error}") from None
    if f'"{SETTINGS}"' not in text:
        raise UserError(
            f"the config in {path} has no wiring: from_pretrained of transformers loads what was not rewired; where the"
            " body of a rewired model was put into it, rewire the whole"
        )
    name = (config.get("architectures") or [""])[0]
    transformers = importlib.import_module("transformers")
    base: Any = getattr(transformers, name, None)
    if not (isinstance(base, type) and issubclass(base, transformers.PreTrainedModel)):
        raise UserError(f"transformers has no model {name!r}, of which {path} is one")

    frozen: set[str] = set()

    def initialise(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        super(wired, self).__init__(config, *args, **kwargs)
        # what was rewired may be a part, such as the language model of one that sees
        for part in [module for module in self.modules() if isinstance(module, transformers.PreTrainedModel)]:
            settings = getattr(part.config, SETTINGS, {})
            if settings.get("part") == type(part).__name__ and not _is_wired(part):
                _restore(part, settings, wiring)
        if not _is_wired(self):
            raise UserError(f"the config in {path} names no part of {name} that is wired as this version does it")
        frozen.update(key for key, parameter in self.named_parameters() if not parameter.requires_grad)

    kinds, kind = transformers.CONFIG_MAPPING, config.get("model_type")
    own = {"config_class": kinds[kind]} if kind in kinds else {}  # EXAONE's is its own, of a class that is Llama's
    wired: Any = type(name, (base,), {"__init__": initialise, "__module__": base.__module__} | own)
    # where transformers saves other names for .self_attn. (EXAONE), a dot stands for any character
    renamed = {r"\.wiring\.[a-z.]+\.connection\.": ".wiring.self_attn_connection."}
    model, told = wired.from_pretrained(path, output_loading_info=True, **{"key_mapping": renamed} | kwargs)
    if missing := [key for key in told["missing_keys"] if ".wiring." in f".{key}"]:
        raise UserError(
            f"{path} has no {min(missing)}: its config says that the model was rewired, and its weights are of one that"
            " was not, such as one that from_pretrained of transformers had loaded, or an earlier version saved them"
        )
    if others := {*told["missing_keys"], *told["unexpected_keys"]}:
        raise UserError(
            f"the weights in {path} and the model of its config do not both have {min(others)}: layers or parameters"
            " were cut, tied or adapted, which the config has to say, or an argument of load changes what it says"
        )
    for module in model.modules():
        if reset_buffers := getattr(module, "reset_buffers", None):  # what no file holds, transformers leaves empty
            reset_buffers()
    for key in frozen & dict(model.named_parameters()).keys():
        model.get_parameter(key).requires_grad_(False)  # transformers has put a trained parameter in its place
    model.__class__ = base
    return (model, told) if tells else model


def _wire(
    model: nn.Module, known: Sequence[Blocks], wiring: Wiring, start: str, batch: Any
) -> tuple[list[Blocks], Wiring, list[Rewiring]]:
    """Wire layers as they are described.

    Returns:
        The description with what was measured, the wiring with the options that the model needs, and its stacks.

    Raises:
        UserError: as :func:`rewire`.
    """
    _check_layers(model, known)
    norms = {name: model.get_submodule(name) for name in _norms(model, known)}
    with evaluating(model), drawn(model, norms.values()), Dropouts(), acting(_layers(model, known).values()):
        watched = norms | _layers(model, known) | _ends(model, known, summed=False) | _beside(model, known)
        with recorded(watched) as seen:
            before = outputs_of(model, batch)
        known = [_measured(model, blocks, *seen) for blocks in known]
        wiring = fitted(wiring, model, known, start)
        tolerance = tolerance_of(model, _ends(model, known, summed=True).values(), batch, before)
        _confirm(model, known, batch, before, tolerance)
        stacks = attach(model, known, wiring, start)
        try:
            _settle(model, stacks, wiring, start, batch, before, tolerance, seen)
        except Exception:
            for stack in stacks:
                stack.detach()
            raise
    return known, wiring, stacks


def _own_config(model: Any) -> None:
    """Give a model a copy of its config where that says how another model, with which it is shared, is wired."""
    copies: dict[int, Any] = {}
    if hasattr(model.config, SETTINGS):
        copy.deepcopy(model.config, copies)
        for module in model.modules():
            if own := copies.get(id(vars(module).get("config"))):
                module.config = own


def _is_wired(model: nn.Module) -> bool:
    return any(isinstance(module, Rewiring) for module in model.modules())


def fitted(wiring: Wiring, model: nn.Module, known: Sequence[Blocks], start: str) -> Wiring:
    """Return the wiring with the options that a model needs where the user named none.

    Raises:
        UserError: the wiring or an option has no meaning in layers of somebody else.
    """
    for _, layer, sublayers in _described(model, known) if start == "paper" else ():
        if any(sub.norm_beside for sub in sublayers):
            raise UserError(
                f"{type(layer).__name__} has a norm for each of two branches, where a wiring has one: only"
                ' start="keep" leaves them where they are'
            )
    norms = [norm for name in _norms(model, known) if not isinstance(norm := model.get_submodule(name), nn.Identity)]
    if batches := [norm for norm in norms if any(isinstance(part, nn.BatchNorm1d) for part in norm.modules())]:
        raise UserError(f"{type(batches[0]).__name__} normalizes over sentences, and norms of a wiring over channels")
    functions = [sub.function for sub in known[0].sublayers if sub.function]
    if "rms_norm" in functions or (norms and is_rms(norms[0], next(model.parameters()).new_ones(known[0].dim))):
        wiring = wiring.with_default("norm_type", "rms")
    eps = next(iter(eps_of(norms[0]).values()), None) if norms else None
    for place, part in enumerate(wiring.parts, start=1):
        keep = STARTS.get(part.name, Start()) if start == "keep" else Start()
        copied = {"norm_eps": eps} if keep.copies and eps is not None else {}
        for option, value in {**keep.options, **copied}.items():
            wiring = wiring.with_default(option, value)
        is_normed = place == len(wiring.parts) and all(blocks.norm for blocks in known)
        if start == "keep" and not is_normed and "final_norm" in part.given and part.config.final_norm:
            raise UserError(f"option final_norm of {part.name}: the model has no norm there, and would be another one")
        if drawing := part.given & DRAWING:
            raise UserError(f"option {min(drawing)} draws the weights of sub-layers, and the model has its own already")
        if part.name == "admin":
            raise UserError("admin profiles a stack of its own before training: use build_stack")
        if part.variant.evaluate is not Variant.evaluate:
            raise UserError(f"{part.name} runs a layer several times, which would fill its cache as often")
        if not part.variant.has_ffn:
            raise UserError(f"{part.name} takes the place of the FFN, which the layers of this model have")
    return wiring


def _check_weights(model: nn.Module) -> None:
    """Refuse weights that are not there, of less precision than the stream, or that processes train together."""
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UserError("DistributedDataParallel shares no gradients of what a model is given later: rewire it before")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError("the model has no weights yet, or they are offloaded: rewire the model with them")
    halves = {parameter.dtype for parameter in model.parameters()} & {torch.float16, torch.bfloat16}
    if halves and any(getattr(module, "residual_in_fp32", False) for module in model.modules()):
        raise UserError(f"layers keep the stream in single precision, which a wiring has in {halves.pop()}")


def _check_layers(model: nn.Module, known: Sequence[Blocks]) -> None:
    """Refuse layers that do not all run, or not in one place, for the stream is no argument of theirs."""
    for blocks in known:
        _check_names(model, blocks)
        owner = model.get_submodule(blocks.layers.rpartition(".")[0])
        # wav2vec 2.0 and its like ask the config
        if any(getattr(place, "layerdrop", 0) for place in (owner, getattr(owner, "config", None))):
            raise UserError(f"{type(owner).__name__} skips layers in training: set its layerdrop to 0 before rewire")
        layers = _layers(model, [blocks]).values()
        if any("forward" in vars(layer) for layer in layers):
            raise UserError(f"a layer of {blocks.layers} runs another forward than that of its class")
        if any(isinstance(module, nn.Sequential) for module in (owner, *layers)):
            raise UserError(f"a layer of {blocks.layers}, or what holds them, is nn.Sequential, which runs all it has")
        devices = {p.device for p in model.get_submodule(blocks.layers).parameters()}
        if len(devices) > 1:
            raise UserError(f"{blocks.layers} are on several devices; a wiring needs its stack on one")
    names: dict[nn.Module, str] = {}
    for name in _norms(model, known):
        norm = model.get_submodule(name)
        if (other := names.setdefault(norm, name)) != name and [*norm.parameters()]:
            raise UserError(f"{other} and {name} are one norm, and a wiring needs one for each: give each a copy")


def _check_names(model: nn.Module, blocks: Blocks) -> None:
    """Refuse names of nothing in the model, and projections that no layer has."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in (blocks.layers, blocks.norm):
        if name not in modules:
            raise UserError(f"{type(model).__name__} has no {name}")
    layers = _layers(model, [blocks])
    if not layers:
        raise UserError(f"{blocks.layers} of {type(model).__name__} holds no layers")
    for sub in itertools.chain(blocks.sublayers, *blocks.others):
        for name in filter(None, (sub.query, sub.key, sub.value, sub.inner)):
            if not any(f"{layer}.{name}" in modules for layer in layers):
                raise UserError(f"no layer of {blocks.layers} has {name}")


def attach(model: nn.Module, known: Sequence[Blocks], wiring: Wiring, start: str) -> list[Rewiring]:
    """Wire the layers; weights of the wiring start as its authors have it.

    Args:
        start: ``paper``: norms of the model where the wiring has none are left out.
    """
    depths: dict[str, int] = {blocks.stack: len(_layers(model, [blocks])) for blocks in known}
    stacks = []
    for blocks in known:
        shape = StackShape(
            stack=blocks.stack,
            depth=depths[blocks.stack],
            dim=blocks.dim,
            ffn_dim=4 * blocks.dim,  # where a layer does not show its own
            heads=blocks.heads or 1,
            enc_depth=depths.get("encoder", 0),
            dec_depth=depths.get("decoder", 0),
            cross=len(known) == 2 or blocks.crosses,
        )
        stacks.append(Rewiring(model, blocks, wiring, shape))
    for stack in stacks:
        stack.attach(stay=start == "keep")
    return stacks


def _settle(
    model: nn.Module,
    stacks: list[Rewiring],
    wiring: Wiring,
    start: str,
    batch: Any,
    before: list[Tensor],
    tolerance: float,
    passed: Any,
) -> None:
    """Start the wiring, and see that it runs.

    Args:
        before: what the model returned, and ``passed`` what norms and layers were given, and what they returned.

    Raises:
        UserError: it does not compute what the model computed, where it should.
    """
    norms = {name: norm for stack in stacks for name, norm in stack.norms().items()}
    owners: list[Any] = [owner for stack in stacks for owner in (stack.variant, *stack.wired)]
    vain = frozenset(("norm_type", "norm_eps")).intersection(*(part.given for part in wiring.parts))
    if vain and not any(is_norm(module) for owner in owners for module in owner.modules()):
        raise UserError(f"option {min(vain)} has no effect: all norms of {wiring.name} are the model's own here")
    if start == "paper":
        outputs_of(model, batch)
        return
    for stack in stacks:
        start_values(stack)
    moved = {name: norm for stack in stacks for name, norm in stack.moved_norms().items()}
    eps = {name: eps_of(norm) for name, norm in norms.items()}
    beside = {name: norms[name] for name in norms.keys() - moved}
    tops = {name: model.get_submodule(name) for stack in stacks for name in stack.factors}
    given, returned = passed
    # a last norm may be given the stream turned, or a part of it; the wiring calls it on what the last layer returns
    given = given | {s.blocks.norm: returned[f"{s.blocks.layers}.{s.names[-1]}"] for s in stacks if s.blocks.norm}
    for _ in range(len(norms) + 2):  # a norm is given a multiple once all below it are right
        for norm in moved.values():
            norm.seen = []
        with recorded(beside | tops) as (seen, made):
            difference = difference_of(before, outputs_of(model, batch))
        seen |= {name: norm.seen or [] for name, norm in moved.items()}
        for norm in moved.values():
            norm.seen = None
        changed = [calibrate(stack, given, seen, eps) for stack in stacks]
        changed += [rescale(stack, returned, made) for stack in stacks]
        if not any(changed):
            break
    if difference <= tolerance:
        return
    for name, module in norms.items():
        vars(module).update(eps[name])
    half = f", and rounding explains {tolerance:.1e}: float32 would tell" if tolerance > TOLERANCE else ""
    raise UserError(
        f"{wiring.name} cannot start as the model that was: outputs differ by {difference:.1e} of their standard"
        f' deviation{half}; start="paper" wires it nevertheless'
    )


def _restore(model: nn.Module, settings: Mapping[str, Any], own: type[Connection] | type[Variant] | None) -> None:
    """Wire a model as ``settings`` of its config say; its weights are to be loaded.

    Raises:
        UserError: the wiring is not registered, and ``own`` is not its class.
    """
    known = [Blocks.of(blocks) for blocks in settings["blocks"]]
    name = settings["variant"]
    # a name with layers or options is of wirings that are registered, and parse says what is wrong with it
    is_known = own.__name__ == name if own else name in VARIANTS or not name.isidentifier()
    if not is_known:
        raise UserError(f"the model is wired by {name}: where that is a class of yours, say load(..., wiring={name})")
    wiring = Wiring.of(own, settings["options"]) if own else Wiring.parse(name, settings["options"])
    stacks = attach(model, known, wiring, settings["start"])
    for name, factor in (item for stack in stacks for item in stack.factors.items()):
        factor.number = float(settings.get("factors", {}).get(name, 1.0))
    for name, norm in (item for stack in stacks for item in stack.norms().items()):
        for attribute, value in settings["eps"].get(name, {}).items():
            if attribute in EPS:
                setattr(norm, attribute, float(value))


def _confirm(model: nn.Module, known: Sequence[Blocks], batch: Any, before: list[Tensor], tolerance: float) -> None:
    """Compare the model with itself wired as it is described: with norms before sub-layers, or after sums.

    Raises:
        UserError: it computes something else.
    """
    stacks: list[Rewiring] = []
    for blocks in known:
        stacks += attach(model, [blocks], parse_wiring("post_ln" if blocks.post_norm else "pre_ln", None), "keep")
        stacks[-1].turns = True
    try:
        difference = difference_of(before, outputs_of(model, batch))
    finally:
        for stack in stacks:
            stack.detach()
    if not difference <= tolerance:
        raise UserError(
            f"the layers of {type(model).__name__} do not compute x + F(norm(x)), nor norm(x + F(x)), or read x"
            f" elsewhere too: outputs would differ by {difference:.1e} of their standard deviation; describe the layers"
            " by blocks=, and by its post_norm whether norms follow the sums"
        )


def _heads(model: nn.Module, layer: nn.Module) -> int:
    """Return the heads of a layer's attention; 0 where nothing says how many."""
    names = ("num_attention_heads", "num_heads", "n_head", "n_heads")
    owners = (*layer.modules(), getattr(model, "config", None))
    return next((h for m in owners for n in names if isinstance(h := getattr(m, n, None), int)), 0)


def _layers(model: nn.Module, known: Sequence[Blocks]) -> dict[str, nn.Module]:
    return {
        f"{blocks.layers}.{name}": layer
        for blocks in known
        for name, layer in model.get_submodule(blocks.layers).named_children()
    }


def _described(model: nn.Module, known: Sequence[Blocks]) -> Iterator[tuple[str, nn.Module, tuple[SubLayerNames, ...]]]:
    """Yield each layer by its name, with its sub-layers."""
    for blocks in known:
        for name, layer in _layers(model, [blocks]).items():
            yield name, layer, blocks.of_layer(layer)


def _ends(model: nn.Module, known: Sequence[Blocks], *, summed: bool) -> dict[str, nn.Module]:
    """Return the modules by which sub-layers end.

    Args:
        summed: whether those are among them of which a wiring is given the sum.
    """
    return {
        f"{name}.{end}": layer.get_submodule(end)
        for name, layer, sublayers in _described(model, known)
        for sub in sublayers
        if summed or not sub.beside
        for end in filter(None, (sub.leave or sub.enter, sub.beside))
    }


def _beside(model: nn.Module, known: Sequence[Blocks]) -> dict[str, nn.Module]:
    """Return the parts of layers, or of lists in them, that have parameters and are of no sub-layer."""
    parts = {}
    for name, layer, sublayers in _described(model, known):
        used = [f"{place}." for sub in sublayers for place in (*sub.needs, sub.dropout)]
        holders = {"", *(part for part, child in layer.named_children() if isinstance(child, UNCALLED))}
        for part, module in layer.named_modules():
            is_part = part and part.rpartition(".")[0] in holders
            if is_part and not any(place.startswith(f"{part}.") for place in used) and [*module.parameters()]:
                parts[f"{name}.{part}"] = module
    return parts


def _norms(model: nn.Module, known: Sequence[Blocks]) -> list[str]:
    described = _described(model, known)
    names = [f"{name}.{norm}" for name, _, sublayers in described for sub in sublayers for norm in sub.norms]
    return names + [blocks.norm for blocks in known if blocks.norm]


def _measured(
    model: nn.Module, blocks: Blocks, given: Mapping[str, list[Tensor]], returned: Mapping[str, list[Tensor]]
) -> Blocks:
    """Return a description with the width of the stream, the number of heads, and a norm that runs on top alone.

    Raises:
        UserError: a layer was not run once, was not given what the layer below it returned, or changes its shape.
    """
    names = list(_layers(model, [blocks]))
    if any(len(given[name]) != 1 for name in names):
        raise UserError(f"the layers of {blocks.layers} do not run once each when the model is called with batch")
    shapes = dict.fromkeys(str(tuple(x.shape)) for name in names for x in (given[name][0], returned[name][0]))
    if len(shapes) > 1:
        raise UserError(
            f"{blocks.layers} have inputs and outputs of several shapes, {', '.join(shapes)}: a stream has one"
        )
    for below, name in itertools.pairwise(names):
        if not torch.equal(given[name][0], returned[below][0]):
            raise UserError(
                f"between {below} and {name} the model changes the stream, which it would go on to do beside the wiring"
            )
    numbers = {_heads(model, model.get_submodule(name)) for name in names}
    heads = blocks.heads or (numbers.pop() if len(numbers) == 1 else 0)
    idle = {part[len(blocks.layers) + 1 :].partition(".")[2] for part in _beside(model, [blocks]) if not given[part]}
    # one that the model calls below the layers too (nanochat's in transformers) stays with it
    on_top = len(given.get(blocks.norm, ())) == 1 and not isinstance(model.get_submodule(blocks.norm), nn.Identity)
    norm = blocks.norm if on_top else ""
    return replace(blocks, dim=given[names[0]][0].size(-1), heads=heads, norm=norm, idle=tuple(sorted(idle)))
