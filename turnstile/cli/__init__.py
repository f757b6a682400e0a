"""The command line: `turnstile`. Every command takes `--json`; exit codes are in `turnstile.cli.errors`."""

from turnstile.cli.app import main

__all__ = ["main"]
