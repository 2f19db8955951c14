"""Way from a row of a paper's table to its score: configurations, the commands that they come to, and running these.

``configs/<experiment>/rows.yaml`` has, for each row, a base and what the row changes of it, which
``fairseq-hydra-train`` takes as a file and overrides; the section ``recipe:`` of the base says what fairseq does not
know: corpus, averaging, decoding, scores. ``configs/<experiment>/tables.yaml`` says which row makes which cell of which
table. :mod:`compose` reads the first and composes it, :mod:`tables` reads the last, :mod:`recipe` explains the section;
:mod:`effective_batch` keeps the effective batch on any number of devices, and :mod:`job` makes the command
lines of one training run and of what follows it.

Everything that trains by fairseq's commands goes one way. :mod:`runner` runs processes, several runs at a time;
:mod:`stages` does the stages of a job (prepare, train, average, evaluate) once each; :mod:`evaluate` turns what they
printed into scores. :mod:`reproduce` does that for the cells of a paper's table that can be had, or prints how.

This package imports :mod:`fairseq_residuals.lab.look` and never the other way: the parser of fairseq's logs, which both
need, is :mod:`fairseq_residuals.lab.look.training_log`.
"""
