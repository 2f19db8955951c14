"""Ways to make the same computation faster, attached from outside."""
