/* For tests on files of goldens that have a group a case. */
#ifndef TR_TEST_GROUPS_H
#define TR_TEST_GROUPS_H

#include <hdf5.h>

/* Runs `one` on each group of `g`, by name; how many there are. */
static inline int test_each_group(hid_t g, void (*one)(hid_t at, const char *name))
{
    H5G_info_t info;
    assert_true(g >= 0 && H5Gget_info(g, &info) >= 0);
    for (hsize_t i = 0; i < info.nlinks; i++) {
        char name[64];
        assert_true(H5Lget_name_by_idx(g, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name,
                                       H5P_DEFAULT) > 0);
        const hid_t at = H5Gopen2(g, name, H5P_DEFAULT);
        one(at, name);
        H5Gclose(at);
    }
    return (int)info.nlinks;
}

#endif
