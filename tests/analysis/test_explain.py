"""The diagram of a wiring says what the paper's equations say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from analysed_models import TINY, arguments
from torch import nn

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.look import models, plots
from fairseq_residuals.lab.look.explain import draw_scheme
from fairseq_residuals.lab.look.probes import stacks as wired_stacks
from fairseq_residuals.lab.look.scheme import module_names, scheme_of
from fairseq_residuals.lab.look.trace import Graph, trace_layer
from fairseq_residuals.wirings.core.base import Stream
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.stack import Stack


def stacks(variant: str) -> list[Stack]:
    args = arguments("--variants", variant, *TINY)
    with torch.device("meta"):
        model, _, _ = models.build(variant, args)
    return wired_stacks(model)


def decoder(variant: str) -> Graph:
    return trace_layer(stacks(variant)[-1], 1)


def as_text(graph: Graph) -> list[str]:
    """A line for each box, with a letter for what it makes: "b = +(x, a)"."""
    letters = iter("abcdefghijklmnop")
    names: dict[int, str] = {}
    lines = []
    for node in graph.nodes:
        arguments = ", ".join(names[n] for n in node.inputs)
        if node.kind == "in":
            names[node.number] = node.label
        elif node.kind == "out":
            lines.append(f"{node.label}' = {arguments}")
        else:
            names[node.number] = next(letters)
            lines.append(f"{names[node.number]} = {node.label}({arguments})")
    return lines


EQUATIONS = {
    "post_ln": "a = self-attention(x); b = +(x, a); c = LN(b); d = cross-attention(c); e = +(c, d); f = LN(e);"
    " g = FFN(f); h = +(f, g); i = LN(h); x' = i",
    "pre_ln": "a = LN(x); b = self-attention(a); c = +(x, b); d = LN(c); e = cross-attention(d); f = +(c, e);"
    " g = LN(f); h = FFN(g); i = +(f, h); x' = i",
    "b2t": "a = self-attention(x); b = +(x, a); c = LN(b); d = cross-attention(c); e = +(c, d); f = LN(e);"
    " g = FFN(f); h = +(f, g); i = +(h, x); j = LN(i); x' = j",
    # W over the history, whose newest part is this layer's
    "dlcl_pre": "a = LN(x); b = self-attention(a); c = +(x, b); d = LN(c); e = cross-attention(d); f = +(c, e);"
    " g = LN(f); h = FFN(g); i = +(f, h); j = LN(i); k = × weight(y0); l = × weight(y1); m = +(k, l);"
    " n = × weight(j); o = +(m, n); x' = o; y2' = j",
    "depthwise_lstm": "a = LN(x); b = self-attention(a); c = +(b, x); d = LN(c); e = cross-attention(d); f = +(b, e);"
    " g = concat(f, x); h = gates(g); i = ×(h, cell); j = hidden(g); k = ×(h, j); l = +(i, k); m = ×(h, l); x' = m;"
    " cell' = l",
    # of the stream, a softmax reads the sources alone, and not "x"
    "attention_residuals": "a = over_depth(source0, source1, source2, source3); b = LN(a); c = self-attention(b);"
    " d = over_depth(source0, source1, source2, source3, c); e = LN(d); f = cross-attention(e);"
    " g = over_depth(source0, source1, source2, source3, c, f); h = LN(g); i = FFN(h); x' = g; source4' = c;"
    " source5' = f; source6' = i",
    # (3 M)^(1/4) with M = 3 layers
    "deepnet": "a = self-attention(x); b = × 1.73(x); c = +(b, a); d = LN(c); e = cross-attention(d); f = × 1.73(d);"
    " g = +(f, e); h = LN(g); i = FFN(h); j = × 1.73(h); k = +(j, i); l = LN(k); x' = l",
}


@pytest.mark.parametrize("variant", EQUATIONS)
def test_a_decoder_layer_computes_the_papers_equations(variant: str) -> None:
    assert "; ".join(as_text(decoder(variant))) == EQUATIONS[variant]


NORMS_ON_THE_WAY = {
    **dict.fromkeys(("post_ln", "admin", "deepnet", "realformer", "keel", "ngpt"), 3),
    **dict.fromkeys(("b2t", "dlcl_post", "hybrid_norm"), 1),
}
"""What a gradient has to pass in a decoder layer, by the papers; none in the other variants."""

EVALUATIONS = {"ode_rk2": 2, "ode_rk4": 4}
"""How often an encoder's layer is run, where it is not once."""


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_easiest_way_of_a_gradient(variant: str) -> None:
    """It is drawn for every wiring."""
    for stack in stacks(variant):
        graph = trace_layer(stack, 1)
        post = {"transparent_attention": 3} | NORMS_ON_THE_WAY
        expected = post.get(variant, 0) - (stack.shape.stack == "encoder" and post.get(variant, 0) == 3)
        assert (graph.crossed("norm"), graph.crossed("sublayer")) == (expected, 0)
        kinds = [node.kind for node in graph.nodes]
        evaluations = EVALUATIONS.get(variant, 1) if stack.shape.stack == "encoder" else 1
        assert kinds.count("sublayer") == evaluations * len(stack[1].kinds)
        assert all(n < node.number for node in graph.nodes for n in node.inputs)
        ends = [graph.nodes[n] for n in (graph.path[0], graph.path[-1])]
        assert [end.kind for end in ends] == ["in", "out"]
        steps = zip(graph.path, graph.path[1:], strict=False)
        assert all(below in graph.nodes[above].inputs for below, above in steps)
        scheme = scheme_of(graph, module_names(stack, 1))
        draw_scheme(plots.new_figure()[1][0][0], scheme, variant, "", (scheme.width, scheme.height))


