"""The recipes of the papers on small real data, made on the spot, on any CPU (``scripts/small/*.sh``).

Each task writes its text or sound as the archive in which the paper's corpus comes, and from there on nothing is its
own: the corpus's preparation (:mod:`fairseq_residuals.data`), the paper's configuration with narrow models and few
updates, and ``fairseq-residuals reproduce``'s way from there to the table (:mod:`fairseq_residuals.experiments`).

:mod:`task` says what a task is; :mod:`translation`, :mod:`multilingual`, :mod:`summarization`, :mod:`language_model`
and :mod:`speech` are one each; :mod:`plan` is what a call asks for, :mod:`row` trains one row of a table,
:mod:`__main__` all of them. :mod:`variants` compares all variants on the translation task: :mod:`trial` is one of its
runs, :mod:`variants_table` what they came to. :mod:`side_by_side` and :mod:`call` are for both.
"""
