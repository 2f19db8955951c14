"""What makes the same computation faster, attached from outside; the folder can be removed.

Where fairseq is installed, it is imported first: its import registers the plugin, which imports the modules of this
package. Without it, the modules serve stacks of :func:`.build_stack`; those that replace modules of fairseq find none.
"""

try:
    import fairseq  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "fairseq":
        raise
