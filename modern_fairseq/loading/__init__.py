"""Reading checkpoints as data: nothing in them is called, addressed or computed."""
