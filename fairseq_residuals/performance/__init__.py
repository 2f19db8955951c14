"""What makes the same computation faster, attached from outside; the folder can be removed."""
