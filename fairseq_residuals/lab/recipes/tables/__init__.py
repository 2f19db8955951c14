"""Published numbers, reproduced numbers, and tables of both; never in one column."""

from fairseq_residuals.lab.recipes.tables.published import FAILED, Table, find_table, load_published
from fairseq_residuals.lab.recipes.tables.render import render
from fairseq_residuals.lab.recipes.tables.reproduced import Record, append, read_records

__all__ = ["FAILED", "Record", "Table", "append", "find_table", "load_published", "read_records", "render"]
