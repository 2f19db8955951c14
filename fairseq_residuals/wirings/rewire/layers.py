"""Run a wiring inside a layer that somebody else wrote.

A layer computes ``x + F(norm(x))``, or ``norm(x + F(x))``, by code of its own. Hooks stand at both ends of each F: what
goes in is replaced by what the wiring reads, and what comes out is what the wiring writes. The sums in between, which
the layer's code goes on to make, are of no use, and nothing reads them. Norms stay where they are as modules, but pass
on what the layers' code gives them: the wiring calls them at its own places. So the framework keeps its loop, its
arguments, its cache and the names of its parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_residuals.wirings.core.attention import Edit
from fairseq_residuals.wirings.core.base import Connection, Kind, Stream, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS, Layer, keys_and_values
from fairseq_residuals.wirings.rewire.blocks import Blocks, SubLayerNames
from fairseq_residuals.wirings.rewire.norms import FUNCTIONS, MovedNorm, replaced, take_over
from fairseq_residuals.wirings.rewire.passes import Pass, Seen, fed, first
from fairseq_residuals.wirings.utils.torch_private import has_backward_hooks, last_forward_hook
from fairseq_residuals.wirings.wrap import NAMES, PLACES

if TYPE_CHECKING:
    from fairseq_residuals.wirings.rewire.rewiring import Rewiring

INSIDE = {"edit_query": "query", "edit_key": "key", "edit_value": "value"}
"""Edits of a wiring, each with the projection whose output is edited."""
WIDTHS: dict[Kind, str] = {"self": "heads_dim", "ffn": "ffn_dim"}
"""What a last linear map is fed, by the width of it that wirings ask for."""
ACTIVATIONS, FED = "the activations", "the inputs of keys and values"
"""Places inside sub-layers, in words, beside those of edits."""


def width_of(linear: nn.Module) -> int:
    """Return the inputs of a linear map; the matrix of transformers' own class for GPT-2 is transposed."""
    return int(getattr(linear, "in_features", 0) or len(linear.weight))  # type: ignore[arg-type]


def _parted(what: str, found: Tensor, stream: Tensor) -> UserError:
    return UserError(
        f"{what} {tuple(found.shape)} where the stream is {tuple(stream.shape)}: a wiring needs all positions at once,"
        " not chunks or other views of them, and layers without streams of their own"
    )


class Hook:
    """A method of a layer's wiring at a module of that layer; it acts in one turn of putting hooks on modules.

    In turn 0, that of a copy of the module alone, it does nothing. A module that takes the place of another, such as a
    quantized one, may bring the other's hooks along, which are of an earlier turn.
    """

    def __init__(self, wired: LayerWiring, turn: int, method: Callable[..., Any], *args: Any) -> None:
        self.wired, self.turn, self.method, self.args = wired, turn, method, args

    def __call__(self, *call: Any) -> Any:
        return self.method(self.wired, *self.args, *call) if self.turn == self.wired.turn else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        is_whole = id(self.wired.layer) in memo
        wired = copy.deepcopy(self.wired, memo) if is_whole else self.wired
        return Hook(wired, self.turn if is_whole else 0, self.method, *self.args)


