/* The same text on all ranks: digests are gathered, and only where they differ does rank 0 send its
 * text, for the others to find the line. */
#include "collectives/collectives.h"

#include <string.h>

#define NAMED  4   /* ranks that are named one by one */
#define SHOWN  200 /* bytes of a line, */
#define BEFORE 60  /* so many of them before what differs */

typedef struct {
    char sha256[65], host[64];
    uint64_t nbytes; /* of the text and its end */
} digest;

/* "2 (hostb), 3 (hostb) and 7 more": those that are not as rank 0. */
static void list_others(const digest *all, int size, char *text, size_t room)
{
    size_t used = 0;
    int count = 0;
    for (int r = 1; r < size; r++) {
        if (strcmp(all[r].sha256, all[0].sha256) == 0 || count++ >= NAMED) continue;
        used += (size_t)snprintf(text + used, room - used, "%s%d (%s)", used ? ", " : "", r,
                                 all[r].host);
    }
    if (count > NAMED) snprintf(text + used, room - used, " and %d more", count - NAMED);
}

/* Both from the first line on that differs; where that is a long one, from a little before the
 * place. */
static void find_place(const char **a, const char **b)
{
    const char *line = *a, *p = *a, *q = *b;
    for (; *p && *p == *q; p++, q++)
        if (*p == '\n') line = p + 1;
    const char *from = p - line > SHOWN - BEFORE ? p - BEFORE : line;
    while (from > line && ((unsigned char)*from & 0xC0) == 0x80)
        from--; /* not within a character */
    *b += from - *a;
    *a = from;
}

/* What is shown of the line that begins at `s`, up to a whole character. */
static int shown(const char *s)
{
    size_t n = strcspn(s, "\n");
    if (n <= SHOWN) return (int)n;
    for (n = SHOWN; n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80;) n--;
    return (int)n;
}

static tr_status fail(const digest *all, const tr_topology *t, tr_status blame, const char *what,
                      const char *first, const char *mine)
{
    char others[NAMED * 80 + 32];
    list_others(all, t->size, others, sizeof others);
    find_place(&first, &mine);
    return TR_FAIL(blame,
                   "%s is not the same on all ranks: rank 0 (%s) has \"%.*s\", rank %d (%s) has "
                   "\"%.*s\"; unlike rank 0: %s",
                   what, all[0].host, shown(first), first, t->rank, t->host, shown(mine), mine,
                   others);
}

/* *Collective*, where some text differs. */
static tr_status compare(tr_comm *comm, const digest *all, tr_status blame, const char *what,
                         const char *text)
{
    const tr_topology *t = tr_comm_topology(comm);
    const size_t nbytes = (size_t)all[0].nbytes;
    char *first = tr_alloc(TR_MEM_OTHER, nbytes, 1);
    tr_status st = tr_agree(comm, first ? TR_OK : tr_last_status(), NULL);
    if (st != TR_OK) goto out;
    if (t->rank == 0) memcpy(first, text, nbytes);
    TR_TRY(tr_comm_broadcast(comm, first, nbytes, 0));
    if (strcmp(first, text) != 0) st = fail(all, t, blame, what, first, text);
    st = tr_agree(comm, st, NULL);
out:
    tr_free(first);
    return st;
}

tr_status tr_same_text(tr_comm *comm, tr_status blame, const char *what, const char *text)
{
    const tr_topology *t = tr_comm_topology(comm);
    tr_status st = TR_OK;
    bool same = true;
    digest mine = {.nbytes = strlen(text) + 1};
    if (t->size == 1) return TR_OK;
    digest *all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *all);
    TR_TRY(tr_agree(comm, all ? TR_OK : tr_last_status(), NULL));
    tr_sha256_hex(text, strlen(text), mine.sha256);
    snprintf(mine.host, sizeof mine.host, "%s", t->host);
    TR_TRY(tr_comm_all_gather(comm, &mine, all, sizeof mine));
    for (int r = 1; r < t->size; r++) same &= strcmp(all[r].sha256, all[0].sha256) == 0;
    if (!same) st = compare(comm, all, blame, what, text);
out:
    tr_free(all);
    return st;
}
