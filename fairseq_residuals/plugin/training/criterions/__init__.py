"""Criterions, registered with fairseq."""
