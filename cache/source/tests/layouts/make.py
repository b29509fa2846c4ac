"""Writes the layouts beside this file: values of `lustre.lov` as Lustre's client tells them.

Built from the structures of `lustre_user.h`, field by field, not by the code under test. Run it to
make them anew: `python3 make.py`.
"""

import pathlib
import struct

V1, V3, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD60BD0
RAID0, MDT, OVERSTRIPED, RELEASED = 0x1, 0x100, 0x200, 0x80000000
STALE, PREFERRED, INIT = 0x1, 0x2, 0x10
KIB, MIB = 1 << 10, 1 << 20
EOF = 2**64 - 1


def md(stripe, osts, pool=None, pattern=RAID0, count=None):
    """lov_user_md_v1, or v3 with a pool."""
    magic = V1 if pool is None else V3
    count = len(osts) if count is None else count
    # lmm_magic, lmm_pattern, lmm_oi (id, seq), lmm_stripe_size, lmm_stripe_count, lmm_layout_gen
    head = struct.pack("<IIQQIHH", magic, pattern, 0x2B, 0x200000401, stripe, count, 0)
    name = b"" if pool is None else struct.pack("<16s", pool)
    # l_ost_oi (id, seq), l_ost_gen, l_ost_idx
    objects = [struct.pack("<QQII", 0x1000 + n, 0x100000000, 0, ost) for n, ost in enumerate(osts)]
    return head + name + b"".join(objects)


def composite(entries, mirrors=0):
    """lov_comp_md_v1 over (id, flags, start, end, md)."""
    at = 32 + 48 * len(entries)
    heads, bodies = b"", b""
    for number, flags, start, end, body in entries:
        # lcme_id, lcme_flags, lcme_extent, lcme_offset, lcme_size, lcme_layout_gen, lcme_timestamp,
        # lcme_padding_1
        offset = at + len(bodies)
        heads += struct.pack("<IIQQIIIQI", number, flags, start, end, offset, len(body), 0, 0, 0)
        bodies += body
    # lcm_magic, lcm_size, lcm_layout_gen, lcm_flags, lcm_entry_count, lcm_mirror_count, padding
    size = at + len(bodies)
    head = struct.pack("<IIIHHH14x", COMPOSITE, size, 3, 0, len(entries), mirrors)
    return head + heads + bodies


LAYOUTS = {
    # lfs setstripe -c 4 -S 1M
    "plain-4x1m": md(MIB, [3, 0, 7, 5]),
    # lfs setstripe -c 2 -S 16M -p flash
    "pool-2x16m": md(16 * MIB, [11, 12], pool=b"flash"),
    # lfs setstripe -C 4 -S 4M, two objects on each OST
    "overstriped": md(4 * MIB, [1, 2, 1, 2], pattern=RAID0 | OVERSTRIPED),
    # lfs setstripe -E 1M -L mdt -E 64M -c 1 -S 4M -E -1 -c 8 -S 16M
    "progressive": composite([
        (1, INIT, 0, MIB, md(MIB, [], pattern=MDT)),
        (2, INIT, MIB, 64 * MIB, md(4 * MIB, [6])),
        (3, INIT, 64 * MIB, EOF, md(16 * MIB, list(range(8)))),
    ]),
    # The same when nothing lies in the last part yet.
    "progressive-short": composite([
        (1, INIT, 0, 64 * MIB, md(4 * MIB, [6])),
        (2, 0, 64 * MIB, EOF, md(16 * MIB, [], count=0xFFFF)),
    ]),
    # lfs mirror create: a stale mirror, one to read, one that is preferred
    "mirrored": composite([
        (0x10001, INIT | STALE, 0, EOF, md(MIB, [1])),
        (0x20001, INIT, 0, EOF, md(MIB, [2])),
        (0x30001, INIT | PREFERRED, 0, 8 * MIB, md(2 * MIB, [3, 4], pool=b"flash")),
        (0x30002, INIT, 8 * MIB, EOF, md(4 * MIB, [5])),
    ], mirrors=2),
    # lfs hsm_release
    "released": md(MIB, [], pattern=RAID0 | RELEASED, count=1),
    # Stripes that parts of 4 MiB do not fit
    "plain-2x3m": md(3 * MIB, [8, 9]),
}

if __name__ == "__main__":
    for name, value in LAYOUTS.items():
        pathlib.Path(__file__).with_name(f"{name}.lov").write_bytes(value)
