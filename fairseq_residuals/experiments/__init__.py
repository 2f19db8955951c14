"""From a row of a paper's table to its score: configurations, the commands that they come to, and running these.

``configs/<experiment>/<table>/<row>.yaml`` is what ``fairseq-hydra-train`` takes; its ``recipe:`` section says what
fairseq does not know: corpus, averaging, decoding, scores. ``configs/<experiment>/tables.yaml`` says which of them
makes which cell of which table. :mod:`compose` reads the former, :mod:`tables` the latter, :mod:`recipe` explains the
section; :mod:`batch` keeps the effective batch, :mod:`job` makes the command lines of one training run and of what
follows it, :mod:`steps` runs them once each, :mod:`measure` turns what they printed into scores, and
:mod:`reproduce` does it all.
"""
