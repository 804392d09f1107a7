/* A dataset of ten samples of 2 x 3 values in an HDF5 file, and their labels. */
#ifndef TR_TEST_DATA_HDF5_FILES_H
#define TR_TEST_DATA_HDF5_FILES_H

#include "helpers.h"
#include "runtime/data/hdf5.h"

static const hsize_t x_dims[] = {10, 2, 3}, y_dims[] = {10};

__attribute__((unused)) static void use(world *w, const char *path, const char *inputs,
                                        const char *labels)
{
    w->c.data.train.path = (char *)path;
    w->c.data.train.inputs = inputs ? scalar(w, 0, inputs) : NULL;
    w->c.data.train.labels = (char *)labels;
}

__attribute__((unused)) static void fill(float *x, int32_t *y)
{
    for (int v = 0; v < 60; v++) x[v] = (float)v;
    for (int i = 0; i < 10; i++) y[i] = i % 3;
}

#endif
