"""Golden files of the newer designs, whose models are not fairseq's.

Such a file holds a small model of LLaMA's, GPT-2's or whatever parts its authors put around their wiring. It is
compared with :class:`.host.Host`, a language model made of this plugin's own ``Stack``, ``ResidualLayer`` and
``Wiring`` with the same parts around them. One :class:`.recipe.Recipe` says what a file is, under the name that the
file's sidecar has for it; one module per family has a dictionary ``RECIPES`` of them, and :data:`RECIPES` here has all.

A recipe says (see the fields of ``Recipe``):

``wiring``         for --residual, options in parentheses; a function of the golden where the sidecar tells an option:
                   ``lambda golden: f"dense_former(dilation={golden.number('dilation')})"``
``authors``        a function and regular expressions (``checkpoints/authors.py``) that give the authors' parameters
                   and their gradients the names that this plugin's checkpoints have: ``embed_tokens.weight``,
                   ``layers.0.self_attn.q_proj.weight``, ``layers.0.self_attn_layer_norm.weight`` (a connection's
                   ``norm``), ``layers.0.fc1.weight`` or for a gated FFN ``fc1.gate`` and ``fc1.up``, ``layers.0.fc2``,
                   ``layers.0.final_layer_norm``, ``layers.0.ffn_connection.gain`` (what else a connection has),
                   ``layers.wiring.weight`` (what else the variant has), ``layer_norm.weight`` (its ``norm``),
                   ``output_projection.weight``; an ``in_proj_weight`` of queries, keys and values, in this order, is
                   split
surroundings       ``activation`` (``torch.relu``; ``swiglu`` for a gated FFN), ``rotary`` and ``rotary_at``,
                   ``query_key_norm``, ``causal``, ``eps``, ``top_norm``; biases, widths, depth and whether the head is
                   tied are seen in the parameters
``fixed``          constants for parameters that the authors do not have, such as a norm's bias
``unused``         parameters of the authors' that have no effect, and that this plugin therefore lacks
``layer_outputs``  what of the stream, and in which layout, the file calls ``out/layer{i}...``
``initial_values``  False where the file's ``init/*`` are not what training starts from
``tolerance``      where a file cannot keep the others', with the ``reason``

To add one: write it into the module of its family, or a new one whose ``RECIPES`` are named below, and run
``fairseq-residuals verify FILE.npz --per-layer``. A file that cannot honestly be compared with the plugin is named in
``golden_recipes.OTHER_KINDS``, with the reason.
"""

from fairseq_residuals.verification.hosts import (
    attention_residuals_host,
    dense_former_host,
    hybrid_norm_host,
    hyper_connections_host,
    llama_host,
    plain_host,
    re_zero_host,
    siamese_norm_host,
    value_residual_host,
)
from fairseq_residuals.verification.hosts.recipe import HostRecipe

RECIPES: dict[str, HostRecipe] = {
    **llama_host.RECIPES,
    **plain_host.RECIPES,
    **re_zero_host.RECIPES,
    **hybrid_norm_host.RECIPES,
    **value_residual_host.RECIPES,
    **dense_former_host.RECIPES,
    **attention_residuals_host.RECIPES,
    **siamese_norm_host.RECIPES,
    **hyper_connections_host.RECIPES,
}
"""By what the sidecar calls the file's design."""
