/* The one lock around HDF5, which is not taken to be thread-safe: Debian's build is not, and a
 * loader thread may read a data set while the writer thread saves a checkpoint. */
#include "runtime/store/store.h"

#include <pthread.h>

static pthread_mutex_t hdf5_lock = PTHREAD_MUTEX_INITIALIZER;

void tr_hdf5_lock(void)
{
    pthread_mutex_lock(&hdf5_lock);
}

void tr_hdf5_unlock(void)
{
    pthread_mutex_unlock(&hdf5_lock);
}
