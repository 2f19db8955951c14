"""What makes the same computation faster, attached from outside."""
