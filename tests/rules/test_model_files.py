"""Files as models see them (protocol §22.6): by what is in them, whatever their sender says."""

import struct
import zlib

import pytest

from turnstile.rules import model_files
from turnstile.rules.model_files import describe_file, file_tokens, newest, read_request, text_part, within_total
from turnstile.runtime.ports import ModelFile, ModelMessage
from turnstile.schema.cards import FilePart
from turnstile.schema.ids import ArtifactId


def part(name: str = "f", mime: str = "text/plain", size: int = 1) -> FilePart:
    return FilePart(artifact_id=ArtifactId(name), filename=f"{name}.bin", mime=mime, size=size)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0"


PICTURES = {
    "image/png": png(300, 200),
    "image/gif": b"GIF89a" + struct.pack("<HH", 300, 200) + b"\0\0\0",
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x04\x00\x00\xff\xc0\x00\x11\x08" + struct.pack(">HH", 200, 300) + b"\x03" * 9,
    "image/webp": b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + (299).to_bytes(3, "little") + (199).to_bytes(3, "little"),
}


def pdf(pages: int, *, packed: bool = False) -> bytes:
    objects = b"<< /Type /Pages /Count %d >>" % pages + b"<< /Type /Page >>" * min(pages, 50)
    if not packed:
        return b"%PDF-1.7\n" + objects
    return b"%PDF-1.7\n1 0 obj << /Type /ObjStm /Filter /FlateDecode >>\nstream\n" + zlib.compress(objects)


@pytest.mark.parametrize("mime", PICTURES)
def test_an_image_is_known_by_its_bytes(mime: str) -> None:
    shown = describe_file(part(mime="text/html"), PICTURES[mime], 100)
    assert (shown.kind, shown.mime, shown.width, shown.height) == ("image", mime, 300, 200)
    assert shown.url.startswith(f"data:{mime};base64,")


@pytest.mark.parametrize("packed", [False, True])
def test_the_pages_of_a_pdf_are_counted(packed: bool) -> None:
    shown = describe_file(part(mime="image/png"), pdf(7, packed=packed), 100)
    assert (shown.kind, shown.mime, shown.pages) == ("pdf", "application/pdf", 7)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (png(20_000, 20_000), "20000 x 20000"),
        (pdf(5_000), "5000 pages"),
        (pdf(5_000, packed=True), "5000 pages"),
        (png(0, 5), "cannot be read"),
        (PICTURES["image/jpeg"][:14], "cannot be read"),
        (b"a\0b", "neither"),
        (b"\xc3\x28", "neither"),
        (b"x" * 101, "read_file"),
    ],
)
def test_what_a_model_would_not_take_is_named_with_the_reason(data: bytes, why: str) -> None:
    shown = describe_file(part(mime="image/png"), data, 100)
    assert shown.kind == "note"
    assert why in shown.text
    assert shown.url == ""


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "_UNPACKED", 1000)
    bomb = b"%PDF-1.7\n/Type /ObjStm >>\nstream\n" + zlib.compress(b"\0" * 10_000 + b"/Type /Page " * 50)
    assert describe_file(part(), bomb, 100).pages == 1  # the rest is not looked at


def test_a_text_is_shown_whole_after_its_line() -> None:
    shown = describe_file(part(mime="image/svg+xml"), "<svg>é</svg>".encode(), 100)
    assert (shown.kind, shown.text) == ("text", f"{part(mime='image/svg+xml').line}\n<svg>é</svg>")


def test_only_the_newest_files_are_sent_each_once_and_within_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        ModelMessage(role="user", content="x", files=(part("a"), part("b"))),
        ModelMessage(role="user", content="x", files=(part("c"), part("a"))),
    ]
    parts = newest(said, 2)
    assert [each.artifact_id for each in parts] == ["a", "c"]
    monkeypatch.setattr(model_files, "TOTAL_BYTES", 60)
    shown = within_total([describe_file(each, png(2, 2), 10) for each in parts], {e.artifact_id: e for e in parts})
    assert [(file.kind, "too many" in file.text) for file in shown.values()] == [("image", False), ("note", True)]


@pytest.mark.parametrize(
    ("model", "size", "charged"),
    [  # what the providers' pages say of these
        ("openai/gpt-4o", (1024, 1024), 765),
        ("openai/gpt-4o", (2048, 4096), 1_105),
        ("openai/gpt-4o-mini", (1024, 1024), 2_833 + 4 * 5_667),
        ("openai/gpt-4.1-nano", (4096, 4096), 3_778),
        ("anthropic/claude-sonnet-4-5", (1092, 1092), 1_590),
        ("gemini/gemini-2.5-flash", (3072, 3072), 16 * 258),
    ],
)
def test_an_image_counts_at_least_what_it_costs(model: str, size: tuple[int, int], charged: int) -> None:
    file = describe_file(part(), png(*size), 10)
    said = [ModelMessage(role="user", content="x", files=(part(),))]
    assert charged <= file_tokens(said, {file.artifact_id: file}, model) <= 4 * charged + 1200


def test_a_pdf_counts_by_its_pages() -> None:
    file = describe_file(part(), pdf(10), 10)
    said = [ModelMessage(role="user", content="x", files=(part(),))]
    assert file_tokens(said, {file.artifact_id: file}, "anthropic/claude") >= 10 * 3_000
    assert file_tokens(said, {}, "anthropic/claude") == 0


def test_a_text_is_read_in_parts_without_halves_of_characters() -> None:
    data = "aé€𝄞z".encode() * 20
    said, place = "", 0
    while place < len(data):
        request = read_request(f'{{"artifact_id": "f", "offset": {place}, "limit": 7}}')
        assert not isinstance(request, str)
        read = text_part(request, data[place : place + 7], len(data))
        assert isinstance(read, dict)
        assert isinstance(read["text"], str)
        assert isinstance(read["left"], int)
        said += read["text"]
        place = len(data) - read["left"]
    assert said.encode() == data


@pytest.mark.parametrize("arguments", ["", "{", "[]", "{}", '{"artifact_id": "f", "offset": -1}'])
def test_wrong_arguments_are_a_sentence(arguments: str) -> None:
    assert isinstance(read_request(arguments), str)


def test_a_picture_is_not_read_as_text() -> None:
    request = read_request('{"artifact_id": "f"}')
    assert not isinstance(request, str)
    assert isinstance(text_part(request, png(1, 1), 33), str)


def test_a_file_has_no_bytes_in_its_repr() -> None:
    assert "base64" not in repr(ModelFile(ArtifactId("f"), "image", "line", "data:image/png;base64,AAAA"))
