"""``python -m fairseq_residuals.experiments.synthetic_tasks``, whose commands are forks: each import takes seconds."""

import sys

from fairseq_residuals.experiments.synthetic_tasks import multilingual
from fairseq_residuals.experiments.synthetic_tasks.__main__ import main
from fairseq_residuals.verification.reliability.zygote import prepare_to_fork

if __name__ == "__main__":
    # the fewest that have pairs among them
    multilingual.LANGUAGES = ("de", "fr")
    prepare_to_fork()
    sys.exit(main(sys.argv[1:]))
