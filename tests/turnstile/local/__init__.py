"""Local models: their weights, their servers, their commands."""
