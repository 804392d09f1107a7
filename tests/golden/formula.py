"""Numbers that Python and C compute alike: a 32-bit integer hash of an index, as a float.

word(stream, i) = mix((i + stream * 0x9E3779B9) mod 2^32), where mix is Wellons' "lowbias32";
unit(stream, i) = (word >> 8) * 2^-24 in [0, 1), exact in float32.
"""
import numpy as np


def words(stream, count, start=0):
    x = np.arange(start, start + count, dtype=np.uint64)
    x = ((x + stream * 0x9E3779B9) & 0xFFFFFFFF).astype(np.uint32)
    x ^= x >> np.uint32(16)
    x = (x.astype(np.uint64) * 0x7FEB352D & 0xFFFFFFFF).astype(np.uint32)
    x ^= x >> np.uint32(15)
    x = (x.astype(np.uint64) * 0x846CA68B & 0xFFFFFFFF).astype(np.uint32)
    x ^= x >> np.uint32(16)
    return x


def units(stream, count, start=0):
    return (words(stream, count, start) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def symmetric(stream, count, start=0):
    """In [-1, 1), exact in float32."""
    return units(stream, count, start) * np.float32(2) - np.float32(1)
