"""``python -m ...synthetic_tasks.row PLAN ROW SEED``: one row of a table, one seed, a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments import reproduce
from fairseq_residuals.experiments.synthetic_tasks.plan import Plan


def main(arguments: Sequence[str]) -> int:
    """Trains, averages, generates, scores and records what has not been; the exit status is 0.

    Args:
        arguments: the plan as JSON, the name of the row, and the seed.
    """
    text, row, seed = arguments
    plan = Plan.from_json(text)
    table = plan.task.recipe(row)
    work = reproduce.plan(table, plan.settings(row), [row], [int(seed)])
    try:
        reproduce.run(table, work, plan.results)
    except UserError as error:
        print(f"small: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
