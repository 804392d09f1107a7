/* A whole training, for the stage `train` and for those that train within. */
#include "trainer/loop/trainer.h"

tr_status tr_train(const tr_trainer_options *o, bool *agreed)
{
    tr_trainer *t = NULL;
    tr_status st = tr_trainer_open(o, &t);
    *agreed = true;
    if (st != TR_OK) return st;
    st = tr_trainer_run(t);
    *agreed = st == TR_OK || st == TR_STOPPED || st == TR_NONFINITE || t->agreed;
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_trainer_close(t);
        tr_set_error(&why);
    }
    return st;
}
