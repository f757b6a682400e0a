"""Data converters that let only small payloads of ids and failures without content into Temporal (ARCHITECTURE.md).

A payload above 16 KiB means that content would enter a history: converting it raises an error that is not retried.

A client with the codec that `[temporal].codec` names (docs/security.md) encrypts every payload it sends and decrypts
every payload it reads. Workers, bridges and commands share the keys; Temporal has none. Search attributes, workflow
ids, task queues and the types of failures stay plain. Payloads stored before the codec was set are read unchanged.
Costs some microseconds a payload; holds keys only.
"""

import base64
import binascii
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadCodec,
    PayloadConverter,
)
from temporalio.exceptions import ApplicationError

from turnstile.schema.errors import ConfigError
from turnstile.settings.model import AES_GCM, TemporalSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


_KEY_ID = "encryption-key-id"
_NONCE_BYTES = 12
_KEY_BYTES = (16, 24, 32)


@dataclass(frozen=True, slots=True)
class Key:
    """An AES key and its name, which payloads encrypted under it carry."""

    key_id: str
    secret: bytes = field(repr=False)


class AesGcmCodec(PayloadCodec):
    """AES-GCM: encrypts with the first key, decrypts with the key that the payload names.

    The name of the key is authenticated, not secret.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        """Raises `ConfigError` if `cryptography` is not installed."""
        aesgcm = _aesgcm()
        self._first = keys[0].key_id
        self._ciphers = {key.key_id: aesgcm(key.secret) for key in keys}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt each payload with its metadata; the result is the content of a new payload."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt each payload; plain payloads are returned unchanged.

        Raises `ApplicationError` of type `PayloadUnreadable` if the key is missing or wrong.
        """
        return [
            self._decrypted(payload) if payload.metadata.get("encoding") == ENCRYPTED else payload
            for payload in payloads
        ]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce = os.urandom(_NONCE_BYTES)
        name = self._first.encode()
        sealed = self._ciphers[self._first].encrypt(nonce, payload.SerializeToString(), name)
        return Payload(metadata={"encoding": ENCRYPTED, _KEY_ID: name}, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 -- an extra

        name = payload.metadata.get(_KEY_ID, b"")
        cipher = self._ciphers.get(name.decode("utf-8", "replace"))
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise undecryptable(f"it is encrypted under key {_shown(name)}, and this process has {known}")
        try:
            plain = cipher.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], name)
        except (InvalidTag, ValueError):
            raise undecryptable(f"key {_shown(name)} of this process is another than it was encrypted under") from None
        return Payload.FromString(plain)


def codec_of(settings: TemporalSettings) -> PayloadCodec | None:
    """The codec that the settings name, or None. Raises `ConfigError` that names the wrong setting."""
    if settings.codec == AES_GCM:
        return AesGcmCodec(read_keys(settings))
    return _imported(settings.codec) if settings.codec else None


def read_keys(settings: TemporalSettings) -> list[Key]:
    """The keys of `codec_keys` or of the file that `codec_keys_file` names, in order; raises `ConfigError`."""
    file = settings.codec_keys_file
    if not file:
        return _keys(settings.codec_keys, "[temporal].codec_keys")
    try:
        lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"[temporal].codec_keys_file: {file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"[temporal].codec_keys_file: {file} is not a text file") from None
    return _keys([line for line in lines if line and not line.startswith("#")], f"[temporal].codec_keys_file: {file}")


def _keys(lines: Sequence[str], where: str) -> list[Key]:
    keys = [_key(line, f"{where}: key {number}") for number, line in enumerate(lines, 1)]
    if not keys:
        raise ConfigError(f"{where} has no key")
    if len({key.key_id for key in keys}) < len(keys):
        raise ConfigError(f"{where} has two keys with the same name")
    return keys


