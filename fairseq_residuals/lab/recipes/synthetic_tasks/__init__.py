"""The translation task that ``compare`` and the demo train on, in a workspace."""

from fairseq_residuals.lab.recipes.synthetic_tasks.task import Task
from fairseq_residuals.lab.recipes.synthetic_tasks.translation import TASK
from fairseq_residuals.wirings.core.errors import UserError


def find_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        UserError: there is none.
    """
    if name != TASK.name:
        raise UserError(f"there is no small task {name!r}: choose {TASK.name}")
    return TASK
