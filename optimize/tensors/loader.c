/* The Python that loads a file of arrays: a few lines, which know the file's name and format, and
 * nothing of the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/tensors/tensors.h"
#include "runtime/base/file.h"

static const char *const bodies[] = {
    [TR_TENSORS_SAFETENSORS] = "    try:\n"
                               "        from safetensors.torch import load_file\n"
                               "    except ImportError:\n"
                               "        from safetensors.numpy import load_file\n"
                               "    return load_file(file)\n",
    [TR_TENSORS_NPZ] = "    import numpy\n"
                       "    with numpy.load(file) as arrays:\n"
                       "        return tensors(dict(arrays))\n",
    [TR_TENSORS_HDF5] =
        "    import h5py\n"
        "    with h5py.File(file, \"r\") as arrays:\n"
        "        return tensors({name: array[()] for name, array in arrays.items()})\n",
};

static const char TENSORS[] =
    "def tensors(arrays):\n"
    "    try:\n"
    "        import torch\n"
    "    except ImportError:\n"
    "        return arrays\n"
    "    return {name: torch.from_numpy(array) for name, array in arrays.items()}\n\n\n";

/* As a string of Python's. */
static void quote(const char *text, FILE *to)
{
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == '"' || *p == '\\' || *p == 0x7f)
            fprintf(to, "\\x%02x", *p);
        else
            fputc(*p, to);
    fputc('"', to);
}

static void write_text(tr_tensors_format format, const char *name, FILE *to)
{
    fputs(
        "\"\"\"The model's values by name: a state_dict where PyTorch is installed, else arrays of "
        "NumPy's.\"\"\"\n"
        "import pathlib\n\nFILE = pathlib.Path(__file__).with_name(",
        to);
    quote(name, to);
    fputs(")\n\n\n", to);
    if (format != TR_TENSORS_SAFETENSORS) fputs(TENSORS, to);
    fprintf(to,
            "def load(file=FILE):\n%s\n\nif __name__ == \"__main__\":\n    for name, value in "
            "load().items():\n        print(name, tuple(value.shape), value.dtype)\n",
            bodies[format]);
}

tr_status tr_tensors_loader(const char *path, tr_tensors_format format, const char *file)
{
    tr_status st;
    tr_commit c = {.fd = -1};
    char *text = NULL;
    size_t n;
    const char *slash = strrchr(file, '/');
    FILE *to = open_memstream(&text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "out of memory for %s", path);
    write_text(format, slash ? slash + 1 : file, to);
    TR_NEED(fclose(to) == 0, TR_MEMORY, "out of memory for %s", path);
    TR_TRY(tr_commit_open(&c, path, n));
    TR_TRY(tr_commit_write(&c, 0, text, n));
    TR_TRY(tr_commit_finish(&c));
out:
    tr_commit_close(&c);
    free(text);
    return st;
}