def _key(line: str, where: str) -> Key:
    """Parse `name:base64`; raises `ConfigError` without quoting the line."""
    name, _, text = (part.strip() for part in line.partition(":"))
    if not name or not name.isascii() or not name.isprintable() or len(name) > 128:
        raise ConfigError(f"{where} must be of the form name:base64")
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{where} is not valid base64 after the colon") from None
    if len(secret) not in _KEY_BYTES:
        raise ConfigError(f"{where} has {len(secret)} bytes: an AES key has 32 (or 24, or 16)")
    return Key(name, secret)


def _imported(path: str) -> PayloadCodec:
    """Import `package.module:name`: a codec, or a function without arguments that returns one."""
    where = f"[temporal].codec: {path}"
    module, _, name = path.partition(":")
    try:
        value: object = getattr(importlib.import_module(module), name)
        codec = value() if callable(value) and not isinstance(value, PayloadCodec) else value
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 -- a user's module may raise anything; its text may contain a key
        raise ConfigError(f"{where} cannot be imported or called ({type(error).__name__})") from None
    if not isinstance(codec, PayloadCodec):
        raise ConfigError(f"{where} is not a temporalio.converter.PayloadCodec")
    return codec


def _aesgcm() -> "type[AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- an extra
    except ImportError:
        raise ConfigError("[temporal].codec needs the extra: pip install 'turnstile-kernel[codec]'") from None
    return AESGCM


def _shown(name: bytes) -> str:
    return repr(name[:128].decode("utf-8", "replace"))


PAYLOAD_LIMIT_BYTES = 16_384
ENCRYPTED = b"binary/encrypted"
"""The encoding of a payload that a codec has encrypted (docs/security.md)."""


_JSON = PydanticJSONPlainPayloadConverter()
_ENCODINGS = [
    _JSON if isinstance(payload_converter, JSONPlainPayloadConverter) else payload_converter
    for payload_converter in DefaultPayloadConverter.default_encoding_payload_converters
]


class IdsOnlyPayloadConverter(CompositePayloadConverter):
    """Pydantic models as JSON of limited size.

    The SDK creates a converter for every workflow task. All share the JSON converter, whose schemas are built once.
    """

    def __init__(self) -> None:
        super().__init__(*_ENCODINGS)

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Convert; raises a non-retryable `PayloadTooLarge`."""
        payloads = super().to_payloads(values)
        for payload in payloads:
            if len(payload.data) > PAYLOAD_LIMIT_BYTES:
                message = f"{len(payload.data)} bytes, {PAYLOAD_LIMIT_BYTES} allowed: content belongs into cards"
                raise ApplicationError(message, type="PayloadTooLarge", non_retryable=True)
        return payloads

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type[Any]] | None = None) -> list[Any]:
        """Convert; raises `PayloadUnreadable` if a payload is encrypted and there is no codec."""
        if any(payload.metadata.get("encoding") == ENCRYPTED for payload in payloads):
            raise undecryptable("it is encrypted, and this process has no codec")
        return super().from_payloads(payloads, type_hints)


def undecryptable(why: str) -> ApplicationError:
    """The error for a payload that this process cannot decrypt; it is retried: another process may have the key."""
    return ApplicationError(f"a payload cannot be read: {why}; see [temporal].codec", type="PayloadUnreadable")


class ContentFreeFailureConverter(DefaultFailureConverter):
    """Keeps the types of failures and Turnstile's error codes; drops other messages, stack traces and details."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert the exception and strip it and all of its causes."""
        super().to_failure(exception, payload_converter, failure)
        ours: BaseException | None = exception
        part: Failure | None = failure
        while part is not None:
            part.stack_trace = ""
            if part.HasField("application_failure_info"):
                part.application_failure_info.ClearField("details")
                if not isinstance(ours, ApplicationError):
                    part.message = part.application_failure_info.type
            ours = None if ours is None else ours.__cause__
            part = part.cause if part.HasField("cause") else None


DATA_CONVERTER = DataConverter(
    payload_converter_class=IdsOnlyPayloadConverter, failure_converter_class=ContentFreeFailureConverter
)


def with_codec(codec: PayloadCodec | None) -> DataConverter:
    """Turnstile's data converter with this codec."""
    return replace(DATA_CONVERTER, payload_codec=codec)
