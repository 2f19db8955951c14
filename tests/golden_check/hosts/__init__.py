"""Golden files of models that are not fairseq's.

Such a file holds a small model of LLaMA's, GPT-2's or whatever parts its authors put around their wiring. It is
compared with :class:`.host.Host`, a language model made of this plugin's own ``Stack``, ``ResidualLayer`` and
``Wiring`` with the same parts around them. One :class:`.host_recipe.HostRecipe` says what a file is, under the name
that the file's sidecar has for it; one module per family has a dictionary ``RECIPES`` of them, and :data:`RECIPES` here
has all.

The fields of ``HostRecipe`` and ``GoldenRecipe`` say what a recipe can tell. Parameters get these names:
``embed_tokens``, ``layers.0.self_attn.q_proj``, ``layers.0.self_attn_layer_norm`` (a connection's ``norm``),
``layers.0.fc1`` (of a gated FFN, ``fc1.gate`` and ``fc1.up`` are joined to it), ``layers.0.fc2``,
``layers.0.final_layer_norm``, ``layers.0.ffn_connection.gain`` (what else a connection has), ``layers.wiring.weight``
(what else the variant has), ``layer_norm`` (its ``norm``), ``output_projection``. An ``in_proj_weight`` of queries,
keys and values, in this order, is split. Biases, widths, depth and whether the head is tied are seen in the parameters.

To add one: write it into the module of its family, or into a new one whose name ends in ``_host``, and run ``python -m
tests.golden_check FILE.npz --per-layer``. A file that cannot honestly be compared with the plugin is named in
``recipes.OTHER_KINDS``, with the reason.
"""

import importlib
import pkgutil

from tests.golden_check.hosts.host_recipe import HostRecipe

RECIPES: dict[str, HostRecipe] = {}
"""Recipes by what the sidecar calls the file's design."""
for _module in pkgutil.iter_modules(__path__):
    if _module.name.endswith("_host"):
        RECIPES |= importlib.import_module(f"{__name__}.{_module.name}").RECIPES
