"""What is installed: the archives, and what the base install can do without the server's packages."""
