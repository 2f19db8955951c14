"""The subcommands of ``fairseq-residuals``: each module has HELP, configure(parser) and run(args) -> exit status."""
