"""A codec server: Temporal's Web UI and CLI ask it to decrypt what they show (docs/security.md).

    python examples/codec/server.py --keys /run/secrets/temporal-keys --origin http://127.0.0.1:8233

Then name http://127.0.0.1:8888 in the Web UI (the glasses at the top right), or `temporal … --codec-endpoint`. Whoever
reaches it can read every payload: leave it on loopback, or put a proxy with a login in front of it.
"""

import argparse
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError

from turnstile.settings.model import AES_GCM, TemporalSettings
from turnstile.temporal.converters import AesGcmCodec, read_keys

LIMIT_BYTES = 8_000_000


def application(codec: PayloadCodec, origin: str) -> web.Application:
    """`POST /encode` and `/decode` of Temporal's remote codec protocol, for browsers of one origin."""
    allowed = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "POST, OPTIONS",
        "Access-Control-Allow-Headers": "content-type, x-namespace, authorization",
        "Vary": "Origin",
    }

    def answering(
        act: Callable[[Sequence[Payload]], Awaitable[list[Payload]]],
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                payloads = json_format.Parse(await request.text(), Payloads()).payloads
                result = Payloads(payloads=await act(payloads))
            except (json_format.ParseError, UnicodeDecodeError):
                return web.Response(status=400, text="no payloads", headers=allowed)
            except ApplicationError as error:
                return web.Response(status=400, text=error.message, headers=allowed)
            return web.Response(
                text=json_format.MessageToJson(result), content_type="application/json", headers=allowed
            )

        return answer

    async def preflight(_: web.Request) -> web.Response:
        return web.Response(status=204, headers=allowed)

    app = web.Application(client_max_size=LIMIT_BYTES)
    for path, act in (("/encode", codec.encode), ("/decode", codec.decode)):
        app.router.add_post(path, answering(act))
        app.router.add_options(path, preflight)
    return app


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=Path, required=True, help="the file of [temporal].codec_keys_file")
    parser.add_argument("--origin", required=True, help="where the Web UI is, such as http://127.0.0.1:8233")
    parser.add_argument("--port", type=int, default=8888)
    arguments = parser.parse_args()
    codec = AesGcmCodec(read_keys(TemporalSettings(codec=AES_GCM, codec_keys_file=str(arguments.keys))))
    web.run_app(application(codec, arguments.origin), host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
