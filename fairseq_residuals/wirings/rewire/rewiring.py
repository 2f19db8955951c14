"""The wiring of a stack of layers that somebody else wrote: one stream, which passes from layer to layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import StackShape, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.rewire.blocks import Blocks
from fairseq_residuals.wirings.rewire.layers import LayerWiring
from fairseq_residuals.wirings.rewire.norms import Factor, Forward, MovedNorm, pass_on, replaced, take_over
from fairseq_residuals.wirings.rewire.passes import Pass, Runs, differs, together


class Rewiring(nn.Module):
    """The wiring of one stack of the framework, registered beside its layers under the name ``wiring``."""

    layers: tuple[Any, ...]
    parent: Any
    holder: Any
    """Module that has this one: the parent of the layers, or the wiring of others that it has too."""
    place: str
    """Name that this one has in it."""
    wired: list[LayerWiring]
    top_norm: nn.Module | None
    """Norm of the framework above the last layer; None where it has none."""
    above: nn.Module
    """Module that has this norm."""
    passing: Forward
    """Forward that this norm has now."""

    def __init__(self, model: nn.Module, blocks: Blocks, wiring: Wiring, shape: StackShape) -> None:
        """Connect all layers; :meth:`attach` then makes them run so."""
        super().__init__()
        self.blocks, self.shape = blocks, shape
        self.runs = Runs()
        self.variant = wiring.build(shape)
        self.names, layers = zip(*model.get_submodule(blocks.layers).named_children(), strict=True)
        parent = model.get_submodule(blocks.layers.rpartition(".")[0])
        wired = [LayerWiring(layer, blocks, *self.variant.at(i), self, i) for i, layer in enumerate(layers)]
        # these are children of others
        self.__dict__.update(layers=layers, parent=parent, wired=wired)
        self.__dict__["top_norm"] = model.get_submodule(blocks.norm) if blocks.norm else None
        self.__dict__["above"] = model.get_submodule(blocks.norm.rpartition(".")[0])
        self.undo: Callable[[], None] | None = None
        self.nests = getattr(parent, "use_nested_tensor", False)
        """Whether a :class:`torch.nn.TransformerEncoder` made nested tensors of padded ones."""
        self.turns = False
        """Whether layers are given other numbers than the stream, which only those see that bypass the wiring."""
        self.factors: dict[str, Factor] = {}
        """What stands where the wiring has norms on top and the model has none, by the layer that they are above."""

    def attach(self, stay: bool) -> None:
        """Make the layers run by this wiring; see :meth:`LayerWiring.attach`."""
        if self.nests:
            self.parent.use_nested_tensor = False  # nested tensors have no shape that a wiring could see
        topmost, norm = self.variant.at(len(self.layers) - 1)[0], self.top_norm
        if norm is not None:
            self.undo = take_over(norm, topmost, stay, self.runs)
            if self.undo is not None:
                self.passing = norm.forward = Forward(self.pass_top)
            if isinstance(own := getattr(topmost, "norm", None), MovedNorm) and type(topmost).close is Variant.close:
                own.call = pass_on  # nothing follows it in the wiring: it normalises where the framework calls it
        last = -1
        for variant, layers in self.segments():
            last += len(layers)
            if stay and hasattr(variant, "norm") and not (variant is topmost and norm is not None):
                variant.norm = self.factors[f"{self.blocks.layers}.{self.names[last]}"] = Factor()
        # of quantized layers, the norms; where transformers is to fill all, some may be there already
        floats = (p for p in self.layers[0].parameters() if p.is_floating_point() and p.dtype.itemsize > 1)
        like = max(floats, key=lambda p: p.is_meta)
        for layer, wired in zip(self.layers, self.wired, strict=True):
            wired.attach(stay)
            layer.wiring = wired.to(like.device, like.dtype).train(layer.training)
        other = getattr(self.parent, "wiring", None)
        self.__dict__["holder"] = other if isinstance(other, Rewiring) else self.parent
        self.place = self.shape.stack if isinstance(other, Rewiring) else "wiring"
        setattr(self.holder, self.place, self.to(like.device, like.dtype).train(self.parent.training))
        if not any(module.state_dict() for module in (self, *self.wired)):
            # else the weights would not tell that the model is wired, as its config says of others as well
            self.register_buffer("rewired", torch.ones(1, dtype=torch.uint8, device=like.device))

    def _replicate_for_data_parallel(self) -> Any:
        raise UserError(
            "nn.DataParallel runs copies of the layers in threads, and a rewired model cannot: start a process for each"
            " GPU, as torchrun and accelerate do"
        )

    def detach(self) -> None:
        """Undo :meth:`attach`."""
        for layer, wired in zip(self.layers, self.wired, strict=True):
            wired.detach()
            del layer.wiring
        if self.undo is not None:
            self.undo()
        if self.nests:
            self.parent.use_nested_tensor = True
        delattr(self.holder, self.place)

    @property
    def run(self) -> Pass:
        """The pass of this thread, for several may run the model at once."""
        if self.runs.now is None:
            self.runs.now = Pass()
        return self.runs.now

    def start(self, index: int, x: Tensor) -> None:
        """Begin layer ``index``.

        Args:
            x: what the framework passes to the layer; of the first, the embeddings.

        Raises:
            UserError: the layer below did not run before, or the framework passes on something else than it returned;
                layers or norms are others than those that were wired.
        """
        if index == 0:
            self._check()
            self.run.stream = self.variant.open(x)
        elif self.run.below != index - 1:
            raise UserError(
                f"layer {index} of {self.blocks.layers} runs without the layer below it, as where layers are skipped or"
                " checkpointed from outside; a wiring needs all of them, in order"
            )
        elif x is not self.run.passed and differs(x, self.run.passed):
            raise self._changed(f"between layers {index - 1} and {index} of {self.blocks.layers}")
        elif x.requires_grad and not self.run.tracked and any(tensor is not x for tensor in self.run.stream.values()):
            raise UserError(
                f"layer {index - 1} of {self.blocks.layers} is checkpointed from outside with use_reentrant=True, which"
                " passes gradients to its output alone and not to what the wiring keeps: checkpoint the whole model, or"
                " call its gradient_checkpointing_enable"
            )
        else:
            _, self.run.stream = together(x, self.run.stream)
        self.run.below = index

    def _check(self) -> None:
        """Refuse layers and a last norm that are others than those that were wired.

        Raises:
            UserError: they are.
        """
        there = tuple(self.parent.get_submodule(self.blocks.layers.rpartition(".")[2]).children())
        if len(there) != len(self.layers) or any(a is not b for a, b in zip(there, self.layers, strict=True)):
            raise UserError(
                f"{self.blocks.layers} are not the layers that were wired: cut, append or replace layers before rewire"
            )
        if self.undo is not None:
            norm: Any = getattr(self.above, self.blocks.norm.rpartition(".")[2])
            if norm.forward is not self.passing or norm is not self.top_norm:
                raise replaced(self.blocks.norm)

    def pass_top(self, x: Tensor) -> Tensor:
        """Normalise ``x``, or return it where the wiring has called the last norm, of which this is the forward.

        Raises:
            UserError: the last layer did not run, or ``x`` is something else than it returned.
        """
        run, self.runs.now = self.runs.now, None
        norm: Any = getattr(self.variant.at(len(self.layers) - 1)[0], "norm", None)
        if run is None or run.below < 0:  # a checkpoint leaves one that has not begun
            return x if norm is None else norm.normalise(x)  # type: ignore[no-any-return]
        if run.below < len(self.layers) or run.passed is None:
            raise UserError(
                f"the last of {self.blocks.layers} did not run when {self.blocks.norm} was called: a wiring needs all"
                " layers, in order; call the norm yourself once the model has returned, or again after an error in it"
            )
        if run.passed is not x and x.shape == run.passed.shape and differs(x, run.passed):
            raise self._changed(f"above {self.blocks.layers}")
        x = x.to(torch.promote_types(x.dtype, run.passed.dtype))  # as the norm does where FSDP2 casts outputs down
        return norm.normalise(x) if getattr(norm, "call", None) is pass_on else x

    def _changed(self, where: str) -> UserError:
        return UserError(
            f"{where} the stream was changed, as by a hook: a wiring has no place for that, and would go on without it"
        )

    def finish(self, index: int) -> Tensor:
        """End layer ``index``: what the framework passes on, (B, T, C)."""
        s = self.variant.after_layer(index, self.run.stream)
        if index < len(self.layers) - 1:
            self.run.passed, self.run.stream = together(s["x"], s)
            self.run.tracked = self.run.passed.requires_grad
            return self.run.passed
        self.runs.now = None
        out = self.variant.close(s)
        if out.shape != s["x"].shape:
            raise UserError(f"{self.blocks.layers} would return {tuple(out.shape)} in place of {tuple(s['x'].shape)}")
        if self.undo is not None:
            self.run.below, self.run.passed = index + 1, out
        return out

    def moved_norms(self) -> dict[str, MovedNorm]:
        """Return the norms of the framework that the wiring calls, by their names in the model."""
        owners: dict[str, Any] = {self.blocks.norm: self.variant.at(len(self.layers) - 1)[0]}
        for name, wired in zip(self.names, self.wired, strict=True):
            for kind, sub in wired.described.items():
                if sub.movable_norm:
                    owners[f"{self.blocks.layers}.{name}.{sub.movable_norm}"] = wired.connection(kind)
        norms = {name: getattr(owner, "norm", None) for name, owner in owners.items()}
        return {name: norm for name, norm in norms.items() if isinstance(norm, MovedNorm)}

    def norms(self) -> dict[str, nn.Module]:
        """Return the norms of the framework that are given what the wiring chooses, by their names in the model."""
        beside = {
            f"{self.blocks.layers}.{name}.{norm}": wired.layer.get_submodule(norm)
            for name, wired in zip(self.names, self.wired, strict=True)
            for sub in wired.described.values()
            if sub.norm_beside
            for norm in sub.norms
        }
        return {name: moved.norm for name, moved in self.moved_norms().items()} | beside

    def segments(self) -> list[tuple[Variant, nn.ModuleList]]:
        """Return the variants of this stack from the bottom, each with the layers that it wires."""
        of = [self.variant.at(i)[0] for i in range(len(self.layers))]
        return [
            (variant, nn.ModuleList(layer for layer, owner in zip(self.layers, of, strict=True) if owner is variant))
            for variant in dict.fromkeys(of)
        ]
