"""The demo (``scripts/demo.sh``): deep encoder-decoders compared, with fairseq's own commands."""
