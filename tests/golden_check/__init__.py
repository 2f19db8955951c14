"""The plugin against what the authors' own code computed (golden files)."""