def test_what_is_of_parameters_and_what_stands_first_is_written_out() -> None:

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.zeros(16))

        def forward(self, s: Stream, sublayer: Any) -> tuple[Stream, None]:
            y = (1 - s["a"]) * (1 / s["x"]) + (1.0 - s["x"]) * (1 + self.gain)
            return s | {"x": (self.gain - y) * self.gain.sigmoid(), "a": 1.0 * y}, None

    stack = stacks("post_ln")[0]
    stack[1].self_attn_connection = Gated().to("meta")
    stack[1].ffn_connection = Gated().to("meta")
    stack.wiring.open = lambda x: {"x": x, "a": x}  # type: ignore[method-assign]
    stack[0].self_attn_connection = stack[0].ffn_connection = Gated().to("meta")
    told = [line.partition(" = ")[2] for line in as_text(trace_layer(stack, 1))][:9]
    assert told == [
        *("1 -(a)", "1 ÷(x)", "×(a, b)", "1 -(x)", "× (1 + gain)(d)", "+(c, e)"),
        *("gain -(f)", "× sigmoid(gain)(g)", "1 -(f)"),
    ]


def test_the_second_stream_of_residual_passes_no_norm() -> None:
    graph = decoder("resi_dual")
    assert [graph.nodes[n].label for n in graph.path] == ["dual", "+", "+", "+", "dual"]


def test_scores_go_from_layer_to_layer() -> None:
    graph = decoder("realformer")
    assert {node.label for node in graph.nodes if node.kind == "in"} == {"x", "self_scores", "cross_scores"}
    attention = next(node for node in graph.nodes if node.label == "self-attention")
    assert {graph.nodes[n].label for n in attention.inputs} == {"x", "self_scores"}


def test_norms_inside_a_sublayer_are_told() -> None:
    labels = [node.label for node in decoder("sub_ln").nodes]
    assert "FFN, LN inside" in labels and "cross-attention" in labels
    # by a function, not a module
    assert "FFN, LN inside" in [node.label for node in decoder("residual_gate").nodes]


def test_boxes_have_the_names_of_the_layer_that_is_drawn() -> None:
    """Also where another wiring's layers are below it."""
    drawn = [(stacks(name)[0], layer) for name, layer in (("mhc", 1), ("post_ln:0-0,mhc:1-2", 2))]
    alone, above = (scheme_of(trace_layer(s, n), module_names(s, n)) for s, n in drawn)
    assert [box.label for box in above.boxes] == [box.label for box in alone.boxes]


def test_tracing_leaves_no_hook() -> None:
    (stack, _) = stacks("normformer")
    trace_layer(stack, 1)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in stack.modules())


def test_a_way_that_is_cut_off_is_not_a_way() -> None:
    """Post-LN whose residuals are detached: a gradient has to pass the sub-layers."""

    def cut(connection: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        stream, sublayer = inputs
        return stream | {"x": stream["x"].detach()}, sublayer

    stack = stacks("post_ln")[-1]
    whole = trace_layer(stack, 1)
    assert whole.crossed("sublayer") == 0 and whole.path
    handle = stack[1].ffn_connection.register_forward_pre_hook(cut)
    severed = trace_layer(stack, 1)
    handle.remove()
    assert severed.path == []
    assert any(node.label == "stop-gradient" for node in severed.nodes)


def test_the_picture_in_the_gallery_is_of_this_command(tmp_path: Path) -> None:
    """Its numbers lie beside it; `scripts/figures/b2t_figure2.sh` makes both."""
    assert main(["explain", "post_ln", "pre_ln", "b2t", "--stack", "decoder", "--out", str(tmp_path)]) == 0
    gallery = Path(__file__).parents[2] / "docs/gallery/explain.csv"
    assert (tmp_path / "explain.csv").read_text() == gallery.read_text()
