"""Parallel blocks in Hugging Face's transformers: Command-R (Cohere), GPT-J and GPT-NeoX."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import gelu

from fairseq_residuals.plugin.checkpoints.importing.parameter_names import Authors, Values
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from tests.golden_check.fixtures import Golden
from tests.golden_check.hosts.gpt2_host import NAMES
from tests.golden_check.hosts.host_recipe import HostRecipe
from tests.golden_check.hosts.llama_host import LLAMA
from tests.golden_check.hosts.surroundings import logits_by, number, rope_setting, rotary
from tests.golden_check.tolerances import SHIPPED

REPOSITORY = "huggingface/transformers"
COHERE = Authors(REPOSITORY, LLAMA.convert, (*LLAMA.renames, (r"\.input_layernorm\.", ".self_attn_layer_norm.")))
GPT_J = Authors(
    REPOSITORY,
    renames=(
        *NAMES,
        (r"^lm_head\.", "output_projection."),
        (r"\.attn\.", ".self_attn."),
        (r"\.mlp\.fc_in\.", ".fc1."),
        (r"\.mlp\.fc_out\.", ".fc2."),
    ),
)


def gpt_neox(description: dict[str, Any]) -> Authors:
    """Return the names of GPT-NeoX, whose rows of queries, keys and values are sorted by heads."""
    heads = description["sizes"]["heads"]

    def sort_rows(values: Values) -> Values:
        return {
            name: value.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            if ".query_key_value." in name
            else value
            for name, value in values.items()
        }

    return Authors(
        REPOSITORY,
        sort_rows,
        (
            (r"^gpt_neox\.layers\.", "layers."),
            (r"^gpt_neox\.embed_in\.", "embed_tokens."),
            (r"^gpt_neox\.final_layer_norm\.", "layer_norm."),
            (r"^(?:lm_head|embed_out)\.", "output_projection."),
            (r"\.attention\.query_key_value\.", ".self_attn.in_proj_"),
            (r"\.attention\.dense\.", ".self_attn.out_proj."),
            (r"\.mlp\.dense_h_to_4h\.", ".fc1."),
            (r"\.mlp\.dense_4h_to_h\.", ".fc2."),
            (r"\.input_layernorm\.", ".self_attn_layer_norm."),
            (r"\.post_attention_layernorm\.", ".final_layer_norm."),
        ),
    )


def _part_of_a_head(golden: Golden, channels: int) -> int:
    return int(channels * rope_setting(golden, "partial_rotary_factor", 1.0))


RECIPES = {
    "parallel_cohere": HostRecipe(
        "parallel",
        COHERE,
        activation=ACTIVATIONS["swiglu"],
        fixed={r".*layer_norm\.bias": 0.0},
        surroundings=(rotary("interleaved"), logits_by(lambda x, golden: number(golden, "logit_scale") * x)),
        tolerances=SHIPPED,
    ),
    "parallel_gptj": HostRecipe(
        "parallel",
        GPT_J,
        activation=lambda x: gelu(x, approximate="tanh"),
        surroundings=(rotary("interleaved", lambda golden, head: golden.setting("rotary_dim")),),
        tolerances=SHIPPED,
    ),
    "parallel_neox": HostRecipe(
        "parallel(norms=2)",
        gpt_neox,
        activation=gelu,
        surroundings=(rotary("half", _part_of_a_head),),
        tolerances=SHIPPED,
    ),
}
