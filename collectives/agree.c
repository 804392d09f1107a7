/* Agreement: every rank brings its status, every rank leaves knowing whether all went well, and if
 * not, what the lowest failing rank had to say. One gather of a word when all is well, one more of
 * nothing but that rank's text when it is not. */
#include "collectives/waiting/waiting.h"

#include <string.h>

/* Beside the status in what ranks bring: a rank that only heard of a failure is no witness. */
#define HEARSAY 0x10000

typedef struct {
    char host[64];
    char text[TR_ERROR_TEXT];
} tr_words;

/* The lowest rank with an error of its own, or where none has one any more, that heard of one; or
 * `size`. */
static int speaker(const int32_t *all, int size)
{
    int own = 0, any = 0;
    while (own < size && (all[own] == TR_OK || all[own] & HEARSAY)) own++;
    while (any < size && all[any] == TR_OK) any++;
    return own < size ? own : any;
}

/* To what broke the job: launchers of a rank that died ask the others to stop, which is no reason
 * then. */
static bool gives_way(tr_status st)
{
    return st == TR_OK || st == TR_STOPPED;
}

tr_status tr_agree(tr_comm *c, tr_status st, bool *said)
{
    int32_t mine = (int32_t)st, few[64], *all = few;
    tr_job *j = c->job;
    int size = c->topology.size, first = 0;
    bool speak = st != TR_OK, failed = false;
    tr_error own = *tr_last_error(); /* what follows may overwrite the record */
    if (st != TR_OK && own.status == st && own.hearsay) mine |= HEARSAY;
    tr_words words = {{0}, {0}};
    tr_status got = TR_OK;

    if (j->topology.size == 1 || (size == 1 && !j->broken)) goto out;
    if (j->broken) { /* nobody to agree with: one survivor a node speaks */
        if (gives_way(st)) st = j->failure.status, own = j->failure;
        tr_set_error(&own);
        speak = tr_notes_first(j);
        if (said) *said = speak;
        return st;
    }
    j->heard = -1; /* of an earlier failure that was got over */
    if (size > (int)TR_COUNT(few)) {
        all = tr_alloc(TR_MEM_OTHER, (size_t)size, sizeof *all);
        if (!all) { /* cannot take part, and cannot tell: end the job rather than hang it */
            tr_log(TR_LOG_ERROR, "%s", tr_last_error()->text);
            tr_comm_abort(c, tr_status_exit_code(TR_MEMORY));
        }
    }
    got = tr_comm_all_gather(c, &mine, all, sizeof mine);
    if (got == TR_OK) {
        first = speaker(all, size);
        failed = first < size;
    }
    if (got == TR_OK && failed) {
        if (c->topology.rank == first) {
            bool fresh = own.status == st;
            memcpy(words.host, c->topology.host, sizeof(words.host));
            snprintf(words.text, sizeof(words.text), "%s", fresh ? own.text : tr_status_text(st));
        }
        got = tr_comm_broadcast(c, &words, sizeof(words), first);
    }
    if (got != TR_OK) {
        if (gives_way(st))
            st = got;
        else
            tr_set_error(&own);
        speak = tr_notes_first(j);
    } else if (failed && st == TR_OK) {
        tr_status theirs = (tr_status)(all[first] & ~HEARSAY);
        st = tr_status_exit_code(theirs) == 1 ? TR_PEER : theirs;
        if (all[first] & HEARSAY)
            (void)TR_FAIL(st, "%s", words.text);
        else
            (void)TR_FAIL(st, "a peer failed: rank %d (%s): %.900s", c->ranks[first], words.host,
                          words.text);
        (void)tr_fail_hearsay(st);
        speak = false;
        /* it speaks, also if we give up now */
        if (!tr_peers_shares(j, c->ranks[first])) j->heard = c->ranks[first];
    } else if (failed) {
        tr_set_error(&own);
        speak = c->topology.rank == first;
    }
    if (all != few) tr_free(all);
out:
    if (said) *said = speak;
    return st;
}
