"""The stock encoder layer: no fused path, no second copy of its weights."""

import pytest
import torch
from fairseq import utils
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules import AdaptiveInput, transformer_layer
from fairseq.modules.adaptive_softmax import TiedHeadModule

from modern_fairseq.fixes.layers import DEAD_PARAMETERS

DIM, FFN = 8, 12


def config(**options):
    cfg = TransformerConfig(dropout=0.0, **options)
    cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim, cfg.encoder.attention_heads = DIM, FFN, 2
    cfg.encoder.layers = 2
    return cfg


def encoder():
    symbols = [0] * 11
    return TransformerEncoderBase(config(), symbols, torch.nn.Embedding(11, DIM, padding_idx=1))


def test_a_layer_has_the_parameters_of_its_equations_and_no_others():
    layer = transformer_layer.TransformerEncoderLayerBase(config())
    attention, feed_forward, norms = 4 * (DIM * DIM + DIM), 2 * DIM * FFN + FFN + DIM, 2 * 2 * DIM
    assert sum(p.numel() for p in layer.parameters()) == attention + feed_forward + norms


def test_every_parameter_gets_a_gradient():
    layer = transformer_layer.TransformerEncoderLayerBase(config())
    layer(torch.randn(5, 3, DIM), None).pow(2).sum().backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def test_a_stock_checkpoint_with_the_second_copy_loads_strictly():
    old, new = encoder(), encoder()
    state = old.state_dict()
    for i in range(2):
        for name in DEAD_PARAMETERS:
            state[f"layers.{i}.{name}"] = torch.zeros(3)
    new.load_state_dict(state, strict=True)
    torch.testing.assert_close(new.state_dict(), old.state_dict(), rtol=0, atol=0)


def test_other_unknown_names_are_still_refused():
    state = encoder().state_dict() | {"layers.0.in_proj_scale": torch.zeros(3)}
    with pytest.raises(RuntimeError, match="in_proj_scale"):
        encoder().load_state_dict(state)


def test_after_loading_evaluation_still_goes_through_residual_connection(monkeypatch):
    calls = []
    monkeypatch.setattr(
        transformer_layer.TransformerEncoderLayerBase,
        "residual_connection",
        lambda self, x, residual: calls.append(1) or residual + x,
    )

    def fused(*args, **kwargs):
        raise AssertionError("the fused path was taken")

    for name in (
        "_transformer_encoder_layer_fwd",
        "_nested_tensor_from_mask",
        "_nested_tensor_from_mask_left_aligned",
    ):
        monkeypatch.setattr(torch, name, fused)
    model = encoder()
    model.load_state_dict(encoder().state_dict())
    padded = torch.tensor([[4, 5, 6, 2], [7, 2, 1, 1]])
    trained = model.train()(padded)["encoder_out"][0]
    calls.clear()
    with torch.no_grad():
        evaluated = model.eval()(padded)["encoder_out"][0]
    assert len(calls) == 2 * 2  # two layers, attention and feed-forward
    torch.testing.assert_close(evaluated, trained)


@pytest.mark.parametrize("version", ["2.14.0a0+git1234", "2.15.0.dev20270101+cpu", "2.13.0"])
def test_any_torch_version_will_do(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    padded = torch.tensor([[4, 5, 6, 2], [7, 2, 1, 1]])
    assert encoder()(padded)["encoder_out"][0].shape == (4, 2, DIM)


def test_no_memory_of_the_process_goes_into_a_checkpoint(monkeypatch):
    """fairseq's buffer that tells a type is memory as it was found, when a model is built and when one is loaded."""
    monkeypatch.setattr(torch, "FloatTensor", lambda size: torch.full((size,), 7.0))
    head = TiedHeadModule((torch.nn.Parameter(torch.ones(5, DIM)), None), DIM, 2, 0.0, 8)
    modules = [encoder(), AdaptiveInput(11, 1, DIM, 2, DIM, [5, 11]), head]
    loaded = {"encoder.version": torch.tensor([3.0])}
    modules[0].upgrade_state_dict_named(loaded, "encoder")
    for state in (loaded, *(module.state_dict() for module in modules)):
        [buffer] = [value for name, value in state.items() if name.endswith("_float_tensor")]
        assert buffer.tolist() == [0.0]


def test_silu_is_an_activation_of_the_ffn():
    layer = transformer_layer.TransformerEncoderLayerBase(config(activation_fn="silu")).eval()
    x = torch.randn(5, 3, DIM)
    torch.testing.assert_close(layer.activation_fn(x), x * x.sigmoid())
    assert torch.isfinite(layer(x, None)).all()
    assert "silu" in utils.get_available_activation_fns()
    # fairseq's Conformer makes a module of this one
    assert utils.get_activation_fn("swish") is torch.nn.SiLU
