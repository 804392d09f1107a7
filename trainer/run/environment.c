#include "trainer/run/environment.h"

#include "collectives/collectives.h"
#include "runtime/h5/h5.h"
#include "trainer/device/device.h"

void tr_environment_look(const tr_backend *b, void *ctx, int threads, tr_environment *out)
{
    *out = (tr_environment){.mpi = ""};
    tr_host_look(&out->host);
    tr_device_describe(b, ctx, threads, out->backend, sizeof out->backend);
    tr_mpi_version(out->mpi, sizeof out->mpi);
    tr_h5_version(out->hdf5, sizeof out->hdf5);
}

tr_status tr_environment_add(const tr_backend *b, void *ctx, int threads, tr_attrs *a)
{
    tr_status st = TR_OK;
    tr_environment e;
    tr_environment_look(b, ctx, threads, &e);
    const char *const texts[][2] = {{"computed_by", e.backend},
                                    {"mpi_version", e.mpi},
                                    {"hdf5_version", e.hdf5},
                                    {"host_cpu", e.host.cpu},
                                    {"host_kernel", e.host.kernel}};
    for (size_t i = 0; i < TR_COUNT(texts); i++)
        if (texts[i][1][0]) TR_TRY(tr_attrs_add_text(a, texts[i][0], texts[i][1]));
out:
    return st;
}
