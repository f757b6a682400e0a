"""The server of one local model: llama.cpp's, on loopback, until SIGTERM.

It runs as a script of its own (`python -I serve.py OPTIONS`), the only one that loads xllamacpp. It serves OpenAI's
`/v1/chat/completions`, and `/health` and `/slots` besides. It opens no connection, and its log holds no prompt.
"""

import argparse
import json
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any

HOST = "127.0.0.1"
PROMPT_CACHE_MIB = 128
"""Memory for prompts of conversations that lost their slot; llama.cpp's own default is 8192."""


def main() -> None:
    """Load the weights, serve, and wait for a signal; ends with exit code 1 if that fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sampling", type=json.loads, default={})
    parser.add_argument("--answer", type=int, default=-1)
    options = parser.parse_args()
    try:
        llama: Any = import_module("xllamacpp")
    except ImportError as error:
        sys.exit(f"xllamacpp cannot be loaded ({error}): install turnstile-kernel[local]")
    began = time.monotonic()
    try:
        server: Any = llama.Server(_parameters(llama, options))
    except Exception as error:  # noqa: BLE001 -- it raises RuntimeError and others for weights that do not load
        sys.exit(f"{options.gguf} cannot be served: {error}")
    sys.stdout.write(
        f"local/{options.name} at {server.listening_address}/v1, loaded in {time.monotonic() - began:.1f} s\n"
    )
    sys.stdout.flush()
    while True:
        signal.pause()


def _parameters(llama: Any, options: argparse.Namespace) -> Any:
    parameters = llama.CommonParams()
    parameters.model.path = options.gguf
    parameters.model_alias = {options.name}
    parameters.hostnames = [HOST]
    parameters.port = options.port
    parameters.n_parallel = options.slots
    parameters.n_ctx = options.slots * options.context
    parameters.n_predict = options.answer
    parameters.cache_ram_mib = PROMPT_CACHE_MIB
    parameters.offline = True
    parameters.ui = False
    parameters.cors_origins = ""  # no page of a browser may ask it
    # Its threads wait for each other by spinning: one that shares its core with another program stops them all.
    parameters.cpuparams.n_threads = options.threads or max(1, (os.cpu_count() or 1) // 2)
    for name, value in options.sampling.items():
        setattr(parameters.sampling, name, value)
    return parameters


if __name__ == "__main__":
    main()
