# SPDX-License-Identifier: Apache-2.0
"""Guests of a few instructions, assembled by hand: 32-bit protected mode without paging (PVH)."""
import struct

ENTRY = 0x200000
SERIAL, POWER = 0xD0000000, 0xD000F020


def elf(code: bytes, *, pvh: bool, entry: int = ENTRY) -> bytes:
    """An ELF64 kernel of one segment; with `pvh` it has the note that asks for 32-bit protected mode."""
    note = struct.pack("<III4sI", 4, 4, 18, b"Xen\0", entry) if pvh else b""
    headers = 2 if pvh else 1
    note_at = 64 + 56 * headers
    code_at = 0x1000
    data = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + bytes(9), 2, 62, 1, entry, 64, 0, 0, 64, 56, headers,
                       0, 0, 0)
    data += struct.pack("<IIQQQQQQ", 1, 7, code_at, ENTRY, ENTRY, len(code), max(len(code), 0x1000), 0x1000)
    if pvh:
        data += struct.pack("<IIQQQQQQ", 4, 4, note_at, 0, 0, len(note), len(note), 4)
    return (data + note).ljust(code_at, b"\0") + code


def store8(address: int, value: int) -> bytes:
    return b"\xc6\x05" + struct.pack("<IB", address, value)


def store32(address: int, value: int) -> bytes:
    return b"\xb8" + struct.pack("<I", value) + b"\xa3" + struct.pack("<I", address)


HALT = b"\xfa\xf4\xeb\xfd"  # cli; hlt; again

JUMP, IF_ZERO, IF_NOT_ZERO = b"\xe9", b"\x0f\x84", b"\x0f\x85"


def assemble(*parts: bytes | str | tuple[bytes, str]) -> bytes:
    """Instructions, labels ("name"), and jumps to labels ((opcode, "name"))."""
    sizes = [0 if isinstance(part, str) else len(part) if isinstance(part, bytes) else len(part[0]) + 4 for part in parts]
    after = [sum(sizes[:n + 1]) for n in range(len(parts))]
    labels = {part: after[n] for n, part in enumerate(parts) if isinstance(part, str)}
    code = b""
    for n, part in enumerate(parts):
        if isinstance(part, tuple):
            part = part[0] + struct.pack("<i", labels[part[1]] - after[n])
        code += part if isinstance(part, bytes) else b""
    return code


BELL = 0xD000F000
PAGE_LO, PAGE_HI, PORT, PARK, OUT, DONE = 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18
REQUEST_PAGE, RESPONSE_PAGE = 0x300000, 0x301000
DATA = ENTRY + 0x800


def interpreter(answer: bytes) -> bytes:
    """A guest that behaves at the doorbell as an interpreter does; its answer to every first request is fixed."""
    assert len(answer) <= 0x800
    code = b""
    for page in (REQUEST_PAGE, RESPONSE_PAGE):
        code += store32(BELL + PAGE_LO, page) + store32(BELL + PAGE_HI, 0)
    code += store32(BELL + PORT, 2000)
    code += b"\xbb" + struct.pack("<I", BELL + PARK)  # mov ebx, PARK
    code += b"\x8b\x03\x83\xf8\xff\x74\xf9"  # again: mov eax, [ebx]; cmp eax, -1; je again
    code += b"\x85\xc0\x74\x1b"  # test eax, eax; jz over what follows
    code += b"\xbe" + struct.pack("<I", DATA) + b"\xbf" + struct.pack("<I", RESPONSE_PAGE)  # mov esi; mov edi
    code += b"\xb9" + struct.pack("<I", len(answer)) + b"\xf3\xa4"  # mov ecx; rep movsb
    code += store32(BELL + DONE, len(answer))
    code += HALT
    return code.ljust(0x800, b"\x90") + answer
