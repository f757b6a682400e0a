"""Files as models see them (protocol §22.6): what a file is by its content, what it costs, and what is shown. Pure.

What a sender says of a file is never believed: its kind is read from its bytes. An image or a PDF that a provider would
refuse for its size is not sent; then the model reads why. `describe_file` takes CPU for large files, so it runs off the
loop. Nothing is decompressed beyond `_UNPACKED` bytes.
"""

import base64
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.runtime.ports import ModelFile, ModelMessage
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import FilePart
from turnstile.schema.ids import ArtifactId
from turnstile.schema.tools import READ_FILE
from turnstile.schema.validation import describe_faults

IMAGE_BYTES: Final = 3_750_000
"""The largest image that is sent: 5 MB as base64."""
IMAGE_SIDE: Final = 8_000
"""The longest side of an image that is sent."""
PDF_BYTES: Final = 10_000_000
PDF_PAGES: Final = 100
TOTAL_BYTES: Final = 14_000_000
"""Of all images and PDFs of one request: below 20 MB as base64."""
_PDF: Final = b"%PDF-"
_UNPACKED: Final = 16 << 20
"""The most bytes that are unpacked to count the pages of a PDF."""
_STREAM: Final = re.compile(rb"/ObjStm.{0,400}?stream\r?\n", re.DOTALL)
_PAGE: Final = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_COUNT: Final = re.compile(rb"/Count\s+(\d{1,9})")
_START: Final = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
"""Markers of JPEG that are followed by the size of the picture."""
_PAGE_TOKENS: Final = 4_600
"""More than providers charge for a page: its text and its picture."""
_GEMINI_PAGE: Final = 1_120
_PICTURE_TOKENS: Final = 4_784
"""The most that Anthropic charges for an image."""
_LEAST: Final = 1_120


def describe_file(part: FilePart, data: bytes, inline_chars: int) -> ModelFile:
    """The file as it can be sent: an image, a PDF, a text of at most `inline_chars`, else a note why it is not."""
    if (mime := _image_kind(data)) is not None:
        return _image(part, mime, data)
    if data.startswith(_PDF):
        return _pdf(part, data)
    if (text := text_of(data)) is None:
        return note(part, "neither an image nor a PDF nor a text")
    if len(text) > inline_chars:
        return long_text(part)
    return ModelFile(part.artifact_id, "text", text=f"{part.line}\n{text}")


def note(part: FilePart, why: str) -> ModelFile:
    """A file that is not shown, and why."""
    return ModelFile(part.artifact_id, "note", text=f"{part.line} is not shown: {why}")


def long_text(part: FilePart) -> ModelFile:
    """A text that is read in parts."""
    return note(part, "it is long, so read it in parts with read_file")


def is_too_large(part: FilePart, head: bytes) -> str | None:
    """Why a file that begins so is not read whole; None if it may be shown."""
    if _image_kind(head) is not None:
        return f"an image of more than {IMAGE_BYTES} bytes" if part.size > IMAGE_BYTES else None
    if head.startswith(_PDF):
        return f"a PDF of more than {PDF_BYTES} bytes" if part.size > PDF_BYTES else None
    return None


def may_be_text(head: bytes) -> bool:
    """Whether a file that begins so is no image and no PDF, and has no byte that no text has."""
    return _image_kind(head) is None and not head.startswith(_PDF) and b"\0" not in head


def text_of(data: bytes) -> str | None:
    """The bytes as text; None if they are none: they are no UTF-8, or have control characters."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", text) else text


def within_total(files: Iterable[ModelFile], parts: Mapping[ArtifactId, FilePart]) -> dict[ArtifactId, ModelFile]:
    """The files by their ids, the newest first; those beyond `TOTAL_BYTES` as notes."""
    shown: dict[ArtifactId, ModelFile] = {}
    left = TOTAL_BYTES
    for file in files:
        size = len(file.url) * 3 // 4
        fits = size <= left
        shown[file.artifact_id] = file if fits else note(parts[file.artifact_id], "the request has too many bytes")
        left -= size if fits else 0
    return shown


def newest(messages: Sequence[ModelMessage], most: int) -> list[FilePart]:
    """The files that the messages name, each once, the newest first, at most so many."""
    named = (part for message in reversed(messages) for part in reversed(message.files))
    return list({part.artifact_id: part for part in named}.values())[:most]


def shown_files(message: ModelMessage, files: Mapping[ArtifactId, ModelFile]) -> list[ModelFile]:
    """The files of a message that are shown with it."""
    return [files[part.artifact_id] for part in message.files if part.artifact_id in files]


EVERY_KIND: Final = frozenset({"image", "pdf", "text", "note"})


def file_tokens(
    messages: Sequence[ModelMessage],
    files: Mapping[ArtifactId, ModelFile],
    model: str = "",
    kinds: Collection[str] = EVERY_KIND,
) -> int:
    """At least what the model charges for the files of these kinds, beside the messages' own text."""
    shown = (file for message in messages for file in shown_files(message, files))
    return sum(_tokens(file, model) for file in shown if file.kind in kinds)


