/* The machine that this process runs on, by name: for records of what ran where. Local. */
#ifndef TR_HOST_H
#define TR_HOST_H

#include <stdint.h>

/* Texts are empty, numbers 0, where the system does not say. */
typedef struct {
    char name[64], cpu[128], kernel[192]; /* of the network; the model; "Linux 6.1.0 x86_64" */
    int64_t cores;                        /* that are online, hyper-threads counted */
    double memory;                        /* bytes */
} tr_host;
void tr_host_look(tr_host *out);

#endif
