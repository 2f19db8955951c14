"""fairseq plugin (``--user-dir``): where the norms and the residual connections of a deep Transformer go.

Importing it makes fairseq 0.12.2 run on current Python, then registers every variant in every task with fairseq.
"""

import modern_fairseq

modern_fairseq.install()  # a no-op where the installed .pth file has done it

from fairseq_residuals.registry import import_variants  # noqa: E402

import_variants()

from fairseq_residuals import architectures, chunked_criterion, optim, resuming  # noqa: E402, F401
from fairseq_residuals.generation import install  # noqa: E402
from fairseq_residuals.models.language_model import LANGUAGE_MODEL  # noqa: E402
from fairseq_residuals.models.speech_to_text import SPEECH  # noqa: E402
from fairseq_residuals.models.translation import TRANSLATION  # noqa: E402
from fairseq_residuals.scoring import scorers, validation  # noqa: E402, F401

__version__ = "0.1.0"

architectures.register_architectures(
    TRANSLATION,
    "transformer",
    architectures.translation_bases(),
    ("6l", "12l", "18l", "24l", "36l", "50l", "100l"),
)
architectures.register_architectures(
    LANGUAGE_MODEL, "transformer_lm", architectures.language_model_bases(), ("6l", "16l")
)
architectures.register_architectures(SPEECH, "s2t_transformer", architectures.speech_bases(), ("6l", "12l_6l"))
install.search_faster()
install.search_in_bf16()
