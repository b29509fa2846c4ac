"""Writes the hostile tars beside this file. They are kept, so that what is tested never drifts."""

import pathlib
import tarfile

HERE = pathlib.Path(__file__).parent


def member(name, data=b"", kind=tarfile.REGTYPE, **changes):
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    for field, value in changes.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def raw(name, kind, size, data):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def pax_record(key, value):
    body = b" " + key + b"=" + value + b"\n"
    size = len(body) + 1
    while len(str(size)) + len(body) != size:
        size = len(str(size)) + len(body)
    return str(size).encode() + body


def broken_sum(block):
    return block[:148] + b"0000000\0" + block[156:]


def summed(block):
    """A header whose checksum fits."""
    checksum = 256 + sum(block[:148]) + sum(block[156:512])
    return block[:148] + b"%06o\0 " % checksum + block[156:]


def blanked(block, fields, blank=b"\0"):
    """A header without these numeric fields."""
    for start, end in fields:
        block = block[:start] + blank * (end - start) + block[end:]
    return summed(block)


def pax(records):
    return raw("./PaxHeaders/x", tarfile.XHDTYPE, len(records), records)


END = bytes(1024)
# Mode, user, group and time; size.
OTHERS, SIZE = [(100, 124), (136, 148)], [(124, 136)]
A, B = member("a.txt", b"alpha"), member("b.txt", b"beta" * 300)
TARS = {
    "truncated-in-member": (A + B)[:-512],
    "truncated-in-header": A + B[:100],
    "truncated-at-member": A + B,
    "bad-checksum": A + broken_sum(B) + END,
    "bad-first-checksum": broken_sum(A) + END,
    "huge-pax": raw("./PaxHeaders/x", tarfile.XHDTYPE, 7 << 30, b"") + A + END,
    "huge-pax-size": pax(pax_record(b"size", b"18446744073709551615")) + A + END,
    "huge-long-name": raw("././@LongLink", b"L", 2 << 20, bytes(2 << 20 >> 10)) + A + END,
    "malformed-pax": pax(b"99 path=x\n") + A + END,
    "dangling-long-name": raw("././@LongLink", b"L", 6, b"a.txt\0") + END,
    "two-long-names": raw("././@LongLink", b"L", 6, b"c.txt\0") + pax(pax_record(b"path", b"d.txt")) + A + END,
    "global-path": raw("g", tarfile.XGLTYPE, 14, pax_record(b"path", b"c.txt")) + A + END,
    "gnu-sparse": raw("s.bin", tarfile.GNUTYPE_SPARSE, 0, b"") + END,
    "pax-sparse": pax(pax_record(b"GNU.sparse.major", b"1")) + A + END,
    "negative-size": (lambda h: broken_sum(h))(A[:124] + b"\xff" * 12 + A[136:]) + END,
    "joined": A + END + B + END,
    "empty": b"",
    "dot-dot": member("../../etc/a.txt", b"alpha") + member("/abs/b.txt", b"beta") + END,
    "zero-length": member("a.txt") + member("a.cls") + member("b.txt") + END,
    "duplicate-field": member("a.txt", b"1") + member("a.TXT", b"2") + member("a.cls", b"3") + B + END,
    "reserved-field": member("a.__key__", b"1") + B + END,
    "not-utf8": member("\udcff.txt", b"1") + member("\udcfe.txt", b"2") + B + END,
    "others": member("dir/", b"", tarfile.DIRTYPE)
    + member("latest", b"", tarfile.SYMTYPE, linkname="dir")
    + A
    + member("__meta__", b"m")
    + member("noext", b"m")
    + member("a.cls", b"3")
    + END,
    "links": member("dir/pool", b"alpha")
    + member("b.cls", b"7")
    + member("b.txt", b"", tarfile.SYMTYPE, linkname="./dir/pool")
    + member("dir/c.txt", b"", tarfile.LNKTYPE, linkname="b.txt")
    + member("dir/d.txt", b"", tarfile.SYMTYPE, linkname="../dir/c.txt")
    + raw("././@LongLink", b"K", 6, b"b.cls\0")
    + member("e.cls", b"", tarfile.LNKTYPE, linkname="elsewhere")
    + pax(pax_record(b"linkpath", b"b.cls"))
    + member("f.cls", b"", tarfile.SYMTYPE, linkname="elsewhere")
    + END,
    "link-forward": member("h.txt", b"", tarfile.LNKTYPE, linkname="a.txt") + A + END,
    "link-outside": A + member("b.txt", b"", tarfile.SYMTYPE, linkname="../a.txt") + END,
    "two-long-links": raw("././@LongLink", b"K", 6, b"a.txt\0")
    + pax(pax_record(b"linkpath", b"a.txt"))
    + member("b.txt", b"", tarfile.LNKTYPE, linkname="a.txt")
    + END,
    "pax-size": pax(pax_record(b"size", b"5") + pax_record(b"path", b"c.txt"))
    + member("a.txt")
    + b"alpha"
    + bytes(507)
    + B
    + END,
    "blank-numbers": blanked(raw("backup", b"V", 0, b""), OTHERS + SIZE)
    + blanked(A, OTHERS)
    + blanked(member("a.cls"), SIZE, b" ")
    + B
    + END,
    "one-zero-block": A + bytes(512),
    "no-members": END,
    "gzip": b"\x1f\x8b\x08" + bytes(600),
}

if __name__ == "__main__":
    TARS["negative-size"] = summed(TARS["negative-size"])
    for name, data in TARS.items():
        (HERE / f"{name}.tar").write_bytes(data)
