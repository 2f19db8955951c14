"""Flags and YAML keys become a model, or an error that names what would be valid; never are they ignored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf
from tiny import BOTH, build, common_options, dimensions, make_dictionary, make_task, settings, stacks

from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.plugin.models.families import REFUSED
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS


def from_yaml(**model: Any) -> Any:
    """Built as fairseq-hydra-train builds it: from a DictConfig in struct mode."""
    cfg = OmegaConf.create({"model": {"_name": "transformer_b2t_18l", **model}})
    OmegaConf.set_struct(cfg, True)
    return build_model(cfg.model, make_task()), cfg.model


def wired(model: Any) -> list[str]:
    return [stack.wiring.name for stack in stacks(model)]


def test_architectures_have_the_dimensions_that_their_names_say() -> None:
    def of(arch: str) -> tuple[int, ...]:
        a = settings(arch)
        names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        kinds = ("decoder",) if "_lm_" in arch else ("encoder", "decoder")
        return tuple(getattr(a, f"{kind}_{name}") for name in names for kind in kinds)

    assert of("transformer_b2t_18l") == (18, 18, 512, 512, 2048, 2048, 8, 8)
    assert of("transformer_post_ln_100l")[:2] == (100, 100)
    assert of("transformer_pre_ln_iwslt_de_en") == (6, 6, 512, 512, 1024, 1024, 4, 4)
    assert of("transformer_pre_ln_wmt_en_de_big_12l") == (12, 12, 1024, 1024, 4096, 4096, 16, 16)
    assert of("transformer_lm_b2t_6l") == (6, 512, 2048, 8)
    assert of("transformer_lm_post_ln_wiki103") == (16, 1024, 4096, 8)
    assert of("s2t_transformer_b2t_12l_6l") == (12, 6, 512, 512, 2048, 2048, 8, 8)
    assert of("s2t_transformer_b2t_6l")[:2] == (6, 6)
    assert of("s2t_transformer_post_ln_xs") == (6, 3, 256, 256, 1024, 1024, 4, 4)
    sizes = ["6l", "12l", "18l", "24l", "36l", "50l", "100l"]
    for variant in VARIANTS:
        expected = {f"transformer_{variant}_{s}" for s in sizes}
        for corpus in ("iwslt_de_en", "wmt_en_de", "wmt_en_de_big"):
            expected |= {
                f"transformer_{variant}_{corpus}",
                *(f"transformer_{variant}_{corpus}_{s}" for s in sizes),
            }
        if not VARIANTS[variant].refusal(alone=True, topmost=True):
            expected |= {f"transformer_lm_{variant}_{s}" for s in ("6l", "16l", "wiki103")}
        expected |= {f"s2t_transformer_{variant}_{s}" for s in ("6l", "12l_6l", "xs", "s", "m", "l")}
        assert expected <= set(ARCHITECTURES)
        assert settings(f"transformer_{variant}_6l").residual == variant


def test_flags_beat_the_architecture() -> None:
    model = build("translation", "b2t", "--residual", "pre_ln", "--decoder-layers", "3")
    assert wired(model) == ["pre_ln", "pre_ln"] and [len(s) for s in stacks(model)] == [2, 3]
    model = build("translation", "b2t", "--decoder-residual", "post_ln")
    assert wired(model) == ["b2t", "post_ln"]
    model = build("translation", "pre_ln", "--residual-args", "final_norm=false")
    assert [stack.wiring.norm for stack in stacks(model)] == [None, None]
    model = build("translation", "pre_ln", "--decoder-residual-args", "final_norm=false")
    assert [stack.wiring.norm is None for stack in stacks(model)] == [False, True]
    model = build("translation", "post_ln", "--decoder-residual", "pre_ln", "--no-decoder-final-norm")
    assert stacks(model)[1].wiring.norm is None
    assert wired(build("language_modeling", "b2t", "--decoder-residual", "pre_ln")) == ["pre_ln"]
    assert wired(build("speech", "b2t", "--residual", "post_ln", "--decoder-residual", "pre_ln")) == [
        "post_ln",
        "pre_ln",
    ]


def test_the_wiki103_language_model_has_no_final_norm_unless_asked() -> None:
    flags = dimensions("language_modeling")
    assert (
        settings("transformer_lm_pre_ln_wiki103", *flags).decoder_residual_args
        == f"{common_options()},final_norm=false"
    )
    kept = settings("transformer_lm_pre_ln_wiki103", *flags, "--residual-args", "final_norm=true")
    assert kept.decoder_residual_args == f"{common_options()},final_norm=true" and kept.no_decoder_final_norm is False


@pytest.mark.parametrize("variant", ("layernorm_scaling", "peri_ln", "normformer", "dense_former", "post_ln"))
def test_the_norm_on_top_of_other_designs_stays_there(variant: str) -> None:
    args = settings(f"transformer_lm_{variant}_wiki103", *dimensions("language_modeling"))
    assert "final_norm=false" not in args.decoder_residual_args and args.no_decoder_final_norm is False


def test_the_resolved_wiring_is_recorded_and_stays() -> None:
    args = settings(
        "transformer_post_ln_6l", "--decoder-residual", "b2t", "--decoder-residual-args", "init_scale=depth"
    )
    recorded = {k: v for k, v in vars(args).items() if "residual" in k}
    assert recorded == {
        "residual": "post_ln",
        "residual_args": common_options(),
        "decoder_residual": "b2t",
        "decoder_residual_args": common_options(init_scale="depth"),
    }
    before = dict(vars(args))
    ARCH_CONFIG_REGISTRY["transformer_post_ln_6l"](args)
    assert vars(args) == before


@pytest.mark.parametrize("nested", (False, True))
def test_yaml(nested: bool) -> None:
    keys: dict[str, Any] = dict(BOTH, decoder_layers=3)
    if nested:
        keys = {
            stack: {k.removeprefix(f"{stack}_"): v for k, v in keys.items() if k.startswith(stack)}
            for stack in ("encoder", "decoder")
        }
    model, cfg = from_yaml(
        **keys, residual="post_ln", decoder_residual="b2t", decoder_residual_args={"init_scale": 0.5}, dropout="0.2"
    )
    assert wired(model) == ["post_ln", "b2t"] and [len(s) for s in stacks(model)] == [2, 3]
    assert stacks(model)[0].shape.ffn_dim == 32 and stacks(model)[1].wiring.config.init_scale == 0.5
    assert cfg.encoder_layers == 2 and cfg.decoder_residual_args == common_options(init_scale="0.5")
    assert cfg.dropout == 0.2  # text, where its flag would have read it
    again = build_model(OmegaConf.create(OmegaConf.to_container(cfg)), make_task())
    assert wired(again) == wired(model)


def test_keys_of_earlier_versions_do_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model, cfg = from_yaml(**BOTH, compile_stack=True)
    assert wired(model) == ["b2t", "b2t"] and "compile_stack" not in cfg
    assert "--compile-stack is no flag of this plugin any more" in caplog.text


def test_every_key_of_fairseqs_own_config_is_known_in_yaml() -> None:
    nested = {"encoder", "decoder", "quant_noise", "_name"}
    for field in fields(TransformerConfig):
        if field.name in nested:
            continue
        try:
            from_yaml(**BOTH, **{field.name: field.default})
        except UserError as error:
            raise AssertionError(f"{field.name}: {error}") from error


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--residual b2tt", "unknown wiring 'b2tt' (did you mean b2t?); the wirings are admin, altup,"),
        ("--residual-args alpha=1", "wiring 'b2t' has no option 'alpha'; its options are init, init_scale"),
        (
            "--residual-args init_scale=-1",
            "'-1' is not valid for option 'init_scale' of wiring 'b2t'; valid: a number from",
        ),
        ("--residual-args init_scale=nan", "'nan' is not valid"),
        ("--residual pre_ln --residual-args final_norm=maybe", "valid: true, false"),
        ("--encoder-normalize-before", "--encoder-normalize-before contradicts the wiring b2t"),
        (
            "--residual pre_ln --residual-args final_norm=true --no-decoder-final-norm",
            "contradicts final_norm=true",
        ),
        ("--residual dense_former --no-decoder-final-norm", "not for the wiring dense_former"),
        ("--encoder-layers 0", "--encoder-layers must be a whole number of at least 1, not 0"),
        ("--decoder-layers -3", "--decoder-layers must be"),
        (
            "--encoder-embed-dim 500 --encoder-attention-heads 8",
            "500 is not divisible by --encoder-attention-heads 8",
        ),
        ("--decoder-attention-heads 0", "--decoder-attention-heads must be"),
        ("--encoder-layers-to-keep [0,1]", "layer pruning is not carried"),
        ("--quant-noise-pq 0.1", "quantization noise is not carried"),
        ("--cross-self-attention", "joint cross- and self-attention is not carried"),
        ("--base-layers 1", "BASE layers is not carried"),
        ("--offload-activations", "offloading of activations"),
        ("--adaptive-input", "adaptive input in an encoder-decoder model is not carried"),
        ("--log-residual-stats -1", "--log-residual-stats must be a whole number of updates, or 0 for never, not -1"),
        ("--min-params-to-wrap 10", "fully sharded training is not carried"),
        ("--residual post_ln:0-3,pre_ln:4-9", "must name each layer of the encoder once, in order: 0 to 5"),
        ("--residual post_ln:0-3,pre_ln:3-5", "must name each layer of the encoder once, in order: 0 to 5"),
        ("--residual post_ln:0-2,pre_ln:3-4", "ends at layer 4, and the encoder has layers 0 to 5"),
        ("--residual post_ln:0-2,pre_ln", "is not a wiring or a list of wirings with their layers, such as"),
        ("--residual post_ln:0-2,preln:3-5", "unknown wiring 'preln' (did you mean pre_ln?)"),
        ("--residual post_ln:0-2,pre_ln:3-5 --residual-args alpha=1", "has an option 'alpha'; their options are init,"),
        (
            "--residual post_ln:0-2,pre_ln:3-5 --encoder-normalize-before",
            "contradicts the wiring post_ln:0-2,pre_ln:3-5",
        ),
        ("--residual transparent_attention:0-2,pre_ln:3-5", "no other layers of the encoder may follow it"),
        ("--residual deepnet --residual-args init=xavier", "for it draws its weights by its own rule; leave it out"),
        ("--residual b2t/", "unknown wiring ''; the wirings are"),
        ("--residual b2t/pre_ln --residual-args init_scale=0.5", "write options in brackets, as in b2t("),
    ],
)
def test_errors_say_what_is_wrong_and_what_is_valid(flags: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        settings("transformer_b2t_6l", *flags.split())
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_variant_without_meaning_is_refused_with_the_reason() -> None:
    assert "transformer_lm_transparent_attention" not in ARCHITECTURES
    with pytest.raises(UserError, match="for those of a decoder, and this stack stands alone"):
        settings("transformer_lm_post_ln_6l", "--residual", "transparent_attention")


@pytest.mark.parametrize("first", ("--residual deepnet", "--residual-args init_scale=0.5"))
@pytest.mark.parametrize("second", ("--decoder-residual post_ln", "--decoder-residual-args init_scale=0.25"))
def test_a_language_model_has_one_wiring(first: str, second: str) -> None:
    for flags in (f"{first} {second}", "--residual b2t(init_scale=0.5)/post_ln"):
        with pytest.raises(UserError, match="this model has one stack"):
            settings("transformer_lm_pre_ln", *flags.split())


def test_every_refused_flag_of_a_language_model_is_refused() -> None:
    for flag in ("--scale-fc", "--scale-attn", "--scale-heads", "--scale-resids"):
        with pytest.raises(UserError, match="--residual"):
            settings("transformer_lm_pre_ln_6l", flag)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"encoder_layerz": 3},
            r"unknown key encoder_layerz under model \(did you mean encoder_layers\?\); valid: ",
        ),
        ({"encoder": {"layer": 3}}, "unknown key encoder_layer under model"),
        (
            {"encoder": {"layers": 3}, "encoder_layers": 4},
            "encoder_layers under model is given twice: 4 and 3",
        ),
        ({"encoder": 3}, "encoder under model must hold keys"),
        ({"encoder_normalize_before": False, "residual": "pre_ln"}, "contradicts the wiring pre_ln"),
        ({"encoder_layers": "six"}, "encoder_layers must be a whole number, not 'six'"),
        ({"residual": "b2t", "residual_args": "k=1"}, "no option 'k'"),
        ({"quant_noise": {"pq": 0.1}}, "quantization noise"),
        ({"encoder_layers_to_keep": "0"}, "layer pruning"),
        ({"decoder": {"layers_to_keep": 0}}, "layer pruning"),
    ],
)
def test_yaml_errors(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_yaml(**{**BOTH, **keys} if "encoder_layers" not in keys and "layers" not in str(keys) else keys)


def test_fully_sharded_training_is_refused() -> None:
    args = settings("transformer_b2t", *dimensions("translation"))
    args.ddp_backend = "fully_sharded"
    with pytest.raises(UserError, match="choose pytorch_ddp, legacy_ddp"):
        build_model(args, make_task())
    cfg = OmegaConf.create(
        {
            "model": {"_name": "transformer_b2t", **BOTH},
            "distributed_training": {"ddp_backend": "fully_sharded"},
        }
    )
    with pytest.raises(UserError, match="choose pytorch_ddp, legacy_ddp"):
        build_model(cfg.model, make_task())


def test_conflicts_that_fairseq_finds_are_one_sentence() -> None:
    task = make_task()
    task.target_dictionary = make_dictionary(10)
    args = settings("transformer_b2t", *dimensions("translation"), "--share-all-embeddings")
    with pytest.raises(UserError, match="requires a joined dictionary"):
        build_model(args, task)
    args = settings("transformer_lm_b2t", *dimensions("language_modeling"), "--tie-adaptive-weights")
    with pytest.raises(UserError, match="--tie-adaptive-weights needs --adaptive-input"):
        build_model(args, make_task())
    args = settings("s2t_transformer_b2t", *dimensions("speech"), "--load-pretrained-encoder-from", "nowhere.pt")
    with pytest.raises(UserError, match=r"no file nowhere\.pt"):
        build_model(args, make_task())


def test_refused_keys_are_keys_of_fairseq() -> None:
    args = settings("transformer_lm_b2t"), settings("transformer_b2t")
    flat = {f"{s}_{k}" for s in ("encoder", "decoder") for k in ("xformers_att_config", "layers_to_keep")}
    known = set().union(*(vars(a) for a in args), flat, {f.name for f in fields(TransformerConfig)})
    known |= {"scale_fc", "scale_attn", "scale_heads", "scale_resids", "quant_noise_scalar", "quant_noise_pq"}
    assert set(REFUSED) <= known
