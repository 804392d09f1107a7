"""Files and numbers as strangers read them: CRC-32C, protocol buffers, sizes as the trainer prints them."""
import re


def crc_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message: integers, or the bytes of the other kinds."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            if kind == 2:
                size, at = varint(data, at)
            else:
                size = {1: 8, 5: 4}[kind]
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def scaled(text):
    """'3.45 MB', '38.1 k', '152 kB' as (value, half a unit of its last digit)."""
    number, prefix = re.fullmatch(r"([\d.]+) ?([kMG]?)(?:B|FLOP)?", text.strip()).groups()
    unit = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[prefix]
    decimals = len(number.partition(".")[2])
    return float(number) * unit, 0.5001 * 10**-decimals * unit
