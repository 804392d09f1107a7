/* What every stage may be asked for: bounds on what comes out of it. */
#include "optimize/stage.h"

#define NONE .auto_text = "none", .auto_value = -1

const tr_field tr_budget_fields[] = {
    TR_NUMBER("accuracy_drop", REAL, offsetof(tr_budget, accuracy_drop), "none", 0, 1, NULL,
              "most that accuracy on data.eval may fall, as a fraction: 0.005 is half a point",
              NONE),
    TR_NUMBER("loss_rise", REAL, offsetof(tr_budget, loss_rise), "none", 0, 1e6, NULL,
              "most that the loss on data.eval may rise", NONE),
    TR_NUMBER("size", REAL, offsetof(tr_budget, size), "none", 0, 1e6, NULL,
              "most that the file may be, as a fraction of the file of the model before; both "
              "without what a training left beside the model (history, optimizer); of export: what "
              "it exports",
              NONE),
    TR_NUMBER("latency_ms", REAL, offsetof(tr_budget, latency_ms), "none", 0, 1e9, "ms",
              "most that one sample may take, as a median", NONE),
    TR_NUMBER(
        "speedup", REAL, offsetof(tr_budget, speedup), "none", 0, 1e6, NULL,
        "least that one sample must be faster than with the model before: 1.5 is half as much "
        "again",
        NONE),
    TR_NUMBER("accuracy", REAL, offsetof(tr_budget, accuracy), "none", 0, 1, NULL,
              "least that accuracy on data.eval must be, as a fraction", NONE),
    TR_NUMBER("loss", REAL, offsetof(tr_budget, loss), "none", 0, 1e6, NULL,
              "most that the loss on data.eval may be", NONE),
    TR_NUMBER(
        "size_mb", REAL, offsetof(tr_budget, size_mb), "none", 0, 1e9, "MB",
        "most that the file may be, without what a training left beside the model; of export: "
        "what it exports",
        NONE),
    TR_END,
};

bool tr_budget_compares(const tr_budget *b)
{
    return b->accuracy_drop >= 0 || b->loss_rise >= 0 || b->size >= 0 || b->speedup >= 0;
}

const char *const tr_on_miss_names[] = {"fail", "keep_parent", "retry", NULL};