class LayerWiring(Layer):
    """The connections of one layer of the framework, registered in it under the name ``wiring``."""

    layer: Any
    stack: Rewiring

    def __init__(
        self, layer: nn.Module, described: Blocks, variant: Variant, place: int, stack: Rewiring, index: int
    ) -> None:
        """Connect the sub-layers; :meth:`attach` then makes the layer run so.

        Args:
            variant: what wires it, and ``place`` which of its layers it is.
            stack: what the layer is part of, and ``index`` which of its layers it is.
        """
        super().__init__()
        # neither is a child: the layer has this module, and so has the stack
        self.__dict__.update(layer=layer, stack=stack)
        self.index = index
        sublayers = described.of_layer(layer)
        self.described = {sub.kind: sub for sub in sublayers}
        if len(self.described) < len(sublayers):
            raise UserError(f"{described.layers} have two sub-layers of one kind: wrap takes them, rewire does not")
        self.post_norm, self.wired_by = described.post_norm, variant.name
        self.idle = [name for name, _ in layer.named_modules() if name in described.idle]
        self.handles: list[Any] = []
        self.turn = 0
        """How often hooks were put on modules; those of another turn do nothing."""
        self.hooked: dict[str, nn.Module] = {}
        self.leaving: list[tuple[nn.Module, int]] = []
        """Modules with the numbers of the hooks that write what they return, which have to be their last ones."""
        self.moved: list[tuple[str, nn.Module, Callable[..., Any], Callable[[], None]]] = []
        """Norms that the wiring calls: name in the layer, if it has one; forward from now on; what puts it back."""
        functions = {kind: sub.function for kind, sub in self.described.items() if sub.function}
        if unknown := functions.values() - FUNCTIONS.keys():
            raise UserError(f"function={min(unknown)!r} is unknown; valid are {', '.join(FUNCTIONS)}")
        dim = stack.shape.dim
        self.functions = {kind: FUNCTIONS[name](dim, elementwise_affine=False) for kind, name in functions.items()}
        """Norms that are no modules of the layer; once it is attached, those that stay parts of sub-layers."""
        widths: dict[str, Any] = {
            WIDTHS[kind]: width_of(layer.get_submodule(sub.inner))
            for kind, sub in self.described.items()
            if sub.inner and kind in WIDTHS
        }
        for kind, site in self.sites(variant, place, self.described).items():
            widths["keys_dim"] = getattr(layer.get_submodule(self.described[kind].key), "out_features", 0)
            connection = self.connect(variant, replace(site, **widths))
            connection.attention = self.attended
            self.add_module(CONNECTIONS[kind], connection)
            if kind == "ffn" and self.edits_inside(kind) and not self.described[kind].inner:
                raise self._unseen(ACTIVATIONS, kind, layer.get_submodule(self.described[kind].enter))
            if kind != "ffn" and type(connection).attend is not Connection.attend and not described.heads:
                raise UserError(
                    f"{variant.name} sees into attention: say how many heads it has, in all layers as many, by an"
                    " attribute num_heads of the attention, or by Blocks(heads=...)"
                )
        self.add_options(variant, place)

    def attach(self, stay: bool) -> None:
        """Make the layer run by this wiring.

        Args:
            stay: whether the norms of the layer stay parts of the sub-layers where the wiring has no norms; else they
                normalise nothing from now on.
        """
        for kind, sub in self.described.items():
            connection = self.connection(kind)
            movable = sub.movable_norm
            norm = self.layer.get_submodule(movable) if movable else self.functions.get(kind)
            stays = stay and not self.post_norm and connection.summation != "post"
            if norm is None:
                if stays and hasattr(connection, "norm"):
                    connection.norm = nn.Identity()
            elif undo := take_over(norm, connection, stays, self.stack.runs):
                self.moved.append((movable, norm, norm.forward, undo))
                self.functions.pop(kind, None)
                if sub.enter == movable and isinstance(moved := getattr(connection, "norm", None), MovedNorm):
                    moved.call = moved.normalise  # hooks run where the framework calls it
            elif movable and sub.enter:
                # part of the sub-layer
                self.described[kind] = replace(sub, enter=movable, leave=sub.leave or sub.enter)
        self.hook()
        # torch.compile makes eight forms of one code object at most, and layers that it compiles one by one differ
        code = LayerWiring.run_layer.__code__.replace(co_name=f"run_layer_{self.index}")
        run_layer = FunctionType(code, LayerWiring.run_layer.__globals__, LayerWiring.run_layer.__name__)
        self.layer.forward = MethodType(run_layer, self)

    def detach(self) -> None:
        """Undo :meth:`attach`."""
        for handle in self.handles:
            handle.remove()
        for *_, undo in self.moved:
            undo()
        del self.layer.forward

    def hook(self) -> None:
        """Put hooks on the modules that the description names, where others have taken their places since."""
        for handle in self.handles:
            handle.remove()
        self.handles, self.leaving, self.turn = [], [], self.turn + 1
        for kind, sub in self.described.items():
            if sub.enter:
                enters = Hook(self, self.turn, LayerWiring.enter, kind)
                where = {"prepend": sub.enter != sub.norm, "with_kwargs": True}  # hooks of a norm may make its weights
                self.handles.append(self._module(sub.enter).register_forward_pre_hook(enters, **where))
            for name, leave in ((sub.leave or sub.enter, LayerWiring.leave), (sub.beside, LayerWiring.leave_both)):
                if name:
                    self.handles.append(self._module(name).register_forward_hook(Hook(self, self.turn, leave, kind)))
                    self.leaving.append((self.hooked[name], self.handles[-1].id))
            if self.edits_inside(kind):
                self._hook_inside(kind, sub)
        for name in self.idle:
            refuses = Hook(self, self.turn, LayerWiring.refuse, name)
            self.handles.append(self._module(name).register_forward_pre_hook(refuses))

    def refuse(self, name: str, module: nn.Module, args: Any) -> None:
        """Refuse to run a module that did not run when the model was rewired.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"{name} of {type(self.layer).__name__} did not run when the model was rewired, and what it adds would be"
            " lost: give rewire a batch that runs it"
        )

    def _hook_inside(self, kind: Kind, sub: SubLayerNames) -> None:
        for edit, place in INSIDE.items():
            if name := getattr(sub, place):
                edits = Hook(self, self.turn, LayerWiring.edit_output, kind, edit)
                feeds = Hook(self, self.turn, LayerWiring.feed, kind, place)
                self.handles.append(self._module(name).register_forward_hook(edits))
                self.handles.append(self._module(name).register_forward_pre_hook(feeds, prepend=True))
        if sub.inner:
            edits = Hook(self, self.turn, LayerWiring.edit_inner, kind)
            self.handles.append(self._module(sub.inner).register_forward_pre_hook(edits, prepend=True))

    def _module(self, name: str) -> nn.Module:
        self.hooked[name] = self.layer.get_submodule(name)
        return self.hooked[name]

    def edits_inside(self, kind: Kind) -> bool:
        """Return whether the wiring may have to see into a sub-layer."""
        connection = type(self.connection(kind))
        if kind == "ffn":
            return connection.inner is not Connection.inner
        return connection.attend is not Connection.attend or (kind == "self" and self.value_residual is not None)

    def run_layer(self, *args: Any, **kwargs: Any) -> Any:
        """Run the framework's layer in place of its own forward, with its arguments and results.

        Raises:
            UserError: an older transformers checkpoints it.
        """
        self._check()
        moved = any(self.layer.get_submodule(name) is not module for name, module in self.hooked.items())
        if moved or any(last_forward_hook(module) != own for module, own in self.leaving):
            self.hook()  # adapters have been put around linear maps, or taken away; or others have hooks too
        self.stack.start(self.index, fed(args, kwargs))
        can_checkpoint = hasattr(self.layer, "_gradient_checkpointing_func") and self.layer.gradient_checkpointing
        is_checkpointed = can_checkpoint and self.layer.training
        if is_checkpointed and type(self.layer).__call__ is not nn.Module.__call__:  # the checkpoint is outside
            raise UserError("gradient checkpointing of a rewired model needs transformers 5.23 or newer")
        if is_checkpointed and torch.is_grad_enabled():
            out = self._run_checkpointed(args, kwargs)
        else:
            out = self._run(type(self.layer).forward, args, kwargs)
        x = self.stack.finish(self.index)
        return (x, *out[1:]) if isinstance(out, (tuple, list)) else x

    def _check(self) -> None:
        """Refuse to run beside modules that took the places of the wiring's, which would have no effect.

        Raises:
            UserError: there are some.
        """
        if self.layer.wiring is not self or getattr(self.stack.holder, self.stack.place) is not self.stack:
            raise UserError(
                "a copy stands in place of the wiring, as PEFT's modules_to_save makes one: train the wiring itself, by"
                " requires_grad_(True) of the parameters that have .wiring. in their names"
            )
        for name, norm, passing, _ in self.moved:
            if name and (self.layer.get_submodule(name) is not norm or norm.forward is not passing):
                raise replaced(f"{name} of a layer")

    def _run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the framework's forward, on what the wiring reads where the whole layer is one sub-layer."""
        self.stack.run.entered, self.stack.run.records = -1, torch.is_grad_enabled()
        if self.stack.turns:
            x = fed(args, kwargs)
            args = tuple(x.roll(1, -1) if value is x else value for value in args)
            kwargs = {name: x.roll(1, -1) if value is x else value for name, value in kwargs.items()}
        for kind, sub in self.described.items():
            if not sub.enter:
                args, kwargs = self.enter(kind, self.layer, args, kwargs)
        return forward(self.layer, *args, **kwargs)

    def _run_checkpointed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Checkpoint the layer together with the stream, which the framework's own checkpoint does not know."""
        # as the framework does: a layer that runs twice would write its keys and values into a cache twice
        kwargs |= {name: None for name in ("cache", "past_key_values", "layer_past", "use_cache") if name in kwargs}
        plain = type(self.layer).forward.__wrapped__  # type: ignore[attr-defined]
        keys, n = list(self.stack.run.stream), len(args)
        keys_after, is_tuple = keys, False

        def run(*given: Any) -> tuple[Any, ...]:
            nonlocal keys_after, is_tuple
            self.stack.run.stream = dict(zip(keys, given[n:], strict=True))
            try:
                out = self._run(plain, given[:n], kwargs)
                is_tuple = isinstance(out, (tuple, list))
                keys_after = list(self.stack.run.stream)
                # no parameter itself (ReZero's gain), which a reentrant checkpoint would turn into its result
                stream = (tensor.view_as(tensor) for tensor in self.stack.run.stream.values())
                return (*stream, *(out[1:] if is_tuple else ()))
            finally:
                self.stack.run.clear()  # also where a recomputation stops before the end

        results = self.layer._gradient_checkpointing_func(run, *args, *self.stack.run.stream.values())
        self.stack.run.stream = dict(zip(keys_after, results[: len(keys_after)], strict=True))
        return (None, *results[len(keys_after) :]) if is_tuple else None

    def _pass(self) -> Pass:
        """Return the pass in which this layer runs.

        Raises:
            UserError: a part of the layer runs outside of one, or without gradients: those of the stream would be lost.
        """
        run = self.stack.run
        if not run.stream or run.records != torch.is_grad_enabled():
            raise UserError(
                f"a part of {type(self.layer).__name__} runs by itself, or without gradients: checkpoint the whole"
                " model and not parts of a layer, and instead of torch.no_grad() there, say requires_grad_(False)"
            )
        return run

    def enter(self, kind: Kind, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Feed a sub-layer what the wiring reads, in place of its input."""
        connection, run = self.connection(kind), self._pass()
        if connection.site.index <= run.entered:
            raise UserError(f"{NAMES[kind]} runs before it should: describe sub-layers in the order in which they run")
        run.entered = connection.site.index
        given = fed(args, kwargs)
        h, s = connection.read(run.stream)
        if not isinstance(h, Tensor):  # I-BERT's come with their scales
            raise UserError(f"a norm of {type(self.layer).__name__} returns more than a tensor")
        flattened = given.dim() < h.dim() and given.numel() == h.numel()  # OPT's FFN sees all positions in one row
        if given.shape != h.shape and not flattened:
            raise _parted(f"{NAMES[kind]} was called with", given, h)
        run.stream, run.unseen = s, set()
        h = (self.functions[kind](h) if kind in self.functions else h).reshape(given.shape)
        if self.edits_inside(kind):
            if kind == "ffn":
                run.unseen = {ACTIVATIONS}
            else:
                self._ask(kind, module, h, s)
        # of PyTorch's attention, keys and values are the same tensor once more
        return (
            tuple(h if value is given else value for value in args),
            {name: h if value is given else value for name, value in kwargs.items()},
        )

    def _ask(self, kind: Kind, module: nn.Module, h: Tensor, s: Stream) -> None:
        """Note what the wiring does inside of attention; its hooks do it.

        Raises:
            UserError: the attention does not show it.
        """
        run, edits = self.stack.run, {}
        run.output, run.kept = None, {}
        if kind == "self" and self.value_residual is not None:
            edits = self.value_residual.edits(s, run.kept)
        key, value = keys_and_values(h, s) if kind == "self" else (h, h)
        with torch.no_grad():
            self.connection(kind).attend(module, h, key, value, s, **edits)
        assert run.asked is not None
        sub = self.described[kind]
        wanted = {edit: INSIDE.get(edit, "inner" if edit == "edit_heads" else "") for edit in run.asked.edits}
        if unseen := [PLACES[edit] for edit, place in wanted.items() if not (place and getattr(sub, place))]:
            raise self._unseen(" and ".join(unseen), kind, module)
        # projections of keys and values do not run where cross-attention has those in a cache
        run.unseen = {PLACES[edit] for edit, place in wanted.items() if kind == "self" or place in ("query", "inner")}
        if run.asked.key is not h or run.asked.value is not h:
            run.unseen.add(FED)
            if not (sub.key and sub.value):
                raise self._unseen(FED, kind, module)
        width = width_of(self.layer.get_submodule(sub.inner)) if "edit_heads" in wanted else h.size(-1)
        if width != h.size(-1):
            raise UserError(f"{self.wired_by} needs heads as wide as the stream, {h.size(-1)}, which here are {width}")

    def _unseen(self, place: str, kind: Kind, module: nn.Module) -> UserError:
        return UserError(
            f"{self.wired_by} has to see {place} of {NAMES[kind]}, which {type(module).__name__} does not show; choose"
            " another wiring"
        )

    def attended(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, **edits: Edit
    ) -> tuple[Tensor, Tensor | None]:
        """Note what a connection asks of attention, and return the output, or the query while that is not there."""
        run = self.stack.run
        run.asked = Seen(query, key, value, edits)
        return query if run.output is None else run.output, None

    def feed(self, kind: Kind, place: str, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Feed the projection of keys or values what the wiring makes them of."""
        run = self._pass()
        if run.asked is None or (x := getattr(run.asked, place)) is run.asked.query:
            return args
        run.unseen.discard(FED)
        return (x, *args[1:])

    def edit_output(self, kind: Kind, edit: str, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Edit what a projection returns."""
        run = self._pass()
        if run.asked is None or edit not in run.asked.edits:
            return output
        run.unseen.discard(PLACES[edit])
        return run.asked.edits[edit](output)

    def edit_inner(self, kind: Kind, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Edit what the last linear map of a sub-layer is fed."""
        if kind != "ffn":
            return (self.edit_output(kind, "edit_heads", module, args, args[0]), *args[1:])
        self.stack.run.unseen.discard(ACTIVATIONS)
        return (self.connection(kind).inner(args[0]), *args[1:])

    def leave(self, kind: Kind, module: nn.Module, args: Any, output: Any) -> None:
        """Write what a sub-layer returns into the stream, or keep it for :meth:`leave_both`.

        Raises:
            UserError: a linear map that the wiring acts on was not called, but its weights read, as by kernels of
                :class:`torch.nn.MultiheadAttention`.
        """
        connection, run = self.connection(kind), self._pass()
        if run.unseen:
            raise self._unseen(" and ".join(sorted(run.unseen)), kind, self.layer)
        s, y = run.stream, self._returned(module, output)
        if kind != "ffn" and self.edits_inside(kind):
            run.output = y
            y, _, s = connection.attend(module, y, *keys_and_values(y, s), s)
            s = s | run.kept
            run.asked, run.output, run.kept = None, None, {}
        if self.described[kind].beside:
            run.branch, run.stream = self._drop(kind, y), s
        else:
            self._write(kind, self._drop(kind, self._outer(kind, y)), s)

    def leave_both(self, kind: Kind, module: nn.Module, args: Any, output: Any) -> None:
        """Write the sum of what two modules return into the stream.

        Raises:
            UserError: the second one ran first.
        """
        run = self._pass()
        if run.branch is None:
            raise UserError(f"{self.described[kind].beside} ran before {self.described[kind].leave}: exchange the two")
        y = run.branch + self._drop(kind, self._returned(module, output))
        run.branch = None
        self._write(kind, self._outer(kind, y), run.stream)

    def _returned(self, module: nn.Module, output: Any) -> Tensor:
        if has_backward_hooks(module) and torch.is_grad_enabled():
            raise UserError(
                f"a full backward hook of {type(module).__name__} would see no gradient, since the wiring takes what it"
                " returns before PyTorch does: use a forward hook that calls output.register_hook(...)"
            )
        y, x = first(output), self.stack.run.stream["x"]
        if y.dim() == 2 < x.dim() and len(y) == x.shape[:-1].numel():  # some experts see all positions in one row
            y = y.unflatten(0, x.shape[:-1])
        if y.shape != x.shape:  # SAM's attention is given windows, and the norm before it is not
            raise _parted(f"{type(module).__name__} returned", y, x)
        return y

    def _outer(self, kind: Kind, y: Tensor) -> Tensor:
        scale = self.described[kind].scale
        return self.connection(kind).outer(y * getattr(self.layer, scale) if scale else y)

    def _write(self, kind: Kind, y: Tensor, s: Stream) -> None:
        connection = self.connection(kind)
        if self.gpas is not None and connection.summation == "post":
            s = s | {"x": self.gpas(s["x"])}
        s = connection.write(s, y)
        if self.gpas is not None and connection.summation == "pre":
            s = s | {"x": self.gpas(s["x"])}
        self.stack.run.stream = s

    def _drop(self, kind: Kind, y: Tensor) -> Tensor:
        name = self.described[kind].dropout
        drop = getattr(self.layer, name) if name else 0.0
        return drop(y) if isinstance(drop, nn.Module) else dropout(y, drop, self.layer.training)
