/* ranks: 1 2 3 */
/* MPI's types for calls beyond its largest count: counted, by standing before MPI's own calls. */
#include "modes.h"

#include <mpi.h>

static unsigned char byte(int rank, size_t i)
{
    return (unsigned char)(i * 7 + (size_t)rank * 131 + (i >> 8));
}

/* Not exactly representable: a sum in another order shows in the last bits. */
static double value(int rank, size_t i)
{
    return (double)(rank + 1) / 3.0 + (double)i * 0.1;
}

static int types_made, types_freed;

int MPI_Type_commit(MPI_Datatype *type)
{
    types_made++;
    return PMPI_Type_commit(type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    types_freed++;
    return PMPI_Type_free(type);
}

/* What goes in pieces needs one type of MPI's a call, however many pieces there are, and gives it
 * back; what goes in one needs none. */
static void test_types_of_pieces(void **state)
{
    (void)state;
    static const test_mode narrow = {.name = "mpi, narrow", .nodes = 1, .mpi_limit = "48"};
    enum { MOST = 1000 };
    tr_comm *c = open_mode(&narrow, 30);
    const int rank = tr_comm_topology(c)->rank, size = tr_comm_topology(c)->size;
    unsigned char send[MOST], *recv = tr_alloc(TR_MEM_OTHER, MOST * (size_t)size, 1);
    double *v = tr_alloc(TR_MEM_OTHER, MOST * (size_t)size, sizeof *v), part[MOST];
    for (size_t i = 0; i < MOST; i++) send[i] = byte(rank, i);
    for (size_t n = 0; n <= MOST; n += n < 200 ? 1 : 50) {
        types_made = types_freed = 0;
        assert_int_equal(tr_comm_all_gather(c, send, recv, n), TR_OK);
        assert_int_equal(types_made, size > 1 && n > 48);
        for (size_t i = 0; i < n * (size_t)size; i++)
            assert_int_equal(recv[i], byte((int)(i / n), i % n));
        for (size_t i = 0; i < n * (size_t)size; i++) v[i] = value(rank, i);
        assert_int_equal(tr_comm_reduce_scatter(c, v, part, n, TR_F64), TR_OK);
        assert_int_equal(types_made, 2 * (size > 1 && n > 48));
        assert_int_equal(types_freed, 2 * types_made); /* what they are made from, too */
        for (size_t i = 0; i < n; i++) {
            double want = 0;
            for (int r = 0; r < size; r++) want += value(r, n * (size_t)rank + i);
            assert_true(part[i] == want);
        }
    }
    tr_comm_close(c);
    tr_free(recv);
    tr_free(v);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_types_of_pieces),
};

RUN_MPI_TESTS(tests)
