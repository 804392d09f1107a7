/* What the fuzzers of files of named arrays share: any bytes, read into a small network as a user's
 * would be, end in its values or in an error with a text, and nothing is left. */
#ifndef TR_FUZZ_ARRAYS_H
#define TR_FUZZ_ARRAYS_H

#include "fuzz_data.h"
#include "optimize/tensors/provider.h"

static tr_network *fuzz_network(void)
{
    static const char CONFIG[] =
        "name: fuzz\ndata: {train: {format: synthetic, samples: 1}}\n"
        "model:\n  input: [6]\n  layers:\n    - linear: {out: 2, name: a}\n"
        "    - batchnorm: {name: b}\n  loss: mse\n"
        "train: {batch: 1, steps: 1}\n";
    tr_config *c = NULL;
    tr_model *m = NULL;
    tr_network *n = NULL;
    if (tr_config_open("fuzz", CONFIG, sizeof CONFIG - 1, NULL, 0, NULL, &c) != TR_OK ||
        tr_model_open(c, 0, &m) != TR_OK || tr_network_open(m, &n) != TR_OK)
        abort();
    tr_config_close(c);
    return n;
}

/* Whether the network took them. */
static bool fuzz_arrays(const tr_arrays_provider *provider, const uint8_t *bytes, size_t n)
{
    static tr_network *net; /* one for all inputs: what is taken is overwritten */
    char path[32];
    if (!net) net = fuzz_network();
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    const int fd = fuzz_file(bytes, n, path);
    tr_arrays a = {.path = path, .provider = provider};
    const tr_init_from o = {.file = path};
    tr_status st = provider->open(&a);
    if (st == TR_OK) st = tr_arrays_take(&a, &o, net, NULL);
    if (st != TR_OK && !*tr_last_error()->text) abort();
    if (a.own) provider->close(a.own);
    tr_free(a.v);
    close(fd);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return st == TR_OK;
}

#endif
