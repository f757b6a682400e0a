"""Runs `turnstile` or a file where the packages of the extra [server] cannot be imported, as in a base install."""

import runpy
import sys
from typing import Any, cast

for package in ("asyncpg", "litellm", "prometheus_client", "temporalio"):
    cast("dict[str, Any]", sys.modules)[package] = None  # importing it raises ModuleNotFoundError

if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0] == "turnstile":
        runpy.run_module("turnstile.cli.app", run_name="turnstile.cli.app")["main"]()
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
