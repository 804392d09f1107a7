#!/usr/bin/env python3
"""Texts to tokens before training, and tokens to text behind it, by any tokenizer.json (Hugging Face's, SentencePiece's in that form).
One file, to copy; needs the package `tokenizers`.

    python3 tokenize_text.py encode tokenizer.json -o train.bin [--separator '<|endoftext|>'] [--cut TEXT] BOOK.txt ...
    python3 tokenize_text.py decode tokenizer.json 464 2068 7586 [...]         (or ids on the standard input)

`encode` writes what `format: tokens` reads: llm.c's file, 16 bits a token where the vocabulary allows it, else 32. A document is a file,
or a piece of one that --cut separates; --separator is put in front of each, so that `documents: ID` finds them again. A document is encoded
as a whole, and a file is held in memory."""
import argparse
import array
import os
import re
import struct
import sys

HEADER, KINDS = 256, {2: (20240520, 1), 4: (20240801, 7)}  # numbers; magic and version by bytes a token
MOST = 2**31 - 1  # tokens that the header can count: a signed number of 32 bits


def fail(text):
    sys.exit("tokenize_text.py: " + " ".join(str(text).split()))


def ask(what, function, *args, **options):
    """What the package answers; it has no narrower exception, and where it gives up one that is none, with a word of its own."""
    try:
        return function(*args, **options)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        fail(f"{what}: {e}")


def load(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("the package `tokenizers` is missing: pip install tokenizers")
    tokenizer = ask(f"{path}: no tokenizer.json that can be read", Tokenizer.from_file, path)
    if not tokenizer.get_vocab():
        fail(f"{path}: a tokenizer without a token")
    return tokenizer


def documents(paths, cut):
    for path in paths:
        try:
            with open(path, encoding="utf-8", newline="") as f:
                text = f.read()
        except (OSError, UnicodeDecodeError) as e:
            fail(f"{path}: no text in UTF-8: {e}")
        yield from (piece for piece in (text.split(cut) if cut else [text]) if piece)


def write(f, kind, ids):
    numbers = array.array(kind, ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    numbers.tofile(f)
    return len(numbers)


def encode(tokenizer, args):
    size = 1 + max(tokenizer.get_vocab().values())  # there may be holes
    tokenizer.no_truncation()  # which the file may ask for: to what a model takes at once
    tokenizer.no_padding()
    front = [] if args.separator is None else [tokenizer.token_to_id(args.separator)]
    if None in front:
        fail(f"{args.tokenizer} has no token {args.separator!r}")
    kind = "H" if size <= 1 << 16 else "I"
    width, count, made = array.array(kind).itemsize, 0, args.out + ".part"
    nbytes = 0  # of the texts
    try:
        with open(made, "wb") as f:
            f.write(bytes(4 * HEADER))
            for text in documents(args.texts, args.cut):
                ids = front + ask(f"{args.tokenizer} does not encode", tokenizer.encode, text, add_special_tokens=False).ids
                if count + len(ids) > MOST:
                    fail(f"{args.out}: more than {MOST} tokens, which a file of this format cannot count: make several")
                count += write(f, kind, ids)
                nbytes += len(text.encode())
            f.seek(0)
            f.write(struct.pack("<3i", *KINDS[width], count))
        os.replace(made, args.out)  # whole, or not there
    except OSError as e:
        fail(f"{args.out}: cannot be written: {e.strerror}")
    finally:
        if os.path.exists(made):
            os.unlink(made)
    print(f"{args.out}: {count} tokens, {8 * width} bits each")
    more = (f", documents: {front[0]}" if front else "") + (f", bytes_per_token: {nbytes / count:.6g}" if count else "")
    print(f"data.train: {{path: {args.out}, format: tokens{more}}}; embedding and last layer: {size}")


def decode(tokenizer, args):
    sys.stdin.reconfigure(errors="replace")
    known, ids = set(tokenizer.get_vocab().values()), []
    for word in args.ids or sys.stdin.read().replace(",", " ").split():
        if not re.fullmatch("[0-9]{1,10}", word) or int(word) not in known:
            fail(f"{args.tokenizer} has no token {word[:40]!r}: ids are whole numbers from 0 to {max(known)}")
        ids.append(int(word))
    print(ask(f"{args.tokenizer} does not decode", tokenizer.decode, ids, skip_special_tokens=False))


def main():
    sys.stdout.reconfigure(errors="replace")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    to = commands.add_parser("encode", help="texts to a file of tokens")
    to.add_argument("tokenizer")
    to.add_argument("texts", nargs="+")
    to.add_argument("-o", "--out", required=True)
    to.add_argument("--separator", help="the token in front of each document")
    to.add_argument("--cut", help="the text between documents of a file, which is left out")
    to.set_defaults(run=encode)
    back = commands.add_parser("decode", help="tokens to text")
    back.add_argument("tokenizer")
    back.add_argument("ids", nargs=argparse.REMAINDER)  # "-1" is no option
    back.set_defaults(run=decode)
    args = parser.parse_args()
    args.run(load(args.tokenizer), args)


if __name__ == "__main__":
    main()
