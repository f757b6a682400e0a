"""The embedded servers, on real processes."""