def _tokens(file: ModelFile, model: str) -> int:
    match file.kind:
        case "image":
            return _image_tokens(file.width, file.height, model)
        case "pdf":
            return file.pages * (_GEMINI_PAGE if "gemini" in model else _PAGE_TOKENS)
        case "text" | "note":
            return len(file.text.encode()) // 2 + 8


def _image_tokens(width: int, height: int, model: str) -> int:
    """An upper bound over the formulas of OpenAI (tiles or patches), Anthropic (pixels) and Gemini (tiles)."""
    scale = min(1.0, 2048 / max(width, height, 1))
    wide, high = width * scale, height * scale
    shrink = min(1.0, 768 / max(1.0, min(wide, high)))
    tiles = -(-int(wide * shrink + 1) // 512) * -(-int(high * shrink + 1) // 512)
    if "gpt-4o-mini" in model:
        return 2_833 + 5_667 * tiles
    patches = min(-(-width // 32) * -(-height // 32), 1_536)
    return max(
        85 + 170 * tiles,
        patches * 246 // 100 + 1,
        min(width * height // 750 + 1, _PICTURE_TOKENS),
        258 * -(-min(width, 3_072) // 768) * -(-min(height, 3_072) // 768),
        _LEAST,
    )


def _image(part: FilePart, mime: str, data: bytes) -> ModelFile:
    size = _dimensions(mime, data)
    if size is None:
        return note(part, "an image that cannot be read")
    width, height = size
    if max(size) > IMAGE_SIDE or len(data) > IMAGE_BYTES:
        return note(part, f"an image of {width} x {height} pixels and {len(data)} bytes is too large for models")
    return ModelFile(part.artifact_id, "image", part.line, _url(mime, data), mime, part.filename, width, height)


def _pdf(part: FilePart, data: bytes) -> ModelFile:
    pages = _pages(data)
    if pages > PDF_PAGES or len(data) > PDF_BYTES:
        return note(part, f"a PDF of {pages} pages and {len(data)} bytes is too long for models")
    mime = "application/pdf"
    return ModelFile(part.artifact_id, "pdf", part.line, _url(mime, data), mime, part.filename, pages=pages)


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _image_kind(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _dimensions(mime: str, data: bytes) -> tuple[int, int] | None:
    """Width and height; None if the file does not say."""
    try:
        match mime:
            case "image/png":
                width, height = struct.unpack(">II", data[16:24])
            case "image/gif":
                width, height = struct.unpack("<HH", data[6:10])
            case "image/webp":
                width, height = _webp(data)
            case _:
                width, height = _jpeg(data)
    except (struct.error, ValueError):
        return None
    return (width, height) if width and height else None


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case _:
            raise ValueError


def _jpeg(data: bytes) -> tuple[int, int]:
    place = 2
    while place + 9 <= len(data):
        if data[place] != 0xFF:
            raise ValueError
        marker = data[place + 1]
        if marker == 0xFF:  # a byte that fills
            place += 1
            continue
        if marker in _START:
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    raise ValueError


def _pages(data: bytes) -> int:
    """The pages of a PDF, as it says or as are found; never fewer than one for each 100 kB that nothing is found in."""
    found, said, left = 0, 0, _UNPACKED
    for text in (data, *_unpacked(data, left)):
        found += len(_PAGE.findall(text))
        said = max(said, *(int(count) for count in _COUNT.findall(text)), 0)
    return max(found, said) or max(1, len(data) // 100_000)


def _unpacked(data: bytes, most: int) -> Iterable[bytes]:
    """The streams of objects, unpacked, of at most so many bytes in all."""
    for match in _STREAM.finditer(data):
        if most <= 0:
            return
        try:
            text = zlib.decompressobj().decompress(data[match.end() : match.end() + (4 << 20)], most)
        except zlib.error:
            continue
        most -= len(text)
        yield text


class ReadFile(BaseModel):
    """The arguments of `read_file`; bytes, since what is before is not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    artifact_id: ArtifactId
    offset: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=1)


def read_request(arguments_text: str) -> ReadFile | str:
    """What a call of `read_file` asks for, or a sentence for the model that says what is wrong with it."""
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return bad_arguments(READ_FILE, arguments_text)
    try:
        return ReadFile.model_validate(arguments)
    except ValidationError as error:
        return f"The arguments of {READ_FILE} do not fit: {describe_faults(error, ReadFile, most=1)}."


def text_part(request: ReadFile, data: bytes, size: int) -> JsonObject | str:
    """The bytes from `offset` on as text, without halves of characters; a sentence where they are no text."""
    starts = (place for place in range(min(4, len(data))) if data[place] & 0xC0 != 0x80)
    begun = next(starts, 0) if request.offset else 0
    text: str | None = None
    for cut in range(min(4, len(data) - begun) + 1):
        if (text := text_of(data[begun : len(data) - cut])) is not None:
            break
    if text is None:
        return f"The file {request.artifact_id} is no text: it cannot be read in parts."
    end = request.offset + begun + len(text.encode())
    return {
        "artifact_id": request.artifact_id,
        "offset": request.offset + begun,
        "text": text,
        "bytes": size,
        "left": max(size - end, 0),
    }
