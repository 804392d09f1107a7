#include "trainer/run/keep.h"

#include <string.h>
#include <unistd.h>

static const tr_node *key_of(const tr_document *doc)
{
    return tr_node_get(tr_node_get(doc->root, "run"), "deterministic");
}

/* Versions before wrote the key as a boolean. */
static int meaning(const tr_node *n)
{
    static const struct {
        const char *word;
        int is;
    } words[] = {{"on", TR_DETERMINISTIC_ON},
                 {"true", TR_DETERMINISTIC_ON},
                 {"off", TR_DETERMINISTIC_OFF},
                 {"false", TR_DETERMINISTIC_OFF}};
    for (size_t i = 0; n && n->kind == TR_NODE_SCALAR && i < TR_COUNT(words); i++)
        if (strcmp(n->text, words[i].word) == 0) return words[i].is;
    return TR_DETERMINISTIC_AUTO;
}

static tr_status read_folder(const char *folder, int *is)
{
    tr_status st = TR_OK;
    tr_document doc = {0};
    char *text = NULL, *path = tr_sprintf("%s/config.yaml", folder);
    size_t nbytes;
    if (!path) return tr_last_status();
    if (access(path, F_OK) != 0) goto out;
    st = tr_read_text(path, &text, &nbytes);
    if (st == TR_OK) st = tr_document_parse(path, text, nbytes, &doc);
    if (st != TR_OK) { /* the checkpoints may be whole all the same */
        tr_log(TR_LOG_WARN, "run.deterministic: what it was is not known: %s",
               tr_last_error()->text);
        st = TR_OK;
        goto out;
    }
    *is = meaning(doc.root ? key_of(&doc) : NULL);
    if (*is != TR_DETERMINISTIC_AUTO)
        tr_log(TR_LOG_INFO, "run.deterministic: %s, as %s has it",
               *is == TR_DETERMINISTIC_ON ? "on" : "off", path);
out:
    tr_document_close(&doc);
    tr_free(text);
    tr_free(path);
    return st;
}

tr_status tr_config_keep(tr_config *c, tr_comm *comm)
{
    tr_status st = TR_OK;
    int is = TR_DETERMINISTIC_AUTO;
    if (key_of(&c->document)) return TR_OK;
    if (tr_comm_topology(comm)->rank == 0) st = read_folder(c->output, &is);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &is, sizeof is, 0));
    TR_REQUIRE(is != TR_DETERMINISTIC_ON || !c->run.benchmark, "run.benchmark",
               "%s was started with run.deterministic: on, which a resumed run keeps, and timed "
               "choices differ from run to run: leave run.benchmark out, or say "
               "run.deterministic: auto",
               c->output);
    c->run.deterministic = is;
out:
    return st;
}
