"""An MCP server over HTTP that wants a token, and the authorization server that gives it for client credentials.

`--secret` is the client's; `--notes` is told what token requests said of themselves, without the secret. Tokens last
two seconds.
"""

import argparse
import base64
import time
from pathlib import Path
from typing import Any

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

SECONDS = 2
CLIENT = "kernel"


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    tokens: dict[str, tuple[float, str]] = {}

    class Known:
        """The tokens that were given."""

        async def verify_token(self, token: str) -> AccessToken | None:
            until, scope = tokens.get(token, (0.0, ""))
            return None if until < time.time() else AccessToken(token=token, client_id=CLIENT, scopes=scope.split())

    settings = AuthSettings.model_validate(
        {
            "issuer_url": url,
            "resource_server_url": f"{url}/mcp",
            "required_scopes": ["tools"],
            "validate_token_resource": False,
        }
    )
    server: MCPServer[Any] = MCPServer("guarded", auth=settings, token_verifier=Known())

    @server.tool(description="Add.")
    def add(a: int, b: int) -> int:
        return a + b

    @server.custom_route("/.well-known/oauth-authorization-server", methods=["GET"])
    async def metadata(_: Request) -> Response:
        told = {"issuer": url, "authorization_endpoint": f"{url}/authorize", "token_endpoint": f"{url}/token"}
        return JSONResponse({**told, "response_types_supported": ["code"]})

    @server.custom_route("/token", methods=["POST"])
    async def token(request: Request) -> Response:
        form = await request.form()
        given = request.headers.get("authorization", "").removeprefix("Basic ")
        client, _, secret = base64.b64decode(given).decode().partition(":")
        with options.notes.open("a") as file:
            file.write(f"token {client} {form.get('grant_type')} {form.get('scope')}\n")
        if (client, secret) != (CLIENT, options.secret):
            said = f"the secret {secret} is none"  # as no server should
            return JSONResponse({"error": "invalid_client", "error_description": said}, status_code=401)
        made = f"token-{len(tokens)}"
        tokens[made] = time.time() + SECONDS, str(form.get("scope"))
        return JSONResponse({"access_token": made, "token_type": "Bearer", "expires_in": SECONDS})

    server.run("streamable-http", port=options.port)


if __name__ == "__main__":
    main()
