"""Published numbers, reproduced numbers, and tables of both; never in one column."""

from fairseq_residuals.experiments.tables.published import FAILED, Table, find_table, load_published
from fairseq_residuals.experiments.tables.render import render
from fairseq_residuals.experiments.tables.reproduced import Record, append, read_records

__all__ = ["FAILED", "Record", "Table", "append", "find_table", "load_published", "read_records", "render"]
