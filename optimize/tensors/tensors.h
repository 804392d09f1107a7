/* A network's values as files of arrays by name, which other programs load: conv2d1.weight,
 * batchnorm1.running_mean, shapes as PyTorch has them. Written whole or not at all. Local. */
#ifndef TR_TENSORS_H
#define TR_TENSORS_H

#include "optimize/network/network.h"
#include "runtime/config/renames.h"

typedef enum { TR_TENSORS_SAFETENSORS, TR_TENSORS_NPZ, TR_TENSORS_HDF5 } tr_tensors_format;
/* Whether a file of this kind can have the model's arrays by these names: what writing it would
 * find. TR_CONFIG. */
tr_status tr_tensors_check(const tr_model *m, const tr_renames *names, tr_tensors_format format);

/* `names`: what the arrays are called and how they lie in the file, the inverse of tr_arrays_take
 * by the same; NULL: as in the network. TR_CONFIG where it has no inverse. `type`: TR_F32, TR_F16
 * or TR_BF16, of parameters; states are float32. `sha256`: of the run file that the values are of;
 * may be NULL. https://github.com/huggingface/safetensors#format */
tr_status tr_safetensors_write(const char *path, const tr_network *n, const tr_renames *names,
                               tr_dtype type, const char *sha256);
/* Plain HDF5, a dataset for each array, float32; TR_CONFIG where a name has a slash. */
tr_status tr_hdf5_write(const char *path, const tr_network *n, const tr_renames *names);
/* NumPy's archive of NPY files, not compressed; float32. TR_UNSUPPORTED from 4 GB on, which its
 * directory cannot say. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
tr_status tr_npz_write(const char *path, const tr_network *n, const tr_renames *names);

/* A Python module with a function load() for `file`, which lies beside it. */
tr_status tr_tensors_loader(const char *path, tr_tensors_format format, const char *file);

#endif
