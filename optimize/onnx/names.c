/* Names, found again by a hash table: FNV-1a, linear probing. */
#include <string.h>

#include "optimize/onnx/reader.h"

static size_t slot_of(const tr_onnx_names *t, const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 1099511628211u;
    size_t s = (h ^ h >> 32) & (t->nslots - 1);
    while (t->slots[s] && strcmp(t->names[t->slots[s] - 1], name) != 0)
        s = (s + 1) & (t->nslots - 1);
    return s;
}

int tr_onnx_find(const tr_onnx_names *t, const char *name)
{
    return t->nslots ? t->slots[slot_of(t, name)] - 1 : -1;
}

static void grow(tr_pool *p, tr_onnx_names *t)
{
    if (2 * (t->n + 1) <= t->nslots) return;
    const size_t n = t->nslots ? 2 * t->nslots : 64;
    const char **names = tr_pool_get(p, n / 2, sizeof *names);
    int *slots = tr_pool_get(p, n, sizeof *slots);
    if (!names || !slots) return;
    if (t->n) memcpy((void *)names, t->names, t->n * sizeof *names);
    *t = (tr_onnx_names){.names = names, .n = t->n, .nslots = n, .slots = slots};
    for (size_t i = 0; i < t->n; i++) t->slots[slot_of(t, t->names[i])] = (int)i + 1;
}

int tr_onnx_name(tr_pool *p, tr_onnx_names *t, const char *name)
{
    grow(p, t);
    if (p->st != TR_OK) return -1;
    t->names[t->n] = name;
    t->slots[slot_of(t, name)] = (int)t->n + 1;
    return (int)t->n++;
}
