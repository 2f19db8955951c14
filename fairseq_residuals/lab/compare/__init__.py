"""``fairseq-residuals compare``: from a wiring to the sentence that says whether it is better, and how sure that is.

:mod:`.command` is the command line; :mod:`.entries` reads what is compared, :mod:`.tasks` what on; :mod:`.checks` looks
at each entry before anything trains; :mod:`.cells` trains one model; :mod:`.schedule` says which one is next;
:mod:`.verdict` tests; :mod:`.report` and :mod:`.pictures` write.

A cell (one wiring, one rate, one seed) is a ``fairseq-hydra-train`` of its own, in a process of its own. The library
alone could train language models with less overhead, but translation needs fairseq's batches, beam search and scores;
one way for all tasks is less code, and what it measures is what users of the plugin get. Its checkpoints make a killed
cell go on where it was, with the same numbers.
"""
