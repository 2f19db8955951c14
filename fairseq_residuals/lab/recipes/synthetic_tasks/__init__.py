"""The recipes of the papers on small real data, made on the spot, on any CPU (``scripts/small/*.sh``).

Each task writes its text or sound as the archive in which the paper's corpus comes, and from there on nothing is its
own: the corpus's preparation (:mod:`fairseq_residuals.lab.data`), the paper's configuration with narrow models and few
updates, and ``fairseq-residuals reproduce``'s way from there to the table (:mod:`fairseq_residuals.lab.recipes`).

:mod:`task` says what a task is; :mod:`translation`, :mod:`multilingual`, :mod:`summarization`, :mod:`language_model`
and :mod:`speech` are one each. :mod:`__main__` trains the rows of a task's table.
"""

from importlib import import_module

from fairseq_residuals.lab.recipes.synthetic_tasks.task import Task
from fairseq_residuals.wirings.core.errors import UserError

TASKS = ("translation", "multilingual", "summarization", "language_model", "speech")


def find_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        UserError: there is none.
    """
    if name not in TASKS:
        raise UserError(f"there is no small task {name!r}: choose one of {', '.join(TASKS)}")
    task: Task = import_module(f"{__name__}.{name}").TASK
    return task
