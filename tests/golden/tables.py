#!/usr/bin/env python3
"""Makes tables.h5: CSV texts with what pandas makes of them. Needs pandas, numpy and h5py; tests do not.
tests/unit/data/test_table.c reads it.

    python3 tables.py [FOLDER]

A group a case: `text`, `x` (lines, numbers and then a 1 among 0s for the texts), `y`; attributes delimiter, inputs (names
as a JSON list, the column "t" of texts last, if there is one), categories (its texts likewise, in order), zero (missing
numbers and texts are 0; else their lines are left out)."""
import io
import json
import os
import sys

import h5py
import numpy as np
import pandas as pd

MISSING = ["", "NA", "na", "N/A", "n/a", "NaN", "nan", "null", "NULL"]

CASES = {
    "numbers": (",", "a,b,y\r\n1,2.5,0\r\n-3e2,+4,1\r\n.5,7.,2\r\n1e-3,123456789.125,0\r\n-0.0,3.4e38,1\r\n0012,1E5,2\r\n", "a,b"),
    "types": (",", "whole,part,wide,y\n1,1.5,16777217,0\n2,2.25,-9007199254740993,1\n-3,0.1,4294967296,1\n", "whole,part,wide"),
    "quotes": (",", 'a,"b ""x""",t,y\n"1","2.5","red, or so",0\n3,"-4","say ""hi""",1\n5,6,"two\nlines",0\n"7",8,plain,1\n', 'a,"b ""x""",t'),
    "missing": (",", "a,b,t,y\n1,2,red,0\n,3,red,1\nNA,4,blue,0\n5,N/A,blue,1\n6,7,null,0\n8,9,NaN,1\n10,11,green,0\n12,nan,,1\n13,14,red,1\n", "a,b,t"),
    "zero": (",", "a,b,t,y\n1,2,red,0\n,3,red,1\nNA,4,blue,0\n5,n/a,blue,1\n6,7,NULL,0\n", "a,b,t"),
    "semicolons": (";", "a;t;y\n1;x,y;0\n2;z;1\n3;x,y;1\n", "a,t"),
    "tabs": ("\t", "y\ta\tt\n0\t1\tb c\n1\t2\ta\n", "a,t"),
    "blank": (",", "\ufeffa,b,y\n\n1,2,0\n\n\n3,4,1\n", "a,b"),
    "spaces": (",", "a , b,t,y\n 1, 2 , red ,0\n3 ,4,red,1\n5,6,  blue,1\n", "a,b,t"),
    "unicode": (",", "größe,t,y\n1,é,0\n2,日本,1\n3,a,0\n4,é,1\n", "größe,t"),
}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    with h5py.File(os.path.join(folder, "tables.h5"), "w", libver=("v108", "v108")) as f:
        f.attrs["made_by"] = f"pandas {pd.__version__}"
        for name, (delimiter, text, inputs) in CASES.items():
            table = pd.read_csv(io.BytesIO(text.encode()), sep=delimiter, dtype=str, na_values=MISSING, keep_default_na=False,
                                skipinitialspace=True, encoding="utf-8-sig")
            table.columns = table.columns.str.strip()
            table = table.apply(lambda c: c.str.strip())
            names = next(pd.read_csv(io.StringIO(inputs), header=None).itertuples(index=False))
            numbers = [c for c in names if c != "t"]
            texts = sorted(table["t"].dropna().unique(), key=str.encode) if "t" in names else []  # of dropped lines, too
            if name != "zero":
                table = table.dropna(subset=[*names, "y"])
            # as pandas types whole columns, with every digit
            typed = pd.read_csv(io.StringIO(table[numbers].to_csv(index=False))).astype(np.float64)
            x = typed.fillna(0).to_numpy(np.float32)
            if texts:
                x = np.hstack([x, pd.get_dummies(pd.Categorical(table["t"], texts)).to_numpy(np.float32)])
            g = f.create_group(name)
            g["text"] = np.frombuffer(text.encode(), np.uint8)
            g["x"], g["y"] = x, table["y"].astype(int).to_numpy(np.int32)
            for key, value in dict(delimiter=delimiter, inputs=json.dumps(list(names)), categories=json.dumps(texts)).items():
                g.attrs[key] = np.bytes_(value.encode())
            g.attrs["zero"] = int(name == "zero")


main()
