/* What a GPU does with a training step, from the program's own parts:
 *
 *     bench_gpu plan CONFIG [key=value ...]
 *         a line an op: kernel, shape, bytes and flops; needs no GPU
 *     bench_gpu ops CONFIG [key=value ...]      the same with the device's time of each op
 *     bench_gpu step CONFIG [key=value ...]     steps as they train: wall clock, device, idle share
 *     mpirun -np N bench_gpu allreduce [MB ...] the reducer of gradients, by size
 *
 * The first three are of one rank. tests/gpu/run runs all of them; tests/gpu/measure.py reads
 * them. */
#include "tests/bench/gpu.h"

#include <mpi.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr, "usage: bench_gpu plan|ops|step CONFIG [key=value ...] | allreduce [MB ...]\n");
    return 2;
}

static int over_mpi(int argc, char **argv)
{
    int provided;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return 1;
    const tr_status st = bench_allreduce(argc - 1, argv + 1);
    if (st != TR_OK) {
        fprintf(stderr, "bench_gpu: %s\n", tr_last_error()->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) return usage();
    const char *verb = argv[1];
    if (strcmp(verb, "allreduce") == 0) return over_mpi(argc, argv);
    if (strcmp(verb, "plan") != 0 && strcmp(verb, "ops") != 0 && strcmp(verb, "step") != 0)
        return usage();
    const tr_status st = bench_config(verb, argc - 1, argv + 1);
    if (st != TR_OK) fprintf(stderr, "bench_gpu: %s\n", tr_last_error()->text);
    return st == TR_OK ? 0 : 1;
}
