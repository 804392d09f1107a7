/* Memory that is released at once: large pieces each by itself, small ones out of blocks. */
#include "optimize/onnx/pool.h"

#include <string.h>

enum { BLOCK = 1 << 16, SMALL = 1 << 12, ALIGN = 16 };

typedef struct block {
    struct block *next;
    _Alignas(64) unsigned char bytes[];
} block;

void tr_pool_close(tr_pool *p)
{
    for (block *b = p->blocks; b;) {
        block *next = b->next;
        tr_free(b);
        b = next;
    }
    *p = (tr_pool){0};
}

static void *piece(tr_pool *p, size_t n)
{
    block *b = n <= SIZE_MAX - sizeof *b ? tr_alloc(TR_MEM_OTHER, sizeof *b + n, 1)
                                         : tr_alloc(TR_MEM_OTHER, SIZE_MAX, 2);
    if (!b) {
        p->st = tr_last_status();
        return NULL;
    }
    b->next = p->blocks;
    p->blocks = b;
    return b->bytes;
}

void *tr_pool_get(tr_pool *p, size_t count, size_t size)
{
    size_t n;
    if (p->st != TR_OK) return NULL;
    if (!tr_mul_size(count, size, &n)) n = SIZE_MAX;
    if (p->most && (n > p->most || p->held > p->most - n)) {
        p->st =
            TR_FAIL(TR_MEMORY, "more than %zu bytes of memory for what the file holds", p->most);
        return NULL;
    }
    p->held += n;
    if (n > SMALL) return piece(p, n);
    n = tr_align_up(n, ALIGN);
    if (n > p->left) {
        if (!(p->at = piece(p, BLOCK))) return NULL;
        p->left = BLOCK;
    }
    void *made = p->at;
    p->at += n;
    p->left -= n;
    return made;
}

char *tr_pool_text(tr_pool *p, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    char *text = tr_pool_get(p, (size_t)(n < 0 ? 0 : n) + 1, 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(args);
    va_end(again);
    return text;
}

char *tr_pool_copy(tr_pool *p, const char *text)
{
    return tr_pool_text(p, "%s", text);
}

/* Lists double at powers of two; what they outgrow stays in the pool. */
void tr_pool_push(tr_pool *p, void *list, size_t *n, void *item)
{
    void **old;
    if (p->st != TR_OK || !item) return;
    memcpy(&old, list, sizeof old);
    if ((*n & (*n - 1)) == 0) {
        void **grown = tr_pool_get(p, *n ? 2 * *n : 1, sizeof *grown);
        if (!grown) return;
        if (*n) memcpy(grown, old, *n * sizeof *grown);
        memcpy(list, &grown, sizeof grown);
        old = grown;
    }
    old[(*n)++] = item;
}

void *tr_pool_message(tr_pool *p, size_t size, const void *init)
{
    void *m = tr_pool_get(p, 1, size);
    if (m) memcpy(m, init, size);
    return m;
}
