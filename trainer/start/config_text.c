/* A config for a text or a file of tokens: a transformer that says the next token, sized to how
 * many there are. */
#include "runtime/config/config.h"
#include "trainer/start/start.h"

typedef struct {
    int64_t window, stride, dim, heads, blocks, batch, epochs;
} choice;

/* As wide as is of use for so many tokens, and still of a few minutes on a CPU. */
static choice choose(const tr_look *l)
{
    choice c = {.window = 128, .stride = 1, .dim = 96, .heads = 6, .blocks = 3, .batch = 16};
    const int64_t tokens = (int64_t)l->samples;
    if (tokens > 2000000) c = (choice){256, 1, 192, 6, 6, 32, 0};
    while (c.window > 8 && c.window * 64 > tokens) c.window /= 2;
    /* a short text from many places, or the model learns its few windows by heart */
    c.stride = tokens < 500000 ? c.window / 8 : c.window;
    const int64_t windows = tokens / c.stride;
    while (c.batch > 1 && c.batch * 8 > windows) c.batch /= 2;
    c.epochs = 1500 * c.batch / windows;
    c.epochs = c.epochs < 1 ? 1 : c.epochs > 50 ? 50 : c.epochs;
    return c;
}

static tr_status write_data(const tr_look *l, const choice *c, FILE *to)
{
    const bool text = l->format == TR_FORMAT_TEXT;
    char *path = tr_yaml_quoted(l->train.path);
    if (!path) return tr_last_status();
    fprintf(
        to,
        "\ndata:                          # paths are relative to this file\n"
        "  train: {path: %s, format: %s%s, stride: %lld} # %llu %s; a window begins every stride\n",
        path, text ? "text" : "tokens", l->dtype == TR_TOKENS_U32 ? ", dtype: uint32" : "",
        (long long)c->stride, (unsigned long long)l->samples, text ? "bytes" : "tokens");
    if (l->dtype == TR_TOKENS_U32)
        fputs("  # dtype is a guess, by how the numbers look; where they have 16 bits: uint16\n",
              to);
    if (!text)
        fputs(
            "  # what tokenize_text.py says beside the path can stand there, too: bytes_per_token, "
            "and documents in the\n"
            "  # place of stride, with loss: {cross_entropy: {ignore_index: -1}}\n",
            to);
    fputs("  split: {fraction: 0.1}       # the last tenth is held out, to evaluate on\n", to);
    tr_free(path);
    return TR_OK;
}

static void write_model(const tr_look *l, const choice *c, FILE *to)
{
    fprintf(
        to,
        "\nmodel:                         # says the next token of each one's place\n"
        "  input: [%lld]                 # tokens of a window\n"
        "  init: normal\n"
        "  layers:\n"
        "    - embedding: {num: %lld, dim: %lld, std: 0.02, name: token} # %s\n"
        "    - positions: {name: place}\n"
        "    - repeat:                  # blocks: what a place sees before it, then by itself\n"
        "        times: %lld\n"
        "        layers:\n"
        "          - residual:\n"
        "              body:\n"
        "                - layernorm\n"
        "                - linear: {out: %lld} # queries, keys, values\n"
        "                - attention: {heads: %lld, causal: true}\n"
        "                - linear: {out: %lld}\n"
        "          - residual: {body: [layernorm, linear: {out: %lld}, gelu, linear: {out: "
        "%lld}]}\n"
        "    - layernorm\n"
        "    - linear: {out: %lld, weight_of: token, bias: false, name: head} # the embedding's "
        "rows\n"
        "  loss: cross_entropy          # of each token; perplexity is exp of it\n",
        (long long)c->window, (long long)l->vocabulary, (long long)c->dim,
        l->format == TR_FORMAT_TEXT
            ? "a row for each byte"
            : "a row for each id that the file has; a tokenizer may have more",
        (long long)c->blocks, 3 * (long long)c->dim, (long long)c->heads, (long long)c->dim,
        4 * (long long)c->dim, (long long)c->dim, (long long)l->vocabulary);
}

tr_status tr_new_language_model(const tr_look *l, FILE *to)
{
    const choice c = choose(l);
    const tr_status st = write_data(l, &c, to);
    if (st != TR_OK) return st;
    write_model(l, &c, to);
    fprintf(to,
            "\ntrain:\n"
            "  epochs: %lld                   # passes over the text\n"
            "  batch: %lld                   # windows a step, of all ranks together\n"
            "  precision: fp32              # bf16: faster where the machine knows it\n"
            "  clip_norm: 1.0               # the gradient's norm at most\n"
            "  optimizer: {adamw: {lr: 0.002, weight_decay: 0.1}} # try lr three times larger and "
            "smaller first\n"
            "  schedule: {cosine: {warmup: 5%%}} # the rate rises, then falls to 0\n"
            "  result: best                 # a text that is learnt by heart says no others: the "
            "best evaluation's weights\n"
            "  eval: {every_epochs: 1}\n"
            "  checkpoint: {every_epochs: 1, keep: 2} # --resume goes on from the newest\n",
            (long long)c.epochs, (long long)c.batch);
    return TR_OK;
}
