"""Parts of A2A that need no servers."""
