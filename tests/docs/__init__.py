"""The documents: what they show is run, compiled or parsed."""
