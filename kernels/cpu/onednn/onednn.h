/* oneDNN for kernels: primitives described the same way for versions 2.6 and 3.x, and a kernel made
 * of a few primitives whose arguments are operands of the op, its packed weights or its workspace.
 *
 * A kernel is built once (`tr_dnnl_open`, then calls with their arguments, then `tr_dnnl_finish`);
 * bind gives the memory objects their addresses and run only executes. Scratchpads are the
 * caller's: they lie in the workspace, behind whatever the kernel reserved there. */
#ifndef TR_CPU_ONEDNN_H
#define TR_CPU_ONEDNN_H

#include "kernels/cpu/internal.h"

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t tr_dnnl_md;
#else
typedef const dnnl_memory_desc_t *tr_dnnl_md;
#endif

/* oneDNN's status as ours; `what` completes "oneDNN could not ...". Needs `st` and `out`. */
#define TR_DNNL(expr, what)                                                                        \
    do {                                                                                           \
        dnnl_status_t dnnl_st_ = (expr);                                                           \
        if (dnnl_st_ != dnnl_success) {                                                            \
            st = tr_dnnl_fail(__FILE__, __LINE__, dnnl_st_, (what));                               \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
tr_status tr_dnnl_fail(const char *file, int line, dnnl_status_t status, const char *what);

bool tr_dnnl_has_bf16(tr_cpu *cpu);   /* a bf16 matrix product can be had */
const char *tr_dnnl_isa_extras(void); /* " BF16 AMX": what oneDNN uses beyond the vector width */

#endif
