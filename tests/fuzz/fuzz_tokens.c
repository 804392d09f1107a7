/* libFuzzer: a file of tokens, cut into windows or documents and read as a user's would be. The
 * first byte: 3 bits of window length and stride, 1 documents, 3 of type (4: a text), 1: the rest
 * is two files, of half the bytes each. */
#include "fuzz_data.h"

#include <string.h>

#include "runtime/data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0) return 0;
    const int how = bytes[0], T = 2 + how % 8;
    const bool text = (how >> 4) % 8 == 4, two = how & 128 && !text;
    const size_t first = two ? (n - 1) / 2 : n - 1;
    char path[72], other[32];
    const int fd = fuzz_file(bytes + 1, first, path),
              fd2 = fuzz_file(bytes + 1 + first, n - 1 - first, other);
    if (two) snprintf(path + strlen(path), 40, ",%s", other);
    tr_array *inputs[TR_MAX_IN] = {NULL}, *labels = NULL;
    tr_input in[2] = {{.ndim = 1, .dims = {T}, .ids = 256}, {.ndim = 1, .dims = {1}, .ids = T + 1}};
    const tr_model m = {.ninputs = 2,
                        .inputs = in,
                        .labels = true,
                        .classes = 256,
                        .rows = T,
                        .ndim_target = 1,
                        .target_dims = {T}};
    tr_node root = {.kind = TR_NODE_MAP, .source = "fuzz", .line = 1, .column = 1};
    tr_config c = {.directory = (char *)".", .document = {.root = &root}};
    c.model.loss.ignore_index = -100;
    c.data.train = (tr_source_config){.path = path, .stride = 1 + how % 3, .documents = -1};
    if (how & 8) c.data.train.documents = 7;
    const tr_opening o = {.c = &c, .s = &c.data.train, .m = &m, .block = "data.train"};
    const tr_status st = tr_tokens_open(&o, text ? -1 : (how >> 4) % 4, inputs, &labels);
    if (st != TR_OK && st != TR_DATA) abort();
    for (int k = 0; k < 2; k++)
        if (inputs[k]) fuzz_read(inputs[k]);
    if (labels) fuzz_read(labels);
    close(fd);
    close(fd2);
    return 0;
}
